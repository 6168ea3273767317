//! The window's memory costs nothing until something is traced, whatever the guest does.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::Guest;

/// Where the window of a guest with so little RAM is, and how far its code looks there for memory.
///
/// In ring 0, with the page tables of the entry state, whose second table is at 0xa000: maps the gigabyte at 4 GiB
/// by a page directory at 0x30000, writes to every fourth page of its first half, says so, and stops.
const CODE: &[u8] = b"\
    \xbf\x00\x00\x03\x00\
    \x48\xb8\x83\x00\x00\x00\x01\x00\x00\x00\
    \xb9\x00\x02\x00\x00\
    \x48\x89\x07\
    \x48\x83\xc7\x08\
    \x48\x05\x00\x00\x20\x00\
    \xff\xc9\
    \x75\xef\
    \x48\xc7\x04\x25\x20\xa0\x00\x00\x03\x00\x03\x00\
    \x48\xbf\x00\x00\x00\x00\x01\x00\x00\x00\
    \xb9\x00\x80\x00\x00\
    \x48\x89\x3f\
    \x48\x81\xc7\x00\x40\x00\x00\
    \xff\xc9\
    \x75\xf2\
    \x66\xba\xf8\x03\
    \xb0d\xee\xb0o\xee\xb0n\xee\xb0e\xee\xb0\n\xee\
    \xf4\xeb\xfd";

/// An ELF file of one segment at 1 MiB, with this code.
fn kernel(code: &[u8]) -> Vec<u8> {
    const START: u64 = 0x10_0000;
    const HEADERS: u64 = 120;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
    put(&[2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [START + HEADERS, 64, 0] {
        put(&word.to_le_bytes());
    }
    put(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // PT_LOAD, readable, writable, executable.
    put(&[1, 0, 0, 0, 7, 0, 0, 0]);
    let length = HEADERS + code.len() as u64;
    for word in [0, START, START, length, length, 0x1000] {
        put(&word.to_le_bytes());
    }
    put(code);
    file
}

/// Memory of a process that is in RAM, in MiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_guest_that_is_not_traced_has_no_memory_beside_its_ram() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("kernel");
    fs::write(&file, kernel(CODE)).unwrap();
    let running = Guest::of(&file, "").with(["--memory", "32"]).start();
    running.wait_for("done");
    let now = resident(running.pid());
    assert!(now < 64, "{now} MiB");
}

/// What is reserved costs nothing, and what is said to be backed is what tracing has taken.
#[test]
fn the_status_says_how_much_memory_there_is() {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let mut of = |name: &str| client.status()["memory"][name].as_u64().unwrap() >> 20;
    assert_eq!((of("ram_bytes"), of("window_bytes")), (256, 512));
    assert_eq!(of("window_backed_bytes"), 0);
    let (before, there) = (of("resident_bytes"), resident(running.pid()));
    assert!(before.abs_diff(there) < 16, "{before} {there}");
    // A ring for each of two vCPUs.
    let options = json!({"ring_size": 65536});
    let create = json!({"name": "large", "options": options});
    client.call("session.create", create);
    client.call("start", json!({"session": "large", "filter": ["spin_*"]}));
    let mut of = |name: &str| client.status()["memory"][name].as_u64().unwrap() >> 20;
    let backed = of("window_backed_bytes");
    assert!((128..192).contains(&backed), "{backed} MiB");
    let (after, there) = (of("resident_bytes"), resident(running.pid()));
    assert!(
        after >= before + 96 && after.abs_diff(there) < 16,
        "{before} {after} {there}"
    );
    let text = running.ctl(&["status"]).good().stdout;
    let line = "memory   RAM 256.0 MiB, window 512.0 MiB (1";
    let is_told = text.contains(line) && !text.contains("unknown");
    assert!(is_told, "{text}");
    // A graph's records have second words, and none of either is to cost the guest a fault: nobody calls this function.
    let options = json!({"ring_size": 16384});
    let create = json!({"name": "graph", "tracer": "graph", "options": options});
    client.call("session.create", create);
    client.call(
        "start",
        json!({"session": "graph", "filter": ["calls_root"]}),
    );
    let more = client.status()["memory"]["window_backed_bytes"]
        .as_u64()
        .unwrap()
        >> 20;
    assert!(
        (backed + 64..backed + 72).contains(&more),
        "{backed} {more} MiB"
    );
    running.type_text("q");
    let _ = running.end().0.good();
}

/// A pause that only looks is told from those that change something.
#[test]
fn looks_are_counted_apart_from_what_is_changed() {
    let mut running = Guest::spinning(&["--patch-method", "quiesce"]);
    let mut client = running.client();
    client.call("start", json!({"filter": ["spin_leaf"]}));
    let looks = |status: &Value| status["tracing"]["looks"].as_u64().unwrap();
    let others =
        |status: &Value| status["pauses"]["parked"]["count"].as_u64().unwrap() - looks(status);
    let before = client.status();
    let after = client.wait_until("looks twice more", |status| {
        looks(status) >= looks(&before) + 2
    });
    assert_eq!(others(&after), others(&before), "{after}");
    let longest = after["tracing"]["longest_look_us"].as_f64().unwrap();
    assert!(longest > 0.0, "{after}");
    // What changes something says how often the guest was paused for it, whatever it was for.
    for (method, params, pauses) in [
        ("filter.add", json!({"filter": ["spin_root"]}), true),
        ("tasks.set", json!({"tasks": ["1"]}), true),
        ("tasks.set", json!({"tasks": ["1"]}), false),
        ("tasks.clear", json!({}), true),
        ("session.delete", json!({"session": "default"}), true),
    ] {
        let before = others(&client.status());
        let changed = client.call(method, params);
        let said = changed["pauses"].as_u64().unwrap();
        assert_eq!(
            others(&client.status()) - before,
            said,
            "{method}: {changed}"
        );
        let longest = changed["pause_us"].as_f64().unwrap();
        assert_eq!(
            (said > 0, longest > 0.0),
            (pauses, pauses),
            "{method}: {changed}"
        );
    }
    let shown = running.ctl(&["status"]).good().stdout;
    assert!(
        shown.contains(" to ask vCPUs for their page tables"),
        "{shown}"
    );
    running.type_text("q");
    let _ = running.end().0.good();
}
