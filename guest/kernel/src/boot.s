# From the loader's hands to Rust, for the boot vCPU and for the others. Intel syntax.
#
# _start runs at its physical address under the loader's identity map (Linux 64-bit boot protocol:
# rsi = boot_params), loads the page tables below and jumps to the high half. The other vCPUs
# start in real mode in a copy of ap_trampoline and arrive at ap_high. A loader of the PVH boot protocol (QEMU's -kernel)
# enters at pvh_start in 32-bit mode without paging, ebx = hvm_start_info.

.set HIGH, 0xffffffff80000000
.set TRAMPOLINE, 0x80000        # = layout::AP_TRAMPOLINE
.set KERNEL_STACK, 0x4000       # = layout::KERNEL_STACK_SIZE
.set MAX_VCPUS, 16              # = layout::MAX_VCPUS
.set EFER, 0xc0000080
.set EFER_LME_NXE, 0x900
.set CR4_PAE_FXSR_XMMEXCPT, 0x620
.set CR0_PG_WP_NE_ET_MP_PE, 0x80010033

.section .boot.text, "ax"
.code64
.global _start
.type _start, @function
_start:
    cli
    cld
    mov ebx, esi
    mov ecx, EFER
    rdmsr
    or eax, EFER_LME_NXE
    wrmsr
    mov eax, CR4_PAE_FXSR_XMMEXCPT
    mov cr4, rax
    lea rax, [rip + pml4]
    mov cr3, rax
    mov eax, CR0_PG_WP_NE_ET_MP_PE
    mov cr0, rax
    movabs rax, offset boot_high
    jmp rax
boot_high:
    lea rsp, [rip + kernel_stacks + KERNEL_STACK]
    xor ebp, ebp
    mov edi, ebx
    call boot_vcpu_main
    ud2
.size _start, . - _start

# A boot_params is made of the start info: all that is read of it is the command line.
.set START_INFO_CMDLINE, 24     # hvm_start_info::cmdline_paddr, Xen include/public/arch-x86/hvm/start_info.h
.set BOOT_PARAMS_CMDLINE, 0x228
.code32
.type pvh_start, @function
pvh_start:
    cli
    cld
    mov eax, [ebx + START_INFO_CMDLINE]
    mov [pvh_boot_params - HIGH + BOOT_PARAMS_CMDLINE], eax
    mov esi, offset pvh_boot_params - HIGH
    lgdt [pvh_gdt_pointer - HIGH]
    mov eax, CR4_PAE_FXSR_XMMEXCPT
    mov cr4, eax
    mov eax, offset pml4 - HIGH
    mov cr3, eax
    mov ecx, EFER
    rdmsr
    or eax, EFER_LME_NXE
    wrmsr
    mov eax, CR0_PG_WP_NE_ET_MP_PE
    mov cr0, eax
    # Far jump, spelled out: assemblers disagree about its name.
    .byte 0xea
    .long _start - HIGH
    .word 8
.size pvh_start, . - pvh_start
.balign 8
pvh_gdt:
    .quad 0
    .quad 0x00209a0000000000    # 64-bit code
pvh_gdt_pointer:
    .word pvh_gdt_pointer - pvh_gdt - 1
    .long pvh_gdt - HIGH

# Where a loader of the PVH boot protocol enters.
.section .note.Xen, "a", @note
.balign 4
    .long 4                     # bytes of the name
    .long 8                     # bytes of what is said
    .long 18                    # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start - HIGH

.section .boot.text, "ax"
.global ap_trampoline
.global ap_trampoline_end
.code16
ap_trampoline:
    cli
    cld
    mov ax, cs
    mov ds, ax
    # lgdt [ap_gdt_pointer - ap_trampoline], spelled out: a difference is not taken as an address.
    .byte 0x0f, 0x01, 0x16
    .word ap_gdt_pointer - ap_trampoline
    mov eax, CR4_PAE_FXSR_XMMEXCPT
    mov cr4, eax
    mov eax, offset pml4 - HIGH
    mov cr3, eax
    mov ecx, EFER
    rdmsr
    or eax, EFER_LME_NXE
    wrmsr
    mov eax, CR0_PG_WP_NE_ET_MP_PE
    mov cr0, eax
    # Far jump with a 32-bit offset, spelled out: assemblers disagree about its name.
    .byte 0x66, 0xea
    .long TRAMPOLINE + ap_long - ap_trampoline
    .word 8
.code64
ap_long:
    movabs rax, offset ap_high
    jmp rax
.balign 8
ap_gdt:
    .quad 0
    .quad 0x00209a0000000000    # 64-bit code
ap_gdt_pointer:
    .word ap_gdt_pointer - ap_gdt - 1
    .long TRAMPOLINE + ap_gdt - ap_trampoline
ap_trampoline_end:

# A vCPU has the number of its APIC, whenever it arrives; one that nobody asked for stays here.
.type ap_high, @function
ap_high:
    mov eax, 1
    cpuid
    shr ebx, 24
    mov edi, ebx
    cmp edi, [rip + ap_limit]
    jae 2f
    lea eax, [rdi + 1]
    imul eax, eax, KERNEL_STACK
    lea rsp, [rip + kernel_stacks]
    add rsp, rax
    xor ebp, ebp
    call other_vcpu_main
2:  cli
    hlt
    jmp 2b
.size ap_high, . - ap_high

.section .boot.data, "aw"
.balign 4
.global ap_limit
ap_limit: .long 1

# The GS base of each vCPU, whether it has been started or not, for whoever wants to know before.
.balign 8
.global vcpu_gs_bases
.type vcpu_gs_bases, @object
vcpu_gs_bases:
    .set block, 0
    .rept MAX_VCPUS
    .quad vcpu_blocks + block
    .set block, block + 4096
    .endr
.size vcpu_gs_bases, . - vcpu_gs_bases

# Page tables. P=1 W=2 U=4 PS=0x80 NX=1<<63. Accessed and dirty (0x60) are set beforehand.
# All of PML4[511] and its PDPT entry is open to ring 3 and writable; the pages decide.
.set TABLE, 0x67
.set SUPERVISOR_TEXT, 0xe1
.set SUPERVISOR_DATA, 0x80000000000000e3
.set USER_TEXT, 0xe5
.set USER_RODATA, 0x80000000000000e5
.set USER_DATA, 0x80000000000000e7
.set USER_CODE, 0xe7            # made at run time: written and executed

.balign 4096
.global pml4
pml4:
    .quad low_pdpt - HIGH + TABLE
    .fill 510, 8, 0
    .quad high_pdpt - HIGH + TABLE
low_pdpt:
    .quad low_pd - HIGH + TABLE
    .fill 511, 8, 0
high_pdpt:
    .fill 510, 8, 0
    .quad high_pd - HIGH + TABLE
    .quad 0
# The first GiB of memory at its own address, for boot_params and for vCPUs that start.
low_pd:
    .set address, 0
    .rept 512
    .quad address + 0xe3
    .set address, address + 0x200000
    .endr
# The image (link.ld). Everything else stays free.
high_pd:
    .fill 8, 8, 0
    .quad 0x1000000 + SUPERVISOR_TEXT
    .quad 0x1200000 + SUPERVISOR_DATA
    .quad 0x1400000 + USER_TEXT
    .quad 0x1600000 + USER_RODATA
    .quad 0x1800000 + USER_DATA
    .quad 0x1a00000 + USER_DATA
    .quad 0x1c00000 + USER_DATA
    .quad 0
    .quad 0x2000000 + USER_CODE
    .quad 0x2200000 + USER_CODE
    .quad 0x2400000 + USER_CODE
    .quad 0x2600000 + USER_CODE
    .quad 0x2800000 + USER_CODE
    .fill 491, 8, 0

.section .boot.bss, "aw", @nobits
.balign 4096
.global kernel_stacks
kernel_stacks:
    .skip MAX_VCPUS * KERNEL_STACK
pvh_boot_params:
    .skip 4096
.text

# Where a vCPU has the number of the thread that it runs, from its GS base on (vcpu.rs), for whoever asks from outside.
.global vcpu_current_thread
.set vcpu_current_thread, 16
