//! A VMM that closes a vCPU while somebody is attached to its guest, and opens something else by the same number.

use std::fs::{self, File};
use std::io::Write as _;

use serde_json::json;
use tempfile::TempDir;
use tests::Guest;

use crate::scripted::Scripted;

/// What had its number by then was once asked for registers, and no pause came to pass any more: neither could anything be changed, nor
/// the guest be let go.
#[test]
fn a_vcpu_that_its_vmm_closes_is_over_and_what_has_its_number_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let [kernel, another, pipe] =
        ["kernel.elf", "another", "pipe"].map(|name| folder.path().join(name));
    let script = include_str!("attach_closed.py");
    let mut closing = Scripted::start(script, &[&kernel, &another, &pipe]);
    let mut attached = Guest::attached(closing.pid(), Some(&kernel)).start();
    let mut client = attached.client();
    let text = client.digest();
    let wanted = json!({"filter": ["work"]});
    assert_eq!(client.call("start", wanted.clone())["traced"], 1);
    assert_eq!(closing.told("close"), "closed");
    // The thread that was in it leaves the guest, another pause finds it gone.
    for _ in 0..2 {
        client.call("pause", json!({}));
        client.call("resume", json!({}));
        let vcpus = client.status()["vcpus"].clone();
        let states = [0, 1].map(|vcpu: usize| vcpus[vcpu]["state"].as_str().unwrap().to_owned());
        assert_eq!(states, ["running", "closed"], "{vcpus}");
    }
    assert_eq!(closing.told(""), "goes on, another file");
    // All threads were once held for it, and one that does not stop had each pause fail.
    assert_eq!(closing.told("stick"), "is stuck");
    client.call("pause", json!({}));
    client.call("resume", json!({}));
    let mut goes_on = File::options().write(true).open(&pipe).unwrap();
    goes_on.write_all(b"\n").unwrap();
    drop(goes_on);
    client.call("stop", json!({}));
    assert_eq!(client.digest(), text);
    assert_eq!(client.call("start", wanted)["traced"], 1);
    client.call("shutdown", json!({}));
    let (ended, _) = attached.end();
    let said = ended.good().stderr.clone();
    assert!(said.contains("the VMM has closed vCPU 1"), "{said}");
    assert!(!said.contains("tracing memory is left"), "{said}");
    let maps = fs::read_to_string(format!("/proc/{}/maps", closing.pid())).unwrap();
    assert!(!maps.contains("exotrace"), "{maps}");
    assert_eq!(closing.told(""), "goes on, another file");
}
