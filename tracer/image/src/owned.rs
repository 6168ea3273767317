//! Places in the text that an image describes one by one, each of which is changed in a way of its own.

use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use super::Image;

/// Bytes of a jump, a call or a nop of them.
const JUMP: u64 = SITE_LENGTH as u64;
/// Bytes of a lock prefix.
const PREFIX: u64 = 1;

/// What a place is, in the order in which they are told of where several overlap.
const KINDS: [(&str, u64); 6] = [
    ("a marker", JUMP),
    ("a dispatch", JUMP),
    ("a tracepoint", JUMP),
    ("a dynamic function", JUMP),
    ("a static call", JUMP),
    ("a lock prefix", PREFIX),
];

/// One of them, by where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    at: Gva,
    /// In [`KINDS`].
    kind: usize,
    end: Gva,
}

/// All of them, by where they begin: each of many places that are asked for takes as many steps as a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    places: Vec<Place>,
}

impl Owned {
    pub(super) fn of(image: &Image) -> Self {
        let points = image.tracepoints.iter();
        let markers = image.markers.iter().flat_map(|marker| &marker.sites);
        let sites = points.clone().flat_map(|point| &point.sites);
        let kinds: [Vec<Gva>; KINDS.len()] = [
            markers.map(|site| site.at).collect(),
            points.map(|point| point.dispatch).collect(),
            sites.map(|site| site.at).collect(),
            image.dynamic.iter().map(|one| one.jump).collect(),
            image
                .static_calls
                .iter()
                .map(|one| one.trampoline)
                .collect(),
            image.locks.iter().map(|lock| lock.address).collect(),
        ];
        let all = kinds.into_iter().enumerate().zip(KINDS);
        let all = all.flat_map(|((kind, all), (_, length))| {
            all.into_iter().map(move |at| Place {
                at,
                kind,
                end: Gva(at.0.saturating_add(length)),
            })
        });
        Self::new(all.collect())
    }

    fn new(mut places: Vec<Place>) -> Self {
        places.sort_unstable();
        places.dedup();
        Self { places }
    }

    /// The first kind of place that has bytes from `from` up to but not including `end`, what it is, and where the first
    /// of them is.
    #[must_use]
    pub fn first_in(&self, from: Gva, end: Gva) -> Option<(Gva, &'static str)> {
        let first = self
            .places
            .partition_point(|place| place.at.0.saturating_add(JUMP) <= from.0);
        let near = self.places.get(first..).unwrap_or_default();
        let near = near.iter().take_while(|place| place.at < end);
        let found = near.filter(|place| place.end > from);
        let found = found.min_by_key(|place| (place.kind, place.at))?;
        let (what, _) = KINDS.get(found.kind)?;
        Some((found.at, what))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place((at, kind): (u64, usize)) -> Place {
        let (_, length) = KINDS[kind];
        let end = Gva(at.saturating_add(length));
        let at = Gva(at);
        Place { at, kind, end }
    }

    fn addresses() -> impl Strategy<Value = u64> {
        prop_oneof![0..60_u64, u64::MAX - 8..=u64::MAX]
    }

    proptest! {
        /// As looking at each of them would.
        #[test]
        fn what_is_found_is_what_all_of_them_say(
            all in proptest::collection::vec((addresses(), 0..KINDS.len()), 0..20),
            from in addresses(),
            length in 0..20_u64,
        ) {
            let all: Vec<Place> = all.into_iter().map(place).collect();
            let end = from.saturating_add(length);
            let overlap = all.iter().filter(|one| one.at.0 < end && one.end.0 > from);
            let first = overlap.min_by_key(|one| (one.kind, one.at));
            let expected = first.map(|one| (one.at, KINDS[one.kind].0));
            prop_assert_eq!(Owned::new(all.clone()).first_in(Gva(from), Gva(end)), expected);
        }
    }
}
