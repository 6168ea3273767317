//! `vmm ctl`: one request to a running VMM, its result as text for people or as JSON.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use terms::printable::masked;
use terms::quantity::{counted, plain};

use super::ask::{ask, switched};
use super::top::counted::Counted;
use super::top::table::table;
use super::{dynfunc, events, probes, tail, tasks, top};
use crate::control::errors::PastErrors;
use crate::control::methods::service::Service;
use crate::control::methods::sessions::CreateSession;
use crate::control::methods::tracing::from_here;
use crate::control::status::{MemoryStatus, Pauses, Spread, Status, TriggerStatus};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::layout::MIB;
use crate::verbs::ctl::{CtlOptions, CtlVerb, FilterVerb, SessionVerb, VcpusVerb};
use status::{
    Changed, Deleted, Digest, Functions, LocksStatus, Profile, SessionList, SessionStatus,
    SwitchedLocks, TracingStatus,
};
use status::{Dumped, RingStatus, Thawed, WaitStatus};
use tracer::tracing::options::DEFAULT_SESSION;

/// Makes the request and prints the result.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn ctl(options: &CtlOptions) -> Result<ExitStatus, Failure> {
    match &options.verb {
        CtlVerb::Status(method) => ask(options, method, status),
        CtlVerb::Functions(method) => ask(options, method, functions),
        CtlVerb::Session(verb) => session_verb(options, verb),
        CtlVerb::Start(method) => ask(options, method, changed),
        CtlVerb::Stop(method) => ask(options, method, changed),
        CtlVerb::Filter(verb) => filter_verb(options, verb),
        CtlVerb::TracingOn(method) => ask(
            options,
            method,
            switched("tracing is on", "it was on already"),
        ),
        CtlVerb::TracingOff(method) => ask(
            options,
            method,
            switched("tracing is off", "it was off already"),
        ),
        CtlVerb::Vcpus(verb) => vcpus_verb(options, verb),
        CtlVerb::Tasks(verb) => tasks::tasks(options, verb),
        CtlVerb::Events(verb) => events::events(options, verb),
        CtlVerb::Probe(verb) => probes::probes(options, verb),
        CtlVerb::Dynfunc(verb) => dynfunc::dynfunc(options, verb),
        CtlVerb::Pause(method) => ask(options, method, switched("paused", "it was paused already")),
        CtlVerb::Resume(method) => ask(options, method, switched("running", "it was not paused")),
        CtlVerb::Dump(method) => ask(options, method, dumped),
        CtlVerb::Profile(method) => ask(options, method, profile),
        CtlVerb::Top(of) => top::top(options, of),
        CtlVerb::Tail(of) => tail::tail(options, of),
        CtlVerb::SmpLocks(method) => ask(options, method, locks),
        CtlVerb::Thaw(method) => ask(options, method, thawed),
        CtlVerb::Digest(method) => ask(options, method, digest),
        CtlVerb::Errors(method) => ask(options, method, errors),
        CtlVerb::Shutdown(method) => ask(
            options,
            method,
            switched("shutting down", "it is ending already"),
        ),
        CtlVerb::Version(method) => ask(options, method, version),
    }
}

fn thawed(thawed: &Thawed) -> String {
    match thawed {
        Thawed { changed: false, .. } => "it was not frozen\n".to_owned(),
        Thawed { given_back: 0, .. } => "patching goes on\n".to_owned(),
        Thawed { given_back, .. } => format!(
            "patching goes on; somebody else has put what stood there before over our jumps of {}, which {} not traced any more\n",
            counted(*given_back, "function"),
            if *given_back == 1 { "is" } else { "are" },
        ),
    }
}

fn vcpus_verb(options: &CtlOptions, verb: &VcpusVerb) -> Result<ExitStatus, Failure> {
    match verb {
        VcpusVerb::Set(method) => {
            let (set, was_set) = only_vcpus(&method.0.vcpus);
            ask(options, method, switched(&set, &was_set))
        }
        VcpusVerb::Clear(method) => ask(
            options,
            method,
            switched("all are recorded", "all were recorded already"),
        ),
    }
}

/// That these are the only ones from now on, or were already.
fn only_vcpus(numbers: &[u16]) -> (String, String) {
    let named: Vec<String> = numbers.iter().map(u16::to_string).collect();
    let named = named.join(", ");
    match numbers {
        [_] => (
            format!("only vCPU {named} is recorded"),
            format!("only vCPU {named} was recorded already"),
        ),
        _ => (
            format!("only vCPUs {named} are recorded"),
            format!("only vCPUs {named} were recorded already"),
        ),
    }
}

fn session_verb(options: &CtlOptions, verb: &SessionVerb) -> Result<ExitStatus, Failure> {
    match verb {
        SessionVerb::Create(method) => {
            let mut create = CreateSession::clone(method);
            let placed = create.0.options.placed(|path| Ok(from_here(path)));
            let Ok::<_, Infallible>(options_of) = placed;
            create.0.options = options_of;
            ask(options, &create, sessions)
        }
        SessionVerb::List(method) => ask(options, method, sessions),
        SessionVerb::Delete(method) => ask(options, method, deleted),
    }
}

fn filter_verb(options: &CtlOptions, verb: &FilterVerb) -> Result<ExitStatus, Failure> {
    match verb {
        FilterVerb::Add(method) => ask(options, method, changed),
        FilterVerb::Remove(method) => ask(options, method, changed),
        FilterVerb::Set(method) => ask(options, method, changed),
        FilterVerb::Clear(method) => ask(options, method, changed),
    }
}

fn version(service: &Service) -> String {
    let (version, protocol) = (&service.version, service.protocol);
    let (methods, told) = (service.methods.len(), service.notifications.join(", "));
    format!("exotrace {version}, protocol {protocol}: {methods} methods; notifications: {told}\n")
}

/// Each with what was written and a mark under the character that is wrong, where that is known.
fn errors(told: &PastErrors) -> String {
    let mut text = String::new();
    if told.forgotten > 0 {
        let before = counted(told.forgotten, "error");
        let _ = writeln!(text, "{before} before these");
    }
    for error in &told.errors {
        let (seconds, rest) = (error.uptime_ms / 1000, error.uptime_ms % 1000);
        let (method, message) = (masked(&error.method), masked(&error.message));
        let _ = writeln!(text, "{seconds}.{rest:03} s  {method}: {message}");
        if let Some(mark) = &error.data {
            let before = usize::try_from(mark.column.saturating_sub(1)).unwrap_or_default();
            let before = before.min(mark.text.chars().count());
            let (written, blanks) = (masked(&mark.text), " ".repeat(before));
            let _ = writeln!(text, "    {written}\n    {blanks}^");
        }
    }
    if text.is_empty() {
        text.push_str("no error\n");
    }
    text
}

fn digest(digest: &Digest) -> String {
    format!("{}\n", digest.sha256)
}

fn profile(profile: &Profile) -> String {
    table(&Counted::of(profile), None, usize::MAX)
}

fn locks(locks: &SwitchedLocks) -> String {
    match locks {
        SwitchedLocks {
            state, switched: 0, ..
        } => format!("lock prefixes were {state} already\n"),
        SwitchedLocks {
            state,
            switched,
            pause_us,
        } => {
            format!("{switched} lock prefixes are {state} now; paused for {pause_us:.1} us\n")
        }
    }
}

fn status(status: &Status) -> String {
    let guest = &status.guest;
    let seconds = guest.uptime_ms / 1000;
    let mut text = format!(
        "guest    {} ({}, {} MiB, up {seconds}.{:03} s)\n",
        guest.state,
        guest.kernel,
        guest.memory_mib,
        guest.uptime_ms % 1000
    );
    memory(&mut text, &status.memory);
    for vcpu in &status.vcpus {
        let _ = writeln!(text, "vcpu {:<3} {}", vcpu.vcpu, vcpu.state);
    }
    tracing(&mut text, &status.tracing);
    pauses(&mut text, &status.pauses);
    status
        .triggers
        .iter()
        .for_each(|one| trigger(&mut text, one));
    text
}

fn memory(text: &mut String, memory: &MemoryStatus) {
    #[expect(clippy::cast_precision_loss, reason = "it is shown with one place")]
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MIB as f64);
    let shown = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), mib);
    let _ = writeln!(
        text,
        "memory   RAM {}, window {} ({} backed); the process has {}",
        mib(memory.ram_bytes),
        mib(memory.window_bytes),
        shown(memory.window_backed_bytes),
        shown(memory.resident_bytes)
    );
}

fn trigger(text: &mut String, status: &TriggerStatus) {
    let session = match status.session == DEFAULT_SESSION {
        true => String::new(),
        false => format!(" in session {}", status.session),
    };
    let reason = status.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let failed = match status.failed {
        0 => String::new(),
        failed => format!(", {failed} of them in vain"),
    };
    let (trigger, acts) = (masked(&status.trigger), &status.acts);
    let fired = plain(status.fired, "time");
    let _ = writeln!(
        text,
        "trigger  {trigger}{session}: fired {fired}{failed} ({acts}{reason})"
    );
}

fn tracing(text: &mut String, tracing: &TracingStatus) {
    let strategy = tracing.cpu_strategy.as_deref();
    let strategy = strategy.map(|name| format!(", vCPU by {name}"));
    let _ = writeln!(
        text,
        "tracing  {} ({} patched, {} available, {} skipped{})",
        tracing.state,
        tracing.patched,
        tracing.available,
        tracing.skipped,
        strategy.unwrap_or_default()
    );
    patching(text, tracing);
    if let Some(frozen) = &tracing.frozen {
        let _ = writeln!(text, "frozen   {}", frozen.reason);
        let _ = writeln!(text, "         `ctl thaw` lets patching go on");
    }
    if let Some(page) = &tracing.clock_page {
        let cpu = page.cpu.map(|cpu| format!(" on CPU {cpu}"));
        let _ = writeln!(
            text,
            "clock    page every {} ns{}, {} stalls, longest {} us",
            page.period_ns,
            cpu.unwrap_or_default(),
            page.stalls,
            page.longest_stall_ns / 1000
        );
    }
    if let Some(clocks) = tracing.vcpu_clocks.filter(|clocks| clocks.is_news()) {
        let _ = writeln!(text, "clock    {clocks}");
    }
    if let Some(LocksStatus { state, sites }) = &tracing.smp_locks {
        let _ = writeln!(text, "locks    {sites} lock prefixes are {state}");
    }
    for one in &tracing.sessions {
        session(text, one);
    }
}

/// How text is changed, and the pauses that nobody asked for.
fn patching(text: &mut String, tracing: &TracingStatus) {
    let TracingStatus {
        patch_method,
        switched,
        looks,
        longest_look_us,
        kprobes_unasked,
        ..
    } = tracing;
    if switched.is_any() {
        let _ = writeln!(text, "patching {patch_method}, sites switched: {switched}");
    }
    if *looks > 0 {
        let pauses = plain(*looks, "pause");
        let _ = writeln!(
            text,
            "looks    {pauses} to ask vCPUs for their page tables or to trace what came with modules, for {longest_look_us:.1} us at most"
        );
    }
    if *kprobes_unasked > 0 {
        let times = plain(*kprobes_unasked, "place");
        let _ = writeln!(
            text,
            "kprobes  not known at {times} that displaced instructions were about: this kernel has no BTF"
        );
    }
}

fn session(text: &mut String, session: &SessionStatus) {
    let _ = write!(
        text,
        "session  {}: {}, {}, {}, clock {}",
        session.name,
        session.tracer,
        session.state,
        plain(session.traced, "function"),
        session.clock
    );
    // A profile has counters instead, which `ctl profile` shows.
    if session.ring_bytes > 0 {
        let (kib, mode) = (session.ring_bytes / 1024, &session.mode);
        let _ = write!(text, ", rings of {kib} KiB, {mode}");
    }
    text.push('\n');
    if let Some(only) = &session.only_vcpus {
        let numbers: Vec<String> = only.vcpus.iter().map(u16::to_string).collect();
        let _ = writeln!(
            text,
            "  vcpus    {} only (by {})",
            numbers.join(", "),
            only.by
        );
    }
    if let Some(tasks) = &session.tasks {
        let _ = writeln!(text, "  tasks    {}", tasks::shown(tasks));
    }
    for (name, globs) in [("filter", &session.filter), ("notrace", &session.notrace)] {
        if !globs.is_empty() {
            let _ = writeln!(text, "  {name:<8} {}", globs.join(" "));
        }
    }
    for ring in &session.rings {
        let _ = writeln!(text, "  ring {:<3} {}", ring.ring, filled(ring));
    }
    if !session.events.is_empty() {
        let _ = writeln!(text, "  events   {}", session.events.join(" "));
    }
    for ring in &session.event_rings {
        let _ = writeln!(text, "  events {:<1} {}", ring.ring, filled(ring));
    }
    for note in &session.anomalies {
        let _ = writeln!(text, "  graph    {note}");
    }
    let waiting = session.waiting_modules;
    if !waiting.is_none() {
        let _ = writeln!(text, "  {waiting}");
    }
    for late in session.late_modules.iter() {
        let _ = writeln!(text, "  late     {late}");
    }
    for note in &session.doubts {
        let _ = writeln!(text, "  times    {note}");
    }
    if let Some(waits) = &session.waits {
        let _ = writeln!(text, "  waits    {}", waited(waits));
    }
    output(text, session);
}

/// How vCPUs have waited for a session's reader.
fn waited(waits: &WaitStatus) -> String {
    let ms = |ns: u64| format!("{:.1} ms", Duration::from_nanos(ns).as_secs_f64() * 1000.0);
    let WaitStatus { count, waiting, .. } = *waits;
    let mut text = counted(count, "wait").to_string();
    if count > 0 {
        let (total, longest) = (ms(waits.total_ns), ms(waits.longest_ns));
        let _ = write!(text, ", {total} in all, longest {longest}");
    }
    if let Some(hidden) = waits.hidden_ns {
        let _ = write!(text, "; {} in all hidden from the guest", ms(hidden));
    }
    if let Some(times @ 1..) = waits.not_set_back {
        let _ = write!(
            text,
            ", less what a counter could not be set back by, {times}×"
        );
    }
    if waiting > 0 {
        let _ = write!(text, "; {} at it now", counted(waiting, "vCPU"));
    }
    if let Some(why) = &waits.given_up {
        let _ = write!(text, "; no more, full rings discard: {why}");
    }
    text
}

/// How much of a ring was written, and what of that is lost.
fn filled(ring: &RingStatus) -> String {
    let RingStatus { written, lost, .. } = ring;
    format!("{written} written, {lost} lost{}", losses(ring))
}

/// Where a session's trace is written, and how well.
fn output(text: &mut String, session: &SessionStatus) {
    let Some(output) = &session.output else {
        return;
    };
    let error = session.output_error.as_deref();
    let error = error
        .map(|why| format!(" (incomplete: {why})"))
        .unwrap_or_default();
    let _ = writeln!(text, "  output   {output}{error}");
    if let Some(ms) = session.output_stalled_ms {
        let _ = writeln!(
            text,
            "  output   writing what was read has taken {:.1} s so far: nothing more is read meanwhile",
            Duration::from_millis(ms).as_secs_f64()
        );
    }
}

fn sessions(list: &SessionList) -> String {
    let mut text = String::new();
    for one in &list.sessions {
        session(&mut text, one);
    }
    text
}

fn deleted(deleted: &Deleted) -> String {
    let stopped = deleted.stopped.as_ref().map(|stopped| {
        format!(
            " (it ran and was stopped first: {} restored)",
            stopped.restored
        )
    });
    format!(
        "session {} deleted{}; {}\n",
        deleted.session,
        stopped.unwrap_or_default(),
        deleted.paused()
    )
}

/// The kinds of losses that there are, in parentheses.
fn losses(ring: &RingStatus) -> String {
    let kinds = [
        (ring.discarded, "discarded"),
        (ring.overwritten, "overwritten"),
        (ring.abandoned, "abandoned"),
        (ring.invalid, "invalid"),
        (ring.corrupt, "times corrupt"),
    ];
    let there: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}"))
        .collect();
    if there.is_empty() {
        String::new()
    } else {
        format!(" ({})", there.join(", "))
    }
}

fn pauses(text: &mut String, pauses: &Pauses) {
    let looks = pauses.kernel_looks.as_ref();
    let looks = looks.map(|looks| ("to see whether the kernel still runs", looks));
    let all = [
        ("until parked", &pauses.parked),
        ("until released", &pauses.released),
    ];
    for (name, spread) in all.into_iter().chain(looks) {
        let Spread {
            count,
            p50_us,
            p99_us,
            max_us,
        } = spread;
        if *count > 0 {
            let _ = writeln!(
                text,
                "pauses   {count} {name}: p50 {p50_us:.1} us, p99 {p99_us:.1} us, \
                 max {max_us:.1} us"
            );
        }
    }
}

fn functions(list: &Functions) -> String {
    let mut text = String::new();
    for function in &list.functions {
        let reason = function
            .reason
            .as_ref()
            .map(|why| format!(" ({why})"))
            .unwrap_or_default();
        let module = function
            .module
            .as_ref()
            .map(|module| format!(" [{module}]"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "{} {:<9} {}{module}{reason}",
            function.address, function.state, function.name
        );
    }
    text
}

fn changed(changed: &Changed) -> String {
    let mut text = format!(
        "{} patched, {} restored, {} traced now; {}\n",
        changed.patched,
        changed.restored,
        changed.traced,
        changed.paused()
    );
    for line in changed.remarks() {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn dumped(dumped: &Dumped) -> String {
    let at_least = match dumped.in_stubs {
        0 => "",
        _ => "at least ",
    };
    let missed = match dumped.missed {
        0 => String::new(),
        missed => format!(
            "; {at_least}{} not recorded while they were copied (--live records on)",
            counted(missed, "call")
        ),
    };
    format!(
        "{}: {} records, {} lost{missed}\n",
        dumped.dir, dumped.records, dumped.lost
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::errors::PastError;
    use crate::control::protocol::Mark;
    use crate::control::status::{GuestStatus, MemoryStatus, VcpuStatus};
    use status::Function;

    #[test]
    fn which_vcpus_are_recorded_is_named() {
        assert_eq!(only_vcpus(&[0]).0, "only vCPU 0 is recorded");
        let (_, were_already) = only_vcpus(&[0, 2]);
        assert_eq!(were_already, "only vCPUs 0, 2 were recorded already");
    }

    #[test]
    fn the_status_is_readable() {
        let spread = Spread {
            count: 3,
            p50_us: 25.04,
            p99_us: 43.0,
            max_us: 50.0,
        };
        let shown = status(&Status {
            memory: MemoryStatus {
                ram_bytes: 256 << 20,
                window_bytes: 512 << 20,
                window_backed_bytes: None,
                resident_bytes: Some(3 << 19),
            },
            guest: GuestStatus {
                state: "running".to_owned(),
                kernel: "guest.elf".to_owned(),
                memory_mib: 64,
                uptime_ms: 1234,
            },
            vcpus: vec![VcpuStatus {
                vcpu: 0,
                state: "running".to_owned(),
            }],
            tracing: TracingStatus {
                state: "tracing".to_owned(),
                patched: 3,
                looks: 1,
                longest_look_us: 61.5,
                cpu_strategy: Some("gs".to_owned()),
                sessions: vec![SessionStatus {
                    name: "default".to_owned(),
                    tracer: "function".to_owned(),
                    state: "tracing".to_owned(),
                    traced: 3,
                    filter: vec!["calls_*".to_owned()],
                    mode: "discard".to_owned(),
                    clock: "tsc".to_owned(),
                    ring_bytes: 4096,
                    rings: vec![RingStatus {
                        ring: 0,
                        written: 10,
                        lost: 1,
                        discarded: 1,
                        ..RingStatus::default()
                    }],
                    ..SessionStatus::default()
                }],
                ..TracingStatus::default()
            },
            pauses: Pauses {
                parked: spread.clone(),
                kernel_looks: Some(Spread {
                    count: 2,
                    ..spread.clone()
                }),
                released: Spread { count: 0, ..spread },
            },
            triggers: vec![TriggerStatus {
                trigger: "f: stop".to_owned(),
                session: "more".to_owned(),
                acts: "at once".to_owned(),
                reason: None,
                fired: 2,
                failed: 1,
            }],
        });
        let expected = "guest    running (guest.elf, 64 MiB, up 1.234 s)\n\
                        memory   RAM 256.0 MiB, window 512.0 MiB (unknown backed); the process has 1.5 MiB\n\
                        vcpu 0   running\n\
                        tracing  tracing (3 patched, 0 available, 0 skipped, vCPU by gs)\n\
                        looks    1 pause to ask vCPUs for their page tables or to trace what came with modules, for 61.5 us at most\n\
                        session  default: function, tracing, 3 functions, clock tsc, rings of 4 KiB, \
                        discard\n  filter   calls_*\n  \
                        ring 0   10 written, 1 lost (1 discarded)\n\
                        pauses   3 until parked: p50 25.0 us, p99 43.0 us, max 50.0 us\n\
                        pauses   2 to see whether the kernel still runs: p50 25.0 us, p99 43.0 us, max 50.0 us\n\
                        trigger  f: stop in session more: fired 2 times, 1 of them in vain (at once)\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn past_errors_are_shown_with_a_mark_under_what_is_wrong() {
        let error = |message: &str, data| PastError {
            uptime_ms: 1250,
            method: "probe.add".to_owned(),
            code: -32000,
            message: message.to_owned(),
            data,
        };
        let mark = Mark {
            text: "f é=%rdj".to_owned(),
            column: 5,
        };
        let mut told = PastErrors {
            errors: vec![error("one", None), error("two\u{1b}", Some(mark))],
            forgotten: 1,
        };
        let expected = "1 error before these\n1.250 s  probe.add: one\n1.250 s  probe.add: two";
        let shown = errors(&told);
        assert!(shown.starts_with(expected), "{shown}");
        assert!(shown.ends_with("\n    f é=%rdj\n        ^\n"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        told.forgotten = 0;
        told.errors.clear();
        assert_eq!(errors(&told), "no error\n");
    }

    #[test]
    fn skipped_functions_come_with_their_reasons() {
        let function = Function {
            address: "0xffffffff80201000".to_owned(),
            name: "f".to_owned(),
            module: None,
            state: "skipped".to_owned(),
            reason: Some("foreign bytes".to_owned()),
        };
        let shown = changed(&Changed {
            patched: 2,
            traced: 2,
            skipped: vec![function],
            ..Changed::default()
        });
        assert!(
            shown.contains("2 patched, 0 restored, 2 traced now"),
            "{shown}"
        );
        assert!(shown.contains("1 not traced (f): foreign bytes"), "{shown}");
    }
}
