/* Ways to get from a place that may be watched to who watches it. Built without and with retpolines. */
#include "traced.h"

typedef void (*callback)(u64 a, u64 b, u64 c);

#define STRING2(text) #text
#define STRING(text) STRING2(text)

TRACED void NAME(count)(u64 a, u64 b, u64 c)
{
    __asm__ volatile("" : : "r"(a), "r"(b), "r"(c));
}

/* As a tracepoint's or a dynamic function's: one jump, that somebody retargets. */
void NAME(jump)(u64 a, u64 b, u64 c);
__asm__(".text\n.balign 16\n" STRING(NAME(jump)) ": jmp " STRING(NAME(count)) "\n");

static callback one[] = { NAME(count), 0 };
static callback two[] = { NAME(count), NAME(count), 0 };

static TRACED void iterate(callback *next, u64 a, u64 b, u64 c)
{
    while (*next)
        (*next++)(a, b, c);
}

#define LOOP(name, pass) \
    TRACED void NAME(name)(u64 calls) \
    { \
        for (; calls; calls--) { \
            pass; \
        } \
    }

LOOP(off, __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"))
LOOP(direct, NAME(jump)(calls, 1, 2))
LOOP(pointer, opaque(one[0])(calls, 1, 2))
LOOP(iterator1, iterate(opaque(&one[0]), calls, 1, 2))
LOOP(iterator2, iterate(opaque(&two[0]), calls, 1, 2))
