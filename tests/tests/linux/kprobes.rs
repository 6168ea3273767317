//! The guest's own kprobes and our probes: whoever comes first to a place has it, and where both can be,
//! both count right.

use serde_json::{Value, json};
use tests::Client;
use tracer::addr::Gva;

use crate::kernel::{kernel, straight};
use crate::shell::Shell;

/// Nothing but `keys` calls it, once each time.
const FUNCTION: &str = "do_sched_yield";

/// What an exception handler has left on a stack that is nobody's now can look like a thread inside of the place: then
/// the guest has to use that stack again.
const TRIES: usize = 50;

fn add(shell: &mut Shell, client: &mut Client, at: &str) -> u64 {
    let params = json!({"probes": [format!("{at} %rax:x64")]});
    for _ in 0..TRIES {
        match client.ask("probe.add", params.clone()).unwrap() {
            Ok(added) => return added["probes"][0]["id"].as_u64().unwrap(),
            Err(error) if error.to_string().contains("a thread may go on") => {
                shell.does("ls /proc")
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{at} is never free");
}

fn hits(client: &mut Client, id: u64) -> u64 {
    let list = client.call("probe.list", Value::Null);
    let mut probes = list["probes"].as_array().unwrap().iter();
    let probe = probes.find(|probe| probe["id"] == id);
    probe.unwrap_or_else(|| panic!("{list}"))["hits"]
        .as_u64()
        .unwrap()
}

/// Where several instructions of the function can be displaced: the place, and what the guest calls it.
fn place() -> (Gva, String) {
    let image = kernel();
    let at = straight(&image, FUNCTION)[0];
    let start = image.symbols.address_of(FUNCTION).unwrap();
    (at, format!("{FUNCTION}+{}", at.0 - start.0))
}

/// A kprobe that is switched off is nowhere in the text, but has its copy of the instruction.
#[test]
fn a_place_with_a_kprobe_is_theirs_until_it_is_gone() {
    let (at, theirs) = place();
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let probe = || json!({"probes": [format!("{at} %rax:x64")]});

    shell.does(&format!("echo p:theirs {theirs} >>$T/kprobe_events"));
    assert_eq!(client.digest(), before, "it is not in the text");
    let said = client.refused("probe.add", probe());
    assert!(said.contains("a probe of its own (a kprobe)"), "{said}");
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

/// The guest takes our jump for the instruction there, and carries it out. While its breakpoint is over it, it is not
/// taken back.
#[test]
fn a_kprobe_on_a_place_of_ours_counts_too() {
    let (at, theirs) = place();
    let mut shell = Shell::start();
    let mut client = shell.client();
    let before = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    let ours = add(&mut shell, &mut client, &at.to_string());
    shell.does(&format!("set_up 'p:late {theirs}' late"));
    shell.does("keys 100; hits late");
    assert_eq!(hits(&mut client, ours), 100);
    let said = client.refused("probe.remove", json!({"ids": [ours]}));
    assert!(said.contains("nothing will be patched"), "{said}");
    shell.does("keys 20; take_down late");
    assert_eq!(hits(&mut client, ours), 120);
    client.call("thaw", Value::Null);
    client.call("probe.remove", json!({"ids": [ours]}));
    assert_eq!(client.digest(), before);
    shell.does("keys 3");
    let (ended, _) = shell.end();
    assert!(ended.stdout.contains("hits late 100."), "{ended}");
}
