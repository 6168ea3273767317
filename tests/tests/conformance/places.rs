//! Places of probes, on the bundled guest.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions};
use image::Image;
use serde_json::{Value, json};
use tests::{Client, Guest, Running, guest};

/// A guest that spins, and is traced by a session that records nothing but probes.
fn spinning() -> (Running, Client, String) {
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    (running, client, digest)
}

fn end(mut running: Running) {
    running.type_text("q");
    let _ = running.end().0.good();
}

fn image() -> Image {
    Image::parse(&std::fs::read(guest()).unwrap()).unwrap()
}

/// Of 256 offsets those have a probe at which an instruction begins, as another decoder says. The other ones are refused with
/// the two that come next.
#[test]
fn kprobe_insn_boundary() {
    const FUNCTION: &str = "unoptimised_values";
    const BYTES: u64 = 256;
    let image = image();
    let start = image.symbols.address_of(FUNCTION).unwrap();
    let code = image.code(image.function_at(start).unwrap());
    assert!(code.len() as u64 > BYTES);
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let begins: BTreeSet<u64> = decoder.into_iter().map(|one| one.ip()).collect();
    let (running, mut client, digest) = spinning();
    let mut set = 0;
    for offset in 0..BYTES {
        let probe = format!("{FUNCTION}+{offset:#x}");
        match client.ask("probe.add", json!({"probes": [probe]})).unwrap() {
            Ok(added) => {
                assert!(begins.contains(&offset), "{added}");
                client.call("probe.remove", json!({"all_of": "default"}));
                set += 1;
            }
            Err(error) => {
                let said = error["message"].as_str().unwrap();
                assert!(!begins.contains(&offset), "{said}");
                assert!(said.contains("is inside the instruction"), "{said}");
            }
        }
    }
    assert_eq!(set, begins.range(..BYTES).count());
    assert_eq!(client.digest(), digest);
    end(running);
}

#[test]
fn multiple_kprobes() {
    const COUNT: usize = 256;
    let (running, mut client, digest) = spinning();
    let all = client.call("functions", Value::Null);
    let all = all["functions"].as_array().unwrap().iter();
    let available = all.filter(|one| one["state"] == "available");
    let names = available.map(|one| one["name"].as_str().unwrap().to_owned());
    let probes: Vec<String> = names
        .take(COUNT)
        .map(|name| format!("{name} %rdi"))
        .collect();
    assert_eq!(probes.len(), COUNT);
    client.call("probe.add", json!({"probes": probes}));
    let set = client.digest();
    assert_ne!(set, digest);
    let states = |client: &mut Client| {
        let list = client.call("probe.list", Value::Null);
        let list = list["probes"].as_array().unwrap().iter();
        list.map(|one| one["state"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&mut client), vec!["on"; COUNT]);
    let all = || json!({"all_of": "default"});
    client.call("probe.disable", all());
    assert_eq!(states(&mut client), vec!["disabled"; COUNT]);
    assert_eq!(client.digest(), digest);
    client.call("probe.enable", all());
    assert_eq!(client.digest(), set);
    client.call("probe.remove", all());
    assert!(states(&mut client).is_empty());
    assert_eq!(client.digest(), digest);
    end(running);
}

/// A name, a name and an offset, and an address mean the same place. What is past the end of a function, or nowhere, is refused.
#[test]
fn probepoint() {
    let image = image();
    let start = image.symbols.address_of("spin_leaf").unwrap();
    let (running, mut client, digest) = spinning();
    let mut places = BTreeSet::new();
    for place in [
        "spin_leaf",
        "spin_leaf+0",
        "spin_leaf+0x0",
        &start.to_string(),
    ] {
        let added = client.call("probe.add", json!({"probes": [place]}));
        places.insert(added["probes"][0]["address"].as_str().unwrap().to_owned());
    }
    assert_eq!(places, BTreeSet::from([start.to_string()]));
    client.call("probe.remove", json!({"all_of": "default"}));
    for (place, why) in [
        ("spin_leaf+0x10000", "past the end"),
        ("0x1000", "not in the text"),
        ("no_such_function", "there is no function"),
        ("spin_leaf+", "there is no function"),
        ("+5", "there is no function"),
    ] {
        let said = client.refused("probe.add", json!({"probes": [place]}));
        assert!(said.contains(why), "{place}: {said}");
    }
    assert_eq!(client.digest(), digest);
    end(running);
}

/// Of a guest that spins.
const VCPUS: u64 = 2;

/// One step of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    TracerOn,
    TracerOff,
    ProbeOn,
    ProbeOff,
}

/// What counts now: calls of the tracer, and hits of the probe.
fn counted(client: &mut Client) -> [u64; 2] {
    let list = client.call("probe.list", Value::Null);
    let hits = list["probes"][0]["hits"].as_u64().unwrap_or_default();
    let status = client.status();
    let sessions = status["tracing"]["sessions"].as_array().unwrap();
    let session = sessions.iter().find(|one| one["name"] == "calls").unwrap();
    let rings = session["rings"].as_array().into_iter().flatten();
    let written = rings.map(|ring| ring["written"].as_u64().unwrap());
    [written.sum(), hits]
}

/// Whichever of them is at the function, and in whichever order they came, both count what they should; and the text is what it
/// was when both are gone.
#[test]
fn kprobe_ftrace() {
    use Step::{ProbeOff, ProbeOn, TracerOff, TracerOn};
    let orders = [
        [TracerOn, ProbeOn, ProbeOff, TracerOff],
        [TracerOn, ProbeOn, TracerOff, ProbeOff],
        [ProbeOn, TracerOn, TracerOff, ProbeOff],
        [ProbeOn, TracerOn, ProbeOff, TracerOff],
        [ProbeOn, ProbeOff, TracerOn, TracerOff],
    ];
    // Hits are counted as they are read, and they are read because they are written.
    let guest = Guest::new("workload=list,spin").vcpus(2);
    let mut running = guest.output().start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    client.call("session.create", json!({"name": "calls"}));
    for order in orders {
        let mut on = [false; 2];
        for step in order {
            match step {
                TracerOn => client.call(
                    "start",
                    json!({"session": "calls", "filter": ["spin_leaf"]}),
                ),
                TracerOff => client.call("stop", json!({"session": "calls"})),
                ProbeOn => client.call("probe.add", json!({"probes": ["spin_leaf %rdi"]})),
                ProbeOff => client.call("probe.remove", json!({"all_of": "default"})),
            };
            match step {
                TracerOn | TracerOff => on[0] = step == TracerOn,
                ProbeOn | ProbeOff => on[1] = step == ProbeOn,
            }
            let before = counted(&mut client);
            // Whichever is on goes on; with none of them there is nothing to wait for.
            client.wait_until("counts", |_| {
                let mut other = Client::connect(running.socket()).unwrap();
                let now = counted(&mut other);
                (0..2).all(|one| !on[one] || now[one] > before[one])
            });
            if !on[0] {
                // Each vCPU can have been between its call and its record.
                let late = counted(&mut client)[0] - before[0];
                assert!(late <= VCPUS, "{order:?}, {step:?}: {late}");
            }
            let is_clean = client.digest() == digest;
            assert_eq!(is_clean, on == [false; 2], "{order:?}, {step:?}");
        }
    }
    end(running);
}
