//! Code that is changed while it is executed: a vCPU passes one place without end, while another thread has it lead to one
//! of two ways, by one exchange of the word that holds it. Each pass must take one of the two.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};

use super::run::run_while;
use super::vm::{CODE, WORD};
use super::{Ending, PATIENCE, Ring, Trial, TrialError};

/// How much is tried.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// So many changes at most.
    pub switches: u64,
    /// For so long at most.
    pub time: Duration,
}

impl Effort {
    /// As much as shows whether it works at all: a guest waits for it.
    pub const BRIEF: Self = Self {
        switches: 5_000,
        time: Duration::from_millis(50),
    };
    /// For somebody who wants to know it.
    pub const SECOND: Self = Self {
        switches: u64::MAX,
        time: Duration::from_secs(1),
    };
}

/// ```text
///   0: nopl 0(%rax,%rax)          the place; or: jmp 10
///   5: inc rsi;  jmp 13           one way
///  10: inc rdi                    the other
///  13: inc rcx
///  16: mov byte [WORD + 4], 1    it has passed
///  24: cmp dword [WORD], 0;  je 0
///  34: lea rax, [rdi + rsi];  sub rax, rcx
///  41: shl rdi, 32;  or rdi, rsi
///  48: test rax, rax;  je 57;  or rdi, -1
///  57: mov [rbx], rdi
/// ```
const PASSES: &[u8] = &[
    0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0xff, 0xc6, 0xeb, 0x03, 0x48, 0xff, 0xc7, 0x48, 0xff, 0xc1,
    0xc6, 0x04, 0x25, 0x04, 0x80, 0x00, 0x00, 0x01, 0x83, 0x3c, 0x25, 0x00, 0x80, 0x00, 0x00, 0x00,
    0x74, 0xde, 0x48, 0x8d, 0x04, 0x37, 0x48, 0x29, 0xc8, 0x48, 0xc1, 0xe7, 0x20, 0x48, 0x09, 0xf7,
    0x48, 0x85, 0xc0, 0x74, 0x04, 0x48, 0x83, 0xcf, 0xff, 0x48, 0x89, 0x3b,
];
/// Where the code says that it has passed the place.
const PASSED: u64 = WORD + 4;
/// The first word of them, and the same with `jmp 10`.
const WAYS: [u64; 2] = [0xc6ff_4800_0044_1f0f, 0xc6ff_4800_0000_05e9];

/// After this many changes in a row the vCPU passes the place before the next one. Where none was waited for, one passed 20,000
/// changes one way only (AMD family 25, model 1): it had fetched the place some few times. It is odd, so that both ways are passed.
const ROW: u64 = 7;

/// So often somebody looks whether it has, for some 10 to 25 us (a pause of a processor takes 20 to 50 ns), before it leaves its
/// processor to others for a while.
const LOOKS: u64 = 512;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switching {
    /// How often the place was changed.
    pub switches: u64,
    /// How often it was passed each way.
    pub passes: [u64; 2],
    /// Whether each pass took one of the two ways.
    pub is_right: bool,
}

impl Switching {
    /// Whether it shows anything: the place was changed, and passed both ways.
    #[must_use]
    pub const fn is_telling(&self) -> bool {
        let [old, new] = self.passes;
        !self.is_right || self.switches > 0 && old > 0 && new > 0
    }
}

/// Tries it briefly; for a second if that shows nothing, as on a host that is busy.
///
/// # Errors
/// [`TrialError`] when there is no tiny VM to try it in.
pub fn shown() -> Result<Switching, TrialError> {
    let brief = switching(Effort::BRIEF)?;
    match brief.is_telling() {
        true => Ok(brief),
        false => switching(Effort::SECOND),
    }
}

/// Tries it.
///
/// # Errors
/// [`TrialError`] when there is no tiny VM to try it in.
pub fn switching(effort: Effort) -> Result<Switching, TrialError> {
    let trial = Trial::of(PASSES, Ring::User);
    let (outcome, switches) = run_while(trial, move |memory, has_ended| {
        // Until it has begun changes would show nothing.
        wait_passed(memory, has_ended, Instant::now() + PATIENCE / 2);
        let switches = switch(memory, has_ended, effort);
        tell(memory);
        switches
    })?;
    let wrong = Switching {
        switches,
        passes: [0; 2],
        is_right: false,
    };
    Ok(match outcome.ending {
        Ending::Reported(u64::MAX) | Ending::Other(_) | Ending::Watched(_) => wrong,
        Ending::Reported(passes) => Switching {
            passes: [passes & 0xffff_ffff, passes >> 32],
            is_right: true,
            ..wrong
        },
        other => return Err(TrialError::Ended(other.to_string())),
    })
}

/// Changes the place, as often as that is possible.
fn switch(memory: &GuestMemoryMmap, has_ended: &AtomicBool, effort: Effort) -> u64 {
    let slice = memory.get_slice(GuestAddress(CODE), size_of::<u64>());
    let Some(word) = slice
        .as_ref()
        .ok()
        .and_then(|slice| slice.get_atomic_ref::<AtomicU64>(0).ok())
    else {
        return 0;
    };
    let deadline = Instant::now() + effort.time;
    let [mut now, mut next] = WAYS;
    let mut switches = 0;
    // The code is written by the vCPU's thread before it enters: until then the word is another one.
    while switches < effort.switches
        && !has_ended.load(Ordering::Acquire)
        && Instant::now() < deadline
    {
        let switched = word.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst);
        if switched.is_ok() {
            (now, next) = (next, now);
            switches += 1;
            if switches % ROW == 0 {
                wait_passed(memory, has_ended, deadline);
            }
        }
    }
    switches
}

/// Returns when the vCPU has come to the place anew and passed it, or does so no more, or it is that late.
fn wait_passed(memory: &GuestMemoryMmap, has_ended: &AtomicBool, deadline: Instant) {
    let slice = memory.get_slice(GuestAddress(PASSED), size_of::<u32>());
    let passed = slice.as_ref().ok();
    let Some(passed) = passed.and_then(|slice| slice.get_atomic_ref::<AtomicU32>(0).ok()) else {
        return;
    };
    // The first time it may have come to the place before.
    for _ in 0..2 {
        passed.store(0, Ordering::SeqCst);
        let mut looks = 0_u64;
        while passed.load(Ordering::Acquire) == 0 {
            if has_ended.load(Ordering::Acquire) || Instant::now() >= deadline {
                return;
            }
            looks += 1;
            match looks < LOOKS {
                true => spin_loop(),
                // It may want this very processor.
                false => std::thread::yield_now(),
            }
        }
    }
}

/// Has the code report.
fn tell(memory: &GuestMemoryMmap) {
    let slice = memory.get_slice(GuestAddress(WORD), size_of::<u32>());
    if let Ok(slice) = &slice
        && let Ok(word) = slice.get_atomic_ref::<AtomicU32>(0)
    {
        word.store(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_first_word_and_leads_to_one_of_two_ways() {
        let first = PASSES.first_chunk::<8>().unwrap();
        assert_eq!(u64::from_le_bytes(*first), WAYS[0]);
        let [nop, jump] = WAYS.map(u64::to_le_bytes);
        assert_eq!(nop[5..], jump[5..]);
        assert_eq!(jump[..5], [0xe9, 5, 0, 0, 0]);
    }
}
