/* A small tree of calls, a recursion and a tail call. */
#include "traced.h"

TRACED u64 NAME(leaf)(u64 value)
{
    return opaque(value) * 0xff51afd7ed558ccdUL + 1;
}

TRACED u64 NAME(branch)(u64 value)
{
    u64 first = NAME(leaf)(value);
    u64 second = NAME(leaf)(first ^ 3);
    return NAME(leaf)(second) ^ first;
}

/* Nothing but its entry: a thread that is preempted in here is most likely inside the patch site. */
TRACED void NAME(empty)(void)
{
}

/* Ten calls of itself, the first one included. */
TRACED u64 NAME(recurse)(u64 left, u64 value)
{
    if (left <= 1)
        return opaque(value);
    return opaque(NAME(recurse)(left - 1, value ^ left)) + left;
}

TRACED u64 NAME(tail_end)(u64 value)
{
    return opaque(value) ^ (value >> 17);
}

TRACED u64 NAME(tail_jump)(u64 value)
{
    return NAME(tail_end)(opaque(value) + 5);
}

/* One iteration. */
TRACED u64 NAME(root)(u64 value)
{
    value = NAME(branch)(value);
    value += NAME(branch)(value ^ 1);
    value = NAME(recurse)(10, value) * 0x9e3779b97f4a7c15UL;
    return (value << 23 | value >> 41) + NAME(tail_jump)(value);
}
