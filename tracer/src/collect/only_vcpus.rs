//! Which vCPUs a session records. Each has a ring of its own, and one whose ring is closed records nothing, as when all of them
//! are: the stub compares with the limit of its ring anyway, so this costs nothing, and nothing of it is counted as lost.

/// All of them, or only these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnlyVcpus(Vec<u16>);

impl OnlyVcpus {
    /// Only these, of how many a number says; all when none is named.
    ///
    /// # Errors
    /// The first that there is not.
    pub fn new(wanted: &[u16], vcpus: u16) -> Result<Self, u16> {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        match wanted.iter().find(|vcpu| **vcpu >= vcpus) {
            Some(missing) => Err(*missing),
            None => Ok(Self(wanted)),
        }
    }

    /// Whether what this vCPU does is recorded.
    #[must_use]
    pub fn has(&self, vcpu: u16) -> bool {
        self.is_all() || self.0.contains(&vcpu)
    }

    /// Whether all of them are.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers of those that are; none when all are.
    #[must_use]
    pub fn numbers(&self) -> &[u16] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_are_recorded_that_are_named_and_all_when_none_is() {
        let only = OnlyVcpus::new(&[2, 1, 2], 3).unwrap();
        let has = |only: &OnlyVcpus| (0..3).map(|vcpu| only.has(vcpu)).collect::<Vec<_>>();
        assert_eq!(has(&only), [false, true, true]);
        assert_eq!(only.numbers(), [1, 2]);
        assert_eq!(has(&OnlyVcpus::default()), [true; 3]);
        assert_eq!(OnlyVcpus::new(&[1, 3], 3), Err(3));
    }
}
