/* What the tools trace: the leaf and the tree that the bundled guest has (guest/workloads/src/bench.rs, calls.rs).
   This file is compiled with a tool's instrumentation as traced_..., and without as plain_.... */
#ifdef PLAIN
#define NAME(name) plain_##name
#else
#define NAME(name) traced_##name
#endif

#define ALONE __attribute__((noinline, aligned(64)))
/* Not a function: some tools would trace it. */
#define OPAQUE(value) __asm__ volatile("" : "+r"(value))

ALONE unsigned long NAME(leaf)(unsigned long value)
{
    unsigned long hidden = value;
    OPAQUE(hidden);
    return (hidden * 5 ^ 0x55555555) + value;
}

ALONE unsigned long NAME(calls_leaf)(unsigned long value)
{
    OPAQUE(value);
    value *= 0x9e3779b97f4a7c15;
    return value << 7 | value >> 57;
}

#define TWICE(name, next)                                                                                              \
    ALONE unsigned long NAME(name)(unsigned long value)                                                                \
    {                                                                                                                  \
        unsigned long first = NAME(next)(value);                                                                       \
        unsigned long second = NAME(next)(first ^ 1);                                                                  \
        OPAQUE(second);                                                                                                \
        return second + first;                                                                                         \
    }

TWICE(calls_twig, calls_leaf)
TWICE(calls_branch, calls_twig)
TWICE(calls_bough, calls_branch)
TWICE(calls_trunk, calls_bough)
TWICE(calls_root, calls_trunk)
