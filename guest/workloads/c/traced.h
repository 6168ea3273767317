/* What the traced C functions have in common. The same source is compiled three times; PREFIX keeps the
 * names apart. */
#ifndef TRACED_H
#define TRACED_H

typedef unsigned long u64;

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
/* The symbol of a function in this build. */
#define NAME(name) JOIN(PREFIX, name)
/* A function that stays one: not inlined, cloned, merged, or analysed across calls. */
#define TRACED __attribute__((noipa))

/* The same value, of which the compiler knows nothing. */
#define opaque(value) ({ __typeof__(value) v_ = (value); __asm__ volatile("" : "+r"(v_)); v_; })

#endif
