//! The turnstile: a page of the window that shows addresses without memory. A stub that finds its ring full and must lose
//! nothing reads there, one address for the rings of each session, which leaves the guest from whatever ring it executes
//! in. It finds nothing there and looks again whether there is room.

use terms::addr::{Gpa, Gva};

/// The addresses of two sessions lie so far from each other.
const STRIDE: u64 = 64;
/// That of events lies so far after that of calls.
const EVENTS: u64 = 32;

/// Which rings of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rings {
    /// Those of calls.
    Calls,
    /// Those of events.
    Events,
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turnstile {
    /// For stubs.
    pub at: Gva,
    /// For the host.
    pub physical: Gpa,
    /// A word in memory for each session: whether somebody reads its rings, who is to be waited for.
    pub awaited: Gva,
    /// The same for the host.
    pub awaited_physical: Gpa,
}

/// What a stub does at a full ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitAt {
    /// It looks whether somebody is to be waited for.
    pub awaited: Gva,
    /// It reads this, which is its session's and of this kind of rings.
    pub at: Gva,
}

impl Turnstile {
    /// For stubs that find a ring of this session full.
    #[must_use]
    pub const fn of(self, session: u8, rings: Rings) -> WaitAt {
        WaitAt {
            awaited: self.awaited.wrapping_add(word(session)),
            at: self.at.wrapping_add(offset(session, rings)),
        }
    }

    /// The word of this session.
    #[must_use]
    pub const fn awaited_of(self, session: u8) -> Gpa {
        self.awaited_physical.wrapping_add(word(session))
    }

    /// Whose rings are full when `at` is read, if it is one of these addresses.
    #[must_use]
    pub fn whose(physical: Gpa, at: Gpa) -> Option<(u8, Rings)> {
        let distance = at.0.checked_sub(physical.0)?;
        let session = u8::try_from(distance / STRIDE).ok()?;
        let all = [Rings::Calls, Rings::Events];
        let mut all = all.into_iter();
        let rings = all.find(|rings| offset(session, *rings) == distance)?;
        Some((session, rings))
    }
}

const fn word(session: u8) -> u64 {
    session as u64 * 8
}

const fn offset(session: u8, rings: Rings) -> u64 {
    let of_session = session as u64 * STRIDE;
    match rings {
        Rings::Calls => of_session,
        Rings::Events => of_session + EVENTS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_the_rings_of_one_session_and_no_other_is_any() {
        let turnstile = Turnstile {
            at: Gva(0xffff_ffff_d000_0000),
            physical: Gpa(0x1_2000_0000),
            awaited: Gva(0xffff_ffff_d000_0000),
            awaited_physical: Gpa(0x1_3000_0000),
        };
        let whose = |at| Turnstile::whose(turnstile.physical, Gpa(at));
        for session in 0..16 {
            for rings in [Rings::Calls, Rings::Events] {
                let at = turnstile.of(session, rings).at.0 - turnstile.at.0;
                let at = turnstile.physical.0 + at;
                assert_eq!(whose(at), Some((session, rings)));
                assert_eq!(whose(at + 1), None);
                assert_eq!(whose(at + 8), None);
            }
        }
        assert_eq!(whose(turnstile.physical.0 - 1), None);
        assert_eq!(whose(u64::MAX), None);
    }
}
