//! Numbers that the linker script, the assembly and the Rust code have to agree on.

/// vCPUs that there is room for (boot.s, link.ld).
pub const MAX_VCPUS: usize = 16;
/// Threads that there is room for, the main thread included: one bit each in a `u64`.
pub const MAX_THREADS: usize = 64;
/// Ring 3 stack of one thread (link.ld).
pub const THREAD_STACK_SIZE: u64 = 0x1_0000;
/// Ring 0 stack of one vCPU (boot.s).
pub const KERNEL_STACK_SIZE: u64 = 0x4000;
/// Room for the command line, its final NUL included (link.ld).
pub const COMMAND_LINE_SIZE: usize = 4096;
/// Physical page, below 1 MiB, where the other vCPUs start (boot.s).
pub const AP_TRAMPOLINE: u64 = 0x8_0000;

/// Interrupt vectors that the IDT has entries for (trap.s).
pub const VECTORS: usize = 48;
/// `ud2` in ring 3 arrives here: the kernel call.
pub const VECTOR_UNDEFINED: u64 = 6;
/// `int3`.
pub const VECTOR_BREAKPOINT: u64 = 3;
/// LAPIC timer.
pub const VECTOR_TIMER: u8 = 32;
/// "Look at the run queue", sent by another vCPU.
pub const VECTOR_RESCHEDULE: u8 = 33;
/// LAPIC spurious interrupt.
pub const VECTOR_SPURIOUS: u8 = 47;

/// How far above its physical addresses the image is linked (link.ld, boot.s).
pub const HIGH: u64 = 0xffff_ffff_8000_0000;

/// Ends the VM with the status byte that is written.
pub const EXIT_PORT: u16 = 0xf4;
/// Tells whoever watches from outside that a notice is ready; comes back when it has been seen to.
pub const DOORBELL_PORT: u16 = 0xf6;
/// First serial port.
pub const SERIAL_PORT: u16 = 0x3f8;

/// Statuses that the guest ends with; ring 3 has its own (see `control`).
pub mod status {
    /// An exception that nobody expected.
    pub const EXCEPTION: u8 = 2;
    /// The kernel cannot continue: what it needs is not there.
    pub const UNSUPPORTED: u8 = 3;
}

unsafe extern "C" {
    static vcpu_blocks: [u8; 0];
    static command_line: [u8; 0];
    static thread_stacks: [u8; 0];
    static kernel_stacks: [u8; 0];
    static trap_stubs: [u8; 0];
    static breakpoint_entry: [u8; 0];
    static ap_trampoline: [u8; 0];
    static ap_trampoline_end: [u8; 0];
    static kernel_call: [u8; 0];
    static _sinittext: [u8; 0];
    static _einittext: [u8; 0];
}

macro_rules! address_of {
    ($($(#[$doc:meta])* $name:ident => $symbol:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name() -> u64 {
            (&raw const $symbol) as u64
        }
    )*};
}

address_of! {
    /// The vCPU blocks, in memory of ring 3.
    vcpu_blocks_start => vcpu_blocks;
    /// The copy of the command line, in memory of ring 3.
    command_line_start => command_line;
    /// The ring 3 stacks.
    thread_stacks_start => thread_stacks;
    /// The ring 0 stacks.
    kernel_stacks_start => kernel_stacks;
    /// The entry stubs of trap.s, 16 bytes each.
    trap_stubs_start => trap_stubs;
    /// Where `int3` arrives (trap.s).
    breakpoint_entry_address => breakpoint_entry;
    /// Text that is freed after the start.
    init_text_start => _sinittext;
    /// Its end.
    init_text_end => _einittext;
    /// Real mode code for the other vCPUs.
    trampoline_start => ap_trampoline;
    /// Its end.
    trampoline_end => ap_trampoline_end;
    /// The one `ud2` that is a kernel call (control/src/kernel_call.rs).
    kernel_call_address => kernel_call;
}
