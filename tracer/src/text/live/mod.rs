//! Writes to guest text while the guest runs, as transactions.
//!
//! ```text
//!              every site        all vCPUs      every site      all vCPUs      every site
//!  old bytes ─▶ int3 first ─▶ synchronised ─▶ new rest ─▶ synchronised ─▶ new first ─▶ synchronised
//! ```
//!
//! Between two of these points a vCPU sees the old instruction or the breakpoint, the breakpoint, the
//! breakpoint or the new instruction: never the first byte of one with the rest of another. Whoever
//! runs into the breakpoint comes back until an instruction stands there again. The first and the last byte
//! store of a site are single bytes, so nobody sees half of one.

use image::Image;
use insn::jump::INT3;
use terms::site::SiteBytes;

use crate::target::LiveTarget;
use crate::text::poke::{Poke, PokeError, TransactionError, expect, symbol};

/// Applies all of `pokes`, or none.
///
/// # Errors
/// [`TransactionError`] with the first failure; every site that had been touched has its old bytes again,
/// as far as that was possible.
pub fn apply(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
) -> Result<(), TransactionError> {
    let mut touched = 0;
    change(target, image, pokes, &mut touched).map_err(|cause| {
        let touched = pokes.get(..touched).unwrap_or_default();
        undo(target, image, touched, cause)
    })
}

fn change(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
    touched: &mut usize,
) -> Result<(), PokeError> {
    for poke in pokes {
        expect(target, image, poke, poke.expected)?;
        *touched += 1;
        put_first(target, image, poke, INT3)?;
        expect(target, image, poke, poke.expected.starting_with(INT3))?;
    }
    target.synchronise()?;
    // Whoever else writes text may have done so meanwhile.
    for poke in pokes {
        expect(target, image, poke, poke.expected.starting_with(INT3))?;
        put_rest(target, image, poke, poke.new)?;
        expect(target, image, poke, poke.new.starting_with(INT3))?;
    }
    target.synchronise()?;
    for poke in pokes {
        expect(target, image, poke, poke.new.starting_with(INT3))?;
        put_first(target, image, poke, poke.new.first())?;
        expect(target, image, poke, poke.new)?;
    }
    Ok(target.synchronise()?)
}

/// Puts the old bytes back where something of ours stands; what else does is somebody else's by now, and stuck. A vCPU that cannot be
/// synchronised has executed nothing for longer than any core fetches ahead, so the rest is written all the same.
fn undo(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
    cause: PokeError,
) -> TransactionError {
    let mut stuck: Vec<PokeError> = Vec::new();
    let (mut ours, mut undone) = (Vec::new(), 0);
    for poke in pokes {
        match expect_ours(target, image, poke) {
            Ok(()) => ours.push(poke),
            Err(error) => stuck.push(error),
        }
    }
    for poke in &ours {
        stuck.extend(put_first(target, image, poke, INT3).err());
    }
    stuck.extend(target.synchronise().map_err(PokeError::from).err());
    for poke in &ours {
        stuck.extend(put_rest(target, image, poke, poke.expected).err());
    }
    stuck.extend(target.synchronise().map_err(PokeError::from).err());
    for poke in ours {
        let put = put_first(target, image, poke, poke.expected.first());
        match put.and_then(|()| expect(target, image, poke, poke.expected)) {
            Ok(()) => undone += 1,
            Err(error) => stuck.push(error),
        }
    }
    stuck.extend(target.synchronise().map_err(PokeError::from).err());
    TransactionError {
        cause,
        undone,
        stuck,
    }
}

/// Whether nothing stands at a site but what this change has found there or writes: of a write that failed, perhaps a part.
fn expect_ours(
    target: &(impl LiveTarget + ?Sized),
    image: &Image,
    poke: &Poke,
) -> Result<(), PokeError> {
    match expect(target, image, poke, poke.expected) {
        Err(PokeError::Unexpected { found, .. }) if is_on_the_way(found, poke) => Ok(()),
        other => other,
    }
}

/// Whether each byte is an old one or a new one, or the breakpoint that stands there meanwhile.
fn is_on_the_way(found: SiteBytes, poke: &Poke) -> bool {
    let [old, new] = [poke.expected, poke.new];
    let known = old.as_slice().iter().zip(new.as_slice());
    let mut bytes = found.as_slice().iter().zip(known).enumerate();
    bytes.all(|(offset, (byte, (old, new)))| {
        [old, new].contains(&byte) || offset == 0 && *byte == INT3
    })
}

fn put_first(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    poke: &Poke,
    byte: u8,
) -> Result<(), PokeError> {
    put(target, image, poke, 0, &[byte])
}

fn put_rest(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    poke: &Poke,
    bytes: SiteBytes,
) -> Result<(), PokeError> {
    let rest = bytes.as_slice().get(1..).unwrap_or_default();
    put(target, image, poke, 1, rest)
}

fn put(
    target: &mut (impl LiveTarget + ?Sized),
    image: &Image,
    poke: &Poke,
    offset: u64,
    bytes: &[u8],
) -> Result<(), PokeError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let written = target.write(poke.at.wrapping_add(offset), bytes);
    written.map_err(|source| PokeError::CannotWrite {
        symbol: symbol(image, poke.function),
        at: poke.at,
        source,
    })
}

#[cfg(test)]
mod tests;
