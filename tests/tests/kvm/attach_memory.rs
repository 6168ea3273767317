//! Guests of QEMU whose RAM lies in several pieces: around the hole below 4 GiB, in several memory backends, in a file.

use serde_json::json;
use tests::{Client, Guest, guest};

/// QEMU's options, and how much RAM that makes.
const LAYOUTS: [(&[&str], u64); 4] = [
    (&["-m", "5G"], 5120),
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
            "memory-backend-ram,id=a,size=2G",
            "-object",
            "memory-backend-memfd,id=b,size=4G,share=on",
            "-numa",
            "node,memdev=a",
            "-numa",
            "node,memdev=b",
        ],
        6144,
    ),
];

#[test]
fn all_of_a_guests_memory_is_found_wherever_its_vmm_has_it() {
    for (number, (options, mib)) in LAYOUTS.into_iter().enumerate() {
        let name = format!("exotrace-memory-{number}-{}", std::process::id());
        let qemu = Guest::under_qemu(&name, "workload=list,spin", 2);
        let with = |qemu: Guest, option: &&str| qemu.with([*option]);
        let mut qemu = options.iter().fold(qemu, with).start();
        qemu.wait_for("workload spin");
        let attached = Guest::attached(qemu.pid(), Some(&guest()));
        let options = ["--trace", "function", "--filter", "spin_*"];
        let mut attached = attached.with(options).start();
        let mut client = attached.client();
        let status = client.wait_until("traced", |status| Client::rings(status, "written") > 0);
        // The ROMs below 1 MiB are no RAM.
        let found = status["guest"]["memory_mib"].as_u64().unwrap();
        assert!((mib - 1..=mib).contains(&found), "{name}: {status}");
        client.call("stop", json!({}));
        assert_eq!(attached.ctl(&["shutdown"]).code, Some(0));
        let (ended, _) = attached.end();
        assert_eq!(ended.code, Some(0), "{name}: {ended}");
        qemu.type_text("q");
        assert_eq!(qemu.end().0.code, Some(1), "{name}");
    }
}
