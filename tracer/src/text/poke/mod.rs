//! Verified writes to guest text, as transactions: each poke compares the expected old bytes, writes,
//! and reads back; the first one that fails undoes those before it. Where all goes well they are made many at a time.

mod batch;

use std::ops::Range;
use std::sync::Arc;

use image::Image;
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::site::SiteBytes;

use self::batch::Stuck;
use crate::introspection::KprobesError;
use crate::target::{MemoryError, NotSynchronised, StoppedTarget, TargetMemory};

/// One write to guest text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poke {
    /// The function whose site it is.
    pub function: FunctionId,
    /// Where the site lies.
    pub at: Gva,
    /// What must be there.
    pub expected: SiteBytes,
    /// What will be there.
    pub new: SiteBytes,
}

impl Poke {
    /// The poke that takes this one back.
    #[must_use]
    pub const fn reverse(self) -> Self {
        Self {
            expected: self.new,
            new: self.expected,
            ..self
        }
    }
}

/// Why a poke failed. Each case is another kind of trouble: the guest has unmapped its text, somebody
/// else has changed it, or the host cannot write it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PokeError {
    /// The site could not be read.
    #[error("cannot read the patch site of {symbol} at {at}: {source}")]
    CannotRead {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// Why not.
        source: MemoryError,
    },
    /// Other bytes than expected stand there.
    #[error("the patch site of {symbol} at {at} holds {found}, expected {expected}")]
    Unexpected {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// What must have been there.
        expected: SiteBytes,
        /// What is there.
        found: SiteBytes,
    },
    /// The site could not be written.
    #[error("cannot write the patch site of {symbol} at {at}: {source}")]
    CannotWrite {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// Why not.
        source: MemoryError,
    },
    /// Some vCPU may still execute what stood at the sites before.
    #[error("the vCPUs cannot be made to see changed text: {0}")]
    NotSynchronised(#[from] NotSynchronised),
    /// A thread may have been interrupted in the middle of what becomes one instruction.
    #[error(
        "a thread may go on at {rip}, inside the patch site of {symbol} at {at}: guest physical {held_at} holds that address. \
         Either a thread was interrupted there, or an interrupt or a probe of the guest's own (a kprobe) that was hit there has \
         left that word in memory which nothing has used since: try again later, or take another place; what displaces one \
         instruction only (a breakpoint, tactic 5) can be set all the same"
    )]
    ThreadInside {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// Where the thread would continue.
        rip: Gva,
        /// Where that was found in the guest's memory.
        held_at: Gpa,
    },
    /// The guest's memory is full of addresses in the middle of what becomes one instruction.
    #[error(
        "several instructions of {symbol} at {at} would become one, and whether a thread is among them cannot be told: the guest's memory holds {words} words or more that would be such threads"
    )]
    Crowded {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// How many words were found before the search was given up.
        words: usize,
    },
    /// Its code runs in another ring than what is traced.
    #[error(
        "{symbol} at {at} runs in another ring than the code with patch sites: its stub could not"
    )]
    OtherRing {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
    },
    /// Several instructions become one while vCPUs run.
    #[error(
        "several instructions of {symbol} at {at} would become one: that needs all vCPUs stopped (patch method quiesce)"
    )]
    NeedsStop {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
    },
    /// It is no single instruction in one aligned word, before or after.
    #[error(
        "what is to be written at {at} in {symbol} is not one instruction in one aligned word: that needs all vCPUs stopped"
    )]
    NotOneWord {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
    },
    /// The guest changes the word that the site lies in all the time.
    #[error(
        "the word of the patch site of {symbol} at {at} was changed by the guest between each of {tries} looks at it and the write"
    )]
    Contended {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// How often it was tried.
        tries: u32,
    },
    /// The guest is changing its own text.
    #[error(
        "the guest is changing text of its own right now (somebody holds its `text_mutex`), so {symbol} at {at} was left as it was: \
         try again"
    )]
    GuestPatches {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
    },
    /// The guest has a probe of its own where instructions would be displaced.
    #[error(
        "the guest has a probe of its own (a kprobe) at {kprobe}, in the way of what would be displaced at {at} in \
         {symbol}: whoever comes first has the place"
    )]
    Kprobe {
        /// The function.
        symbol: Arc<str>,
        /// Where instructions would be displaced.
        at: Gva,
        /// Where the guest's own probe is.
        kprobe: Gva,
    },
    /// The guest has made a probe of its own where a jump of ours stands, and keeps a copy of that: with the jump gone it would go on to
    /// lead to us, and put its first byte back over what stands there then.
    #[error(
        "the guest has made a probe of its own (a kprobe) at {kprobe}, on our jump at {at} in {symbol}: the jump stays until that \
         probe is removed"
    )]
    KprobeOnOurs {
        /// The function.
        symbol: Arc<str>,
        /// Where the jump is.
        at: Gva,
        /// Where the guest's own probe is.
        kprobe: Gva,
    },
    /// Whether it has is not known.
    #[error("instructions of {symbol} at {at} cannot be displaced: {source}")]
    KprobesUnknown {
        /// The function.
        symbol: Arc<str>,
        /// Where instructions would be displaced.
        at: Gva,
        /// Why not.
        source: KprobesError,
    },
    /// A vCPU would resume in the middle of the new instruction.
    #[error("vCPU {vcpu} is at {rip}, inside the patch site of {symbol} at {at}")]
    VcpuInside {
        /// The function.
        symbol: Arc<str>,
        /// The site.
        at: Gva,
        /// The vCPU's number.
        vcpu: usize,
        /// Its instruction pointer.
        rip: Gva,
    },
}

impl PokeError {
    /// Whether it is so for a moment only: some thread is where it will not be for long.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::VcpuInside { .. } | Self::ThreadInside { .. } | Self::Contended { .. } => true,
            Self::KprobesUnknown { source, .. } => *source == KprobesError::Busy,
            _ => false,
        }
    }
}

/// A transaction failed; what had been written was taken back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; {undone} sites were put back{}", stuck_text(.stuck))]
pub struct TransactionError {
    /// The poke that failed.
    pub cause: PokeError,
    /// Pokes taken back.
    pub undone: usize,
    /// Pokes that could not be taken back; their sites may still hold the new bytes.
    pub stuck: Vec<PokeError>,
}

fn stuck_text(stuck: &[PokeError]) -> String {
    match stuck.first() {
        None => String::new(),
        Some(first) => format!(", {} could not be: {first}", stuck.len()),
    }
}

/// Reads the bytes that `poke` is about.
///
/// # Errors
/// [`PokeError::CannotRead`].
pub fn read_site(
    target: &(impl TargetMemory + ?Sized),
    image: &Image,
    poke: &Poke,
) -> Result<SiteBytes, PokeError> {
    let found = poke.expected.like(|bytes| target.read(poke.at, bytes));
    found.map_err(|source| PokeError::CannotRead {
        symbol: symbol(image, poke.function),
        at: poke.at,
        source,
    })
}

/// Applies all of `pokes`, or none.
///
/// # Errors
/// [`TransactionError`] with the first failure; everything written before it was put back as far as
/// that was possible.
pub fn apply(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
) -> Result<(), TransactionError> {
    for (number, batch) in pokes.chunks(batch::MOST).enumerate() {
        let done = number * batch::MOST;
        match batch::apply(target, image, batch) {
            Ok(true) => {}
            Ok(false) => apply_each(target, image, pokes, done..done + batch.len())?,
            Err(stuck) => {
                let done = pokes.get(..done).unwrap_or_default();
                return Err(undo_all(target, image, done, stuck));
            }
        }
    }
    Ok(())
}

/// Applies those of `pokes` in `range`, one by one; those before it have been applied.
fn apply_each(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
    range: Range<usize>,
) -> Result<(), TransactionError> {
    for index in range {
        let Some(poke) = pokes.get(index) else { break };
        if let Err(failure) = apply_one(target, image, poke) {
            let done = pokes.get(..index).unwrap_or_default();
            return Err(undo(target, image, done, poke, failure));
        }
    }
    Ok(())
}

/// Takes back those before some that are `stuck`.
fn undo_all(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    done: &[Poke],
    Stuck { first, others }: Stuck,
) -> TransactionError {
    let back = done.iter().rev().map(|poke| poke.reverse());
    let failed = back.filter_map(|poke| apply_one(target, image, &poke).err());
    let failed: Vec<_> = failed.map(|failure| failure.cause).collect();
    let undone = done.len() - failed.len();
    let mut stuck = vec![first.clone()];
    stuck.extend(others.into_iter().chain(failed));
    TransactionError {
        cause: first,
        undone,
        stuck,
    }
}

/// A poke that failed.
struct Failure {
    cause: PokeError,
    /// Whether something was written: the site may hold neither the old bytes nor the new ones.
    is_written: bool,
}

impl From<PokeError> for Failure {
    fn from(cause: PokeError) -> Self {
        Self {
            cause,
            is_written: false,
        }
    }
}

fn undo(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    done: &[Poke],
    failed: &Poke,
    Failure { cause, is_written }: Failure,
) -> TransactionError {
    let mut stuck = Vec::new();
    let mut undone = 0;
    // What the failed write left is known to nobody, so there is nothing to expect.
    if is_written {
        match put(target, image, &failed.reverse()) {
            Ok(()) => undone += 1,
            Err(error) => stuck.push(error),
        }
    }
    for poke in done.iter().rev() {
        match apply_one(target, image, &poke.reverse()) {
            Ok(()) => undone += 1,
            Err(failure) => stuck.push(failure.cause),
        }
    }
    TransactionError {
        cause,
        undone,
        stuck,
    }
}

fn apply_one(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    poke: &Poke,
) -> Result<(), Failure> {
    check_vcpus(target, poke, || symbol(image, poke.function))?;
    expect(target, image, poke, poke.expected)?;
    put(target, image, poke).map_err(|cause| Failure {
        // A write that was refused has changed nothing.
        is_written: !matches!(cause, PokeError::CannotWrite { .. }),
        cause,
    })
}

/// Writes the new bytes and reads them back.
fn put(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    poke: &Poke,
) -> Result<(), PokeError> {
    target
        .write(poke.at, poke.new.as_slice())
        .map_err(|source| PokeError::CannotWrite {
            symbol: symbol(image, poke.function),
            at: poke.at,
            source,
        })?;
    expect(target, image, poke, poke.new)
}

pub(crate) fn expect(
    target: &(impl TargetMemory + ?Sized),
    image: &Image,
    poke: &Poke,
    expected: SiteBytes,
) -> Result<(), PokeError> {
    let found = read_site(target, image, poke)?;
    if found == expected {
        return Ok(());
    }
    let symbol = symbol(image, poke.function);
    Err(PokeError::Unexpected {
        symbol,
        at: poke.at,
        expected,
        found,
    })
}

/// A vCPU at the first byte executes the new instruction; one further in would execute its middle.
fn check_vcpus(
    target: &(impl StoppedTarget + ?Sized),
    poke: &Poke,
    symbol: impl Fn() -> Arc<str>,
) -> Result<(), PokeError> {
    for (vcpu, registers) in target.vcpus().iter().enumerate() {
        let into = registers.rip.wrapping_sub(poke.at.0);
        if into != 0 && into < poke.new.as_slice().len() as u64 {
            let rip = Gva(registers.rip);
            return Err(PokeError::VcpuInside {
                symbol: symbol(),
                at: poke.at,
                vcpu,
                rip,
            });
        }
    }
    Ok(())
}

/// Why this is not written now.
pub(crate) fn while_it_patches(image: &Image, poke: &Poke) -> PokeError {
    PokeError::GuestPatches {
        symbol: symbol(image, poke.function),
        at: poke.at,
    }
}

pub(crate) fn symbol(image: &Image, function: FunctionId) -> Arc<str> {
    image
        .function(function)
        .map_or_else(|| Arc::from("?"), |function| Arc::clone(&function.name))
}

#[cfg(test)]
mod tests;
