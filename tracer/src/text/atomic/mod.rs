//! Writes to guest text while every vCPU runs, as transactions: each is one exchange of the naturally aligned word that
//! the site lies in.
//!
//! Comparing and writing are one step, so nothing comes between them, not even the guest's own patching: where other bytes
//! stand than expected they stay. Who executes the site meanwhile executes the old instruction or the new one, where the
//! processor promises so (AMD64 Architecture Programmer's Manual, volume 2, 7.6.1: asynchronous modification); afterwards a
//! vCPU may execute once more what it had fetched.

use std::collections::BTreeMap;

use image::Image;
use insn::jump::INT3;
use terms::addr::Gva;
use terms::site::SiteBytes;

use crate::target::AtomicTarget;
use crate::text::poke::{Poke, PokeError, TransactionError, expect, symbol, while_it_patches};

/// What is exchanged at once.
const WORD: usize = 8;
/// Exchanges that are tried at one site. Its own bytes are compared each time: what changes in between are others in the same
/// word, of the guest's.
const TRIES: u32 = 1000;

/// Sites that are looked at together before the guest is asked whether it changes its text.
const SEEN_TOGETHER: usize = 64;

/// Pokes that were left out, by their place among all, and why.
pub type Left = BTreeMap<usize, PokeError>;

/// What the guest may do to a site at the same moment, and no harm is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shared {
    /// Take it before: it is left out.
    pub before: bool,
    /// Take it afterwards: it has been given back, and is its own.
    pub after: bool,
    /// What stands there before is of its own: it may be about to change that.
    pub is_its_own: bool,
}

/// Whether one word holds all that is written.
#[must_use]
pub fn holds(poke: &Poke) -> bool {
    let length = poke.new.as_slice().len();
    offset(poke) + length <= WORD && length == poke.expected.as_slice().len()
}

/// Applies all of `pokes`, or none; `shared` says which of them the guest may be faster at, and `patches` whether the guest is
/// changing text of its own, if it can be asked.
///
/// # Errors
/// [`TransactionError`] with the first failure; what had been exchanged before it was exchanged back as far as that was
/// possible: what the guest has written over it stays.
pub fn apply<T: AtomicTarget + ?Sized>(
    target: &mut T,
    image: &Image,
    pokes: &[Poke],
    shared: impl Fn(usize) -> Shared,
    patches: impl Fn(&T) -> Option<bool>,
) -> Result<Left, TransactionError> {
    let mut left = Left::new();
    let mut done = Vec::with_capacity(pokes.len());
    let numbered: Vec<_> = pokes.iter().enumerate().collect();
    for some in numbered.chunks(SEEN_TOGETHER) {
        let made = exchange_some(target, image, (some, &shared), &patches, &mut done);
        match made {
            Ok(taken) => left.extend(taken),
            Err(cause) => return Err(undo(target, image, &done, cause)),
        }
    }
    let mut standing = Vec::with_capacity(done.len());
    let mut failed = None;
    for (number, poke) in done {
        match stands(target, image, poke, shared(number)) {
            Ok(()) => standing.push((number, poke)),
            Err(why) if is_taken(&why, poke, shared(number)) => drop(left.insert(number, why)),
            Err(cause) => {
                standing.push((number, poke));
                failed.get_or_insert(cause);
            }
        }
    }
    match failed {
        None => Ok(left),
        Some(cause) => Err(undo(target, image, &standing, cause)),
    }
}

/// A poke with its place among all.
type Numbered<'p> = (usize, &'p Poke);

/// Exchanges these, if the guest does not change its own text. Says which were its own already.
///
/// They are looked at first, then the guest is asked: what it writes it compares, and if other bytes stand there then, it is over
/// with it. Where it had written the expected ones before it was asked it has compared them, too; and what it takes and gives back
/// after that takes longer than a few exchanges.
fn exchange_some<'p, T: AtomicTarget + ?Sized>(
    target: &mut T,
    image: &Image,
    (some, shared): (&[Numbered<'p>], &impl Fn(usize) -> Shared),
    patches: &impl Fn(&T) -> Option<bool>,
    done: &mut Vec<Numbered<'p>>,
) -> Result<Left, PokeError> {
    let mut left = Left::new();
    let mut own = some.iter().filter(|(number, _)| shared(*number).is_its_own);
    if let Some((_, first)) = own.next()
        && patches(target).is_some()
    {
        for (number, poke) in some {
            match expect(target, image, poke, poke.expected) {
                Err(why @ PokeError::Unexpected { .. }) if shared(*number).before => {
                    left.insert(*number, why);
                }
                seen => seen?,
            }
        }
        if patches(target) == Some(true) {
            return Err(while_it_patches(image, first));
        }
    }
    for (number, poke) in some {
        if left.contains_key(number) {
            continue;
        }
        match exchange(target, image, poke) {
            Ok(()) => done.push((*number, poke)),
            Err(why @ PokeError::Unexpected { .. }) if shared(*number).before => {
                left.insert(*number, why);
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(left)
}

/// Whether the guest has put an instruction of its own in the place of what was just written, without a look at it: it had looked
/// before. Its breakpoint over ours is not that: it goes again.
fn is_taken(why: &PokeError, poke: &Poke, shared: Shared) -> bool {
    match why {
        PokeError::Unexpected { found, .. } if shared.before => {
            let known = [poke.new.first(), poke.expected.first(), INT3];
            !known.contains(&found.first())
        }
        _ => false,
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
    done: &[Numbered<'_>],
    cause: PokeError,
) -> TransactionError {
    let mut stuck = Vec::new();
    for (_, poke) in done.iter().rev() {
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
