/* What the files of the module have in common. */
#ifndef MODULE_H
#define MODULE_H

typedef unsigned long u64;

#define opaque(value) ({ __typeof__(value) v_ = (value); __asm__ volatile("" : "+r"(v_)); v_; })
#define TRACED __attribute__((noipa))

u64 module_leaf(u64 value);

#endif
