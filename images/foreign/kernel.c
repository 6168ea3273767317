/* A kernel that is not ours and no Linux: ring 0, one processor, no interrupts, memory at its own addresses. What it does
 * when it is told to by its serial line is the same every time, so that a trace of it can be compared call by call:
 *
 *   c   the work below, once
 *   q   ends it
 */

typedef unsigned long u64;

enum { SERIAL = 0x3f8, LINE_STATUS = SERIAL + 5, RECEIVED = 1, EXIT = 0xf4 };
enum { MIDDLES = 40, LEAVES = 3, DEPTH = 10 };

/* What the compiler puts no site in. */
#if defined(RAW)
#define PLAIN __attribute__((no_instrument_function, noinline))
#else
#define PLAIN __attribute__((patchable_function_entry(0, 0), noinline))
#endif
#define TRACED __attribute__((noinline, noclone))

static volatile u64 sum;

PLAIN static void out(unsigned short port, unsigned char byte) {
    asm volatile("outb %0, %1" : : "a"(byte), "Nd"(port));
}

PLAIN static unsigned char in(unsigned short port) {
    unsigned char byte;
    asm volatile("inb %1, %0" : "=a"(byte) : "Nd"(port));
    return byte;
}

PLAIN static void print(const char *text) {
    while (*text) out(SERIAL, *text++);
}

/* What is dead of the stack holds return addresses, those of stubs among them, which a tracer cannot tell from live ones. */
PLAIN static void scrub(void) {
    volatile u64 dead[256] __attribute__((unused));
    for (unsigned word = 0; word < 256; word++) dead[word] = 0;
}

PLAIN static unsigned char command(void) {
    while (!(in(LINE_STATUS) & RECEIVED)) asm volatile("pause");
    return in(SERIAL);
}

TRACED void work_leaf(u64 by) { sum += by; }

TRACED void work_middle(u64 by) {
    for (u64 leaf = 0; leaf < LEAVES; leaf++) work_leaf(by + leaf);
}

TRACED u64 work_deep(u64 left) { return left ? work_deep(left - 1) + sum : 1; }

TRACED void work_run(void) {
    for (u64 middle = 0; middle < MIDDLES; middle++) work_middle(middle);
    sum += work_deep(DEPTH - 1) & 1;
}

PLAIN void kernel_main(void) {
    print("foreign: ready\n");
    for (;;) {
        switch (command()) {
        case 'c':
            work_run();
            scrub();
            print("foreign: done\n");
            break;
        case 'q':
            out(EXIT, 0);
        }
    }
}
