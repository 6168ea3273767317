//! Many pokes at once, for memory where each access costs: all old bytes are compared, all new ones written, and all read
//! back. Where anything is not as it should be nothing stays written, and the pokes are to be made one by one, which says
//! what is wrong.

use image::Image;
use terms::site::SiteBytes;

use super::{Poke, PokeError, check_vcpus, expect, put, symbol};
use crate::target::StoppedTarget;

/// Pokes that are made at once.
pub(super) const MOST: usize = 512;

/// Makes all of `pokes`, or none; says which.
///
/// # Errors
/// [`Stuck`] when some were written and could not be put back.
pub(super) fn apply(
    target: &mut (impl StoppedTarget + ?Sized),
    image: &Image,
    pokes: &[Poke],
) -> Result<bool, Stuck> {
    let is_free = |poke: &Poke| {
        let checked = check_vcpus(target, poke, || symbol(image, poke.function));
        checked.is_ok()
    };
    if !pokes.iter().all(is_free) || !all_hold(target, pokes, |poke| &poke.expected) {
        return Ok(false);
    }
    let places = pokes.iter().map(|poke| (poke.at, poke.new.as_slice()));
    let places: Vec<_> = places.collect();
    if target.write_all(&places).is_ok() && all_hold(target, pokes, |poke| &poke.new) {
        return Ok(true);
    }
    // Which of them were written is not known: those that do not hold what they held.
    let mut failed = Vec::new();
    for poke in pokes.iter().rev() {
        if expect(target, image, poke, poke.expected).is_err() {
            failed.extend(put(target, image, &poke.reverse()).err());
        }
    }
    let mut failed = failed.into_iter();
    match failed.next() {
        None => Ok(false),
        Some(first) => Err(Stuck {
            first,
            others: failed.collect(),
        }),
    }
}

/// Pokes that could not be put back.
#[derive(Debug)]
pub(super) struct Stuck {
    pub first: PokeError,
    pub others: Vec<PokeError>,
}

/// Whether at the place of each poke these of its bytes stand.
fn all_hold(
    target: &(impl StoppedTarget + ?Sized),
    pokes: &[Poke],
    wanted: fn(&Poke) -> &SiteBytes,
) -> bool {
    let bytes = pokes.iter().map(|poke| wanted(poke).as_slice().len()).sum();
    let mut found = vec![0; bytes];
    let mut rest = found.as_mut_slice();
    let mut places = Vec::with_capacity(pokes.len());
    for poke in pokes {
        let length = wanted(poke).as_slice().len();
        let Some((place, after)) = std::mem::take(&mut rest).split_at_mut_checked(length) else {
            return false;
        };
        places.push((poke.at, place));
        rest = after;
    }
    let are_read = target.read_all(&mut places).is_ok();
    let mut all = places.iter().zip(pokes);
    are_read && all.all(|((_, found), poke)| **found == *wanted(poke).as_slice())
}
