//! The guest's own kprobes and kretprobes, and our probes: whoever comes first to a place has it, and where both can be,
//! both count right.
//!
//! A kprobe that is hit leaves the address after its breakpoint on the stack of that thread, and the memory of the stack
//! keeps it when the thread has ended. Where we displace several instructions, that is what a thread in the middle of
//! them looks like, so the place is not had any more until that memory is used again (`engine/saved/mod.rs`). So one that
//! is hit before we come sits, here, where a single instruction is displaced, which has no middle.

use serde_json::{Value, json};
use terms::addr::Gva;
use tests::Client;
use tracer::points::tactic::{Tactic, choose};

use crate::kernel::{kernel, straight};
use crate::shell::Shell;

/// Nothing but `keys` calls it, once each time.
const FUNCTION: &str = "do_sched_yield";
/// What calls that.
const CALLER: &str = "__x64_sys_sched_yield";

/// Requests until the memory in which an address was left is used again.
const REQUESTS: u32 = 50;

/// Why a probe is refused for a moment only: what the guest left of its own work at a place (it walks the instructions
/// of a function that is to have a kprobe) can look like a thread in the middle of it; and after a kprobe came or went
/// the guest waits for all its threads, and its list may not be read meanwhile.
const PASSES: [&str; 2] = ["a thread may go on", "right now: try again"];

/// What is answered when that is over; until then the guest does something else, as a user would have it do.
fn asked(shell: &mut Shell, client: &mut Client, at: &str) -> Result<u64, String> {
    let probe = json!({"probes": [format!("{at} %rax:x64")]});
    for _ in 0..REQUESTS {
        let said = match client.ask("probe.add", probe.clone()).unwrap() {
            Ok(added) => return Ok(added["probes"][0]["id"].as_u64().unwrap()),
            Err(refused) => refused["message"].as_str().unwrap().to_owned(),
        };
        if !PASSES.iter().any(|passes| said.contains(passes)) {
            return Err(said);
        }
        println!("{said}");
        shell.does("for i in 1 2 3; do ls -lR /sys/kernel >/dev/null; done");
    }
    panic!("{at} was refused {REQUESTS} times");
}

fn add(shell: &mut Shell, client: &mut Client, at: &str) -> u64 {
    asked(shell, client, at).unwrap_or_else(|said| panic!("{at}: {said}"))
}

/// A probe of ours there is refused for the guest's kprobe.
fn is_theirs(shell: &mut Shell, client: &mut Client, at: Gva) {
    let said = asked(shell, client, &at.to_string()).unwrap_err();
    assert!(said.contains("a probe of its own (a kprobe)"), "{said}");
}

fn hits(client: &mut Client, id: u64) -> u64 {
    let list = client.call("probe.list", Value::Null);
    let mut probes = list["probes"].as_array().unwrap().iter();
    let probe = probes.find(|probe| probe["id"] == id);
    probe.unwrap_or_else(|| panic!("{list}"))["hits"]
        .as_u64()
        .unwrap()
}

/// A place in the function for this tactic, and where the second instruction there begins if more than one is displaced.
fn place(tactic: Tactic) -> (Gva, Option<Gva>) {
    let image = kernel();
    let places = straight(image, FUNCTION).into_iter();
    let mut chosen = places.map(|at| choose(image, at, None).unwrap());
    let chosen = chosen.find(|one| one.tactic == tactic).unwrap();
    (chosen.at, chosen.inner.first().copied())
}

/// What the guest calls a place in the function.
fn theirs(at: Gva) -> String {
    let start = kernel().symbols.address_of(FUNCTION).unwrap();
    format!("{FUNCTION}+{}", at.0 - start.0)
}

#[test]
fn a_place_with_a_kprobe_is_theirs_until_it_is_gone() {
    let (at, _) = place(Tactic::One);
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let probe = || json!({"probes": [format!("{at} %rax:x64")]});

    shell.does(&format!("echo p:theirs {} >>$T/kprobe_events", theirs(at)));
    is_theirs(&mut shell, &mut client, at);
    // The function's own site is another place.
    let entry = add(&mut shell, &mut client, FUNCTION);
    shell.does("echo 1 >$T/events/kprobes/theirs/enable");
    shell.does("keys 100");
    client.refused("probe.add", probe());
    shell.does("hits theirs; take_down theirs");
    assert_eq!(hits(&mut client, entry), 100);

    // They have let go.
    let ours = add(&mut shell, &mut client, &at.to_string());
    shell.does("keys 50");
    assert_eq!(hits(&mut client, ours), 50);
    client.call("probe.remove", json!({"all_of": "default"}));
    assert_eq!(client.digest(), before);
    let (ended, _) = shell.end();
    assert!(ended.stdout.contains("hits theirs 100."), "{ended}");
}

/// A kprobe that is switched off is nowhere in the text, but has its copy of the instruction: one in the middle of what
/// we would displace is in the way too.
#[test]
fn a_kprobe_that_is_switched_off_has_its_place() {
    let (at, second) = place(Tactic::Several);
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let mut is_refused = |shell: &mut Shell, kprobe: Gva| {
        let place = theirs(kprobe);
        shell.does(&format!("echo p:quiet {place} >>$T/kprobe_events"));
        assert_eq!(client.digest(), before, "it is not in the text");
        is_theirs(shell, &mut client, at);
        shell.does("echo -:quiet >>$T/kprobe_events");
    };
    is_refused(&mut shell, at);
    let mut other = shell.client();
    let ours = add(&mut shell, &mut other, &at.to_string());
    shell.does("keys 50");
    assert_eq!(hits(&mut other, ours), 50);
    other.call("probe.remove", json!({"ids": [ours]}));
    // What is freed of this one keeps the address for longer: it comes last.
    is_refused(&mut shell, second.unwrap());
    assert_eq!(client.digest(), before);
    let _ = shell.end();
}

/// The guest takes our jump for the instruction there, and carries it out. While its breakpoint is over it, it is not
/// taken back.
#[test]
fn a_kprobe_on_a_place_of_ours_counts_too() {
    let (at, _) = place(Tactic::Several);
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let ours = add(&mut shell, &mut client, &at.to_string());
    shell.does(&format!("set_up 'p:late {}' late", theirs(at)));
    shell.does("keys 100; hits late");
    assert_eq!(hits(&mut client, ours), 100);
    let said = client.refused("probe.remove", json!({"ids": [ours]}));
    assert!(said.contains("nothing will be patched"), "{said}");
    shell.does("keys 20; take_down late");
    assert_eq!(hits(&mut client, ours), 120);
    client.call("thaw", Value::Null);
    // Switched off it does not show, but keeps a copy of our jump, and would put its first byte back over what stood there before.
    shell.does(&format!("echo p:quiet {} >>$T/kprobe_events", theirs(at)));
    let said = loop {
        let said = client.refused("probe.remove", json!({"ids": [ours]}));
        if !PASSES.iter().any(|passes| said.contains(passes)) {
            break said;
        }
        shell.does("keys 1");
    };
    assert!(said.contains("on our jump"), "{said}");
    let start = hits(&mut client, ours);
    shell.does("echo 1 >$T/events/kprobes/quiet/enable; keys 5; hits quiet; take_down quiet");
    assert_eq!(hits(&mut client, ours), start + 5);
    client.call("probe.remove", json!({"ids": [ours]}));
    assert_eq!(client.digest(), before);
    shell.does("keys 3");
    let (ended, _) = shell.end();
    assert!(ended.stdout.contains("hits late 100."), "{ended}");
    assert!(ended.stdout.contains("hits quiet 5."), "{ended}");
}

/// Theirs is on the site of the function and replaces its return address, ours replaces that of its caller, on the
/// same stack. What we displace right after the site is not in the way of theirs, which the kernel's own tracer serves.
#[test]
fn a_kretprobe_and_a_graph_share_a_stack() {
    let (after_site, _) = place(Tactic::Several);
    let start = kernel().symbols.address_of(FUNCTION).unwrap();
    assert_eq!(after_site, start.wrapping_add(5));
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let graph = json!({"name": "graph", "tracer": "graph"});
    client.call("session.create", graph);
    shell.does(&format!("set_up 'r:back {FUNCTION}' back"));
    let graph = json!({"session": "graph", "filter": [FUNCTION, CALLER]});
    let changed = client.call("start", graph);
    assert_eq!(changed["traced"], 1, "their function is foreign: {changed}");
    let skipped = changed["skipped"].to_string();
    assert!(skipped.contains(FUNCTION), "{changed}");
    let inside = add(&mut shell, &mut client, &after_site.to_string());
    shell.does("keys 100; hits back");
    assert_eq!(hits(&mut client, inside), 100);
    let status = client.status();
    let records = Client::rings(&status, "written");
    assert_eq!(records, 200, "entries and exits of the caller: {status}");
    // We go while theirs is there, then it goes.
    client.call("probe.remove", json!({"all_of": "default"}));
    client.call("stop", json!({"session": "graph"}));
    shell.does("keys 10; hits back; take_down back");
    assert_eq!(client.digest(), before);
    let (ended, _) = shell.end();
    for theirs in ["hits back 100.", "hits back 110."] {
        assert!(ended.stdout.contains(theirs), "{ended}");
    }
}
