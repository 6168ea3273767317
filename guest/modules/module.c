/* A module: a program of its own, linked to where the guest puts it (module.ld), with its own list of call
 * sites. What nobody calls is thrown away by the linker, list entry included. */
#include "module.h"

TRACED u64 module_leaf(u64 value)
{
    return opaque(value) * 0xc4ceb9fe1a85ec53UL + 3;
}

TRACED u64 module_step(u64 value)
{
    return module_leaf(value) ^ module_leaf(value + 1);
}

/* Where the guest comes in: the first byte of the module. */
__attribute__((section(".text.entry"))) TRACED u64 module_run(u64 value)
{
    return module_step(value) + (module_step(value ^ 5) << 1);
}
