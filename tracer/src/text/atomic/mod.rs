//! Writes to guest text while every vCPU runs, as transactions: each is one exchange of the naturally aligned word that
//! the site lies in.
//!
//! Comparing and writing are one step, so nothing comes between them, not even the guest's own patching: where other bytes
//! stand than expected they stay. Who executes the site meanwhile executes the old instruction or the new one, where the
//! processor promises so (AMD64 Architecture Programmer's Manual, volume 2, 7.6.1: asynchronous modification); afterwards a
//! vCPU may execute once more what it had fetched.

use std::collections::BTreeMap;

use image::Image;
use terms::addr::Gva;
use terms::site::SiteBytes;

use crate::target::AtomicTarget;
use crate::text::poke::{Poke, PokeError, TransactionError, expect, symbol};

/// What is exchanged at once.
const WORD: usize = 8;
/// Exchanges that are tried at one site. Its own bytes are compared each time: what changes in between are others in the same
/// word, of the guest's.
const TRIES: u32 = 1000;

/// Pokes that were left out, by their place among all, and why.
pub type Left = BTreeMap<usize, PokeError>;

/// What the guest may do to a site at the same moment, and no harm is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shared {
    /// Take it before: it is left out.
    pub before: bool,
    /// Take it afterwards: it has been given back, and is its own.
    pub after: bool,
}

/// Whether one word holds all that is written.
#[must_use]
pub fn holds(poke: &Poke) -> bool {
    let length = poke.new.as_slice().len();
    offset(poke) + length <= WORD && length == poke.expected.as_slice().len()
}

/// Applies all of `pokes`, or none; `shared` says which of them the guest may be faster at.
///
/// # Errors
/// [`TransactionError`] with the first failure; what had been exchanged before it was exchanged back as far as that was
/// possible: what the guest has written over it stays.
pub fn apply(
    target: &mut (impl AtomicTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
    shared: impl Fn(usize) -> Shared,
) -> Result<Left, TransactionError> {
    let mut left = Left::new();
    let mut done = Vec::with_capacity(pokes.len());
    for (number, poke) in pokes.iter().enumerate() {
        match exchange(target, image, poke) {
            Ok(()) => done.push(*poke),
            Err(why @ PokeError::Unexpected { .. }) if shared(number).before => {
                left.insert(number, why);
            }
            Err(cause) => return Err(undo(target, image, &done, cause)),
        }
    }
    let written = pokes.iter().enumerate();
    let mut written = written.filter(|(number, _)| !left.contains_key(number));
    match written.try_for_each(|(number, poke)| stands(target, image, poke, shared(number))) {
        Ok(()) => Ok(left),
        Err(cause) => Err(undo(target, image, &done, cause)),
    }
}

/// Reads back what was written.
fn stands(
    target: &(impl AtomicTarget + ?Sized),
    image: &Image,
    poke: &Poke,
    shared: Shared,
) -> Result<(), PokeError> {
    match expect(target, image, poke, poke.new) {
        Err(PokeError::Unexpected { found, .. }) if shared.after && found != poke.expected => {
            Ok(())
        }
        read => read,
    }
}

/// Takes back what was done. A site that holds its old bytes needs nothing more.
fn undo(
    target: &mut (impl AtomicTarget + ?Sized),
    image: &Image,
    done: &[Poke],
    cause: PokeError,
) -> TransactionError {
    let mut stuck = Vec::new();
    for poke in done.iter().rev() {
        if let Err(error) = exchange(target, image, &poke.reverse())
            && expect(target, image, poke, poke.expected).is_err()
        {
            stuck.push(error);
        }
    }
    TransactionError {
        cause,
        undone: done.len() - stuck.len(),
        stuck,
    }
}

/// Has the new bytes stand there if the expected ones do.
fn exchange(
    target: &mut (impl AtomicTarget + ?Sized),
    image: &Image,
    poke: &Poke,
) -> Result<(), PokeError> {
    let (at, name) = (poke.at, || symbol(image, poke.function));
    if !holds(poke) {
        return Err(PokeError::NotOneWord { symbol: name(), at });
    }
    let start = Gva(at.0 - offset(poke) as u64);
    for _ in 0..TRIES {
        let mut old = [0; WORD];
        let read = target.read(start, &mut old);
        read.map_err(|source| PokeError::CannotRead {
            symbol: name(),
            at,
            source,
        })?;
        let new = changed(poke, old).map_err(|found| PokeError::Unexpected {
            symbol: name(),
            at,
            expected: poke.expected,
            found,
        })?;
        let old = u64::from_le_bytes(old);
        let found = target.exchange(start, old, u64::from_le_bytes(new));
        let found = found.map_err(|source| PokeError::CannotWrite {
            symbol: name(),
            at,
            source,
        })?;
        if found == old {
            return Ok(());
        }
    }
    Err(PokeError::Contended {
        symbol: name(),
        at,
        tries: TRIES,
    })
}

/// The word with the new bytes in it.
///
/// # Errors
/// What is there instead of the expected ones.
fn changed(poke: &Poke, mut word: [u8; WORD]) -> Result<[u8; WORD], SiteBytes> {
    let (from, new) = (offset(poke), poke.new.as_slice());
    let site = word.get_mut(from..from + new.len()).unwrap_or_default();
    let found = poke.expected.with_start(site);
    if found != poke.expected {
        return Err(found);
    }
    site.copy_from_slice(new);
    Ok(word)
}

/// Where in its word the site begins.
fn offset(poke: &Poke) -> usize {
    usize::try_from(poke.at.0 % WORD as u64).unwrap_or(WORD)
}

#[cfg(test)]
mod tests;
