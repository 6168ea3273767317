# Into ring 0 and back. Intel syntax.
#
# The CPU pushes its frame straight into the running thread's context: IST 1 of the TSS points at the
# end of context.frame (sched.rs keeps it so). The rest of the registers go below it, and then the
# vCPU's own kernel stack is used. trap() answers with the frame to resume. There is no swapgs: the GS
# base is the vCPU's block (vcpu.rs) in every ring.

.section .text.trap_entry, "ax"
# One 16-byte stub per vector (layout::VECTORS of them). The CPU itself pushes an error code for 8, 10-14, 17, 21, 29 and 30.
.balign 16
.global trap_stubs
trap_stubs:
.set vector, 0
.rept 48
    .balign 16
    .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21) && (vector != 29) && (vector != 30)
    push 0
    .endif
    push vector
    jmp trap_common
    .set vector, vector + 1
.endr

# A breakpoint in ring 3. There are two words for somebody outside:
#
# breakpoint_detours is zero, or the address of a table of breakpoints and where a thread that meets one goes on.
# The table is a mask, a word that means nothing, and slots of two words, the breakpoint and the place; a breakpoint is
# in the slot that is its address * 16 under the mask, or behind it up to the first empty one. It never changes: another
# one takes its place, by one store.
#
# breakpoints_from_outside is counted up before and after our text is changed while we run: while it is odd, the thread goes
# back to the breakpoint until an instruction stands there again. A breakpoint is ours alone only if the word was even
# and the same before and after we looked at it: a whole change can pass between any two of these
# instructions. Short, because ring 0 may be emulated.
.balign 16
.global breakpoint_entry
.type breakpoint_entry, @function
breakpoint_entry:
    push rax
    push rcx
    mov rax, [rsp + 16]         # behind the breakpoint
    mov rcx, [rip + breakpoint_detours]
    test rcx, rcx
    jnz 6f
2:  mov rcx, [rip + breakpoints_from_outside]
    test cl, 1
    jnz 3f
    cmp byte ptr [rax - 1], 0xcc
    jne 3f                      # it is gone already
    cmp rcx, [rip + breakpoints_from_outside]
    je 4f
3:  dec qword ptr [rsp + 16]
    pop rcx
    pop rax
    iretq
4:  sub rax, 1
    cmp rax, offset breakpoint_probe
    pop rcx
    pop rax
    je 5f
    push 0
    push 3
    jmp trap_common
5:  iretq                       # a probe of our own: behind it
6:  push rdx
    sub rax, 1
    mov rdx, rax
    shl rdx, 4
7:  and rdx, [rcx]
    cmp [rcx + rdx + 16], rax
    je 8f
    cmp qword ptr [rcx + rdx + 16], 0
    lea rdx, [rdx + 16]
    jne 7b
    pop rdx
    add rax, 1
    jmp 2b
8:  mov rax, [rcx + rdx + 24]
    mov [rsp + 24], rax
    pop rdx
    pop rcx
    pop rax
    iretq
.size breakpoint_entry, . - breakpoint_entry

.section .data.breakpoints_from_outside, "aw"
.balign 8
.global breakpoints_from_outside
.type breakpoints_from_outside, @object
breakpoints_from_outside: .quad 0
.size breakpoints_from_outside, 8
.global breakpoint_detours
.type breakpoint_detours, @object
breakpoint_detours: .quad 0
.size breakpoint_detours, 8
.section .text.trap_entry, "ax"

.type trap_common, @function
trap_common:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    mov rdi, rsp
    mov rsp, gs:[8]             # vcpu::Block::kernel_stack
    cld
    call trap
    mov rdi, rax
# rdi = the frame to resume.
.global resume_frame
.type resume_frame, @function
resume_frame:
    mov rsp, rdi
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16                 # vector, error code
    iretq
.size trap_common, . - trap_common

# Nothing to run: wait for an interrupt on an empty kernel stack. The interrupt's own frame is
# forgotten (IST 1 points at the block's idle frame), so this never resumes after hlt.
.global idle
.type idle, @function
idle:
    mov rsp, gs:[8]
2:  sti
    hlt
    jmp 2b
.size idle, . - idle

# The only SSE instructions in ring 0. fxsave and xsave are not emulated by a KVM that emulates
# ring 0; plain moves are. rdi = 256 bytes.
.global xmm_save
.type xmm_save, @function
xmm_save:
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    movups [rdi + 64], xmm4
    movups [rdi + 80], xmm5
    movups [rdi + 96], xmm6
    movups [rdi + 112], xmm7
    movups [rdi + 128], xmm8
    movups [rdi + 144], xmm9
    movups [rdi + 160], xmm10
    movups [rdi + 176], xmm11
    movups [rdi + 192], xmm12
    movups [rdi + 208], xmm13
    movups [rdi + 224], xmm14
    movups [rdi + 240], xmm15
    ret
.size xmm_save, . - xmm_save

.global xmm_restore
.type xmm_restore, @function
xmm_restore:
    movups xmm0, [rdi]
    movups xmm1, [rdi + 16]
    movups xmm2, [rdi + 32]
    movups xmm3, [rdi + 48]
    movups xmm4, [rdi + 64]
    movups xmm5, [rdi + 80]
    movups xmm6, [rdi + 96]
    movups xmm7, [rdi + 112]
    movups xmm8, [rdi + 128]
    movups xmm9, [rdi + 144]
    movups xmm10, [rdi + 160]
    movups xmm11, [rdi + 176]
    movups xmm12, [rdi + 192]
    movups xmm13, [rdi + 208]
    movups xmm14, [rdi + 224]
    movups xmm15, [rdi + 240]
    ret
.size xmm_restore, . - xmm_restore
.text
