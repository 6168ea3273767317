/* syscalls N: makes one system call N times that nothing else in the guest makes, and says so. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1;

	for (long done = 0; done < count; done++)
		syscall(SYS_sched_get_priority_max, 0);
	printf("made %ld\n", count);
	return 0;
}
