/* Times the traced functions beside their plain copies: peers CALLS ROUNDS. Prints lines as the guest's workload
   `bench` does: `bench NAME CALLS TICKS`. Never instrumented. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <x86intrin.h>

typedef unsigned long function(unsigned long);
function plain_leaf, traced_leaf, plain_calls_root, traced_calls_root;

enum { TREE = 63 };

/* For tools that are to be told when it begins and ends. */
void begin(void) __attribute__((weak));
void finish(void) __attribute__((weak));

static unsigned long with_rdtsc(unsigned long value)
{
    return plain_leaf(value) ^ __rdtsc();
}

static unsigned long now(void)
{
    _mm_lfence();
    unsigned long ticks = __rdtsc();
    _mm_lfence();
    return ticks;
}

static void measure(const char *name, function *timed, unsigned long calls, unsigned long each)
{
    unsigned long start = now();
    for (unsigned long left = calls / each; left > 0; left--)
        timed(left);
    unsigned long ticks = now() - start;
    printf("bench %s %lu %lu\n", name, calls / each * each, ticks);
}

/* As the vCPUs of the guests: the last CPU. */
static void pin(void)
{
    cpu_set_t set;
    int last = 0;
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            last = cpu;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv)
{
    unsigned long calls = argc > 1 ? strtoul(argv[1], 0, 0) : 20000;
    unsigned long rounds = argc > 2 ? strtoul(argv[2], 0, 0) : 10;
    pin();
    if (begin)
        begin();
    for (; rounds > 0; rounds--) {
        measure("leaf_plain", plain_leaf, calls, 1);
        measure("leaf_traced", traced_leaf, calls, 1);
        measure("leaf_rdtsc", with_rdtsc, calls, 1);
        measure("tree_plain", plain_calls_root, calls, TREE);
        measure("tree_traced", traced_calls_root, calls, TREE);
    }
    if (finish)
        finish();
    return 0;
}
