/* Arguments and results in every place that the ABI has: xmm registers, stack, memory, varargs. */
#include "traced.h"
#include <stdarg.h>

struct reals { double a, b; };                  /* xmm0, xmm1 */
struct mixed { u64 word; double real; };        /* rax, xmm0 */
struct words { u64 a, b; };                     /* rax, rdx */
struct large { u64 words[3]; double reals[2]; };/* in memory */
typedef float quad __attribute__((vector_size(16)));

static inline u64 bits(double real)
{
    u64 word;
    __builtin_memcpy(&word, &real, sizeof word);
    return word;
}

/* A number from 1 up to 2. */
static inline double unit(u64 word)
{
    double real;
    word = (word >> 12) | 0x3ff0000000000000UL;
    __builtin_memcpy(&real, &word, sizeof real);
    return real;
}

TRACED double NAME(ten_doubles)(double a, double b, double c, double d, double e, double f,
                                double g, double h, double i, double j)
{
    return a - b * c + d - e * f + g - h * i + j;
}

TRACED u64 NAME(nine_words)(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i)
{
    return a ^ (b << 1) ^ (c << 2) ^ (d << 3) ^ (e << 4) ^ (f << 5) ^ (g << 6) ^ (h << 7) ^ (i << 8);
}

TRACED struct reals NAME(give_reals)(double a, double b)
{
    return (struct reals){a + b, a - b};
}

TRACED struct mixed NAME(give_mixed)(u64 word, double real)
{
    return (struct mixed){word * 3, real * 3};
}

TRACED struct words NAME(give_words)(u64 a, u64 b)
{
    return (struct words){a + b, a ^ b};
}

/* Takes its argument on the stack and returns through a hidden pointer. */
TRACED struct large NAME(turn_large)(struct large in, float scale)
{
    return (struct large){{in.words[1], in.words[2], in.words[0]},
                          {in.reals[1] * scale, in.reals[0]}};
}

TRACED quad NAME(quads)(quad a, quad b)
{
    return a * b + a;
}

/* Pairs of a word and a double; al says how many vector registers are in use. */
TRACED double NAME(varargs)(u64 pairs, ...)
{
    double sum = 0;
    va_list list;
    va_start(list, pairs);
    while (pairs--) {
        u64 word = va_arg(list, u64);
        sum += unit(word) * va_arg(list, double);
    }
    va_end(list);
    return sum;
}

/* One iteration: one call of each. */
TRACED u64 NAME(floats)(u64 value)
{
    double r = unit(value);
    u64 sum = bits(NAME(ten_doubles)(r, r + 1, r + 2, r + 3, r + 4, r + 5, r + 6, r + 7, r + 8, r + 9));
    sum += NAME(nine_words)(value, value + 1, value + 2, value + 3, value + 4, value + 5, value + 6,
                            value + 7, value + 8);
    struct reals reals = NAME(give_reals)(r, 0.375);
    struct mixed mixed = NAME(give_mixed)(value, r);
    struct words words = NAME(give_words)(value, sum);
    sum ^= bits(reals.a) + bits(reals.b) + mixed.word + bits(mixed.real) + words.a + words.b;
    struct large large = {{value, sum, 7}, {reals.a, mixed.real}};
    large = NAME(turn_large)(large, 0.5f);
    sum += large.words[0] ^ large.words[1] ^ large.words[2];
    sum ^= bits(large.reals[0]) + bits(large.reals[1]);
    quad q = NAME(quads)((quad){1, (float)r, 3, (float)reals.b}, (quad){(float)r, 2, (float)r, 4});
    sum += bits((double)q[0]) + bits((double)q[1]) + bits((double)q[2]) + bits((double)q[3]);
    return sum ^ bits(NAME(varargs)(7UL, value, r, sum, r + 1, value + 1, r + 2, sum + 1, r + 3,
                                    value + 2, r + 4, sum + 2, r + 5, value + 3, r + 6));
}
