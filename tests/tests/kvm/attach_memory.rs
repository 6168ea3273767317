//! Guests of QEMU whose RAM lies in several pieces: around the hole below 4 GiB, in several memory backends, in a file.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::json;
use tests::{Client, Guest, Running, guest, vmm_says};

/// What QEMU calls the files of its memory backends, as `/proc` shows them.
const FILE: &str = "/memfd:memory-backend-memfd (deleted)";

/// Bytes of memory that the files of process `pid`'s memory backends take.
fn taken(pid: u32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| fs::read_link(path).is_ok_and(|to| to.ends_with(FILE)));
    files
        .map(|path| fs::metadata(path).unwrap().blocks() * 512)
        .sum()
}

/// QEMU's options, and how much RAM that makes. Where it is large, nothing is kept for it (`reserve=off`): a host that has less
/// would refuse it, and little of it is ever written.
const LAYOUTS: [(&[&str], u64); 5] = [
    (
        &[
            "-m",
            "5G",
            "-object",
            "memory-backend-ram,id=m,size=5G,reserve=off",
            "-machine",
            "memory-backend=m",
        ],
        5120,
    ),
    (
        &[
            "-object",
            "memory-backend-memfd,id=m,size=256M,share=on",
            "-machine",
            "memory-backend=m",
        ],
        256,
    ),
    (
        &[
            "-M",
            "q35",
            "-bios",
            "qboot.rom",
            "-object",
            "memory-backend-ram,id=a,size=128M",
            "-object",
            "memory-backend-ram,id=b,size=128M",
            "-numa",
            "node,memdev=a",
            "-numa",
            "node,memdev=b",
        ],
        256,
    ),
    (
        &[
            "-M",
            "q35",
            "-bios",
            "qboot.rom",
            "-m",
            "6G",
            "-object",
            "memory-backend-ram,id=a,size=2G,reserve=off",
            "-object",
            "memory-backend-memfd,id=b,size=4G,share=on",
            "-numa",
            "node,memdev=a",
            "-numa",
            "node,memdev=b",
        ],
        6144,
    ),
    // The last piece is one that was added, after a gap.
    (
        &[
            "-M",
            "q35",
            "-bios",
            "qboot.rom",
            "-m",
            "3584M,slots=2,maxmem=16G",
            "-object",
            "memory-backend-ram,id=m,size=3584M,reserve=off",
            "-machine",
            "memory-backend=m",
            "-object",
            "memory-backend-ram,id=d,size=512M",
            "-device",
            "pc-dimm,memdev=d",
        ],
        4096,
    ),
];

/// Where RAM begins and ends above 1 MiB, below which a PC has ROM in between.
fn above_roms(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let above = ranges.map(|(start, end)| (start.max(1 << 20), end));
    let mut above: Vec<_> = above.filter(|(start, end)| start < end).collect();
    above.sort_unstable();
    // Pieces that touch are one: whose they are is said differently.
    above.dedup_by(|next, one| {
        let touches = one.1 == next.0;
        if touches {
            one.1 = next.1;
        }
        touches
    });
    above
}

fn hex(number: &str) -> u64 {
    u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap()
}

/// Where QEMU itself says that its guest has RAM: `START-LAST (prio 0, ram): NAME`, in what its vCPUs see.
fn ram_of(qemu: &Running) -> Vec<(u64, u64)> {
    let said = qemu.monitor().command(
        "human-monitor-command",
        &json!({"command-line": "info mtree -f"}),
    );
    let said = said.as_str().unwrap().to_owned();
    let views = said.split("FlatView #");
    let own = views.filter(|view| view.contains("AS \"cpu-memory-0\""));
    let lines = own.flat_map(str::lines);
    // A small machine's firmware is in memory that it might write.
    let ram = lines.filter(|line| line.contains(", ram): ") && !line.contains(": pc.bios"));
    let ranges = ram.map(|line| {
        let (range, _) = line.trim().split_once(' ').unwrap();
        let (start, last) = range.split_once('-').unwrap();
        (hex(start), hex(last) + 1)
    });
    above_roms(ranges)
}

/// The same, as the tracer has found it: `RAM START-END at …`.
fn ram_found(said: &str) -> Vec<(u64, u64)> {
    let ranges = said.lines().filter_map(|line| {
        let (_, rest) = line.split_once("RAM 0x")?;
        let (range, _) = rest.split_once(" at ")?;
        let (start, end) = range.split_once('-')?;
        Some((hex(start), hex(end)))
    });
    above_roms(ranges)
}

#[test]
fn all_of_a_guests_memory_is_found_wherever_its_vmm_has_it() {
    for (number, (qemu_options, mib)) in LAYOUTS.into_iter().enumerate() {
        let name = format!("exotrace-memory-{number}-{}", std::process::id());
        let qemu = Guest::under_qemu(&name, "workload=list,spin", 2);
        let with = |qemu: Guest, option: &&str| qemu.with([*option]);
        let mut qemu = qemu_options.iter().fold(qemu, with).start();
        qemu.wait_for("workload spin");
        let before = taken(qemu.pid());
        let ram = ram_of(&qemu);
        let attached = Guest::attached(qemu.pid(), Some(&guest()));
        let options = ["--trace", "function", "--filter", "spin_*"];
        let mut attached = attached.with(options).verbose().start();
        let mut client = attached.client();
        let status = client.wait_until("traced", |status| Client::rings(status, "written") > 0);
        // The ROMs below 1 MiB are no RAM.
        let found = status["guest"]["memory_mib"].as_u64().unwrap();
        assert!((mib - 1..=mib).contains(&found), "{name}: {status}");
        // RAM in a file that cannot become shorter is mapped, not copied.
        let maps = fs::read_to_string(format!("/proc/{}/maps", attached.pid())).unwrap();
        let is_memfd = |option: &&str| option.contains("memory-backend-memfd");
        let files = qemu_options
            .iter()
            .filter(|option| is_memfd(option))
            .count();
        let mapped = maps.lines().filter(|line| line.ends_with(FILE)).count();
        assert_eq!(mapped > 0, files > 0, "{name}: {maps}");
        // One beside others may be empty.
        let is_backend = |option: &&&str| option.starts_with("memory-backend-");
        let is_all = files > 0 && qemu_options.iter().filter(is_backend).count() == files;
        assert!(before > 0 || !is_all, "{name}");
        client.call("stop", json!({}));
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(0), "{name}: {ended}");
        assert_eq!(ram_found(&ended.stderr), ram, "{name}: {ended}");
        // All of it was looked at, and what was never written did not become memory.
        let grown = taken(qemu.pid()).saturating_sub(before);
        assert!(grown < 8 << 20, "{name}: {grown} bytes more");
        qemu.type_text("q");
        assert_eq!(qemu.end().0.code, Some(1), "{name}");
    }
}

#[test]
fn memory_that_is_added_while_a_guest_is_traced_keeps_the_window_until_somebody_knows_it() {
    let name = format!("exotrace-added-{}", std::process::id());
    let mut qemu = Guest::under_qemu(&name, "workload=list,spin", 2)
        .with(["-M", "q35", "-bios", "qboot.rom"])
        .with(["-m", "256M,slots=2,maxmem=8G"])
        .start();
    qemu.wait_for("workload spin");
    let attached = Guest::attached(qemu.pid(), Some(&guest()));
    let mut attached = attached
        .with(["--trace", "graph", "--filter", "spin_*"])
        .start();
    let mut client = attached.client();
    client.wait_until("traced", |status| Client::rings(status, "written") > 0);
    let mut monitor = qemu.monitor();
    let memory = json!({"qom-type": "memory-backend-ram", "id": "d", "size": 128 << 20});
    monitor.command("object-add", &memory);
    monitor.command("device_add", &json!({"driver": "pc-dimm", "memdev": "d"}));
    assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
    let (ended, _) = attached.end();
    assert_eq!(ended.code, Some(105), "{ended}");
    let told = "has memory at 0x100000000 that it had not when it was attached to";
    assert!(ended.stderr.contains(told), "{ended}");
    let is_there = || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", qemu.pid())).unwrap();
        maps.contains("exotrace")
    };
    assert!(is_there(), "{ended}");
    // Whoever comes next finds all of it.
    let restored = vmm_says(&["attach", &qemu.pid().to_string(), "--restore"]);
    assert_eq!(restored.code, Some(0), "{restored}");
    assert!(!is_there(), "{restored}");
    qemu.type_text("q");
    assert_eq!(qemu.end().0.code, Some(1), "{name}");
}
