/* The half of `hostile SEED DEEDS module` that is in the kernel: a module whose start attacks whoever watches from outside,
 * and then fails, so that it is gone again. It writes into the memory that is in no map, page tables, the lists of tasks and
 * modules, `panic_cpu`, LSTAR, the bases of GS, and to ports. What a kernel does not live with it undoes, mostly, after a
 * while in which whoever looks sees it.
 *
 * It is built without the kernel's headers, which an archive drops before the kernel. How large `struct module` is, and
 * where the name and the start are in it, images/linux/build.sh reads from a module of the kernel's package. All else that it
 * needs to know of its kernel the half outside writes into the orders. */
#include "hostile.h"

#define ERRNO_CANCELED 125
#define PRESENT 1ull
#define LARGE 0x80ull
#define FRAME 0x000ffffffffff000ull
#define LEVELS 4
/* Where a task's lists are looked for, and what is near them. */
#define TASK_BYTES 8192
#define NEAR 256
#define PROBE_PORT 0xf5
#define MSR_LSTAR 0xc0000082u
#define MSR_GS 0xc0000101u
#define MSR_KERNEL_GS 0xc0000102u

static volatile struct orders orders = { .magic = ORDERS_MAGIC };
static struct orders mine;
static volatile uint64_t *region;
/* What was done of each. */
static uint64_t done[ATTACKS];

typedef void *remap_fn(uint64_t at, uint64_t bytes, unsigned long flags);
typedef void unmap_fn(void *at);
typedef long nofault_fn(void *to, const void *from, uint64_t bytes);
typedef int print_fn(const char *format, ...);
typedef unsigned long traced_fn(unsigned long of);

static uint64_t below(uint64_t limit)
{
	return below_of(&mine.state, limit);
}

/* Whether there is memory at all is for the kernel to say. */
static int peek(uint64_t at, uint64_t *value)
{
	return ((nofault_fn *)mine.symbols[PEEK])(value, (void *)at, sizeof(*value)) == 0;
}

static int poke(uint64_t at, uint64_t value)
{
	return ((nofault_fn *)mine.symbols[POKE])((void *)at, &value, sizeof(value)) == 0;
}

static volatile uint64_t *used(void)
{
	return used_of(&mine.state, region, mine.pages, mine.known);
}

static uint64_t value(uint64_t old)
{
	return value_of(&mine.state, old, *used());
}

static uint64_t msr(uint32_t which)
{
	uint32_t low, high;

	__asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(which));
	return (uint64_t)high << 32 | low;
}

static void set_msr(uint32_t which, uint64_t value)
{
	__asm__ volatile("wrmsr" : : "c"(which), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

/* Something for others to look at: a traced call, where there can be one, the bell, and time. */
static void be_seen(int with_call)
{
	uint64_t turns = below(below(64) ? 200 : 20000);

	if (with_call)
		((traced_fn *)mine.symbols[TRACED])(below(1 << 20));
	OUT("b", (uint8_t)below(256), PROBE_PORT + below(3));
	while (turns--)
		__asm__ volatile("pause");
}

static int is_undone(void)
{
	return mine.one_stays == 0 || below(mine.one_stays) != 0;
}

/* Writes a word that its kernel uses. */
static int spoil(uint64_t at)
{
	uint64_t old;

	if (!peek(at, &old) || !poke(at, value(old)))
		return 0;
	be_seen(1);
	if (is_undone())
		poke(at, old);
	return 1;
}

/* An entry of the page tables of this processor, at any level. Nothing goes on without those of the kernel's half. */
static uint64_t table_entry(void)
{
	uint64_t base, table, entry = 0;
	unsigned depth = below(LEVELS), indices = is_undone() ? 256 : 512;

	if (!peek(mine.symbols[DIRECT_MAP], &base))
		return 0;
	__asm__ volatile("mov %%cr3, %0" : "=r"(table));
	for (unsigned level = 0;; level++) {
		uint64_t first = below(indices), at = 0;

		for (unsigned index = 0; index < indices; index++) {
			at = base + (table & FRAME) + (first + index) % indices * 8;
			if (!peek(at, &entry))
				return 0;
			if (entry & PRESENT)
				break;
		}
		if (!(entry & PRESENT))
			return 0;
		if (level == depth || level == LEVELS - 1 || (entry & LARGE))
			return at;
		table = entry;
		indices = 512;
	}
}

/* A link of a list that goes through these bytes. */
static uint64_t link_in(uint64_t start, uint64_t bytes)
{
	uint64_t words = bytes / 8, first = below(words);

	for (uint64_t word = 0; word < words; word++) {
		uint64_t at = start + (first + word) % words * 8, next, back;

		if (!peek(at, &next) || next == at || next >> 47 != 0x1ffff)
			continue;
		if (!peek(next + 8, &back) || back != at)
			continue;
		for (uint64_t steps = below(16); steps > 0 && peek(next, &back) && back >> 47 == 0x1ffff; steps--)
			next = back;
		return next;
	}
	return 0;
}

/* The link itself, or something near it: a name, a number, a pointer. */
static int spoil_list(uint64_t start, uint64_t bytes)
{
	uint64_t link = link_in(start, bytes);

	if (link == 0)
		return 0;
	return spoil(below(3) ? link + (below(2 * NEAR) - NEAR) * 8 : link + below(2) * 8);
}

/* One that the processor takes: others are faults. */
static uint64_t address(uint64_t old)
{
	uint64_t made = value(old);

	return (uint64_t)((int64_t)(made << 16) >> 16);
}

static int spoil_msr(uint32_t which)
{
	uint64_t old = msr(which);

	set_msr(which, address(old));
	/* What is traced looks there for its processor. */
	be_seen(which != MSR_GS || !is_undone());
	if (is_undone())
		set_msr(which, old);
	return 1;
}

static int attack(enum attack which)
{
	volatile uint64_t *word = used();
	uint64_t at;

	switch (which) {
	case WINDOW: *word = value(*word); return 1;
	case PORTS: port_of(&mine.state); return 1;
	case TABLES: at = table_entry(); return at != 0 && spoil(at);
	case TASKS: return spoil_list(mine.symbols[INIT_TASK], TASK_BYTES);
	case MODULES: return spoil_list(mine.symbols[MODULE_LIST], 8);
	case PANIC_CPU: return spoil(mine.symbols[PANICKING]);
	case LSTAR: return spoil_msr(MSR_LSTAR);
	default: return spoil_msr(below(2) ? MSR_GS : MSR_KERNEL_GS);
	}
}

/* With nothing of this processor's in between. */
static void alone(enum attack which)
{
	uint64_t flags;

	__asm__ volatile("pushfq; popq %0; cli" : "=r"(flags) : : "memory");
	done[which] += attack(which);
	__asm__ volatile("pushq %0; popfq" : : "r"(flags) : "memory", "cc");
}

static int start(void)
{
	print_fn *print;

	for (unsigned word = 0; word < sizeof(mine) / 8; word++)
		((uint64_t *)&mine)[word] = ((volatile uint64_t *)&orders)[word];
	print = (print_fn *)mine.symbols[PRINT];
	region = ((remap_fn *)mine.symbols[REMAP])(mine.region, mine.bytes, 1);
	if (region == 0)
		return -1;
	print("\0010hostile module on processor %llu\n", mine.processor);
	for (uint64_t deed = 0; deed < mine.deeds; deed++) {
		enum attack which = below(ATTACKS);

		while (!(mine.wanted >> which & 1))
			which = (which + 1) % ATTACKS;
		alone(which);
	}
	((unmap_fn *)mine.symbols[UNMAP])((void *)region);
	print("\0010hostile module did %llu window, %llu ports, %llu tables, %llu tasks, %llu modules, %llu panic_cpu, %llu lstar, %llu gs\n",
		done[WINDOW], done[PORTS], done[TABLES], done[TASKS], done[MODULES], done[PANIC_CPU], done[LSTAR], done[GS]);
	return -ERRNO_CANCELED;
}

/* As its kernel has it, of which nothing else is looked at before it is started. */
struct module {
	char before[MODULE_NAME_AT];
	char name[MODULE_START_AT - MODULE_NAME_AT];
	int (*start)(void);
	char after[MODULE_BYTES - MODULE_START_AT - 8];
};

__attribute__((section(".gnu.linkonce.this_module"), used, aligned(64)))
struct module __this_module = { .name = "hostile-", .start = start };

#define SAYS(words, line) __attribute__((section(".modinfo"), used, aligned(1))) static const char says_##line[] = words
#define SAY(words, line) SAYS(words, line)
SAY("license=GPL", license);
SAY("vermagic=" MODULE_VERMAGIC, vermagic);

_Static_assert(sizeof(struct module) == MODULE_BYTES, "the size is the kernel's");
