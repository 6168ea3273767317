//! The threads of a trace by numbers, as other tools know them. The guest tells pids, and threads can share one: all idle tasks
//! have 0, the pid of a task that has ended is given to another, and a task may run on two stacks.

use std::collections::{BTreeMap, BTreeSet};

/// More than Linux gives.
const NO_PID: u32 = 1 << 22;

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// What no other thread has: its pid, unless that is of another already, or not known.
    pub tid: u32,
    /// What the guest calls it.
    pub name: String,
}

/// All of them, by their numbers in the trace.
#[derive(Debug, Clone, Default)]
pub struct Threads {
    apart: BTreeMap<u32, Thread>,
    /// What the guest told.
    pids: BTreeMap<u32, u32>,
}

impl Threads {
    /// Of these threads, each with what the guest has told of it, as `comm-pid`. Of whom it has told nothing, `word` and the
    /// number are the name.
    #[must_use]
    pub fn of<'a>(told: impl Iterator<Item = (u32, Option<&'a str>)>, word: &str) -> Self {
        let parts = |name: &'a str| {
            let (comm, pid) = name.rsplit_once('-')?;
            Some((comm, pid.parse::<u32>().ok()?))
        };
        let told = told.map(|(thread, name)| (thread, name.and_then(parts)));
        let told: BTreeMap<u32, Option<(&str, u32)>> = told.collect();
        let pids = told.iter();
        let pids = pids.filter_map(|(thread, told)| Some((*thread, (*told)?.1)));
        let pids: BTreeMap<u32, u32> = pids.collect();
        let (mut free, mut owned) = (Free::beside(pids.values()), BTreeSet::new());
        let apart = told.into_iter().map(|(thread, told)| {
            let own = told.filter(|(_, pid)| owned.insert(*pid));
            let tid = own.map_or_else(|| free.take(thread), |(_, pid)| pid);
            let name = told.map_or_else(|| format!("{word}{thread}"), |(comm, _)| comm.to_owned());
            (thread, Thread { tid, name })
        });
        Self {
            apart: apart.collect(),
            pids,
        }
    }

    /// Each by itself.
    #[must_use]
    pub fn apart(self) -> BTreeMap<u32, Thread> {
        self.apart
    }

    /// The pid of a thread, which others may have, too. Where none is known it is one that the guest does not have.
    #[must_use]
    pub fn pid(&self, thread: u32) -> u32 {
        let tid = || self.apart.get(&thread).map(|thread| thread.tid);
        let pid = self.pids.get(&thread).copied();
        pid.or_else(tid).unwrap_or(NO_PID)
    }

    /// What each pid is called: by all names that its threads have, as `sh|cat`.
    #[must_use]
    pub fn names_of_pids(&self) -> BTreeMap<u32, String> {
        let mut names: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for (thread, Thread { name, .. }) in &self.apart {
            let of_pid = names.entry(self.pid(*thread)).or_default();
            if !of_pid.contains(&&**name) {
                of_pid.push(name);
            }
        }
        let joined = |(pid, names): (u32, Vec<&str>)| (pid, names.join("|"));
        names.into_iter().map(joined).collect()
    }
}

/// Numbers that nobody has.
struct Free(BTreeSet<u32>);

impl Free {
    /// Others than these.
    fn beside<'a>(taken: impl Iterator<Item = &'a u32>) -> Self {
        Self(taken.copied().collect())
    }

    /// The next one for a thread.
    fn take(&mut self, thread: u32) -> u32 {
        let first = NO_PID.saturating_add(thread);
        let mut all = (first..=u32::MAX).chain(NO_PID..first);
        // There are more than threads.
        all.find(|tid| self.0.insert(*tid)).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads by number, each with its tid, its pid and its name.
    fn known(told: &[(u32, Option<&str>)]) -> Vec<(u32, u32, u32, String)> {
        let threads = Threads::of(told.iter().copied(), "thread");
        let pid = |thread| threads.pid(thread);
        let apart = threads.clone().apart().into_iter();
        apart
            .map(|(number, thread)| (number, thread.tid, pid(number), thread.name))
            .collect()
    }

    #[test]
    fn threads_that_share_a_pid_have_their_own_names_and_the_first_has_the_pid() {
        let told = [
            (0, Some("swapper/0-0")),
            (1, Some("swapper/1-0")),
            (2, Some("sh-7")),
            (3, None),
            (4, Some("with-dash-8")),
            (5, Some("no pid")),
        ];
        let expected = [
            (0, 0, 0, "swapper/0"),
            (1, NO_PID + 1, 0, "swapper/1"),
            (2, 7, 7, "sh"),
            (3, NO_PID + 3, NO_PID + 3, "thread3"),
            (4, 8, 8, "with-dash"),
            (5, NO_PID + 5, NO_PID + 5, "thread5"),
        ];
        let expected = expected.map(|(thread, tid, pid, name)| (thread, tid, pid, name.to_owned()));
        assert_eq!(known(&told), expected);
    }

    /// Whatever a file tells.
    #[test]
    fn no_two_threads_have_the_same_tid() {
        let most = format!("a-{}", u32::MAX);
        let told = [
            (0, Some("a-4194305")),
            (1, None),
            (2, Some("b-4194305")),
            (3, Some("a-4194306")),
            (u32::MAX - 1, Some("c-0")),
            (u32::MAX, Some("d-0")),
            (7, Some(&most)),
        ];
        let known = known(&told);
        let tids: BTreeSet<u32> = known.iter().map(|(_, tid, ..)| *tid).collect();
        assert_eq!(tids.len(), told.len(), "{known:?}");
        let told = |pid: u32| known.iter().any(|(_, tid, ..)| *tid == pid);
        assert!([4_194_305, 4_194_306, 0, u32::MAX].into_iter().all(told));
        let nobody = Threads::default();
        assert_eq!((nobody.pid(3), nobody.apart().len()), (NO_PID, 0));
    }

    #[test]
    fn a_pid_has_the_names_of_all_its_threads_each_once() {
        let told = [
            (0, Some("sh-7")),
            (1, Some("cat-7")),
            (2, Some("sh-7")),
            (3, Some("init-1")),
            (4, None),
        ];
        let names = Threads::of(told.into_iter(), "thread").names_of_pids();
        let expected = [(1, "init"), (7, "sh|cat"), (NO_PID + 4, "thread4")];
        let expected = expected.map(|(pid, name)| (pid, name.to_owned()));
        assert_eq!(names, BTreeMap::from(expected));
    }
}
