/* What both halves of an attack have: the one outside of the kernel (hostile.c), and the one inside (hostile_module.c). */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <stdint.h>

#define PAGE 4096ull
#define WORDS (PAGE / 8)
#define PAGES_MAX 8192
/* By which the half outside finds the orders in the module's file. */
#define ORDERS_MAGIC 0x6578306f72646572ull

/* What a module knows how to do; the names are in hostile.c. */
enum attack { WINDOW, PORTS, TABLES, TASKS, MODULES, PANIC_CPU, LSTAR, GS, ATTACKS };

/* What it needs of its kernel, which it finds by no symbol of its own: there are no headers to build it with. */
enum symbol {
	INIT_TASK, MODULE_LIST, PANICKING, DIRECT_MAP, REMAP, UNMAP, PEEK, POKE, PRINT, TRACED, SYMBOLS
};

struct orders {
	uint64_t magic;
	uint64_t state;
	uint64_t deeds;
	/* A bit for each attack that is wanted. */
	uint64_t wanted;
	/* Of so many deeds that a kernel does not live with, one stays; all are undone with 0. */
	uint64_t one_stays;
	uint64_t processor;
	uint64_t region;
	uint64_t bytes;
	uint64_t symbols[SYMBOLS];
	uint64_t known;
	/* Pages of the region that hold something. */
	uint32_t pages[PAGES_MAX];
};

/* xorshift64*: no library has the same numbers everywhere. */
static inline uint64_t next_of(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static inline uint64_t below_of(uint64_t *state, uint64_t limit)
{
	return next_of(state) % limit;
}

/* A word of a page that holds something. */
static inline volatile uint64_t *used_of(uint64_t *state, volatile uint64_t *region, const uint32_t *pages, uint64_t known)
{
	return region + (known ? pages[below_of(state, known)] : 0) * WORDS + below_of(state, WORDS);
}

/* What is written in the place of `old`; `other` is a word from elsewhere. */
static inline uint64_t value_of(uint64_t *state, uint64_t old, uint64_t other)
{
	switch (below_of(state, 8)) {
	case 0: return 0;
	case 1: return ~0ull;
	case 2: return old + 1 - below_of(state, 3);
	case 3: return old ^ 1ull << below_of(state, 64);
	case 4: return other;
	case 5: return 0xffffffff80000000ull + below_of(state, 1 << 30);
	case 6: return old << below_of(state, 64);
	default: return next_of(state);
	}
}

#define OUT(size, value, port) __asm__ volatile("out" size " %0, %w1" : : "a"(value), "Nd"((uint16_t)(port)))
#define IN(type, size, port)                                                                     \
	do {                                                                                     \
		type got;                                                                        \
		__asm__ volatile("in" size " %w1, %0" : "=a"(got) : "Nd"((uint16_t)(port)));     \
	} while (0)
#define STRING(way, size, register, bytes, port, count)                                          \
	do {                                                                                     \
		void *at = (bytes);                                                              \
		uint64_t left = (count);                                                         \
		__asm__ volatile("rep " way size : register(at), "+c"(left) : "d"((uint16_t)(port)) : "memory"); \
	} while (0)

/* One access of any size to a port that somebody outside listens at: the serial line, the clock (CMOS), the doorbell and
 * probes, the keyboard, the timer, PCI. */
static inline void port_of(uint64_t *state)
{
	static const uint16_t listened[] = {
		0x3f8, 0x3f9, 0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x3ff, 0x70, 0x71, 0xf5, 0xf6, 0xf7, 0x60, 0x61, 0x40, 0xcf8,
	};
	uint16_t port = listened[below_of(state, sizeof(listened) / sizeof(*listened))];
	uint64_t bytes[8];

	for (unsigned at = 0; at < 8; at++)
		bytes[at] = next_of(state);
	switch (below_of(state, 12)) {
	case 0: OUT("b", (uint8_t)next_of(state), port); break;
	case 1: OUT("w", (uint16_t)next_of(state), port); break;
	case 2: OUT("l", (uint32_t)next_of(state), port); break;
	case 3: IN(uint8_t, "b", port); break;
	case 4: IN(uint16_t, "w", port); break;
	case 5: IN(uint32_t, "l", port); break;
	case 6: STRING("ins", "b", "+D", bytes, port, below_of(state, 64)); break;
	case 7: STRING("ins", "w", "+D", bytes, port, below_of(state, 32)); break;
	case 8: STRING("ins", "l", "+D", bytes, port, below_of(state, 16)); break;
	case 9: STRING("outs", "b", "+S", bytes, port, below_of(state, 64)); break;
	case 10: STRING("outs", "w", "+S", bytes, port, below_of(state, 32)); break;
	default: STRING("outs", "l", "+S", bytes, port, below_of(state, 16)); break;
	}
}

#endif
