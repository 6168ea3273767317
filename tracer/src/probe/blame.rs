//! Which part of an expression an error is about that came up when the expression was worked out: what a user is to look at.

use super::BadProbe;
use super::expression::{Fetch, Node, What};
use debuginfo::DebugError;

impl Fetch {
    /// Which byte of it an error is about.
    pub fn wrong_at(&self, why: &BadProbe) -> usize {
        match (why, &self.format) {
            (BadProbe::Format { .. }, Some(format)) => format.at,
            _ => self.node.wrong_at(why),
        }
    }
}

impl Node {
    /// Which byte of the text that it is a part of an error is about.
    pub fn wrong_at(&self, why: &BadProbe) -> usize {
        let found = match why {
            BadProbe::Member { name, .. } => self.find(&|node| node.member_at(name)),
            BadProbe::Structure { name, .. } => self.find(&|node| node.cast_at(name)),
            _ => subject(why).and_then(|text| self.find(&|node| node.is_called(text))),
        };
        found.unwrap_or(self.at)
    }

    /// The first answer of its parts, those inside of others first.
    fn find(&self, ask: &impl Fn(&Self) -> Option<usize>) -> Option<usize> {
        let inner: [Option<&Self>; 2] = match &self.what {
            What::Member(of, _) | What::Arrow(of, _) | What::Cast(of, _) => [Some(of), None],
            What::Dereferenced(of) | What::Address(of) | What::Unary(_, of) => [Some(of), None],
            What::Index(left, right) | What::Binary(_, left, right) => [Some(left), Some(right)],
            _ => [None, None],
        };
        let mut inner = inner.into_iter().flatten();
        inner.find_map(|node| node.find(ask)).or_else(|| ask(self))
    }

    /// Where the member of this name is that it names last.
    fn member_at(&self, wanted: &str) -> Option<usize> {
        match &self.what {
            What::Member(_, name) | What::Arrow(_, name) if name == wanted => {
                Some(self.at + self.text.len().saturating_sub(name.len()))
            }
            What::Cast(_, cast) => {
                let (names, at) = cast.from.as_ref()?;
                names.iter().any(|name| name == wanted).then_some(*at)
            }
            _ => None,
        }
    }

    /// Where the structure of this name is that it casts to.
    fn cast_at(&self, wanted: &str) -> Option<usize> {
        match &self.what {
            What::Cast(_, cast) if cast.to == wanted => Some(cast.at),
            _ => None,
        }
    }

    fn is_called(&self, text: &str) -> Option<usize> {
        match &self.what {
            What::OfCpu(of_cpu) if of_cpu.name == text => Some(of_cpu.at),
            What::Cast(_, cast) if cast.to == text => Some(cast.at),
            _ => (self.text == text).then_some(self.at),
        }
    }
}

/// The words that an error is about.
fn subject(why: &BadProbe) -> Option<&str> {
    match why {
        BadProbe::Value { text, .. } => Some(text),
        BadProbe::Debug(
            DebugError::Variable { name, .. }
            | DebugError::OptimisedOut { name, .. }
            | DebugError::Place { name, .. },
        ) => Some(name),
        BadProbe::Debug(DebugError::Absent { what } | DebugError::Unread { what, .. }) => {
            Some(what.trim_matches('`'))
        }
        _ => None,
    }
}
