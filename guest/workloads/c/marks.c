/* Markers whose operands are in registers, on the stack, and constants. */
#include "marker.h"
#include "traced.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

/* Ten arguments: the last four are on the stack, where the second marker finds three of them. Nothing else
 * uses those. */
TRACED u64 NAME(marked)(u64 value, int less, unsigned char low, short turned, u64 e, u64 f,
                        long below, unsigned wide, u64 i, int last)
{
    u64 sum = value + e * 3 + f * 5 + i;
    MARKER4(TEXT(NAME(mark)), value, less, low, turned);
    MARKER4(TEXT(NAME(mark_stack)), below, wide, last, sum);
    return opaque(sum);
}

/* One iteration: three markers are passed. */
TRACED u64 NAME(marks)(u64 value)
{
    u64 next = NAME(marked)(value, (int)value, (unsigned char)value, (short)-value, value >> 7,
                            value << 9, -(long)value, (unsigned)(value >> 32), value ^ 0x55,
                            -(int)value);
    const int five = 5;
    const long minus = -7;
    MARKER4(TEXT(NAME(mark_constants)), five, minus, next, value);
    return next * 0x9e3779b97f4a7c15UL + 1;
}
