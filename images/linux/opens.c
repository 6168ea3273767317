/* opens N: makes N attempts to open files, all relative to descriptor 77, and says of each what it asked for and
 * what came of it: `openat 77 NAME FLAGS MODE = RESULT`, numbers in decimal. Every third file does not exist. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DIRECTORY 77

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1;
	int directory = open("/tmp", O_RDONLY | O_DIRECTORY);

	if (directory < 0 || dup2(directory, DIRECTORY) < 0) {
		perror("opens: /tmp");
		return 1;
	}
	for (long number = 0; number < count; number++) {
		char name[64];
		int flags = number % 3 == 2 ? O_RDONLY : O_CREAT | O_RDWR | O_EXCL;
		int mode = number % 3 == 2 ? 0 : 0600 | (number & 7);
		long result;

		snprintf(name, sizeof(name), "opened-%ld", number * number);
		result = syscall(SYS_openat, DIRECTORY, name, flags, mode);
		printf("openat %d %s %d %d = %ld\n", DIRECTORY, name, flags, mode,
		       result < 0 ? (long)-errno : result);
		if (result >= 0)
			close(result);
	}
	return 0;
}
