//! `vmm attach` is killed at any step of attaching, changing and letting go: neither VMM nor guest notices, and whoever comes next
//! gives the guest back what is its own.

use std::process::Command;

use tests::exact::{gated, untraced, without_gate};
use tests::mortal::{Steps, killed_at};
use tests::{Guest, Random, Running, guest, scaled, vmm, vmm_says};

/// A whole life: attached, everything traced, let go.
fn life(of: &Running) -> Command {
    let mut command = vmm();
    command.args(["attach", &of.pid().to_string()]);
    command.arg("--kernel").arg(guest());
    command.args([
        "--trace",
        "graph",
        "--filter",
        "calls_*",
        "--duration",
        "0.01",
    ]);
    command
}

fn restore(of: &Running) {
    let restored = vmm_says(&["attach", &of.pid().to_string(), "--restore"]);
    assert_eq!(restored.code, Some(0), "{restored}");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", of.pid())).unwrap();
    assert!(!maps.contains("exotrace"), "{restored} {maps}");
}

/// Kills so many tracers, each at a step of its own, at random.
fn killed_at_random(of: &Running, lives: u64) {
    let whole = killed_at(&mut life(of), Steps::OnOthers, u64::MAX);
    assert!(whole.ended == Some(0) && whole.steps > 100, "{whole:?}");
    let (mut random, mut killed) = (Random::new(), 0);
    for _ in 0..lives {
        let step = 1 + random.next_u64() % whole.steps;
        let lived = killed_at(&mut life(of), Steps::OnOthers, step);
        assert!(
            lived.ended.is_none_or(|ended| ended == 0),
            "{step}: {lived:?}"
        );
        killed += u32::from(lived.ended.is_none());
    }
    println!("{killed} of {lives} killed");
    assert!(killed > 0, "none of {lives} was killed");
    restore(of);
    // The first ones, where the VMM is held for the first time, one after the other.
    for step in 1..40 {
        let lived = killed_at(&mut life(of), Steps::OnOthers, step);
        assert!(lived.ended.is_none(), "{step}: {lived:?}");
        restore(of);
    }
}

#[test]
fn a_tracer_that_dies_at_any_step_is_noticed_by_nobody() {
    let rest = format!("iterations={} threads=6 tick=200", scaled(1000));
    let guest_of = || gated("calls,threads,smp", &rest).vcpus(2);
    let expected = untraced(guest_of());
    let mut other = guest_of().start();
    other.wait_for("workload spin");
    let text = other.client().digest();
    killed_at_random(&other, scaled(60).into());
    assert_eq!(other.client().digest(), text);
    other.type_text("q");
    let (ended, _) = other.end();
    assert_eq!(without_gate(ended.good().printed()), expected);
}

#[test]
fn qemu_does_not_notice_that_its_tracer_dies() {
    let name = format!("exotrace-killed-{}", std::process::id());
    let mut qemu = Guest::under_qemu(&name, "workload=list,spin,calls", 2).start();
    qemu.wait_for("workload spin");
    killed_at_random(&qemu, scaled(60).into());
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1));
}
