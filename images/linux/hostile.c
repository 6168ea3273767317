/* hostile SEED DEEDS [text] [module [ATTACK]...] [undone]: attacks whoever watches this machine from outside, as root of a stock
 * kernel, on each processor so many times. From outside of the kernel: words all over the memory that is in no memory map
 * (rings, cells, what hooks returns, page tables; with `text` the code there, too, which its own kernel executes), and ports
 * of the serial line, the clock, the doorbell and probes in every size. With `module` from inside (hostile_module.c), where
 * there is more to attack; `undone`: what a kernel does not live with is always undone. What follows is up to the kernel: it
 * may not live on. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hostile.h"

#define GIB (1ull << 30)
/* As much as the region has where no more was asked for. */
#define REGION (512ull << 20)
/* Pages to go on by where there are none. */
#define STEP 64
/* So often a module is loaded, which does a part of the deeds each time. */
#define LOADS 4
#define ONE_STAYS 400
#define MODULE "/modules/hostile.ko"

static const char *const attacks[ATTACKS] = {
	"window", "ports", "tables", "tasks", "modules", "panic_cpu", "lstar", "gs",
};
static const char *const symbols[SYMBOLS] = {
	"init_task", "modules", "panic_cpu", "page_offset_base", "memremap", "memunmap", "copy_from_kernel_nofault",
	"copy_to_kernel_nofault", "_printk", "int_sqrt",
};

/* What is to be done, also where no module does it. */
static struct orders orders;

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
	for (uint32_t page = 0; page < REGION / PAGE && orders.known < PAGES_MAX; page++) {
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
			orders.pages[orders.known++] = page;
	}
}

static volatile uint64_t *used(volatile uint64_t *region)
{
	return used_of(&orders.state, region, orders.pages, orders.known);
}

static void attack(volatile uint64_t *region)
{
	for (uint64_t deed = 0; deed < orders.deeds; deed++) {
		if (below_of(&orders.state, 4) == 0) {
			port_of(&orders.state);
		} else {
			volatile uint64_t *word = used(region);

			*word = value_of(&orders.state, *word, *used(region));
		}
		/* Something traced, so that what was written is used. */
		syscall(SYS_sched_get_priority_max, SCHED_FIFO);
	}
}

/* Where the kernel has what the module needs, as it tells its root. */
static void find_symbols(void)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	char line[512], name[256], of[64];

	while (file && fgets(line, sizeof(line), file)) {
		unsigned long long at;
		int words = sscanf(line, "%llx %*c %255s %63s", &at, name, of);

		for (int symbol = 0; words == 2 && symbol < SYMBOLS; symbol++) {
			if (orders.symbols[symbol] == 0 && strcmp(name, symbols[symbol]) == 0)
				orders.symbols[symbol] = at;
		}
	}
	if (file)
		fclose(file);
	for (int symbol = 0; symbol < SYMBOLS; symbol++) {
		if (orders.symbols[symbol] == 0) {
			fprintf(stderr, "hostile: the kernel has no %s\n", symbols[symbol]);
			exit(1);
		}
	}
}

/* The module's file. */
static unsigned char *read_module(size_t *bytes)
{
	int file = open(MODULE, O_RDONLY);
	struct stat found;
	unsigned char *image;

	if (file < 0 || fstat(file, &found) != 0) {
		perror("hostile: " MODULE);
		exit(1);
	}
	*bytes = found.st_size;
	image = malloc(*bytes);
	if (!image || read(file, image, *bytes) != (ssize_t)*bytes) {
		perror("hostile: " MODULE);
		exit(1);
	}
	close(file);
	return image;
}

/* Where in it these bytes are. */
static void *in_module(unsigned char *image, size_t bytes, const void *words, size_t length)
{
	void *at = memmem(image, bytes, words, length);

	if (!at) {
		fprintf(stderr, "hostile: " MODULE " is no such module\n");
		exit(1);
	}
	return at;
}

/* From inside, by a module of this processor's own. */
static void attack_inside(unsigned char *image, size_t bytes)
{
	static const uint64_t magic = ORDERS_MAGIC;
	struct orders *theirs = in_module(image, bytes, &magic, sizeof(magic));
	/* Its name stands in `struct module` alone, as its last byte tells. */
	char *name = in_module(image, bytes, "hostile-", sizeof("hostile-"));

	name[sizeof("hostile-") - 2] = (char)('0' + orders.processor);
	orders.deeds = (orders.deeds + LOADS - 1) / LOADS;
	for (int load = 0; load < LOADS; load++) {
		next_of(&orders.state);
		memcpy(theirs, &orders, sizeof(orders));
		/* It fails when it has come to its end. */
		if (syscall(SYS_init_module, image, bytes, "") == 0 || errno != ECANCELED) {
			perror("hostile: " MODULE);
			_exit(1);
		}
	}
}

static void take_words(char **words, int *with_text, int *with_module)
{
	for (; *words; words++) {
		*with_text |= strcmp(*words, "text") == 0;
		*with_module |= strcmp(*words, "module") == 0;
		if (strcmp(*words, "undone") == 0)
			orders.one_stays = 0;
		for (int attack = 0; attack < ATTACKS; attack++) {
			if (strcmp(*words, attacks[attack]) == 0)
				orders.wanted |= 1ull << attack;
		}
	}
	if (orders.wanted == 0)
		orders.wanted = (1ull << ATTACKS) - 1;
}

/* On each processor at once. */
static int attack_on_all(uint64_t seed, volatile uint64_t *region, unsigned char *module, size_t bytes)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	int status, failed = 0;

	for (long processor = 0; processor < processors; processor++) {
		if (fork() == 0) {
			cpu_set_t only;

			CPU_ZERO(&only);
			CPU_SET(processor, &only);
			sched_setaffinity(0, sizeof(only), &only);
			orders.processor = processor;
			orders.state = seed * 0x9e3779b97f4a7c15ull + processor + 1;
			if (module)
				attack_inside(module, bytes);
			else
				attack(region);
			_exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed;
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	int with_text = 0, with_module = 0;
	int memory = open("/dev/mem", O_RDWR | O_SYNC);
	volatile uint64_t *region;
	unsigned char *module = NULL;
	size_t bytes = 0;

	orders.magic = ORDERS_MAGIC;
	orders.deeds = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000;
	orders.one_stays = ONE_STAYS;
	orders.region = region_start();
	orders.bytes = REGION;
	take_words(argv + (argc > 3 ? 3 : argc), &with_text, &with_module);
	if (memory < 0 || iopl(3) != 0) {
		perror("hostile");
		return 1;
	}
	region = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, memory, (off_t)orders.region);
	if (region == MAP_FAILED) {
		perror("hostile: /dev/mem");
		return 1;
	}
	if (with_module) {
		find_symbols();
		module = read_module(&bytes);
	}
	look_around(region, with_text);
	printf("hostile at %#llx, %zu pages\n", (unsigned long long)orders.region, (size_t)orders.known);
	fflush(stdout);
	if (attack_on_all(seed, region, module, bytes) != 0)
		return 1;
	printf("hostile survived\n");
	return 0;
}
