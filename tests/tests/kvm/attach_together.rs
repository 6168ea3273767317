//! What happens to others while `vmm attach` is at one of its steps: a second tracer comes, or the VMM ends.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::mortal::{Steps, held_at, killed_at};
use tests::{Guest, Random, Running, bare, guest, scaled, vmm, vmm_says};
use vmm::devices::console::ConsoleWriter;

/// One that has the guest for a moment.
fn first(of: &Running) -> Command {
    let mut command = vmm();
    command.args(["attach", &of.pid().to_string(), "--duration", "0.01"]);
    command.args(["--trace", "graph", "--filter", "calls_*"]);
    command.arg("--kernel").arg(guest());
    command
}

/// Whether it was let attach.
fn answers(tracer: &mut Running) -> bool {
    let client = tracer.connected();
    let status = client.and_then(|mut client| client.ask("status", Value::Null));
    matches!(status, Some(Ok(_)))
}

/// One process has two virtual machines, as some VMMs' have: it is said, and neither is touched.
#[test]
fn of_two_guests_of_one_process_nobody_knows_which_is_meant() {
    let kernel = bare::kernel(bare::end);
    let console = ConsoleWriter::start(std::io::sink()).unwrap();
    let pid = std::process::id().to_string();
    let machines = [(); 2].map(|()| bare::machine(&kernel, &console));
    let said = vmm_says(&["attach", &pid, "--trace", "function"]);
    assert!(
        said.refused(100).contains("has 2 virtual machines"),
        "{said}"
    );
    drop(machines);
}

/// The first one stands still at each of its first steps, has seen that nobody is there in some of them, and goes on when
/// the second one has the guest.
#[test]
fn of_two_tracers_that_come_together_one_is_refused() {
    let mut other = Guest::spinning(&[]);
    let text = other.client().digest();
    let mut refused = 0;
    for step in 1..40 {
        let held = held_at(&mut first(&other), Steps::OnOthers, step).expect("more steps");
        let mut second = Guest::attached(other.pid(), Some(&guest())).start();
        let is_there = answers(&mut second);
        let ended = held.let_go().wait_with_output().unwrap();
        if is_there {
            assert_eq!(ended.status.code(), Some(100), "{step}: {ended:?}");
            refused += 1;
        }
        let _ = second.ctl(&["shutdown"]);
        let _ = second.end();
    }
    assert!(refused > 0, "the second one never had the guest");
    assert_eq!(other.client().digest(), text);
    other.type_text("q");
    let _ = other.end().0.good();
}

/// At any step: it is said, in few words, and the tracer ends.
#[test]
fn a_vmm_that_ends_while_it_is_attached_to_is_no_surprise() {
    let mut whole = Guest::spinning(&[]);
    let steps = killed_at(&mut first(&whole), Steps::OnOthers, u64::MAX).steps;
    whole.type_text("q");
    let _ = whole.end().0.good();
    let mut random = Random::new();
    for _ in 0..scaled(30) {
        let step = 1 + random.next_u64() % steps;
        let other = Guest::spinning(&[]);
        let held = match held_at(&mut first(&other), Steps::OnOthers, step) {
            Ok(held) => held,
            // Waits take as many steps as they take.
            Err(lived) => {
                assert_eq!(lived.ended, Some(0), "{step}: {lived:?}");
                continue;
            }
        };
        let pid = Pid::from_raw(other.pid().cast_signed()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        // In this order: while the tracer holds one of its threads a process that is killed does not end.
        let ended = held.let_go().wait_with_output().unwrap();
        let _ = other.end();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code().is_some(), "{step}: {ended:?}");
        assert!(!said.contains("panicked"), "{step}: {said}");
        assert!(said.lines().count() <= 6, "{step}: {said}");
        // A life that was complete has nothing to say of it.
        let ended_so = ["has ended", "was killed by SIGKILL"];
        let is_so = |how| said.contains(&format!("process {} {how}", pid.as_raw_nonzero()));
        let is_told = ended_so.into_iter().any(is_so);
        assert!(is_told || ended.status.success(), "{step}: {said}");
        assert!(!said.contains("runs on"), "{step}: {said}");
    }
}
