//! Breakpoints that stay, served by the guest: a table of them, and of where a thread that meets one continues.
//!
//! ```text
//!   word `breakpoint_detours` ──> mask │ 0 │ breakpoint, detour │ breakpoint, detour │ 0, 0 │ …
//! ```
//!
//! The guest's handler of breakpoints looks the address up and returns to the detour instead (the bundled guest:
//! `kernel/src/trap.s`). A table, like a stub, is never changed and its memory never given back: a handler that is preempted
//! with the address of an old one still finds what stood there. One store of the word, while no vCPU runs, goes with
//! the pokes of the breakpoints themselves.

use image::Image;
use terms::addr::Gva;

/// Who sees to it that a thread which meets a breakpoint continues at its detour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The guest's handler, by the table that this word leads to.
    Guest(Gva),
    /// The host: a write to this port leaves the guest, and its vCPU continues at the detour.
    Host(u8),
}

/// The word of a guest that serves such breakpoints.
const SERVICE: &str = "breakpoint_detours";
/// Bytes of a slot of the table.
const SLOT_BYTES: u64 = 16;

/// The word that leads to the table; none where the guest serves no breakpoints that stay.
#[must_use]
pub fn service(image: &Image) -> Option<Gva> {
    image.symbols.address_of(SERVICE)
}

/// The table of these breakpoints, each with the address at which the thread continues. Breakpoints at
/// address 0 are none.
#[must_use]
pub fn table(detours: &[(Gva, Gva)]) -> Vec<u8> {
    // At most half full, so that what is not there is soon known not to be.
    let slots = (2 * detours.len() + 1).next_power_of_two();
    let mut words = vec![(0, 0); slots];
    for (at, detour) in detours.iter().filter(|(at, _)| at.0 != 0) {
        let home = usize::try_from(at.0 & (slots as u64 - 1)).unwrap_or(0);
        let is_free = |place: &usize| {
            let key = words.get(*place).map(|(key, _)| *key);
            key == Some(0) || key == Some(at.0)
        };
        let free = (home..slots).chain(0..home).find(is_free);
        if let Some(slot) = free.and_then(|place| words.get_mut(place)) {
            *slot = (at.0, detour.0);
        }
    }
    let mask = (slots as u64 - 1) * SLOT_BYTES;
    let words = words.into_iter().flat_map(|(at, detour)| [at, detour]);
    let words = [mask, 0].into_iter().chain(words);
    words.flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the guest's handler does, in its order.
    fn look_up(table: &[u8], at: u64) -> Option<u64> {
        let word = |offset: u64| {
            let at = usize::try_from(offset).unwrap();
            u64::from_le_bytes(table[at..at + 8].try_into().unwrap())
        };
        let mut slot = at << 4;
        loop {
            slot &= word(0);
            match word(slot + 16) {
                key if key == at => return Some(word(slot + 24)),
                0 => return None,
                _ => slot += 16,
            }
        }
    }

    #[test]
    fn every_breakpoint_is_found_and_nothing_else() {
        for count in [0u64, 1, 2, 7, 1000] {
            // Many of them want the same slot.
            let at = |number: u64| 0xffff_ffff_8100_0000 + number / 3 * 4096 + number % 3;
            let detours: Vec<(Gva, Gva)> = (0..count)
                .map(|number| (Gva(at(number)), Gva(number + 7)))
                .collect();
            let table = table(&detours);
            for number in 0..count {
                assert_eq!(look_up(&table, at(number)), Some(number + 7));
                assert_eq!(look_up(&table, at(number) + 3), None);
            }
            assert_eq!(look_up(&table, at(count)), None);
        }
    }
}
