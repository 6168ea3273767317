//! Which part of a trace that is there is read.

use crate::glob::Pattern;
use crate::graph::rules::Rules;

/// What is asked for; without anything all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Which calls of a graph, as where it is recorded.
    pub rules: Rules,
    /// Of a graph only calls on the way to these functions, and these.
    pub callers_of: Vec<Pattern>,
    /// Not these functions of a graph, but what they call.
    pub hidden: Vec<Pattern>,
    /// Not functions of a graph that are smaller than so many bytes, but what they call; those of unknown size are shown.
    pub min_bytes: Option<u64>,
    /// What was entered or happened on these vCPUs, or on all.
    pub vcpus: Vec<u16>,
    /// Only these threads of a graph: `comm-pid`, `comm`, a pid, or a thread's number.
    pub threads: Vec<Pattern>,
    /// Nothing that was over before this time. A call that lasted until after it is shown whole.
    pub from_ns: Option<u64>,
    /// Nothing that began after this time.
    pub until_ns: Option<u64>,
}

impl From<Rules> for Excerpt {
    fn from(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }
}

/// What a thread is called of which the guest has told nothing.
#[must_use]
pub fn nameless(thread: u32) -> String {
    format!("thread-{thread}")
}

impl Excerpt {
    /// Whether all is asked for.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Every glob in it that is about functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = &Pattern> {
        let Self {
            rules,
            callers_of,
            hidden,
            ..
        } = self;
        let of_rules = rules.roots.iter().chain(&rules.notrace);
        of_rules.chain(callers_of).chain(hidden)
    }

    /// What of it needs a graph, if anything does.
    pub(crate) fn of_graph(&self) -> Option<&'static str> {
        if !self.rules.is_everything() {
            return Some("selecting calls by depth, root or duration");
        }
        if !self.callers_of.is_empty() || !self.hidden.is_empty() {
            return Some("selecting calls by who called whom");
        }
        if self.min_bytes.is_some() {
            return Some("selecting calls by the size of functions");
        }
        (!self.threads.is_empty()).then_some("telling threads apart")
    }

    /// What of it needs times, if anything does.
    pub(crate) fn of_times(&self) -> Option<&'static str> {
        if self.rules.threshold.is_some() {
            return Some("selecting calls by duration");
        }
        (self.from_ns.is_some() || self.until_ns.is_some())
            .then_some("a part from one time to another")
    }

    /// Whether something on this vCPU, or that began there, is asked for.
    #[must_use]
    pub fn has_vcpu(&self, vcpu: u16) -> bool {
        self.vcpus.is_empty() || self.vcpus.contains(&vcpu)
    }

    /// Whether this time is before all that is asked for.
    #[must_use]
    pub fn is_early(&self, time_ns: u64) -> bool {
        self.from_ns.is_some_and(|from_ns| time_ns < from_ns)
    }

    /// Whether it is after all that is asked for.
    #[must_use]
    pub fn is_late(&self, time_ns: u64) -> bool {
        self.until_ns.is_some_and(|until_ns| time_ns > until_ns)
    }

    /// Whether what happened then and there, at once, is asked for.
    #[must_use]
    pub fn has(&self, vcpu: u16, time_ns: u64) -> bool {
        self.has_vcpu(vcpu) && !self.is_early(time_ns) && !self.is_late(time_ns)
    }

    /// Whether this thread is asked for; `name` is `comm-pid`, where the guest has told it.
    #[must_use]
    pub fn has_thread(&self, thread: u32, name: Option<&str>) -> bool {
        let number = thread.to_string();
        let parts = name.and_then(|name| name.rsplit_once('-'));
        let (comm, pid) = parts.unzip();
        // As reports show one of which the guest has told nothing.
        let made_up = nameless(thread);
        let names = [name.or(Some(&made_up)), comm, pid.or(Some(&number))];
        let is_one = |pattern: &Pattern| {
            names
                .into_iter()
                .flatten()
                .any(|name| pattern.matches_name(name))
        };
        self.threads.is_empty() || self.threads.iter().any(is_one)
    }
}
