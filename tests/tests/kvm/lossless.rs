//! Sessions that lose nothing: a vCPU that finds its ring full waits for the reader, in the smallest rings, whatever happens
//! meanwhile.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tests::exact::{assert_exact, gated, open_gate, untraced, without_gate};
use tests::{Client, Counts, Guest, Running, Trace, lives_to_see, scaled, until};

const LOSSLESS: [&str; 4] = ["--mode", "lossless", "--ring-size", "64"];

fn waits(trace: &Trace) -> u64 {
    trace.side()["waits"]["count"].as_u64().unwrap_or(0)
}

/// A report of a graph has times beside its counts.
fn assert_graph_exact(trace: &Trace, called: &Counts) {
    assert_eq!(trace.lost(), 0);
    assert_eq!(&trace.uftrace(), called);
}

fn session_of<'a>(status: &'a Value, name: &str) -> &'a Value {
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let found = sessions.iter().find(|session| session["name"] == name);
    found.unwrap_or_else(|| panic!("no session {name}: {status}"))
}

fn waiting(status: &Value, name: &str) -> u64 {
    session_of(status, name)["waits"]["waiting"]
        .as_u64()
        .unwrap()
}

/// Threads that are preempted all the time, in rings that hold a hundredth of what they record.
fn everything_is_recorded(tracer: &str, vcpus: u32) {
    let rest = format!("iterations={} threads=4 tick=50", scaled(6_000));
    let guest = || gated("threads,smp,tail_calls", &rest).vcpus(vcpus);
    let expected = untraced(guest());
    let mut running = guest().with(LOSSLESS).output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let start = json!({"tracer": tracer, "notrace": ["spin_*"]});
    client.call("start", start);
    running.type_text("q");
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    assert_eq!(printed, expected, "waiting changed what the guest computes");
    match tracer {
        "graph" => assert_graph_exact(&trace, &printed.called()),
        _ => assert_exact(&trace, &printed),
    }
    assert!(waits(&trace) > 0, "nobody has waited");
    let first_screen = trace.report("overview");
    assert!(
        first_screen.contains("waits of vCPUs for the reader"),
        "{first_screen}"
    );
}

#[test]
fn everything_is_recorded_of_one_vcpu() {
    everything_is_recorded("function", 1);
}

#[test]
fn everything_is_recorded_of_two_vcpus() {
    everything_is_recorded("function", 2);
}

#[test]
fn every_return_is_recorded_of_one_vcpu() {
    everything_is_recorded("graph", 1);
}

#[test]
fn every_return_is_recorded_of_two_vcpus() {
    everything_is_recorded("graph", 2);
}

/// Each of both stands until somebody waits for it: the one with the ring that is full first, then the other one.
#[test]
fn two_sessions_on_the_same_functions_lose_nothing_both() {
    let rest = format!("iterations={} threads=4 tick=100", scaled(5_000));
    let guest = gated("threads,smp", &rest).vcpus(2).with(LOSSLESS);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    // A call takes one place of the one ring, and two of the other: that has four times as many.
    let options = json!({"mode": "lossless", "ring_size": 256, "output": running.path("other")});
    client.call(
        "session.create",
        json!({"name": "other", "tracer": "graph", "options": options}),
    );
    let disks = ["trace", "other"].map(|output| {
        let side = running.path(output).join("exotrace.json.new");
        FullDisk::at(side)
    });
    client.call("start", json!({"notrace": ["spin_*"]}));
    client.call("start", json!({"session": "other", "notrace": ["spin_*"]}));
    client.wait_until("both readers stand", |_| {
        disks.iter().all(FullDisk::has_a_writer)
    });
    running.type_text("q");
    let mut readers = Vec::new();
    for (name, disk) in ["default", "other"].into_iter().zip(disks) {
        client.wait_until("somebody waits", |status| waiting(status, name) > 0);
        readers.push(disk.let_go());
    }
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    for reader in readers {
        reader.join().unwrap();
    }
    assert_exact(&trace, &printed);
    assert!(waits(&trace) > 0);
    let other = trace.named("other");
    assert_graph_exact(&other, &printed.called());
    assert!(waits(&other) > 0);
}

/// Text that comes and goes, pauses, dumps and switches while vCPUs wait all the time.
#[test]
fn whatever_is_asked_meanwhile_nothing_is_lost() {
    lives_to_see(scaled(12_000), |iterations| asked_meanwhile(iterations) > 0);
}

/// How often all of it was done through a guest's life of so many iterations.
fn asked_meanwhile(iterations: u32) -> u32 {
    let rest = format!("iterations={iterations} threads=4 tick=100");
    let guest = gated("threads,smp", &rest).vcpus(2).with(LOSSLESS);
    let mut running = guest.output().start();
    open_gate(&mut running);
    let mut client = running.client();
    let mut rounds = 0;
    'asked: while rounds < 20 {
        let dump = running.path(&format!("dump-{rounds}"));
        for (method, params) in [
            ("pause", Value::Null),
            ("status", Value::Null),
            ("resume", Value::Null),
            ("dump", json!({"dir": dump})),
            ("filter.add", json!({"notrace": ["calls_*"]})),
            ("filter.remove", json!({"notrace": ["calls_*"]})),
        ] {
            // The guest may end meanwhile.
            let Some(reply) = client.ask(method, params) else {
                break 'asked;
            };
            reply.unwrap();
        }
        rounds += 1;
    }
    let (ended, trace) = running.end();
    let printed = without_gate(ended.good().printed());
    println!("{iterations} iterations: {rounds} rounds");
    assert_exact(&trace, &printed);
    rounds
}

/// A thread that the guest takes the vCPU from while it waits comes back when nobody is waited for any more: it finds room.
#[test]
fn threads_that_are_preempted_while_they_wait_lose_nothing_by_a_stop() {
    for (vcpus, tick) in [(1, 5000), (2, 100)] {
        lives_to_see(scaled(60_000), |iterations| {
            let rest = format!("iterations={iterations} threads=16 tick={tick}");
            stopped_meanwhile(gated("threads", &rest).vcpus(vcpus)) > 0
        });
    }
}

/// How often it was stopped while this guest lived.
fn stopped_meanwhile(guest: Guest) -> u32 {
    let mut running = guest.with(LOSSLESS).output().start();
    open_gate(&mut running);
    let mut client = running.client();
    let start = json!({"notrace": ["spin_*"]});
    let mut stops = 0;
    // The guest ends meanwhile.
    while let Some(stopped) = client.ask("stop", Value::Null) {
        stopped.unwrap();
        stops += 1;
        client.ask("start", start.clone()).map(Result::unwrap);
    }
    let (ended, trace) = running.end();
    let _ = ended.good();
    println!("{stops} stops");
    assert!(waits(&trace) > 0, "nobody has waited");
    assert_eq!(trace.lost(), 0, "{stops} stops");
    stops
}

/// Who has begun to record a call when the guest is shut down, and was preempted, records it.
#[test]
fn a_guest_that_is_shut_down_has_every_call_that_was_begun() {
    for _ in 0..8 {
        let guest = gated("threads", "iterations=1000000 threads=16 tick=1000").with(LOSSLESS);
        let mut running = guest.output().start();
        open_gate(&mut running);
        let mut client = running.client();
        client.wait_until("somebody has waited", |status| {
            session_of(status, "default")["waits"]["count"].as_u64() > Some(20)
        });
        client.call("shutdown", Value::Null);
        let (ended, trace) = running.end();
        let _ = ended.good();
        assert_eq!(trace.lost(), 0);
    }
}

#[test]
fn events_and_probes_of_a_lossless_session_are_all_there() {
    let count = scaled(6_000);
    let cmdline = format!("workload=events iterations={count} threads=1");
    let (ended, trace) = Guest::new(&cmdline)
        .with(["--trace", "graph", "--filter", "events_*"])
        .with(["--event", "message_sent"])
        .with(LOSSLESS)
        .output()
        .run();
    let printed = ended.good().printed();
    let events = trace.side()["events"].clone();
    assert_eq!(events["lost"].as_u64().unwrap_or(0), 0, "{events}");
    let sent = events["events"]["message_sent"].as_u64();
    assert_eq!(sent, Some(u64::from(count)), "{events}");
    let mut called = printed.called();
    called.retain(|name, _| name.starts_with("events_"));
    assert_graph_exact(&trace, &called);
    assert!(waits(&trace) > 0, "nobody has waited");
}

/// How a trace is kept changes nothing of that, nor of what is said of waits.
#[test]
fn a_compact_trace_has_every_call_and_every_wait() {
    // Calls in a row are more than a ring holds, whenever it is looked at.
    let rest = format!("iterations={} threads=4 tick=100", scaled(2000));
    let guest = gated("threads,smp,calls", &rest).vcpus(2).with(LOSSLESS);
    let mut running = guest.with(["--store", "compact"]).output().start();
    open_gate(&mut running);
    let (ended, trace) = running.end();
    let ended = ended.good();
    let closing = "waits of vCPUs for the reader (";
    assert!(ended.stderr.contains(closing), "{ended}");
    let printed = without_gate(ended.printed());
    assert_eq!(trace.lost(), 0);
    assert_eq!(trace.counts(), printed.called());
    let first_screen = trace.report("overview");
    assert!(
        first_screen.contains("waits of vCPUs for the reader"),
        "{first_screen}"
    );
    let calls = trace.report("function");
    assert!(calls.contains("for the reader up to here"), "no wait");
}

/// What a trigger holds for a dump waits, and is recorded when that is done.
#[test]
fn a_dump_that_a_trigger_makes_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    let trigger = format!("calls_trunk: dump {}", dump.display());
    let guest = gated("calls", "iterations=50").with(LOSSLESS);
    let guest = guest.with(["--trigger", &trigger]).output();
    let mut running = guest.start();
    open_gate(&mut running);
    let (ended, trace) = running.end();
    let ended = ended.good();
    assert!(ended.stderr.contains(", 0 lost"), "{ended}");
    assert!(dump.is_dir(), "{ended}");
    assert_exact(&trace, &without_gate(ended.printed()));
    assert!(waits(&trace) > 0, "nobody was held");
}

/// What was called before the guest died is there.
#[test]
fn a_guest_that_dies_leaves_every_call() {
    let rest = format!("iterations={}", scaled(2_000));
    let expected = untraced(gated("calls", &rest)).called();
    let mut running = gated("calls,panic", &rest).with(LOSSLESS).output().start();
    running.wait_for("workload spin");
    let start = json!({"filter": ["calls_*"]});
    running.client().call("start", start);
    running.type_text("q");
    let (ended, trace) = running.end();
    assert_eq!(ended.code, Some(1), "{ended}");
    assert_eq!(trace.lost(), 0);
    let mut called = expected;
    called.retain(|name, _| name.starts_with("calls_"));
    assert_eq!(trace.counts(), called);
    assert!(waits(&trace) > 0, "nobody has waited");
}

/// A full pipe in the place of a file: who writes stands until somebody reads.
struct FullDisk {
    path: PathBuf,
    pipe: File,
}

impl FullDisk {
    fn at(path: PathBuf) -> Self {
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let open = |write| {
            let mut open = File::options();
            open.read(true).write(write).custom_flags(libc::O_NONBLOCK);
            open.open(&path).unwrap()
        };
        // Open for both, it waits for no partner; and there was a writer before it that reads only.
        let mut both = open(true);
        let pipe = open(false);
        while both.write_all(&[b'-'; 4096]).is_ok() {}
        drop(both);
        Self { path, pipe }
    }

    /// There is no hanging up where there is a writer (poll(2), `POLLHUP`).
    fn has_a_writer(&self) -> bool {
        let mut asked = [PollFd::new(&self.pipe, PollFlags::empty())];
        let _ = poll(&mut asked, Some(&Timespec::default())).unwrap();
        let [answered] = asked;
        !answered.revents().contains(PollFlags::HUP)
    }

    fn let_go(self) -> JoinHandle<()> {
        let mut all = File::open(&self.path).unwrap();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut all, &mut std::io::sink()).unwrap();
        })
    }
}

/// A lossless session named `stuck` of a spinning guest, whose disk takes nothing: its reader stands, and so does every vCPU.
fn stuck(running: &mut Running) -> (Client, FullDisk) {
    stuck_with(running, json!({}), 2)
}

/// The same with these options of the session, until so many vCPUs wait.
fn stuck_with(running: &mut Running, more: Value, vcpus: u64) -> (Client, FullDisk) {
    let mut client = running.client();
    let output = running.path("stuck");
    let mut options = json!({"mode": "lossless", "ring_size": 64, "output": output});
    let Value::Object(more) = more else {
        panic!("{more} are no options");
    };
    options.as_object_mut().unwrap().extend(more);
    client.call(
        "session.create",
        json!({"name": "stuck", "options": options}),
    );
    let disk = FullDisk::at(output.join("exotrace.json.new"));
    let start = json!({"session": "stuck", "filter": ["spin_*"]});
    client.call("start", start);
    // Who waits before that may be read once more.
    client.wait_until("the reader stands", |_| disk.has_a_writer());
    client.wait_until("all that are recorded wait", |status| {
        waiting(status, "stuck") == vcpus
    });
    (client, disk)
}

/// With the disk stuck, every vCPU waits; and every way out of that is one.
#[test]
fn a_wait_ends_when_nothing_is_to_be_recorded_any_more() {
    let mut running = Guest::spinning(&["--patch-method", "quiesce"]);
    let (mut client, disk) = stuck(&mut running);
    let stuck = json!({"session": "stuck"});
    // Who is counted as waiting is still on its way out of the guest.
    client.wait_until("each shows it", |status| {
        let vcpus = status["vcpus"].as_array().unwrap();
        vcpus.iter().all(|vcpu| vcpu["state"] == "waiting")
    });
    client.call("pause", Value::Null);
    client.call("resume", Value::Null);
    // Who was let go just before the reader came to stand is counted until its thread wakes: then it waits once more.
    client.wait_until("all still wait", |status| waiting(status, "stuck") == 2);
    client.call("tracing-off", stuck.clone());
    client.wait_until("nobody waits", |status| waiting(status, "stuck") == 0);
    client.call("tracing-on", stuck.clone());
    client.wait_until("all wait again", |status| waiting(status, "stuck") == 2);
    client.call("stop", stuck);
    client.wait_until("the guest continues", |status| {
        waiting(status, "stuck") == 0
    });
    let reader = disk.let_go();
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    reader.join().unwrap();
    // Not even the calls that waited when it was stopped.
    let stuck = trace.named("stuck");
    assert_eq!(stuck.lost(), 0);
    let status = stuck.side();
    assert_eq!(status["finished"], true, "{status}");
}

/// What is written to files without names can never be read: that is as a disk that is full, however the trace is kept. It was
/// once said at the end only, and that the trace stays readable.
#[test]
fn a_trace_that_is_taken_away_ends_the_waiting_or_the_run() {
    for store in ["uftrace", "compact"] {
        let mut running = Guest::spinning(&[]);
        let mut client = running.client();
        for (session, on_full) in [("on", "discard"), ("over", "end")] {
            let output = running.path(session);
            let options = json!({"mode": "lossless", "ring_size": 64, "store": store, "on_full": on_full, "output": output});
            let create = json!({"name": session, "options": options});
            client.call("session.create", create);
            let start = json!({"session": session, "filter": ["spin_*"]});
            client.call("start", start);
            // Whoever makes a file just then is in the way of who removes them.
            until("it is removed", || std::fs::remove_dir_all(&output).is_ok());
            if session == "on" {
                client.wait_until("nobody waits any more", |status| {
                    session_of(status, session)["waits"]["given_up"].is_string()
                });
                let status = client.status();
                let error = session_of(&status, session)["output_error"].to_string();
                assert!(error.contains("is gone"), "{error}");
                // The guest continues, and nobody reads what it calls: its ring is full, and discards.
                let ring =
                    |status: &Value, of| session_of(status, session)["rings"][0][of].as_u64();
                let before = client.wait_until("calls are discarded", |status| {
                    ring(status, "discarded") > Some(0)
                });
                let after = client.wait_until("more are", |status| {
                    ring(status, "discarded") > ring(&before, "discarded")
                });
                assert_eq!(ring(&after, "read"), ring(&before, "read"));
            }
        }
        let (ended, _trace) = running.end();
        assert_eq!(ended.code, Some(106), "{store}: {ended}");
        for words in ["/on is gone", "/over is gone", "--on-full end"] {
            assert!(ended.stderr.contains(words), "{store}: {words}: {ended}");
        }
        assert!(!ended.stderr.contains("stays readable"), "{store}: {ended}");
    }
}

/// A disk that takes nothing says nothing either. After a minute it counts as one that is full; what writes to it is abandoned.
#[test]
fn a_disk_that_hangs_for_a_minute_ends_the_run() {
    let mut running = Guest::spinning(&[]);
    let (_client, disk) = stuck_with(&mut running, json!({"on_full": "end"}), 2);
    let (ended, _trace) = running.end();
    assert_eq!(ended.code, Some(106), "{ended}");
    for words in ["for a minute", "--on-full end", "/stuck"] {
        assert!(ended.stderr.contains(words), "{words}: {ended}");
    }
    assert!(!disk.has_a_writer());
}

/// Its guest and its run can be ended while every vCPU waits.
#[test]
fn a_guest_can_be_shut_down_in_the_middle_of_a_wait() {
    let mut running = Guest::spinning(&[]);
    let (mut client, disk) = stuck(&mut running);
    client.call("shutdown", Value::Null);
    let reader = disk.let_go();
    let (ended, trace) = running.end();
    let _ = ended.good();
    reader.join().unwrap();
    let stuck = trace.named("stuck");
    assert!(stuck.counts().values().sum::<u64>() >= 7680, "{stuck:?}");
    assert_eq!(stuck.lost(), 0);
}

/// What one vCPU has called is there when the guest dies on another one, while it waits.
#[test]
fn a_guest_can_die_in_the_middle_of_a_wait() {
    let mut running = Guest::spinning(&[]);
    let (client, disk) = stuck_with(&mut running, json!({"only_vcpus": [1]}), 1);
    drop(client);
    running.type_text("d");
    running.wait_for("exception vector");
    let reader = disk.let_go();
    let (ended, trace) = running.end();
    reader.join().unwrap();
    assert_eq!(ended.code, Some(2), "{ended}");
    let stuck = trace.named("stuck");
    assert!(stuck.counts().values().sum::<u64>() >= 3840, "{stuck:?}");
    assert_eq!(stuck.lost(), 0);
    assert!(waits(&stuck) > 0, "nobody has waited");
}

/// A session that is deleted reads what its rings hold, and who waits continues.
#[test]
fn a_session_can_be_deleted_in_the_middle_of_a_wait() {
    let mut running = Guest::spinning(&[]);
    let (mut client, disk) = stuck(&mut running);
    let reader = disk.let_go();
    client.call("session.delete", json!({"session": "stuck"}));
    reader.join().unwrap();
    running.type_text("q");
    let (ended, trace) = running.end();
    let _ = ended.good();
    assert_eq!(trace.named("stuck").lost(), 0);
}
