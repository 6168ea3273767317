//! Which of the sessions of a guest: there are sixteen at most.

/// A set of sessions, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SessionSet(u16);

impl SessionSet {
    /// The set with `session` in it.
    #[must_use]
    pub const fn with(self, session: u8) -> Self {
        Self(self.0 | 1 << (session & 15))
    }

    /// The set without `session`.
    #[must_use]
    pub const fn without(self, session: u8) -> Self {
        Self(self.0 & !(1 << (session & 15)))
    }

    /// Whether `session` is in it.
    #[must_use]
    pub const fn has(self, session: u8) -> bool {
        self.0 & 1 << (session & 15) != 0
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The sessions in it and those in `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A bit for each session.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The set with a bit for each session.
    #[must_use]
    pub const fn of_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The sessions in it, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |session| self.has(*session))
    }
}
