//! Records of one time on several vCPUs: a clock that counts in steps, and threads that are interrupted between the time
//! of a record and its place, and go on elsewhere.

use Step::{Entry, Exit, Tail};

use super::*;

/// Slots of one stack, the outer one first.
const OUTER: u64 = 0x1f00;
const INNER: u64 = 0x1e00;

/// A record, when it was reserved, and in which ring.
#[derive(Debug, Clone)]
struct Reserved {
    at_ns: u64,
    vcpu: usize,
    record: Record,
}

/// Threads that run one at a time on vCPUs whose clock counts in steps of `granule`, at least so long after it was interrupted a
/// thread goes on. All calls return.
struct Machine {
    granule: u64,
    now: u64,
    /// Of each thread the vCPU that it was on, and the time when.
    was: HashMap<u64, (usize, u64)>,
    open: HashMap<u64, Vec<(u64, u32)>>,
    made: Vec<Reserved>,
    /// Entries and exits of each thread, in its order.
    truth: HashMap<u64, Vec<(bool, u32)>>,
}

impl Machine {
    fn new(granule: u64) -> Self {
        Self {
            granule,
            now: 1 << 20,
            was: HashMap::new(),
            open: HashMap::new(),
            made: Vec::new(),
            truth: HashMap::new(),
        }
    }

    fn clock(&self, at: u64) -> u64 {
        at / self.granule * self.granule
    }

    fn step(&mut self, thread: u64, vcpu: usize, step: Step, function: u32, slot: u64) {
        let (before, at) = self.was.get(&thread).copied().unwrap_or((vcpu, self.now));
        let mut time_ns = self.now;
        if before != vcpu {
            // It had read the time.
            time_ns = at + 1;
            self.now += 3 * self.granule;
        }
        let function = FunctionId(function);
        let record = Record {
            time_ns: self.clock(time_ns),
            kind: RecordKind::Graph {
                function,
                step,
                slot,
            },
        };
        let at_ns = self.now;
        self.made.push(Reserved {
            at_ns,
            vcpu,
            record,
        });
        self.was.insert(thread, (vcpu, at_ns));
        self.now += 1;
    }

    fn act(&mut self, thread: u64, vcpu: usize, act: Act, passes: u64) {
        self.now += passes;
        let top = (thread + 1) * STACK - 64;
        let open = self.open.entry(thread).or_default();
        let truth = self.truth.entry(thread).or_default();
        match (act, open.last().copied()) {
            (Act::Call(function), last) if open.len() < 100 => {
                let slot = last.map_or(top, |(slot, _)| slot - 32);
                open.push((slot, function));
                truth.push((true, function));
                self.step(thread, vcpu, Entry, function, slot);
            }
            (Act::Tail(function), Some((slot, _))) if open.len() < 100 => {
                open.push((slot, function));
                truth.push((true, function));
                self.step(thread, vcpu, Tail, function, slot);
            }
            (Act::Return, Some((slot, _))) => {
                let mut hooked = 0;
                while let Some((_, function)) = open.pop_if(|call| call.0 == slot) {
                    truth.push((false, function));
                    hooked = function;
                }
                self.step(thread, vcpu, Exit, hooked, slot);
            }
            _ => {}
        }
    }

    fn return_all(&mut self) {
        let threads: Vec<u64> = self.open.keys().copied().collect();
        for thread in threads {
            while !self.open[&thread].is_empty() {
                let vcpu = self.was[&thread].0;
                self.act(thread, vcpu, Act::Return, 1);
            }
        }
    }

    /// What the trace has, read in rounds of so many nanoseconds.
    fn read(&self, vcpus: u16, rounds: &[u64]) -> (Vec<Event>, Anomalies) {
        let mut stream = stream(usize::from(vcpus), 1 << 20);
        let mut steps = Vec::new();
        let mut made = self.made.iter().peekable();
        let mut rounds = rounds.iter().cycle();
        let mut now = 1 << 20;
        while made.peek().is_some() {
            now += rounds.next().unwrap();
            while let Some(next) = made.next_if(|next| next.at_ns < now) {
                push(&mut stream, next.vcpu, &next.record, now);
            }
            (0..vcpus).for_each(|vcpu| stream.rings().looked(Origin::Calls(vcpu), self.clock(now)));
            stream.pass_on(Pass::Round, &mut steps);
        }
        stream.finish(&mut steps);
        let anomalies = stream.anomalies().unwrap();
        (steps, anomalies)
    }
}

/// Entries and exits of each thread, in the order of the trace, by what is first in the trace.
fn told(steps: &[Event]) -> Vec<Vec<(bool, u32)>> {
    let mut told: HashMap<u32, Vec<(bool, u32)>> = HashMap::new();
    for step in steps {
        let told = told.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => told.push((true, function.0)),
            EventKind::Exit { function, .. } => told.push((false, function.0)),
            _ => {}
        }
    }
    let mut told: Vec<_> = told.into_values().collect();
    told.sort_unstable();
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_threads_do_is_in_their_order_however_coarse_the_clock_is(
        schedule in schedule(act()),
        granule in prop_oneof![Just(1), Just(10), Just(100), Just(10_000)],
        stays in 1..12u64,
        rounds in prop::collection::vec(1..50_000u64, 1..6),
    ) {
        let mut machine = Machine::new(granule);
        for (index, (thread, vcpu, act, passes)) in (0u64..).zip(schedule) {
            // A thread stays for a while where it is.
            let moves = index % stays == 0;
            let was = machine.was.get(&thread).map(|was| was.0);
            let vcpu = if moves { vcpu } else { was.unwrap_or(vcpu) };
            machine.act(thread, vcpu, act, passes % 20);
        }
        machine.return_all();
        let (steps, anomalies) = machine.read(3, &rounds);
        prop_assert_eq!(anomalies.iter().collect::<Vec<_>>(), []);
        let mut truth: Vec<_> = machine.truth.into_values().filter(|one| !one.is_empty()).collect();
        truth.sort_unstable();
        prop_assert_eq!(told(&steps), truth);
    }
}

/// A record of whose time other vCPUs may bring more.
fn tied(time_ns: u64, vcpu: u16, step: Step, function: u32, slot: u64) -> Timed {
    Timed {
        is_tied: true,
        ..graph(time_ns, vcpu, step, function, slot)
    }
}

/// The functions that were entered and left, in this order.
fn order(steps: &[Event]) -> Vec<(bool, u32)> {
    told(steps).concat()
}

/// Thread 0 is in function 1 on vCPU 1, which returns; it has read the time for function 2 when it is moved to vCPU 0.
#[test]
fn what_a_thread_did_before_it_was_moved_comes_first() {
    let (steps, anomalies) = run(&[
        tied(10, 1, Entry, 1, OUTER),
        tied(20, 0, Entry, 2, OUTER),
        tied(20, 1, Exit, 1, OUTER),
        tied(30, 0, Exit, 2, OUTER),
    ]);
    assert_eq!(anomalies.iter().count(), 0, "{anomalies:?}");
    let expected = [(true, 1), (false, 1), (true, 2), (false, 2)];
    assert_eq!(order(&steps), expected);
}

#[test]
fn of_what_fits_as_well_comes_first_what_was_made_where_the_thread_was() {
    for (here, there) in [(0, 1), (1, 0)] {
        let mut records = vec![
            tied(20, here, Entry, 2, INNER),
            tied(20, here, Exit, 2, INNER),
            tied(20, there, Entry, 3, INNER),
        ];
        records.sort_by_key(|record| record.vcpu);
        records.insert(0, tied(10, here, Entry, 1, OUTER));
        records.push(tied(30, there, Exit, 3, INNER));
        let (steps, anomalies) = run(&records);
        assert_eq!(anomalies.iter().count(), 0, "{anomalies:?}");
        let expected = [(true, 1), (true, 2), (false, 2), (true, 3), (false, 3)];
        assert_eq!(order(&steps), expected);
    }
}

/// With a clock that stands still.
#[test]
fn where_a_thread_was_in_between_is_told_by_what_fits() {
    let (steps, anomalies) = run(&[
        tied(20, 0, Entry, 1, OUTER),
        tied(20, 0, Exit, 2, INNER),
        tied(20, 0, Exit, 1, OUTER),
        tied(20, 1, Entry, 2, INNER),
        tied(20, 1, Tail, 3, INNER),
    ]);
    assert_eq!(anomalies.iter().count(), 0, "{anomalies:?}");
    let entries = [(true, 1), (true, 2), (true, 3)];
    assert_eq!(order(&steps)[..3], entries);
    assert_eq!(order(&steps).len(), 6);
}

#[test]
fn a_call_at_the_place_of_another_waits_for_its_return() {
    let (_, anomalies) = run(&[
        tied(10, 0, Entry, 1, OUTER),
        tied(20, 0, Entry, 2, INNER),
        tied(20, 0, Entry, 3, INNER),
        tied(20, 1, Exit, 2, INNER),
        tied(30, 0, Exit, 3, INNER),
    ]);
    assert_eq!(anomalies.iter().count(), 0, "{anomalies:?}");
}

#[test]
fn what_another_ring_may_still_bring_is_waited_for() {
    let mut stream = stream(2, 100);
    let mut steps: Vec<Event> = Vec::new();
    push(&mut stream, 1, &graph(10, 1, Entry, 1, OUTER).record, 0);
    push(&mut stream, 0, &graph(20, 0, Entry, 2, OUTER).record, 0);
    (0..2).for_each(|vcpu| stream.rings().looked(Origin::Calls(vcpu), 20));
    stream.pass_on(Pass::Round, &mut steps);
    push(&mut stream, 1, &graph(20, 1, Exit, 1, OUTER).record, 0);
    stream.finish(&mut steps);
    assert_eq!(order(&steps), [(true, 1), (false, 1), (true, 2)]);
}

#[test]
fn what_does_not_fit_at_all_comes_as_it_was_brought() {
    let (steps, anomalies) = run(&[
        tied(20, 0, Exit, 1, OUTER),
        tied(20, 0, Entry, 2, OUTER),
        tied(20, 0, Exit, 2, OUTER),
    ]);
    assert_eq!(anomalies.count(Anomaly::UnmatchedExit), 1);
    assert_eq!(order(&steps), [(true, 2), (false, 2)]);
}

#[test]
fn each_stack_waits_for_itself() {
    let (mut threads, mut steps) = (Threads::new(STACK).unwrap(), Vec::new());
    for record in [
        graph(10, 1, Entry, 1, OUTER),
        graph(10, 0, Entry, 3, OUTER + STACK),
        tied(20, 0, Entry, 2, INNER),
        tied(20, 0, Entry, 4, INNER + STACK),
    ] {
        threads.record(&record, Found::Nothing, &mut steps);
    }
    let entered: Vec<u32> = steps.iter().map(|step| step.thread).collect();
    assert_eq!(entered, [0, 1, 1]);
    threads.advance(20, &mut steps);
    assert_eq!(steps.len(), 3, "others of its time may come");
    threads.advance(21, &mut steps);
    assert_eq!((steps[3].thread, steps[3].depth), (0, 1));
}

#[test]
fn a_loss_comes_after_what_waits() {
    let kind = RecordKind::Lost(1);
    let loss = Timed {
        record: Record { time_ns: 20, kind },
        ..tied(20, 0, Entry, 0, OUTER)
    };
    let (steps, anomalies) = run(&[
        tied(10, 1, Entry, 1, OUTER),
        tied(20, 0, Entry, 2, INNER),
        loss,
        tied(30, 0, Exit, 2, INNER),
    ]);
    assert_eq!(anomalies.count(Anomaly::Unsure), 1);
    assert!(calls(&steps).iter().all(|call| call.duration.is_none()));
}

#[test]
fn with_a_clock_that_stands_still_not_all_waits() {
    let (mut threads, mut steps) = (Threads::new(STACK).unwrap(), Vec::new());
    threads.record(&tied(10, 1, Entry, 1, OUTER), Found::Nothing, &mut steps);
    for _ in 0..100_000 {
        for step in [Entry, Exit] {
            threads.record(&tied(20, 0, step, 2, INNER), Found::Nothing, &mut steps);
        }
    }
    assert!(steps.len() > 100_000, "{}", steps.len());
    threads.advance(21, &mut steps);
    assert_eq!(steps.len(), 200_001);
    assert_eq!(threads.anomalies().iter().count(), 0);
}

#[test]
fn a_point_is_in_the_call_that_waited_before_it() {
    use terms::event_format::EventId;

    use crate::event::Passed;

    let mut stream = stream(2, 100);
    stream.rings().expect_points();
    push(&mut stream, 1, &graph(10, 1, Entry, 1, OUTER).record, 0);
    push(&mut stream, 0, &graph(20, 0, Entry, 2, INNER).record, 0);
    let other = graph(20, 1, Entry, 3, OUTER + STACK);
    push(&mut stream, 1, &other.record, 0);
    let passed = Passed {
        event: EventId(0),
        values: [].into(),
    };
    let point = Record {
        time_ns: 25,
        kind: RecordKind::Point(Box::new(passed)),
    };
    stream.rings().push(Origin::Points(0), vec![point], 0);
    let mut steps: Vec<Event> = Vec::new();
    stream.finish(&mut steps);
    let at = |step: &Event| matches!(step.kind, EventKind::Point(_));
    let point = steps.iter().find(|step| at(step)).unwrap();
    assert_eq!((point.thread, point.depth), (0, 2));
}
