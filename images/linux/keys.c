/* keys N: does N times what nothing else in the guest does, each in a function that has a place which the kernel
 * rewrites: yields the processor, locks and unlocks a file, and sets a timer to nothing. Says so. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static int set(int file, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_len = 1 };

	return fcntl(file, F_SETLK, &lock);
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1;
	int file = open("/tmp/keys", O_RDWR | O_CREAT, 0600);
	struct itimerval nothing = { { 0, 0 }, { 0, 0 } };

	for (long done = 0; done < count; done++) {
		sched_yield();
		if (set(file, F_WRLCK) != 0 || set(file, F_UNLCK) != 0 ||
		    setitimer(ITIMER_REAL, &nothing, NULL) != 0) {
			perror("keys");
			return 1;
		}
	}
	printf("kept %ld\n", count);
	return 0;
}
