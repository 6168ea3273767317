# From the loader's hands to C. `vmm run` enters at start in 64-bit mode (Linux 64-bit boot protocol), QEMU's -kernel
# (PVH) at start_pvh in 32-bit mode without paging. The tables map the first GIGABYTES to themselves, and the kernel stays
# on them.

#define EFER        0xc0000080
#define EFER_LME    0x100
#define CR4_PAE     0x20
#define CR0_PG_PE   0x80000001
#define PAGE_2M     0x200000
#define PRESENT_WRITABLE        3
#define PRESENT_WRITABLE_LARGE  0x83

.text
.code64
.globl start
.type start, @function
start:
    cli
    cld
    movl $pml4, %eax
    movq %rax, %cr3
    movl $stack_top, %esp
    call kernel_main
    ud2
.size start, . - start

.code32
.type start_pvh, @function
start_pvh:
    cli
    cld
    lgdt gdt_pointer
    movl $CR4_PAE, %eax
    movl %eax, %cr4
    movl $pml4, %eax
    movl %eax, %cr3
    movl $EFER, %ecx
    rdmsr
    orl $EFER_LME, %eax
    wrmsr
    movl $CR0_PG_PE, %eax
    movl %eax, %cr0
    ljmp $8, $start
.size start_pvh, . - start_pvh
.code64

#ifdef RAW
# The compiler's profiling function.
.globl __fentry__
.type __fentry__, @function
__fentry__:
    ret
.size __fentry__, . - __fentry__
#endif

.data
.balign 8
gdt:
    .quad 0
    .quad 0x00209a0000000000    # 64-bit code
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt
.balign 4096
pml4:
    .quad directories + PRESENT_WRITABLE
    .zero 511 * 8
directories:
    .set number, 0
    .rept GIGABYTES
    .quad directory + number * 4096 + PRESENT_WRITABLE
    .set number, number + 1
    .endr
    .zero (512 - GIGABYTES) * 8
directory:
    .set number, 0
    .rept 512 * GIGABYTES
    .quad number * PAGE_2M + PRESENT_WRITABLE_LARGE
    .set number, number + 1
    .endr

.bss
.balign 16
.zero 16384
stack_top:

.section .note.Xen, "a", @note
.balign 4
    .long 4                     # bytes of the name
    .long 4                     # bytes of what is said
    .long 18                    # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long start_pvh

.section .note.GNU-stack, "", @progbits
