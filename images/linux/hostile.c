/* hostile SEED DEEDS [text]: attacks whoever watches this machine from outside, as root of a stock kernel, on each processor
 * so many times: words all over the memory that is in no memory map (rings, cells, what hooks returns, page tables; with
 * `text` the code there, too, which its own kernel executes), and ports of the serial line, the clock, the doorbell and
 * probes in every size. What follows is up to the kernel: it may not live on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB (1ull << 30)
/* As much as the region has where no more was asked for. */
#define REGION (512ull << 20)
#define PAGE 4096ull
#define WORDS (PAGE / 8)
#define PAGES_MAX 8192
/* Pages to go on by where there are none. */
#define STEP 64

static uint64_t state;

/* xorshift64*: no library has the same numbers everywhere. */
static uint64_t next(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dull;
}

static uint64_t below(uint64_t limit)
{
	return next() % limit;
}

/* Where memory in no map begins: at the next GiB after all that the kernel was told of, and after the hole for devices. */
static uint64_t region_start(void)
{
	FILE *file = fopen("/proc/iomem", "r");
	char line[256];
	uint64_t end = 4 * GIB - 1;

	while (file && fgets(line, sizeof(line), file)) {
		unsigned long long from, to;

		if (strstr(line, "System RAM") && sscanf(line, " %llx-%llx", &from, &to) == 2 && to > end)
			end = to;
	}
	if (file)
		fclose(file);
	return (end + GIB) / GIB * GIB;
}

/* Pages of it that hold something and are no code, or with `text` all that hold something. */
static uint32_t pages[PAGES_MAX];
static size_t known;

/* Whether a page looks as stubs do, which jump a lot. */
static int is_text(volatile uint64_t *page)
{
	volatile uint8_t *bytes = (volatile uint8_t *)page;
	int jumps = 0;

	for (int at = 0; at < 512; at++)
		jumps += bytes[at] == 0xe9 || bytes[at] == 0xcc;
	return jumps > 5;
}

static void look_around(volatile uint64_t *region, int with_text)
{
	for (uint32_t page = 0; page < REGION / PAGE && known < PAGES_MAX; page++) {
		volatile uint64_t *at = region + page * WORDS;
		uint64_t any = 0;

		/* There is no memory: each access leaves the guest, and takes long. */
		if (at[0] == ~0ull) {
			page += STEP - 1;
			continue;
		}
		for (size_t word = 0; word < WORDS; word += 16)
			any |= at[word];
		if (any && (with_text || !is_text(at)))
			pages[known++] = page;
	}
}

/* A word of such a page. */
static volatile uint64_t *used(volatile uint64_t *region)
{
	return region + (known ? pages[below(known)] : 0) * WORDS + below(WORDS);
}

static uint64_t value(uint64_t old, volatile uint64_t *region)
{
	switch (below(8)) {
	case 0: return 0;
	case 1: return ~0ull;
	case 2: return old + 1 - below(3);
	case 3: return old ^ 1ull << below(64);
	case 4: return *used(region);
	case 5: return 0xffffffff80000000ull + below(1 << 30);
	case 6: return old << below(64);
	default: return next();
	}
}

static void ports(void)
{
	static const uint16_t known[] = {
		0x3f8, 0x3f9, 0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x3ff, 0x70, 0x71, 0xf5, 0xf6, 0xf7, 0x60, 0x61, 0x40, 0xcf8,
	};
	uint16_t port = known[below(sizeof(known) / sizeof(*known))];
	unsigned char bytes[64];

	memset(bytes, (int)next(), sizeof(bytes));
	switch (below(8)) {
	case 0: outb(next(), port); break;
	case 1: outw(next(), port); break;
	case 2: outl(next(), port); break;
	case 3: inb(port); break;
	case 4: inw(port); break;
	case 5: inl(port); break;
	case 6: insb(port, bytes, below(sizeof(bytes))); break;
	default: insl(port, bytes, below(sizeof(bytes) / 4)); break;
	}
}

static void attack(int processor, long deeds, volatile uint64_t *region)
{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(processor, &only);
	sched_setaffinity(0, sizeof(only), &only);
	for (long deed = 0; deed < deeds; deed++) {
		if (below(4) == 0) {
			ports();
		} else {
			volatile uint64_t *word = used(region);

			*word = value(*word, region);
		}
		/* Something traced, so that what was written is used. */
		syscall(SYS_sched_get_priority_max, SCHED_FIFO);
	}
}

int main(int argc, char **argv)
{
	long deeds = argc > 2 ? atol(argv[2]) : 1000;
	int with_text = argc > 3 && strcmp(argv[3], "text") == 0;
	int memory = open("/dev/mem", O_RDWR | O_SYNC);
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t start = region_start();
	volatile uint64_t *region;

	if (memory < 0 || iopl(3) != 0) {
		perror("hostile");
		return 1;
	}
	region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, memory, (off_t)start);
	if (region == MAP_FAILED) {
		perror("hostile: /dev/mem");
		return 1;
	}
	look_around(region, with_text);
	printf("hostile at %#llx, %zu pages\n", (unsigned long long)start, known);
	fflush(stdout);
	for (long processor = 0; processor < processors; processor++) {
		if (fork() == 0) {
			state = strtoull(argv[1] ? argv[1] : "1", NULL, 0) * 0x9e3779b97f4a7c15ull + processor + 1;
			attack(processor, deeds, region);
			_exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
	printf("hostile survived\n");
	return 0;
}
