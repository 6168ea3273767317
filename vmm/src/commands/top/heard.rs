//! Functions and who calls them, events and what they happen in, counted from what is told of a session as it is recorded.

use std::collections::HashMap;
use std::sync::Arc;

use trace::live::{Happening, LiveEvent};

use super::counted::Row;

/// Threads whose open calls are kept. A guest can have as many as it likes.
const THREADS_MAX: usize = 4096;
/// Open calls of one thread that are kept.
const DEPTH_MAX: usize = 1024;
/// Callers of one function that are told apart.
const CALLERS_MAX: usize = 1000;

/// The caller of a call that is the first of its thread that is traced, or whose caller was not heard of.
pub const NOBODY: &str = "(no traced caller)";
/// Callers after the first [`CALLERS_MAX`].
const OTHERS: &str = "(others)";

/// Calls, and times of those that ended.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    hits: u64,
    timed: u64,
    total_ns: u64,
    self_ns: u64,
}

impl Figures {
    const fn ended(&mut self, total_ns: u64, self_ns: u64) {
        self.timed = self.timed.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
    }

    fn row(self, name: &str) -> Row {
        let has_times = self.timed > 0;
        Row {
            key: name.to_owned(),
            name: name.to_owned(),
            hits: self.hits,
            timed: has_times.then_some(self.timed),
            total_ns: self.total_ns,
            self_ns: has_times.then_some(self.self_ns),
            clamped: None,
        }
    }
}

#[derive(Debug, Default)]
struct Function {
    all: Figures,
    by_caller: HashMap<Arc<str>, Figures>,
}

impl Function {
    fn of_caller(&mut self, caller: &Arc<str>) -> &mut Figures {
        let is_full = self.by_caller.len() >= CALLERS_MAX;
        let caller = match is_full && !self.by_caller.contains_key(caller) {
            true => Arc::from(OTHERS),
            false => Arc::clone(caller),
        };
        self.by_caller.entry(caller).or_default()
    }
}

/// A call that has not ended.
#[derive(Debug, Clone)]
struct Open {
    function: Arc<str>,
    /// What calls inside of it have taken.
    inside_ns: u64,
}

/// What was heard so far.
#[derive(Debug, Default)]
pub struct Heard {
    functions: HashMap<Arc<str>, Function>,
    /// Of each thread; none is a call whose entry was not heard.
    open: HashMap<u32, Vec<Option<Open>>>,
    unread: u64,
}

impl Heard {
    /// One more event.
    pub fn add(&mut self, event: &LiveEvent) {
        let (thread, depth) = (event.thread, event.depth as usize);
        match &event.what {
            Happening::Entry { function, caller } => {
                let caller = caller.as_deref().unwrap_or(NOBODY);
                self.called(function, &self.name(caller));
            }
            Happening::Call { function, .. } => self.entered(thread, depth, function),
            Happening::Return {
                function,
                duration_ns,
                ..
            } => self.returned(thread, depth, function, *duration_ns),
            Happening::Unread { count } => {
                self.unread = self.unread.saturating_add(*count);
                self.missed();
            }
            Happening::Lost { .. } => self.missed(),
            // It is called by the innermost call of its thread that is open.
            Happening::Event { event, .. } => self.called(event, &self.caller(thread, depth)),
            Happening::LostEvents { .. }
            | Happening::Stall { .. }
            | Happening::Wait { .. }
            | Happening::Open { .. } => {}
        }
    }

    /// Something was not heard, and nobody says what: no call is taken for open.
    pub fn missed(&mut self) {
        self.open.clear();
    }

    /// Events that came faster than they were taken, at the end.
    pub const fn more_unread(&mut self, count: u64) {
        self.unread = self.unread.saturating_add(count);
    }

    /// Events that came faster than they were taken.
    #[must_use]
    pub const fn unread(&self) -> u64 {
        self.unread
    }

    /// Every function.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.functions.iter();
        rows.map(|(name, function)| function.all.row(name))
            .collect()
    }

    /// Everybody who called a function.
    #[must_use]
    pub fn callers(&self, of: &str) -> Vec<Row> {
        let callers = self.functions.get(of).into_iter();
        let callers = callers.flat_map(|function| &function.by_caller);
        callers.map(|(name, figures)| figures.row(name)).collect()
    }

    fn name(&self, function: &str) -> Arc<str> {
        let known = self.functions.get_key_value(function);
        known.map_or_else(|| Arc::from(function), |(name, _)| Arc::clone(name))
    }

    fn called(&mut self, function: &str, caller: &Arc<str>) {
        let name = self.name(function);
        let function = self.functions.entry(name).or_default();
        function.all.hits = function.all.hits.saturating_add(1);
        let of_caller = function.of_caller(caller);
        of_caller.hits = of_caller.hits.saturating_add(1);
    }

    fn entered(&mut self, thread: u32, depth: usize, function: &str) {
        let caller = self.caller(thread, depth);
        self.called(function, &caller);
        if depth >= DEPTH_MAX {
            return;
        }
        if self.open.len() >= THREADS_MAX && !self.open.contains_key(&thread) {
            self.open.clear();
        }
        let name = self.name(function);
        let stack = self.open.entry(thread).or_default();
        stack.resize(depth, None);
        stack.push(Some(Open {
            function: name,
            inside_ns: 0,
        }));
    }

    fn returned(&mut self, thread: u32, depth: usize, function: &str, duration_ns: Option<u64>) {
        let caller = self.caller(thread, depth);
        let Some(stack) = self.open.get_mut(&thread) else {
            return;
        };
        let Some(Some(open)) = stack.get(depth).cloned() else {
            return;
        };
        stack.truncate(depth);
        let Some(total_ns) = duration_ns.filter(|_| *open.function == *function) else {
            return;
        };
        if let Some(Some(around)) = stack.last_mut() {
            around.inside_ns = around.inside_ns.saturating_add(total_ns);
        }
        let self_ns = total_ns.saturating_sub(open.inside_ns);
        let function = self.functions.entry(open.function).or_default();
        function.all.ended(total_ns, self_ns);
        function.of_caller(&caller).ended(total_ns, self_ns);
    }

    fn caller(&self, thread: u32, depth: usize) -> Arc<str> {
        let stack = self.open.get(&thread);
        let around = depth.checked_sub(1).and_then(|depth| stack?.get(depth));
        let around = around.and_then(Option::as_ref);
        around.map_or_else(|| Arc::from(NOBODY), |open| Arc::clone(&open.function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(thread: u32, depth: u32, what: Happening) -> LiveEvent {
        LiveEvent {
            time_ns: 0,
            vcpu: 0,
            thread,
            task: None,
            depth,
            what,
        }
    }

    fn call(function: &str) -> Happening {
        Happening::Call {
            function: function.to_owned(),
            args: Default::default(),
        }
    }

    fn end(function: &str, duration_ns: impl Into<Option<u64>>) -> Happening {
        Happening::Return {
            function: function.to_owned(),
            duration_ns: duration_ns.into(),
            remark: None,
            retval: Vec::new(),
        }
    }

    fn heard(events: impl IntoIterator<Item = (u32, u32, Happening)>) -> Heard {
        let mut heard = Heard::default();
        for (thread, depth, what) in events {
            heard.add(&event(thread, depth, what));
        }
        heard
    }

    /// Calls, calls that ended, total and self time.
    fn figures(rows: &[Row], name: &str) -> Option<(u64, Option<u64>, u64, Option<u64>)> {
        let row = rows.iter().find(|row| row.name == name)?;
        Some((row.hits, row.timed, row.total_ns, row.self_ns))
    }

    #[test]
    fn calls_have_self_time_and_callers_by_thread() {
        let heard = heard([
            (1, 0, call("a")),
            (2, 0, call("b")),
            (1, 1, call("leaf")),
            (2, 1, call("leaf")),
            (1, 1, end("leaf", 30)),
            (2, 1, end("leaf", 7)),
            (1, 1, call("leaf")),
            (1, 1, end("leaf", 10)),
            (1, 0, end("a", 100)),
        ]);
        let rows = heard.rows();
        assert_eq!(rows.len(), 3);
        assert_eq!(figures(&rows, "a"), Some((1, Some(1), 100, Some(60))));
        assert_eq!(figures(&rows, "b"), Some((1, None, 0, None)));
        assert_eq!(figures(&rows, "leaf"), Some((3, Some(3), 47, Some(47))));
        let callers = heard.callers("leaf");
        assert_eq!(callers.len(), 2);
        assert_eq!(figures(&callers, "a"), Some((2, Some(2), 40, Some(40))));
        assert_eq!(figures(&callers, "b"), Some((1, Some(1), 7, Some(7))));
        let first = heard.callers("a");
        assert_eq!(figures(&first, NOBODY), Some((1, Some(1), 100, Some(60))));
        assert_eq!(heard.callers("nobody_knows"), []);
    }

    #[test]
    fn events_are_counted_and_have_the_call_they_happen_in() {
        let sent = || Happening::Event {
            event: "sent".to_owned(),
            fields: Default::default(),
        };
        let heard = heard([(1, 0, sent()), (1, 0, call("a")), (1, 1, sent())]);
        assert_eq!(figures(&heard.rows(), "sent"), Some((2, None, 0, None)));
        let callers = heard.callers("sent");
        assert_eq!(figures(&callers, NOBODY), Some((1, None, 0, None)));
        assert_eq!(figures(&callers, "a"), Some((1, None, 0, None)));
    }

    #[test]
    fn what_was_not_heard_from_its_entry_on_is_not_counted() {
        let heard = heard([
            (1, 1, end("begun_before", 900)),
            (1, 2, call("deep")),
            (1, 2, end("deep", 5)),
            (1, 1, end("begun_before", 900)),
            (1, 0, call("open")),
            (1, 0, end("open", None)),
        ]);
        let rows = heard.rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(figures(&rows, "deep"), Some((1, Some(1), 5, Some(5))));
        assert_eq!(figures(&rows, "open"), Some((1, None, 0, None)));
        assert!(figures(&heard.callers("deep"), NOBODY).is_some());
    }

    #[test]
    fn after_a_gap_no_call_is_taken_for_open() {
        for gap in [Happening::Unread { count: 3 }, Happening::Lost { count: 3 }] {
            let told = u64::from(matches!(gap, Happening::Unread { .. })) * 3;
            let mut heard = heard([
                (1, 0, call("a")),
                (1, 0, gap),
                (1, 1, call("b")),
                (1, 1, end("b", 5)),
                (1, 0, end("a", 50)),
            ]);
            let rows = heard.rows();
            assert_eq!(figures(&rows, "a"), Some((1, None, 0, None)));
            assert!(figures(&heard.callers("b"), NOBODY).is_some());
            assert_eq!(heard.unread(), told);
            heard.more_unread(2);
            assert_eq!(heard.unread(), told + 2);
        }
    }

    #[test]
    fn a_session_without_returns_has_no_times() {
        let entry = |function: &str| Happening::Entry {
            function: function.to_owned(),
            caller: None,
        };
        let heard = heard([(1, 0, entry("a")), (1, 0, entry("a"))]);
        assert_eq!(figures(&heard.rows(), "a"), Some((2, None, 0, None)));
    }

    #[test]
    fn a_guest_cannot_make_it_large() {
        let mut heard = Heard::default();
        let threads = u32::try_from(2 * THREADS_MAX).unwrap();
        for thread in 0..threads {
            heard.add(&event(thread, 0, call(&format!("f{}", thread % 5000))));
            heard.add(&event(thread, 1, call("leaf")));
            heard.add(&event(thread, u32::MAX, call("leaf")));
            heard.add(&event(thread, u32::MAX, end("leaf", 1)));
        }
        assert!(heard.open.len() <= THREADS_MAX);
        assert!(heard.callers("leaf").len() <= CALLERS_MAX + 1);
        let all = u64::from(threads);
        let rows = heard.callers("leaf");
        let hits = rows.iter().map(|row| row.hits).sum::<u64>();
        assert_eq!(hits, 2 * all);
    }
}
