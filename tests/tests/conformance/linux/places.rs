//! Places of probes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::CALL;
use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "kprobe_insn_boundary",
        asked: "found=; n=0; while [ $n -lt 256 ]; do taken vfs_read+$n && found=\"$found $n\"; n=$((n + 1)); done; \
            echo >$T/kprobe_events; echo own kprobe_insn_boundary$found.",
        show: kprobe_insn_boundary,
    },
    Step {
        name: "multiple_kprobes",
        asked: "grep '^__x64_sys_' /tmp/functions | sort | head -256 >/tmp/many; n=0; \
            while read function; do echo p:many$n $function >>$T/kprobe_events; n=$((n + 1)); done </tmp/many; \
            said=$(grep -c many $T/kprobe_events)
            for on in 1 0; do echo $on >$T/events/kprobes/enable; said=\"$said $(cat $T/events/kprobes/enable)\"; done; \
            echo >$T/kprobe_events; echo own multiple_kprobes $said $(grep -c many $T/kprobe_events).",
        show: multiple_kprobes,
    },
    Step {
        name: "probepoint",
        asked: "C=__x64_sys_sched_get_priority_max; address=0x$(grep \" $C$\" /proc/kallsyms | cut -d' ' -f1); n=0
            for place in $C $C+0 $C+0x0 $address; do n=$((n + 1)); echo p:x$n $place >>$T/kprobe_events; done; \
            echo 1 >$T/events/kprobes/enable; syscalls 3; echo 0 >$T/events/kprobes/enable; \
            echo own probepoint $address $(awk '{ print $2 }' $T/kprobe_profile).
            next=$(sort /proc/kallsyms | grep -A1 \" $C$\" | tail -1 | cut -d' ' -f1); \
            asks probepoint $C+$((0x$next - address)) $C+1 0x1000 no_such_function $C+ +5; taken 0x1000; \
            echo 1 >$T/events/kprobes/x/enable && said=enabled || said=\"not enabled\"; echo own probepoint 0x1000: $said.; echo 0 >$T/events/kprobes/x/enable; \
            echo >$T/kprobe_events",
        show: probepoint,
    },
    Step {
        name: "kprobe_ftrace",
        // Who stops the tracer clears what it has traced.
        asked: "counts() { echo >$T/trace; syscalls 5; said=\"$said $(grep -c 'max <-' $T/trace) $(awk '{ print $2 }' $T/kprobe_profile)\"; }
            said=; echo $C >$T/set_ftrace_filter; echo p:x $C >$T/kprobe_events
            echo function >$T/current_tracer; counts; echo 1 >$T/events/kprobes/x/enable; counts
            echo 0 >$T/events/kprobes/x/enable; counts; echo nop >$T/current_tracer; counts
            echo own kprobe_ftrace$said.; echo >$T/kprobe_events; echo >$T/set_ftrace_filter",
        show: kprobe_ftrace,
    },
];

/// Reasons of ours to leave an instruction alone: the kernel rewrites it, or a branch may lead into its middle.
const LEFT_ALONE: [&str; 2] = ["is changed in a way of its own", "something may lead to"];

/// Reasons that are over soon: what the kernel's own tracer has left of this very function can look like a thread in it.
const PASSES: [&str; 2] = ["a thread may go on", "right now: try again"];

/// Requests until that is over.
const REQUESTS: u32 = 50;

impl Stock {
    /// Whether an instruction begins there, and why a probe there is refused nevertheless.
    fn instruction(&mut self, session: &str, place: &str) -> Option<Result<Value, String>> {
        let add = || json!({"session": session, "probes": [place]});
        for _ in 0..REQUESTS {
            let said = match self.client.ask("probe.add", add()).unwrap() {
                Ok(added) => return Some(Ok(added["probes"][0].clone())),
                Err(error) => error["message"].as_str().unwrap().to_owned(),
            };
            if said.contains("is inside the instruction") {
                return None;
            }
            if !PASSES.iter().any(|passes| said.contains(passes)) {
                return Some(Err(said));
            }
            self.shell.does("ls -lR /sys/kernel >/dev/null");
        }
        panic!("{place} was refused {REQUESTS} times")
    }
}

/// The same instructions begin. Some are left alone here, and it is said why; each of those that theirs refuses is refused.
fn kprobe_insn_boundary(stock: &mut Stock) {
    let theirs: BTreeSet<u64> = stock.own("kprobe_insn_boundary")[0]
        .split(' ')
        .map(|offset| offset.parse().unwrap())
        .collect();
    stock.trace("offsets", "nop", json!({}), &[]);
    let (mut begin, mut left_alone) = (BTreeSet::new(), 0);
    for offset in 0..256 {
        match stock.instruction("offsets", &format!("vfs_read+{offset}")) {
            None => continue,
            Some(Ok(added)) => {
                let remove = json!({"ids": [added["id"]]});
                stock.client.call("probe.remove", remove);
            }
            Some(Err(said)) => {
                println!("{offset}: {said}");
                let is_known = LEFT_ALONE.iter().any(|why| said.contains(why));
                assert!(is_known, "{offset}: {said}");
                left_alone += 1;
            }
        }
        begin.insert(offset);
    }
    println!("{} begin, {left_alone} are left alone", begin.len());
    assert_eq!(begin, theirs);
    // A handful of some sixty.
    assert!(10 * left_alone < begin.len(), "{left_alone}");
    stock.delete("offsets");
}

fn multiple_kprobes(stock: &mut Stock) {
    const COUNT: usize = 256;
    let all = stock.client.call("functions", Value::Null);
    let all = all["functions"].as_array().unwrap().iter();
    let available = all.filter(|one| one["state"] == "available");
    let names = available.map(|one| one["name"].as_str().unwrap());
    let mut names: Vec<&str> = names
        .filter(|name| name.starts_with("__x64_sys_"))
        .collect();
    names.sort_unstable();
    let probes: Vec<String> = names.iter().map(|name| format!("{name} %rdi")).collect();
    stock.trace("many", "nop", json!({}), &[]);
    let digest = stock.client.digest();
    let all = || json!({"all_of": "many"});
    let states = |stock: &mut Stock| -> Vec<String> {
        let all = stock.probes("many").into_iter();
        all.map(|probe| probe["state"].as_str().unwrap().to_owned())
            .collect()
    };
    let add = json!({"session": "many", "probes": probes[..COUNT]});
    stock.client.call("probe.add", add);
    let set = stock.client.digest();
    assert_ne!(set, digest);
    assert_eq!(states(stock), vec!["on"; COUNT]);
    stock.client.call("probe.disable", all());
    assert_eq!(states(stock), vec!["disabled"; COUNT]);
    assert_eq!(stock.client.digest(), digest);
    stock.client.call("probe.enable", all());
    assert_eq!(states(stock), vec!["on"; COUNT]);
    assert_eq!(stock.client.digest(), set);
    stock.client.call("probe.remove", all());
    assert!(states(stock).is_empty());
    assert_eq!(stock.client.digest(), digest);
    stock.delete("many");
    // Registered, on, off, and gone.
    assert_eq!(stock.own("multiple_kprobes"), ["256 1 0 0"]);
}

fn probepoint(stock: &mut Stock) {
    let theirs = stock.own("probepoint")[0].to_owned();
    let (address, hits) = theirs.split_once(' ').unwrap();
    assert_eq!(hits, "3 3 3 3");
    // Where the next function begins.
    let past = stock.own("probepoint")[1].strip_suffix(": taken");
    let past = past.expect("what is past the end").to_owned();
    stock.trace("points", "nop", json!({}), &[]);
    let offsets = [String::new(), "+0".to_owned(), "+0x0".to_owned()];
    let mut places = offsets.map(|offset| format!("{CALL}{offset}")).to_vec();
    places.push(address.to_owned());
    for place in &places {
        stock.probe("points", &[place]);
    }
    stock.shell.does("syscalls 3");
    let probes = stock.probes("points");
    assert_eq!(probes.len(), places.len());
    for probe in &probes {
        assert_eq!(probe["address"], address, "{probe}");
    }
    for (place, why) in [
        (format!("{CALL}+0x10000"), "past the end"),
        (past.clone(), "past the end"),
        (format!("{CALL}+1"), "is inside the instruction"),
        ("0x1000".to_owned(), "not in the text"),
        ("no_such_function".to_owned(), "there is no function"),
        (format!("{CALL}+"), "there is no function"),
        ("+5".to_owned(), "there is no function"),
    ] {
        let add = json!({"session": "points", "probes": [place]});
        let said = stock.client.refused("probe.add", add);
        assert!(said.contains(why), "{place}: {said}");
    }
    let found = stock.fields("points", CALL);
    assert_eq!(found.len(), 3 * places.len(), "{found:?}");
    // It takes what is past the end if an instruction begins there, and addresses that are nowhere, which can be switched on.
    let refused = [
        format!("{CALL}+1"),
        "no_such_function".to_owned(),
        format!("{CALL}+"),
    ];
    assert_eq!(stock.refused_by_it("probepoint"), refused);
    let others = stock.own("probepoint").into_iter().skip(1);
    let others: Vec<&str> = others.filter(|line| !line.ends_with(": refused")).collect();
    let nowhere = ["0x1000: taken", "+5: taken", "0x1000: enabled"];
    assert_eq!(
        others,
        [vec![&*format!("{past}: taken")], nowhere.to_vec()].concat()
    );
}

/// One step of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    TracerOn,
    TracerOff,
    ProbeOn,
    ProbeOff,
}

impl Stock {
    /// Calls that the tracer has, and hits of the probe.
    fn calls_and_hits(&mut self) -> [u64; 2] {
        let status = self.client.status();
        let sessions = status["tracing"]["sessions"].as_array().unwrap();
        [("calls", "rings"), ("probe", "event_rings")].map(|(name, rings)| {
            let session = sessions.iter().find(|one| one["name"] == name).unwrap();
            let rings = session[rings].as_array().into_iter().flatten();
            rings.map(|ring| ring["written"].as_u64().unwrap()).sum()
        })
    }

    fn takes(&mut self, turn: Turn) {
        let calls = json!({"session": "calls", "filter": [CALL]});
        match turn {
            Turn::TracerOn => self.client.call("start", calls),
            Turn::TracerOff => self.client.call("stop", json!({"session": "calls"})),
            Turn::ProbeOn => {
                let add = json!({"session": "probe", "probes": [format!("{CALL} %rdi")]});
                self.client.call("probe.add", add)
            }
            Turn::ProbeOff => self.client.call("probe.remove", json!({"all_of": "probe"})),
        };
    }
}

/// Whichever of them is at the function, and in whichever order they came, both count each call.
fn kprobe_ftrace(stock: &mut Stock) {
    use Turn::{ProbeOff, ProbeOn, TracerOff, TracerOn};
    let orders = [
        [TracerOn, ProbeOn, ProbeOff, TracerOff],
        [TracerOn, ProbeOn, TracerOff, ProbeOff],
        [ProbeOn, TracerOn, TracerOff, ProbeOff],
        [ProbeOn, TracerOn, ProbeOff, TracerOff],
        [ProbeOn, ProbeOff, TracerOn, TracerOff],
    ];
    let digest = stock.client.digest();
    stock.trace("probe", "nop", json!({}), &[]);
    let calls = json!({"name": "calls"});
    stock.client.call("session.create", calls);
    for order in orders {
        let mut on = [false; 2];
        for turn in order {
            stock.takes(turn);
            match turn {
                TracerOn | TracerOff => on[0] = turn == TracerOn,
                ProbeOn | ProbeOff => on[1] = turn == ProbeOn,
            }
            let before = stock.calls_and_hits();
            stock.shell.does("syscalls 5");
            let now = stock.calls_and_hits();
            let more = [now[0] - before[0], now[1] - before[1]];
            let expected = on.map(|is_on| if is_on { 5 } else { 0 });
            assert_eq!(more, expected, "{order:?}, {turn:?}");
            let is_clean = stock.client.digest() == digest;
            assert_eq!(is_clean, on == [false; 2], "{order:?}, {turn:?}");
        }
    }
    stock.delete("calls");
    stock.delete("probe");
    // Of the first order, calls at each step, and hits up to it.
    assert_eq!(stock.own("kprobe_ftrace"), ["5 0 5 5 5 5 0 5"]);
}
