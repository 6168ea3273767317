//! How a thread of the VMM finds its own way back from a call that is made in its name, should its tracer die.
//!
//! The call is made by an instruction `syscall` with a `ret` after it, on a stack that leads to where the VMM's own library
//! returns from signals (`rt_sigreturn(2)`), with a frame that says where the thread was: its registers, the signals that it
//! blocks, its extended registers. So **at every moment the thread that is let go comes back to where it was**, whoever
//! lets it go. A tracer that lives takes it back itself, after the call.
//!
//! The frame is the kernel's `struct rt_sigframe` (arch/x86/include/asm/sigframe.h, uapi/asm/ucontext.h,
//! uapi/asm/sigcontext.h). Nobody changes code of the VMM for it.

use libc::user_regs_struct;

use super::error::ForeignError;
use super::process::Process;
use super::remote;

/// `syscall; ret`
const CALL: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`, and with a shorter encoding.
const RETURNS: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
    &[0xb8, 15, 0, 0, 0, 0x0f, 0x05],
];
/// Bytes of code that are looked through in one piece.
const PIECE: usize = 1 << 20;

/// Code of the VMM by which calls are made in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WayBack {
    /// `syscall; ret`
    pub call: u64,
    /// Where signals are returned from.
    returns: u64,
}

impl WayBack {
    /// That of a process: in its C library, or wherever else it is.
    ///
    /// # Errors
    /// [`ForeignError::NoWayBack`], [`ForeignError::Proc`].
    pub fn find(process: &Process) -> Result<Self, ForeignError> {
        let pid = process.pid();
        let (mut call, mut returns) = (None, None);
        let mut piece = vec![0; PIECE];
        for code in process.code()? {
            let mut offset = 0;
            while offset < code.bytes && (call.is_none() || returns.is_none()) {
                let at = code.start + offset;
                let length = usize::try_from(code.bytes - offset).unwrap_or(PIECE);
                let bytes = piece.get_mut(..length.min(PIECE)).unwrap_or_default();
                // What cannot be read is not it.
                if remote::read(pid, at, bytes).is_ok() {
                    let find = |wanted: &[u8]| {
                        let found = memchr::memmem::find(bytes, wanted)?;
                        Some(at + found as u64)
                    };
                    call = call.or_else(|| find(&CALL));
                    returns = returns.or_else(|| RETURNS.iter().find_map(|wanted| find(wanted)));
                }
                // One that lies across the end is seen in the next piece.
                offset += (PIECE - 16) as u64;
            }
        }
        match (call, returns) {
            (Some(call), Some(returns)) => Ok(Self { call, returns }),
            _ => Err(ForeignError::NoWayBack { pid }),
        }
    }

    /// Whether it is still there: the VMM may have unloaded it.
    #[must_use]
    pub fn is_there(&self, pid: i32) -> bool {
        let (mut call, mut returns) = ([0; CALL.len()], [0; 9]);
        remote::read(pid, self.call, &mut call).is_ok()
            && remote::read(pid, self.returns, &mut returns).is_ok()
            && call == CALL
            && RETURNS.iter().any(|wanted| returns.starts_with(wanted))
    }

    /// More bytes than [`Self::stack`] says with these extended registers.
    #[must_use]
    pub const fn room(extended: &[u8]) -> u64 {
        (EXTENDED_AT + extended.len() + 64) as u64
    }

    /// What is to lie on the stack while a call is made, at `at`, a multiple of 64, which is the stack pointer then. The thread
    /// had `registers`, blocked `mask`, and had these extended registers (as `PTRACE_GETREGSET` says them).
    #[must_use]
    pub fn stack(
        &self,
        at: u64,
        registers: &user_regs_struct,
        mask: u64,
        extended: &[u8],
    ) -> Vec<u8> {
        let mut stack = Vec::with_capacity(EXTENDED_AT + extended.len() + 4);
        let mut push = |word: u64| stack.extend(word.to_le_bytes());
        push(self.returns);
        // ucontext: flags, link, and a signal stack that makes no sense, so that the thread's own stays.
        let signal_stack = [0, NO_SIGNAL_STACK, 0];
        [UC_FLAGS, 0]
            .into_iter()
            .chain(signal_stack)
            .for_each(&mut push);
        sigcontext(registers, at + EXTENDED_AT as u64)
            .into_iter()
            .for_each(&mut push);
        push(mask);
        stack.resize(EXTENDED_AT, 0);
        stack.extend(framed(extended));
        stack
    }
}

/// Extended registers are there (`UC_FP_XSTATE`), and so is the stack's segment (`UC_SIGCONTEXT_SS`, `UC_STRICT_RESTORE_SS`).
const UC_FLAGS: u64 = 1 | 2 | 4;
/// Flags of a signal stack that there is none with: it is refused, and what the thread has stays.
const NO_SIGNAL_STACK: u64 = 0x7777;
/// Where the extended registers lie in what [`WayBack::stack`] says.
const EXTENDED_AT: usize = 512;

/// `struct sigcontext`.
fn sigcontext(before: &user_regs_struct, extended: u64) -> [u64; 32] {
    let (rax, rip) = restarted(before);
    let segments = before.cs & 0xffff | (before.ss & 0xffff) << 48;
    let mut words = [0; 32];
    let known = [
        before.r8,
        before.r9,
        before.r10,
        before.r11,
        before.r12,
        before.r13,
        before.r14,
        before.r15,
        before.rdi,
        before.rsi,
        before.rbp,
        before.rbx,
        before.rdx,
        rax,
        before.rcx,
        before.rsp,
        rip,
        before.eflags,
        segments,
        // The last exception: its error, its number, the signals that were blocked, its address.
        0,
        0,
        0,
        0,
        extended,
    ];
    words
        .iter_mut()
        .zip(known)
        .for_each(|(word, known)| *word = known);
    words
}

/// rax and rip of a thread that was stopped in a system call, as the kernel makes them before it continues.
fn restarted(before: &user_regs_struct) -> (u64, u64) {
    const LENGTH: u64 = 2;
    const AGAIN: [i64; 3] = [-512, -513, -514];
    /// By a way of its own, which has been used since (`ERESTART_RESTARTBLOCK`): it was interrupted.
    const OWN_WAY: i64 = -516;
    let is_call = before.orig_rax.cast_signed() >= 0;
    match before.rax.cast_signed() {
        again if is_call && AGAIN.contains(&again) => {
            (before.orig_rax, before.rip.wrapping_sub(LENGTH))
        }
        OWN_WAY if is_call => ((-i64::from(libc::EINTR)).cast_unsigned(), before.rip),
        _ => (before.rax, before.rip),
    }
}

/// Extended registers as a frame has them: with marks that say how long they are (`struct _fpx_sw_bytes`).
fn framed(extended: &[u8]) -> Vec<u8> {
    const MARKS_AT: usize = 464;
    const FEATURES_AT: usize = 512;
    const HEADER_END: usize = 576;
    const FIRST: u32 = 0x4650_5853;
    const SECOND: u32 = 0x4650_5845;
    /// Tiles: a thread has no room for them in its frames before it has used them.
    const TILES: u64 = 3 << 17;
    let mut bytes = extended.to_vec();
    let word = |at: usize| {
        let there = extended.get(at..).and_then(|rest| rest.first_chunk());
        there.copied().map_or(0, u64::from_le_bytes)
    };
    // A kernel that knows of no more than the first 512 bytes says nothing there.
    let features = word(MARKS_AT) & !TILES;
    let length = u32::try_from(end_of(features).max(HEADER_END)).unwrap_or_default();
    if features == 0 || extended.len() < HEADER_END {
        return bytes;
    }
    bytes.resize(length as usize, 0);
    let mut put = |at: usize, put: &[u8]| {
        if let Some(there) = bytes.get_mut(at..at + put.len()) {
            there.copy_from_slice(put);
        }
    };
    put(MARKS_AT, &FIRST.to_le_bytes());
    put(MARKS_AT + 4, &(length + 4).to_le_bytes());
    put(MARKS_AT + 8, &features.to_le_bytes());
    put(MARKS_AT + 16, &length.to_le_bytes());
    put(MARKS_AT + 20, &[0; 28]);
    put(FEATURES_AT, &(word(FEATURES_AT) & features).to_le_bytes());
    bytes.extend(SECOND.to_le_bytes());
    bytes
}

/// Where the last of these features ends, in the layout in which each has its place (CPUID 0xd).
fn end_of(features: u64) -> usize {
    const LEAF: u32 = 0xd;
    let ends = (2..63).filter(|bit| features >> bit & 1 == 1).map(|bit| {
        let says = std::arch::x86_64::__cpuid_count(LEAF, bit);
        says.ebx.saturating_add(says.eax)
    });
    usize::try_from(ends.max().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: user_regs_struct = user_regs_struct {
        r15: 0,
        r14: 0,
        r13: 0,
        r12: 0,
        rbp: 0,
        rbx: 0,
        r11: 0,
        r10: 0,
        r9: 0,
        r8: 0,
        rax: 0,
        rcx: 0,
        rdx: 0,
        rsi: 0,
        rdi: 0,
        orig_rax: 0,
        rip: 0,
        cs: 0,
        eflags: 0,
        rsp: 0,
        ss: 0,
        fs_base: 0,
        gs_base: 0,
        ds: 0,
        es: 0,
        fs: 0,
        gs: 0,
    };

    #[test]
    fn every_process_has_a_way_back() {
        let own = Process::open(std::process::id().cast_signed()).unwrap();
        let way = WayBack::find(&own).unwrap();
        assert!(way.is_there(own.pid()));
        let moved = WayBack {
            call: way.call + 1,
            ..way
        };
        assert!(!moved.is_there(own.pid()));
    }

    #[test]
    fn a_call_that_was_interrupted_is_begun_again_as_the_kernel_does_it() {
        let mut registers = NOWHERE;
        registers.rip = 0x1002;
        for (call, result, expected) in [
            (16, -512i64, (16, 0x1000)),
            (16, -514, (16, 0x1000)),
            (16, -516, ((-4i64).cast_unsigned(), 0x1002)),
            (16, -4, ((-4i64).cast_unsigned(), 0x1002)),
            (-1, -512, ((-512i64).cast_unsigned(), 0x1002)),
        ] {
            registers.orig_rax = i64::cast_unsigned(call);
            registers.rax = result.cast_unsigned();
            assert_eq!(restarted(&registers), expected, "{call} {result}");
        }
    }
}
