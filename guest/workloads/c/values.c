/* Values that probes find: in registers, on the stack, in pieces, behind pointers, where nothing is, and optimised
 * out. Everything follows from `serial`, so that whoever knows it can check the rest. Compiled with debug
 * information, without optimisation and with it. */
#include "traced.h"

enum values_color { VALUES_RED, VALUES_GREEN = 5, VALUES_BLUE = -1 };

struct values_part {
    unsigned short id;
    signed char level;
    unsigned flags : 3;
    unsigned rest : 13;
};

struct values_item {
    u64 serial;
    const struct values_item *next;
    struct values_part part;
    enum values_color color;
    const char *name;
    int table[4];
};

struct values_pair {
    long first;
    long second;
};

static const enum values_color COLORS[3] = {VALUES_RED, VALUES_GREEN, VALUES_BLUE};
static const char *const NAMES[3] = {"red", "", "a name that is longer than most other names are, by far"};

/* Words, bytes and pointers in the six registers of arguments. */
TRACED u64 NAME(registers)(u64 serial, int number, unsigned char small, short narrow,
                           const struct values_item *item, const char *text)
{
    u64 sum = serial + (u64)number + small + (u64)narrow;
    sum += item->part.id + (u64)text[0];
    return opaque(sum);
}

/* Three arguments on the stack. */
TRACED u64 NAME(stacked)(u64 serial, long b, long c, long d, long e, long f, long seventh, int eighth,
                         unsigned char ninth)
{
    return opaque(serial) + (u64)(b + c + d + e + f + seventh + eighth + ninth);
}

/* A structure in two registers, and one of its own. */
TRACED long NAME(pieces)(struct values_pair pair, u64 serial)
{
    struct values_pair turned = {pair.second + 1, pair.first + 2};
    turned.first = opaque(turned.first);
    turned.second = opaque(turned.second); /* line: pieces */
    return turned.first - turned.second + (long)serial;
}

/* A pointer to nowhere, which is not followed. */
TRACED u64 NAME(nowhere)(u64 serial, const struct values_item *item)
{
    return opaque(serial) ^ (u64)item;
}

TRACED long NAME(step)(long value)
{
    return opaque(value) * 3 + 1;
}

/* `early` is dead when `late` is born. */
TRACED long NAME(locals)(u64 serial, long count)
{
    long early = count * 3 + 1;
    long sum = NAME(step)(early);
    long late = opaque(sum) ^ (long)serial;
    sum += NAME(step)(late); /* line: locals */
    return sum;
}

TRACED enum values_color NAME(color)(u64 serial)
{
    return COLORS[serial % 3];
}

TRACED const char *NAME(name)(u64 serial)
{
    return NAMES[serial % 3];
}

TRACED struct values_pair NAME(pair)(u64 serial)
{
    struct values_pair pair = {(long)serial * 2, -(long)serial};
    return pair;
}

TRACED _Bool NAME(is_odd)(u64 serial)
{
    return serial & 1;
}

/* One iteration. */
TRACED u64 NAME(values)(u64 serial)
{
    struct values_item last = {
        .serial = serial + 1,
        .color = COLORS[(serial + 1) % 3],
        .name = NAMES[(serial + 1) % 3],
    };
    struct values_item item = {
        .serial = serial,
        .next = &last,
        .part = {
            .id = (unsigned short)(serial >> 3),
            .level = (signed char)-serial,
            .flags = serial & 7,
            .rest = serial >> 5 & 0x1fff,
        },
        .color = NAME(color)(serial),
        .name = NAME(name)(serial),
        .table = {(int)serial, (int)(serial * 2), (int)(serial * 3), (int)(serial * 4)},
    };
    /* Not canonical, not mapped, and in the first page, by turns. */
    static const u64 NOWHERE[3] = {0x8000000000000000, 0xffffff0000001000, 0x10};
    long count = (long)(serial & 0xffff);
    u64 sum = NAME(registers)(serial, (int)(serial * -3), (unsigned char)serial, (short)~serial, &item,
                              item.name);
    sum += NAME(stacked)(serial, 1, 2, 3, 4, 5, -(long)serial, (int)(serial * 7), (unsigned char)(serial * 5));
    sum += (u64)NAME(pieces)(NAME(pair)(serial), serial);
    sum += NAME(nowhere)(serial, (const struct values_item *)NOWHERE[serial % 3]);
    sum += (u64)NAME(locals)(serial, count);
    sum += NAME(is_odd)(serial);
    __asm__ volatile("" : : "r"(sum), "m"(item), "m"(last));
    return serial + 1;
}
