//! What ring 3 asks of ring 0.
//!
//! The call instruction is `ud2`: on hosts that emulate ring 0, neither `syscall` nor `int n` works
//! from ring 3, and `int3` is left for whoever changes our text from outside. The kernel knows this one `ud2` by its address; any
//! other is an unexpected exception.

use core::arch::global_asm;

global_asm!(
    ".section .text.kernel_call, \"ax\"",
    ".balign 16",
    ".global kernel_call",
    ".type kernel_call, @function",
    "kernel_call:",
    "ud2",
    "ret",
    ".size kernel_call, . - kernel_call",
    ".text",
);

/// A breakpoint of the guest's own, for measuring: the kernel goes on after it.
pub fn breakpoint() {
    breakpoint_probe();
}

global_asm!(
    ".section .text.breakpoint_probe, \"ax\"",
    ".balign 16",
    ".global breakpoint_probe",
    ".type breakpoint_probe, @function",
    "breakpoint_probe:",
    "int3",
    "ret",
    ".size breakpoint_probe, . - breakpoint_probe",
    ".text",
);

unsafe extern "C" {
    safe fn breakpoint_probe();
}

unsafe extern "C" {
    fn kernel_call(number: u64, a: u64, b: u64, c: u64) -> u64;
}

const EXIT: u64 = 0;
const WRITE: u64 = 1;
const SPAWN: u64 = 2;
const JOIN: u64 = 3;
const READ_BYTE: u64 = 4;
const GIVE_WAY: u64 = 5;
const END: u64 = 6;
const EXCHANGE_TEXT: u64 = 7;
const ANNOUNCE: u64 = 8;
const FREE_INIT_TEXT: u64 = 9;
const SET_CLOCK_AHEAD: u64 = 14;
const RENEW_TABLES: u64 = 15;
const REPLACE_TEXT: u64 = 16;

const RING: u64 = 10;
const WINDOW: u64 = 11;
const TWIST: u64 = 12;
const SURVIVE: u64 = 13;

const NONE: u64 = u64::MAX;

/// Ends this thread.
pub fn exit() -> ! {
    call(EXIT, 0, 0, 0);
    never()
}

/// Writes to the console.
pub fn write(text: &[u8]) {
    call(WRITE, text.as_ptr() as u64, text.len() as u64, 0);
}

/// Starts a thread on any vCPU, or on one. `None`: too many threads.
pub fn spawn(entry: extern "C" fn(u64) -> !, argument: u64, vcpu: Option<u64>) -> Option<u64> {
    let thread = call(
        SPAWN,
        entry as *const () as u64,
        argument,
        vcpu.unwrap_or(NONE),
    );
    (thread != NONE).then_some(thread)
}

/// Waits until every other thread has ended.
pub fn join() {
    call(JOIN, 0, 0, 0);
}

/// A byte from the console, if one was typed.
pub fn read_byte() -> Option<u8> {
    u8::try_from(call(READ_BYTE, 0, 0, 0)).ok()
}

/// What happens to text.
#[derive(Debug, Clone, Copy)]
pub enum Text {
    /// It has been loaded; nobody has called it yet.
    IsThere,
    /// It is about to be given back; nobody will call it again.
    Goes,
}

/// Tells whoever watches from outside about the text at `start`, and waits until that has been seen to.
pub fn announce(start: u64, text: Text) {
    call(ANNOUNCE, start, u64::from(matches!(text, Text::IsThere)), 0);
}

/// Tells whoever watches from outside anything, so often, whatever others tell at the same time.
pub fn ring(start: u64, is_there: u64, times: u64) {
    call(RING, start, is_there, times);
}

/// A large page of the window of whoever watches from outside.
#[derive(Debug, Clone, Copy)]
pub struct WindowPage {
    /// Its entry in the page directory of the image.
    pub entry: u64,
    /// Where it is.
    pub start: u64,
    /// Whether ring 3 may write there.
    pub may_write: bool,
}

/// The first page of the window from this entry of the page directory on, if there is one.
pub fn window(from: u64) -> Option<WindowPage> {
    let found = call(WINDOW, from, 0, 0);
    (found != NONE).then_some(WindowPage {
        entry: found >> 21 & 0x1ff,
        start: found & !1,
        may_write: found & 1 != 0,
    })
}

/// Makes this entry of the page directory wrong for a moment, in these bits, if it leads to a page of the window.
pub fn twist(entry: u64, bits: u64) {
    call(TWIST, entry, bits, 0);
}

/// From now on an exception ends its thread, and not the VM. How many threads there are.
pub fn survive() -> u64 {
    call(SURVIVE, 0, 0, 0)
}

/// Gives the text back that was needed at the start only.
pub fn free_init_text() {
    call(FREE_INIT_TEXT, 0, 0, 0);
}

/// Sets the time stamp counter of this vCPU so many ticks ahead. Says whether that is possible.
pub fn set_clock_ahead(ticks: u64) -> bool {
    call(SET_CLOCK_AHEAD, ticks, 0, 0) != 0
}

/// Builds so many levels of this vCPU's page tables anew, in the pages from `to` on.
///
/// # Safety
/// Nobody uses these pages for anything else, as long as the vCPU uses these tables.
pub unsafe fn renew_tables(to: u64, levels: u64) {
    call(RENEW_TABLES, to, levels, 0);
}

/// Lets other threads run first.
pub fn give_way() {
    call(GIVE_WAY, 0, 0, 0);
}

/// Puts a word into the text. Returns what was there.
///
/// # Safety
/// `at` must be the address of an aligned word of the text, and code that runs there must be as good with the new
/// word as with the old one.
pub unsafe fn exchange_text(at: u64, new: u64) -> u64 {
    call(EXCHANGE_TEXT, at, new, 0)
}

/// Puts a word into the text in the place of `old`, if that is there. Returns what was there.
///
/// # Safety
/// As of [`exchange_text`].
pub unsafe fn replace_text(at: u64, old: u64, new: u64) -> u64 {
    call(REPLACE_TEXT, at, old, new)
}

/// Ends the VM with this status.
pub fn end(status: u8) -> ! {
    call(END, u64::from(status), 0, 0);
    never()
}

fn call(number: u64, a: u64, b: u64, c: u64) -> u64 {
    // SAFETY: the kernel keeps all registers but rax, and reads only what the arguments point at.
    unsafe { kernel_call(number, a, b, c) }
}

/// The kernel does not come back from some calls.
fn never() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
