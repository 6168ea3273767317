//! One trigger, and what it has seen and not done yet.

use std::process::Child;
use std::time::{Duration, Instant};

use terms::printable::masked;
use terms::quantity::{in_microseconds, in_seconds};
use trace::export::uftrace::Fired;
use trace::live::{Happening, LiveEvent, Tail, tail};
use tracer::tracing::session::HaltAt;
use tracer::tracing::{Tracing, TracingError};

use super::action::{act, numbered, run};
use super::starter::Starter;
use crate::bell::Bell;
use crate::control::status::TriggerStatus;
use crate::options::trigger::{Action, DumpAction, Trigger};
use crate::provider::Provider;

/// Of one trigger so many are told of one by one, and the rest at the end.
const SAID_MAX: u64 = 16;
/// How long the record of what has ended recording may take to be read.
const UNSEEN: Duration = Duration::from_secs(2);

/// How recording ends, where it is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halting {
    /// In the guest, by this halt of the session.
    AtOnce(usize),
    /// When the record is read, because of this.
    WhenRead(&'static str),
}

/// A trigger of a session.
#[derive(Debug)]
pub(super) struct Armed {
    pub(super) session: String,
    trigger: Trigger,
    halting: Halting,
    tail: Tail,
    fired: u64,
    failed: u64,
    /// Since when the guest has ended recording more often than was seen.
    unseen: Option<Instant>,
    /// How often it was done for what was not seen, and has not been seen since.
    ahead: u64,
    /// Whether no more comes, and what was missed at the end is counted.
    has_ended: bool,
    /// Who starts its command.
    starter: Starter,
    /// The command that it has started last.
    command: Option<Child>,
}

/// What was seen.
#[derive(Debug, Clone, Copy)]
enum Occurred<'a> {
    /// This.
    Seen(&'a LiveEvent),
    /// That the guest has ended recording.
    Unseen,
}

impl Armed {
    /// Has a trigger wait in a session.
    ///
    /// # Errors
    /// [`TracingError`] about one for which there can be no occasion.
    pub fn new(
        session: &str,
        trigger: &Trigger,
        (bell, starter): (&Bell, &Starter),
        tracing: &mut Tracing,
    ) -> Result<Self, TracingError> {
        let (tail, listener) = tail({
            let bell = bell.clone();
            move || bell.ring()
        });
        let listener = listener.of(trigger.occasion.clone(), trigger.times);
        tracing.session(session)?.listen(listener)?;
        if !tracing
            .session(session)?
            .selects_some_of(&trigger.occasion)?
        {
            log::warn!("{}", left_out(trigger, session));
        }
        let halting = match trigger.action.counts_lost() {
            Some(counts_lost) => {
                let at = HaltAt {
                    occasion: trigger.occasion.clone(),
                    times: trigger.times,
                    counts_lost,
                };
                let number = tracing.session(session)?.halt_at(at)?;
                number.map_or_else(Halting::WhenRead, Halting::AtOnce)
            }
            None => Halting::WhenRead("the host does it"),
        };
        Ok(Self {
            session: session.to_owned(),
            trigger: trigger.clone(),
            halting,
            tail,
            fired: 0,
            failed: 0,
            unseen: None,
            ahead: 0,
            has_ended: false,
            starter: starter.clone(),
            command: None,
        })
    }

    /// How it is.
    pub fn status(&self) -> TriggerStatus {
        let (acts, reason) = match self.halting {
            Halting::AtOnce(_) => ("at once", None),
            Halting::WhenRead(reason) => ("when read", Some(reason.to_owned())),
        };
        TriggerStatus {
            trigger: self.trigger.to_string(),
            session: self.session.clone(),
            acts: acts.to_owned(),
            reason,
            fired: self.fired,
            failed: self.failed,
        }
    }

    /// Whether there is more to see to.
    pub fn has_any(&self) -> bool {
        self.tail.has_any()
    }

    /// Whether it can still fire.
    pub const fn is_waiting(&self) -> bool {
        self.fired < self.trigger.times
    }

    /// Does what is to be done for all that was recorded, if it could be read.
    pub fn see_to_last(&mut self, is_read: bool, guest: &impl Provider, tracing: &mut Tracing) {
        if !is_read {
            log::warn!(
                "trigger '{}': what session {} has recorded last is not written yet, and not all of it was looked at: its output takes long",
                self.trigger,
                self.session
            );
        }
        self.see_to(usize::MAX, guest, tracing);
        if self.unseen_by(tracing) > 0 {
            self.fire_on(Occurred::Unseen, guest, tracing);
        }
    }

    /// Does what is to be done for the next that it has seen, at most so often.
    pub fn see_to(&mut self, most: usize, guest: &impl Provider, tracing: &mut Tracing) {
        let events = self.tail.take(most);
        for event in &events {
            self.fire_on(Occurred::Seen(event), guest, tracing);
        }
        if !events.is_empty() {
            self.agree(tracing);
        }
        self.count_missed();
    }

    /// What came after the last that could be kept, once no more comes.
    fn count_missed(&mut self) {
        if let Some(missed) = self.tail.end().filter(|_| !self.has_ended) {
            self.has_ended = true;
            self.fired = self.fired.saturating_add(missed);
            self.failed = self.failed.saturating_add(missed);
        }
    }

    fn fire_on(&mut self, what: Occurred<'_>, guest: &impl Provider, tracing: &mut Tracing) {
        let failed = self.failed;
        let session = self.session.clone();
        self.note(what, tracing);
        self.fire(what, |action| {
            act(action, &session, what.time_ns(), guest, tracing)
        });
        // What was not dumped is not waited for.
        if failed < self.failed
            && let Halting::AtOnce(_) = self.halting
            && let Ok(session) = tracing.session(&session)
        {
            let _ = session.record_on();
        }
    }

    /// Has the trace say that it fires, before what is to be done is done.
    fn note(&self, what: Occurred<'_>, tracing: &mut Tracing) {
        if matches!(what, Occurred::Seen(event) if matches!(event.what, Happening::Unread { .. })) {
            return;
        }
        let fired = Fired {
            time_ns: what.time_ns(),
            trigger: self.trigger.to_string(),
        };
        // Without the session there is no trace to say it.
        if let Ok(session) = tracing.session(&self.session) {
            let _ = session.has_fired(fired);
        }
    }

    /// The guest ends recording as often as is left, and no more: also where it was told of what no stub has seen.
    fn agree(&mut self, tracing: &mut Tracing) {
        let Halting::AtOnce(number) = self.halting else {
            return;
        };
        let left = self.trigger.times.saturating_sub(self.fired);
        if self.left(number, tracing).is_some_and(|now| now > left)
            && let Ok(session) = tracing.session(&self.session)
        {
            let _ = session.set_halt_left(number, left);
        }
        self.unseen = None;
    }

    fn left(&self, number: usize, tracing: &mut Tracing) -> Option<u64> {
        tracing
            .session(&self.session)
            .ok()?
            .halt_left(number)
            .ok()?
    }

    /// Fires also where the guest has ended recording, and the record of why was lost.
    pub fn look(&mut self, guest: &impl Provider, tracing: &mut Tracing) {
        if self.unseen_by(tracing) == 0 {
            self.unseen = None;
            return;
        }
        let since = *self.unseen.get_or_insert_with(Instant::now);
        if since.elapsed() >= UNSEEN && !self.has_any() {
            self.fire_on(Occurred::Unseen, guest, tracing);
            self.unseen = None;
        }
    }

    /// How often the guest has ended recording, and it was not seen by now.
    fn unseen_by(&self, tracing: &mut Tracing) -> u64 {
        let Halting::AtOnce(number) = self.halting else {
            return 0;
        };
        let times = self.trigger.times;
        let left = self.left(number, tracing).unwrap_or(times).min(times);
        (times - left).saturating_sub(self.fired)
    }

    /// It is over. What was seen at the end can only have commands run; says if it has not fired.
    pub fn end(&mut self) {
        let late = |_: &Action| Err("the run was over by then".to_owned());
        for event in self.tail.take(usize::MAX) {
            self.fire(Occurred::Seen(&event), late);
        }
        self.count_missed();
        if let Some(sum) = self.sum() {
            log::warn!("{sum}");
        }
    }

    /// There was an occasion.
    fn fire(&mut self, what: Occurred<'_>, act: impl FnOnce(&Action) -> Result<String, String>) {
        if let Occurred::Seen(LiveEvent {
            what: Happening::Unread { count },
            ..
        }) = what
        {
            // More than could be kept came while others were seen to.
            self.fired = self.fired.saturating_add(*count);
            self.failed = self.failed.saturating_add(*count);
            return;
        }
        match what {
            Occurred::Unseen => self.ahead += 1,
            // It was read late: what is to be done was done.
            Occurred::Seen(_) if self.ahead > 0 => {
                self.ahead -= 1;
                return;
            }
            Occurred::Seen(_) => {}
        }
        self.fired = self.fired.saturating_add(1);
        let (trigger, time_ns) = (&self.trigger, what.time_ns());
        let done = match &trigger.action {
            Action::Run(command) => {
                run(command, &mut self.command, time_ns, trigger, &self.starter)
            }
            Action::Dump(dump) => act(&Action::Dump(DumpAction {
                directory: numbered(&dump.directory, self.fired),
                ..dump.clone()
            })),
            other => act(other),
        };
        self.failed += u64::from(done.is_err());
        if self.fired > SAID_MAX {
            return;
        }
        let what = what.said();
        match done {
            Ok(done) => log::info!("trigger '{trigger}': {what}: {done}"),
            Err(error) => log::error!("trigger '{trigger}': {what}: {error}"),
        }
    }

    /// What is to be said at the end.
    fn sum(&self) -> Option<String> {
        let Self {
            trigger,
            fired,
            failed,
            ..
        } = self;
        match *fired {
            0 => Some(format!("trigger '{trigger}' has not fired")),
            1..=SAID_MAX => None,
            _ => Some(format!(
                "trigger '{trigger}' has fired {fired} times, {failed} of them in vain"
            )),
        }
    }
}

impl Occurred<'_> {
    /// When, where that is known.
    const fn time_ns(self) -> Option<u64> {
        match self {
            Self::Seen(event) => Some(event.time_ns),
            Self::Unseen => None,
        }
    }

    fn said(self) -> String {
        match self {
            Self::Seen(event) => said(event),
            Self::Unseen => {
                "the guest has ended recording, and its record was not there to be read".to_owned()
            }
        }
    }
}

/// What is said of a trigger that cannot fire as things are.
fn left_out(trigger: &Trigger, session: &str) -> String {
    format!(
        "trigger '{trigger}': the filter of session {session} leaves out every function that it is about, so it cannot fire: \
         have --filter include one, or add one later (vmm ctl filter add)"
    )
}

/// What has happened, for a message.
fn said(event: &LiveEvent) -> String {
    let time = in_seconds(event.time_ns);
    let at = format!("at {time} s on vCPU {}", event.vcpu);
    match &event.what {
        Happening::Entry { function, .. } | Happening::Call { function, .. } => {
            format!("{} {at}", masked(function))
        }
        Happening::Return {
            function,
            duration_ns,
            ..
        } => {
            let took = in_microseconds(duration_ns.unwrap_or(0));
            format!("{} took {took} us {at}", masked(function))
        }
        Happening::Open { function, open_ns } => {
            let open = in_microseconds(*open_ns);
            let function = masked(function);
            format!("{function} has not ended after {open} us {at}")
        }
        Happening::Event { event: name, .. } => format!("{} {at}", masked(name)),
        // Nobody waits for these.
        Happening::Lost { .. }
        | Happening::LostEvents { .. }
        | Happening::Stall { .. }
        | Happening::Wait { .. }
        | Happening::Unread { .. } => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(trigger: &str) -> Armed {
        Armed {
            session: "default".to_owned(),
            trigger: trigger.parse().unwrap(),
            halting: Halting::WhenRead("the host does it"),
            tail: tail(|| ()).0,
            fired: 0,
            failed: 0,
            unseen: None,
            ahead: 0,
            has_ended: false,
            starter: Starter::start("commands").unwrap(),
            command: None,
        }
    }

    fn event(what: Happening) -> LiveEvent {
        LiveEvent {
            time_ns: 1_000_000_002,
            vcpu: 1,
            thread: 0,
            task: None,
            depth: 0,
            what,
        }
    }

    fn unread(one: &mut Armed, count: u64) {
        let event = event(Happening::Unread { count });
        one.fire(Occurred::Seen(&event), |_| panic!("done"));
    }

    #[test]
    fn what_could_not_be_kept_is_counted_and_nothing_is_done_for_it() {
        let mut one = armed("f: stop x100000");
        unread(&mut one, 7);
        assert_eq!((one.fired, one.failed), (7, 7));
        let function = "f".to_owned();
        let entry = event(Happening::Entry {
            function,
            caller: None,
        });
        let mut done = 0;
        one.fire(Occurred::Seen(&entry), |action| {
            assert_eq!(*action, Action::Stop);
            done += 1;
            Ok(String::new())
        });
        assert_eq!((one.fired, one.failed, done), (8, 7, 1));
        assert_eq!(one.sum(), None);
        unread(&mut one, u64::MAX);
        let sum = one.sum().unwrap();
        assert!(sum.contains("of them in vain"), "{sum}");
    }

    #[test]
    fn what_is_read_late_is_not_done_twice() {
        let mut one = armed("f: stop x9");
        let function = "f".to_owned();
        let entry = event(Happening::Entry {
            function,
            caller: None,
        });
        let mut done = 0;
        for what in [
            Occurred::Unseen,
            Occurred::Seen(&entry),
            Occurred::Seen(&entry),
        ] {
            one.fire(what, |_| {
                done += 1;
                Ok(String::new())
            });
        }
        assert_eq!((one.fired, one.failed, done), (2, 0, 2));
    }

    #[test]
    fn what_has_happened_is_said_with_when_and_where() {
        let function = || "\u{1b}f".to_owned();
        let took = Happening::Return {
            function: function(),
            duration_ns: Some(6_200_001),
            remark: None,
            retval: Vec::new(),
        };
        let open = Happening::Open {
            function: function(),
            open_ns: 5_000,
        };
        for (what, expected) in [
            (took, "?f took 6200.001 us at 1.000000002 s on vCPU 1"),
            (
                open,
                "?f has not ended after 5.000 us at 1.000000002 s on vCPU 1",
            ),
        ] {
            assert_eq!(said(&event(what)), expected);
        }
    }
}
