//! What the kernel rewrites while it runs: its jump labels and static calls are switched while hundreds of probes, by
//! every tactic, and displaced entries sit in the very functions that have them.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions};
use image::Image;
use serde_json::{Value, json};
use terms::addr::Gva;
use terms::function::FunctionId;
use tests::{Client, Guest, Running, linux, usual_or_long, vmm_says, with_file};
use tracer::filter::{Filter, Reason, Sources};
use tracer::points::tactic::{JumpPlace, Tactic, choose};

use crate::kernel::{kernel, straight};

/// What the guest does; it waits for a line where it says `step`. Everything is switched on and off once before, so
/// that what is compared afterwards was all written by the kernel's own hand.
const STEPS: &str = r#"
T=/sys/kernel/tracing
D=/sys/kernel/debug/sched
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
echo 0 >$T/tracing_on
switched=0
put() { [ -e $2 ] && echo $1 >$2 && switched=$((switched + 1)); }
features=$(head -n 1 $D/features | cut -d" " -f1-6)
switch() {
    for key in kernel/sched_schedstats kernel/task_delayacct kernel/timer_migration kernel/bpf_stats_enabled vm/numa_stat; do
        put $1 /proc/sys/$key
    done
    for events in $EVENTS; do
        put $1 $T/events/$events/enable
    done
}
all() {
    switch 1
    for feature in $features; do put NO_${feature#NO_} $D/features; done
    put full $D/preempt
    switch 0
    for feature in $features; do put $feature $D/features; done
    put none $D/preempt
    put voluntary $D/preempt
}
all
echo step ready; read line
(keys $CALLS; echo step kept) &
for round in $ROUNDS; do all; echo round $round; done
wait
echo step switched $switched; read line
"#;

/// How much of it. Each key that is switched halts all vCPUs several times, and the box has one processor for them.
struct Amount {
    /// Switched on and off so often while everything is traced.
    rounds: &'static str,
    /// Whose jump labels are switched, beside others.
    events: &'static str,
    /// At least so many are switched one way in a round, the others with them.
    each_way: u32,
    /// How often `keys` makes its calls meanwhile.
    calls: u64,
}

const USUAL: Amount = Amount {
    rounds: "1",
    events: "sched timer filelock raw_syscalls",
    each_way: 9,
    calls: 500,
};
const LONG: Amount = Amount {
    rounds: "1 2 3",
    events: "sched timer irq workqueue filelock signal task raw_syscalls",
    each_way: 13,
    calls: 1500,
};

impl Amount {
    /// What the guest does.
    fn steps(&self) -> String {
        let steps = STEPS.replace("$ROUNDS", self.rounds);
        let steps = steps.replace("$EVENTS", self.events);
        steps.replace("$CALLS", &self.calls.to_string())
    }

    /// How many switches there are at least, with those before anything is traced.
    fn switches(&self) -> u32 {
        let rounds = self.rounds.split(' ').count();
        let rounds = u32::try_from(1 + rounds).unwrap_or(u32::MAX);
        rounds * 2 * self.each_way
    }
}

/// Functions that `keys` calls, and how often each time, up to their first branch.
const EXACT: [(&str, u64); 3] = [
    ("do_sched_yield", 1),
    ("posix_lock_inode", 2),
    ("do_setitimer", 1),
];
/// Probes in functions with places that the kernel rewrites.
const CROWD: usize = 300;
/// Those of them that leave the guest.
const BREAKPOINTS: usize = 10;
/// Functions whose entries are displaced: at most.
const ENTRIES: usize = 200;

/// Where jump labels and static calls are: the first word of each entry is the distance to the instruction.
fn rewritten(image: &Image) -> BTreeSet<Gva> {
    let tables = [
        ("__start___jump_table", "__stop___jump_table", 16),
        ("__start_static_call_sites", "__stop_static_call_sites", 8),
    ];
    let listed = |(start, stop, apart): (&str, &str, usize)| {
        let at = |name| image.symbols.address_of(name).unwrap();
        let (start, stop) = (at(start), at(stop));
        let data = image.loaded.bytes_at(start, stop.0 - start.0);
        let entries = (start.0..).step_by(apart).zip(data.chunks_exact(apart));
        let place = |(at, entry): (u64, &[u8])| {
            let distance = i32::from_le_bytes(*entry.first_chunk().unwrap());
            Gva(at.wrapping_add_signed(distance.into()))
        };
        entries.map(place).collect::<Vec<_>>()
    };
    tables.into_iter().flat_map(listed).collect()
}

fn beginnings(image: &Image, id: FunctionId) -> Vec<Gva> {
    let start = image.function(id).unwrap().address.0;
    let decoder = Decoder::with_ip(64, image.code(id), start, DecoderOptions::NONE);
    decoder.into_iter().map(|one| Gva(one.ip())).collect()
}

/// Functions that are never changed.
fn never(image: &Image) -> BTreeSet<FunctionId> {
    let all = Filter::new::<&str>(&[], &[]).unwrap();
    let denied = all
        .select(image, &Sources::default())
        .unwrap()
        .denied
        .into_iter();
    let built_in = denied.filter(|(_, reason)| matches!(reason, Reason::BuiltIn { .. }));
    built_in.map(|(id, _)| id).collect()
}

/// Where an instruction near `place` can be displaced by the tactic: at `place` itself rather than after or before it.
fn beside(image: &Image, place: Gva, forced: Option<Tactic>) -> Option<JumpPlace> {
    let id = image.function_at(place)?;
    let begins = beginnings(image, id);
    let index = begins.binary_search(&place).ok()?;
    let (before, from) = begins.split_at(index);
    let near = from.iter().take(4).chain(before.iter().rev().take(4));
    let chosen = near.filter_map(|at| choose(image, *at, forced.map(Tactic::number)).ok());
    let wanted = |chosen: &JumpPlace| match chosen.tactic {
        Tactic::Site => false,
        // What leaves the guest has two bytes.
        Tactic::Breakpoint => forced.is_some() && chosen.displaced.len() > 1,
        _ => true,
    };
    chosen.into_iter().find(wanted)
}

/// Places that do not overlap: a crowd by the best tactic, and a few by the last resort.
fn crowd(image: &Image, rewritten: &BTreeSet<Gva>) -> Vec<JumpPlace> {
    let exact = EXACT.map(|(name, _)| image.symbols.address_of(name).unwrap());
    let never = never(image);
    let mut end = Gva(0);
    let mut found: Vec<JumpPlace> = Vec::new();
    // Spread over the text: more of them in the scheduler alone would be one subject.
    let step = (rewritten.len() / (2 * CROWD)).max(1);
    for place in rewritten.iter().step_by(step) {
        let Some(id) = image.function_at(*place).filter(|id| !never.contains(id)) else {
            continue;
        };
        let entry = image.function(id).unwrap().address;
        let is_lasting = image.lasting_text().any(|text| text.holds(*place, 1));
        if !is_lasting || exact.contains(&entry) || *place < end.max(entry.wrapping_add(32)) {
            continue;
        }
        let is_last_resort = found.len().is_multiple_of(CROWD / BREAKPOINTS);
        let forced = is_last_resort.then_some(Tactic::Breakpoint);
        if let Some(chosen) = beside(image, *place, forced) {
            end = chosen.end().wrapping_add(64);
            found.push(chosen);
        }
    }
    found.truncate(CROWD);
    found
}

/// Functions without a site whose entries can be displaced, and that have something rewritten in them, by name.
fn entries(image: &Image, rewritten: &BTreeSet<Gva>) -> Vec<String> {
    let stays = |at: &&Gva| image.lasting_text().any(|text| text.holds(**at, 1));
    let rewritten = rewritten.iter().filter(stays);
    let functions = rewritten.filter_map(|at| image.function_at(*at));
    let entries = functions.map(|id| image.function(id).unwrap().address.to_string());
    let entries: BTreeSet<String> = entries.collect();
    let listing = vmm_says(&[
        "sites".as_ref(),
        "--any".as_ref(),
        "--json".as_ref(),
        linux().0.as_os_str(),
    ]);
    let listing: Value = serde_json::from_str(&listing.good().stdout).unwrap();
    let all = listing["any"]["functions"].as_array().unwrap().iter();
    let wanted = all.filter(|one| {
        (one["tactic"] == 2 || one["tactic"] == 3)
            && entries.contains(one["address"].as_str().unwrap())
    });
    wanted
        .map(|one| one["function"].as_str().unwrap().to_owned())
        .take(ENTRIES)
        .collect()
}

fn next(running: &mut Running, step: &str) {
    running.type_text("\n");
    running.wait_for(step);
}

/// Adds probes at these places, but for those where a thread may just be, and says how many.
fn add(client: &mut Client, session: &str, tactic: Option<Tactic>, mut places: Vec<Gva>) -> usize {
    let tactic = tactic.map(Tactic::number);
    loop {
        let probes: Vec<String> = places.iter().map(|at| format!("{at} %rdi:x64")).collect();
        let params = json!({"session": session, "probes": probes, "tactic": tactic});
        let Err(refused) = client.ask("probe.add", params).unwrap() else {
            return places.len();
        };
        let refused = refused.to_string();
        let before = places.len();
        println!("{refused}");
        places.retain(|at| !refused.contains(&at.to_string()));
        assert!(refused.contains("a thread may go on"), "{refused}");
        assert!(places.len() < before, "{refused}");
    }
}

#[test]
fn keys_are_switched_under_probes_and_displaced_entries() {
    let image = kernel();
    let rewritten = rewritten(image);
    let folder = tempfile::tempdir().unwrap();
    let amount = usual_or_long(USUAL, LONG);
    let initrd = with_file(folder.path(), "steps", amount.steps().as_bytes());
    let options = ["--any", "--ring-size", "16384"];
    let guest = Guest::linux("sh /steps", Some(&initrd))
        .vcpus(2)
        .with(options);
    let mut running = guest.output().start();
    running.wait_for("step ready");
    let mut client = running.client();
    let before = client.digest();

    client.call("start", json!({"tracer": "nop"}));
    let crowd_session =
        json!({"name": "crowd", "tracer": "function", "options": {"ring_size": 256}});
    client.call("session.create", crowd_session);
    let entries = entries(image, &rewritten);
    let traced = client.call("start", json!({"session": "crowd", "filter": entries}));
    println!("{} of {} entries", traced["traced"], entries.len());
    assert!(traced["traced"].as_u64().unwrap() > 50, "{traced}");
    let crowd = crowd(image, &rewritten);
    let mut added = Vec::new();
    for tactic in [
        Tactic::One,
        Tactic::Several,
        Tactic::Hop,
        Tactic::Breakpoint,
    ] {
        let of_it = crowd.iter().filter(|place| place.tactic == tactic);
        let of_it = of_it.map(|place| place.at).collect();
        added.push(add(&mut client, "crowd", Some(tactic), of_it));
    }
    println!("{added:?} probes in the crowd");
    assert!(added.iter().all(|count| *count > 0), "{added:?}");
    assert!(added.iter().sum::<usize>() > CROWD * 9 / 10, "{added:?}");
    let exact = EXACT.map(|(name, each)| (straight(image, name), each));
    for (places, _) in &exact {
        assert!(places.len() > 1, "{exact:x?}");
        assert_eq!(
            add(&mut client, "default", None, places.clone()),
            places.len()
        );
    }
    next(&mut running, "step switched");

    let list = client.call("probe.list", Value::Null);
    for (places, each) in &exact {
        for at in places {
            let mut probes = list["probes"].as_array().unwrap().iter();
            let probe = probes.find(|probe| probe["address"] == at.to_string());
            let probe = probe.unwrap_or_else(|| panic!("{at}: {list}"));
            assert_eq!(probe["hits"], amount.calls * each, "{probe}");
        }
    }
    let status = client.status();
    assert_eq!(status["tracing"]["frozen"], Value::Null, "{status}");
    let some = |session: &str| json!({"all_of": session});
    for session in ["crowd", "default"] {
        client.call("probe.remove", some(session));
    }
    client.call("stop", json!({"session": "crowd"}));
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), before, "every byte is as it was");
    running.type_text("\n");
    let (ended, _) = running.end();
    let ended = ended.good();
    let switched = ended
        .stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix("step switched "));
    let switched: u32 = switched.unwrap().trim().parse().unwrap();
    println!("{switched} keys switched");
    assert!(switched > amount.switches(), "{ended}");
    for trouble in ["Oops", "BUG:", "WARNING:", "cannot"] {
        assert!(!ended.stdout.contains(trouble), "{ended}");
    }
}
