/* costs call|file NAME: says what a system call costs, or opening, reading and closing a file, in steps of the time stamp
 * counter, one number for each of many rounds, ascending. Where that counter counts instructions (images/box/run --count), the
 * first is a round in which nothing else was done, and always the same. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

enum { ROUNDS = 101, CALLS = 500, FILES = 10 };

/* One that nothing else in the guest makes. */
static void call(void)
{
	syscall(SYS_sched_get_priority_max, 0);
}

static void file(void)
{
	char bytes[64];
	int found = open("/init", O_RDONLY | O_CLOEXEC);

	if (found < 0 || read(found, bytes, sizeof(bytes)) < 0) {
		perror("/init");
		exit(1);
	}
	close(found);
}

static int compare(const void *one, const void *other)
{
	const uint64_t *a = one, *b = other;

	return (*a > *b) - (*a < *b);
}

int main(int argc, char **argv)
{
	static uint64_t spent[ROUNDS];
	int is_call = argc == 3 && strcmp(argv[1], "call") == 0;
	int times = is_call ? CALLS : FILES;

	if (argc != 3 || (!is_call && strcmp(argv[1], "file") != 0)) {
		fprintf(stderr, "usage: costs call|file NAME\n");
		return 2;
	}
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t began = __rdtsc();

		for (int done = 0; done < times; done++)
			is_call ? call() : file();
		spent[round] = __rdtsc() - began;
	}
	qsort(spent, ROUNDS, sizeof(*spent), compare);
	printf("costs %s %s:", argv[1], argv[2]);
	for (int round = 0; round < ROUNDS; round++)
		printf(" %.2f", (double)spent[round] / times);
	printf("\n");
	return 0;
}
