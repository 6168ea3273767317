//! The functions of the test ground: what stands after their patch sites.

use insn::asm::registers::{gpr64, xmm};
use insn::asm::{AsmMemoryOperand, AsmRegister64, CodeAssembler, assemble, lea_fixed, ptr};
use tracer::stub::spec::SiteShape;

use crate::ground::Ground;

/// Stores every register and its argument on the stack, and returns values in rax, rdx, xmm0, xmm1.
pub const VALUES: u32 = 0;
/// Ends with a jump to [`VALUES`].
pub const TAIL: u32 = 1;
/// Calls itself, rdi deep, without a frame: its return addresses lie one beside the other.
pub const RECURSIVE: u32 = 2;
/// As [`VALUES`], with the site after the prologue.
pub const PROLOGUE: u32 = 3;
/// With the site after the prologue; ends with a jump to [`TAIL`].
pub const PROLOGUE_TAIL: u32 = 4;
/// Does nothing.
pub const LEAF: u32 = 5;
/// Calls [`LEAF`] twice.
pub const NESTED: u32 = 6;
/// Ends with a jump to [`PROLOGUE`], which has its own frame.
pub const TAIL_TO_PROLOGUE: u32 = 7;

/// Returns by a jump, as nothing does whose return could be hooked.
pub const OTHER_RETURN: u32 = 8;

/// The general registers in the order of [`crate::cpu::Registers::general`].
pub const GENERAL: [AsmRegister64; 15] = {
    use gpr64::{r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi};
    [
        rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15,
    ]
};

/// Where the site of a function stands, where returns are hooked.
pub const fn shape(number: u32) -> SiteShape {
    match number {
        PROLOGUE | PROLOGUE_TAIL => SiteShape::AfterPrologue,
        LEAF => SiteShape::Bare,
        OTHER_RETURN => SiteShape::EntryOnly,
        _ => SiteShape::Entry,
    }
}

/// The same where no return is hooked.
pub const fn shape_without_hooks(number: u32) -> SiteShape {
    match number {
        PROLOGUE | PROLOGUE_TAIL => SiteShape::AfterPrologue,
        TAIL | LEAF => SiteShape::Bare,
        OTHER_RETURN => SiteShape::EntryOnly,
        _ => SiteShape::Entry,
    }
}

/// What stands before the site.
pub const fn prologue(shape: SiteShape) -> &'static [u8] {
    match shape {
        SiteShape::Entry | SiteShape::Bare | SiteShape::EntryOnly => &[],
        // push rbp; mov rbp, rsp
        SiteShape::AfterPrologue => &[0x55, 0x48, 0x89, 0xe5],
    }
}

/// The body at `at` that counts and returns, and changes nothing that callers know of.
pub fn leaf(at: u64, counter: u64, shape: SiteShape) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    count(&mut a, counter, shape);
    if shape == SiteShape::AfterPrologue {
        a.pop(gpr64::rbp).unwrap();
    }
    a.ret().unwrap();
    assemble(&mut a, at).unwrap().bytes
}

fn count(a: &mut CodeAssembler, counter: u64, shape: SiteShape) {
    if shape.keeps_all() {
        a.pushfq().unwrap();
        a.push(gpr64::r11).unwrap();
    }
    let counter = word(a, counter);
    a.lock().inc(counter).unwrap();
    if shape.keeps_all() {
        a.pop(gpr64::r11).unwrap();
        a.popfq().unwrap();
    }
}

/// The word at `address`, by way of r11, which is nobody's.
fn word(a: &mut CodeAssembler, address: u64) -> AsmMemoryOperand {
    lea_fixed(a, gpr64::r11, address).unwrap();
    insn::asm::qword_ptr(gpr64::r11)
}

/// The body at `at` of a function where returns are hooked.
pub fn graph(number: u32, at: u64, ground: &Ground) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    a.set_prefer_short_branch(false);
    match number {
        VALUES | PROLOGUE => values(&mut a, ground, shape(number)),
        _ => {}
    }
    count(&mut a, ground.body_counter(number), shape(number));
    match number {
        TAIL => a.jmp(ground.function(VALUES)).unwrap(),
        TAIL_TO_PROLOGUE => a.jmp(ground.function(PROLOGUE)).unwrap(),
        PROLOGUE_TAIL => {
            a.pop(gpr64::rbp).unwrap();
            a.jmp(ground.function(TAIL)).unwrap();
        }
        RECURSIVE => {
            let mut end = a.create_label();
            a.dec(gpr64::rdi).unwrap();
            a.je(end).unwrap();
            a.call(ground.function(RECURSIVE)).unwrap();
            a.set_label(&mut end).unwrap();
            a.ret().unwrap();
        }
        NESTED => {
            a.call(ground.function(LEAF)).unwrap();
            a.call(ground.function(LEAF)).unwrap();
            a.ret().unwrap();
        }
        PROLOGUE => {
            a.pop(gpr64::rbp).unwrap();
            a.ret().unwrap();
        }
        OTHER_RETURN => {
            a.lea(gpr64::rsp, ptr(gpr64::rsp + 8)).unwrap();
            a.jmp(insn::asm::qword_ptr(gpr64::rsp - 8)).unwrap();
        }
        _ => a.ret().unwrap(),
    }
    assemble(&mut a, at).unwrap().bytes
}

fn values(a: &mut CodeAssembler, ground: &Ground, shape: SiteShape) {
    use gpr64::{rax, rdx, rsp};
    for (register, slot) in GENERAL.iter().zip(0..) {
        let word = word(a, ground.seen() + 8 * slot);
        a.mov(word, *register).unwrap();
    }
    let pointer = word(a, ground.seen() + 120);
    a.mov(pointer, rsp).unwrap();
    // Above the return address, and the saved rbp where there is one.
    let above = 8 + prologue_pushes(shape);
    a.mov(rax, insn::asm::qword_ptr(rsp + above)).unwrap();
    let argument = word(a, ground.seen() + 128);
    a.mov(argument, rax).unwrap();
    let results = gpr64::r11;
    lea_fixed(a, results, ground.results()).unwrap();
    a.mov(rax, ptr(results)).unwrap();
    a.mov(rdx, ptr(results + 8)).unwrap();
    a.movdqu(xmm::xmm0, ptr(results + 16)).unwrap();
    a.movdqu(xmm::xmm1, ptr(results + 32)).unwrap();
}

/// Bytes between the stack pointer and the return address in the body.
pub const fn prologue_pushes(shape: SiteShape) -> u64 {
    match shape {
        SiteShape::Entry | SiteShape::Bare | SiteShape::EntryOnly => 0,
        SiteShape::AfterPrologue => 8,
    }
}
