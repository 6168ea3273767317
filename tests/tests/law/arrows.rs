//! Arrows point down, between the folders of a crate too, and files do not lead back to themselves.

use std::collections::BTreeSet;

use crate::modules::{Crate, Module};

/// A crate, and what of it is not as it should be yet.
struct House {
    /// Where its sources are.
    folder: &'static str,
    /// Its folders and files, the lowest first: each may name what stands before it. None where nothing leads back to
    /// itself.
    order: &'static [&'static str],
    /// Those that name what stands after them, and what that is. This list may only get shorter.
    up: &'static [(&'static str, &'static str)],
    /// So many files lead back to themselves. This number may only go down.
    in_circles: usize,
}

/// A crate in which no file leads back to itself: its files have an order.
const fn tidy(folder: &'static str) -> House {
    House {
        folder,
        order: &[],
        up: &[],
        in_circles: 0,
    }
}

const HOUSES: [House; 8] = [
    tidy("tracer/terms/src"),
    tidy("tracer/insn/src"),
    tidy("tracer/debuginfo/src"),
    tidy("tracer/image/src"),
    tidy("tracer/status/src"),
    House {
        folder: "tracer/trace/src",
        order: &[
            "doubt", "crew", "as_found", "host", "event", "form", "columns", "glob", "graph",
            "stream", "watch", "export", "report", "live", "convert",
        ],
        up: &[],
        in_circles: 0,
    },
    House {
        folder: "tracer/src",
        order: &[
            "target",
            "module",
            "stack",
            "paging",
            "current_task",
            "introspection",
            "personality",
            "linux",
            "guest_kind",
            "record",
            "event_formats",
            "capture",
            "digest",
            "filter",
            "window",
            "ring",
            "clock",
            "host_events",
            "waits",
            "guest",
            "stub",
            "tasks",
            "session",
            "text",
            "points",
            "probe",
            "engine",
            "collect",
            "mock",
            "tracing",
        ],
        up: &[],
        in_circles: 0,
    },
    House {
        folder: "vmm/src",
        order: &[
            "exit_status",
            "files",
            "confine",
            "watchdog",
            "layout",
            "pause_times",
            "bell",
            "all_memory",
            "memory",
            "scatter",
            "kernel_text",
            "translated",
            "running",
            "memslots",
            "loader",
            "devices",
            "counter",
            "trial",
            "processor",
            "clock",
            "vcpu",
            "quiesce",
            "live",
            "breakpoint",
            "not_started",
            "remedy",
            "machine",
            "host",
            "foreign",
            "failure",
            "outcome",
            "panic_watch",
            "terminal",
            "signals",
            "guest",
            "doctor",
            "options",
            "closing",
            "control",
            "explain",
            "black_box",
            "provider",
            "provided",
            "triggers",
            "run",
            "event_loop",
            "verbs",
            "commands",
            "cli",
        ],
        up: &[],
        in_circles: 0,
    },
];

#[test]
fn folders_name_only_what_is_below_them() {
    for house in HOUSES {
        let of = Crate::read(house.folder);
        let up = up_arrows(&of, house.order);
        for (from, to) in &up {
            let is_allowed = house.up.contains(&(from.as_str(), to.as_str()));
            assert!(is_allowed, "{}: {from} names {to}", house.folder);
        }
        let gone = house
            .up
            .iter()
            .filter(|(from, to)| !up.contains(&((*from).to_owned(), (*to).to_owned())));
        for (from, to) in gone {
            println!("{}: {from} names {to} no more: take it off", house.folder);
        }
    }
}

#[test]
fn a_folder_that_is_new_has_its_place() {
    for house in HOUSES {
        if house.order.is_empty() {
            continue;
        }
        let of = Crate::read(house.folder);
        let known: BTreeSet<&str> = house.order.iter().copied().collect();
        let unknown = of
            .folders()
            .into_iter()
            .filter(|name| !known.contains(name));
        assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "{}", house.folder);
    }
}

#[test]
fn files_do_not_lead_back_to_themselves() {
    for house in HOUSES {
        let of = Crate::read(house.folder);
        let circles = of.circles();
        let count: usize = circles.iter().map(BTreeSet::len).sum();
        let shown: Vec<String> = circles.iter().map(shown).collect();
        println!("{}: {count} of {} files in circles", house.folder, of.len());
        assert!(
            count <= house.in_circles,
            "{}: {count} files name each other in circles, {} did:\n{}",
            house.folder,
            house.in_circles,
            shown.join("\n")
        );
    }
}

/// The folders that name what is above them, and what that is.
fn up_arrows(of: &Crate, order: &[&str]) -> BTreeSet<(String, String)> {
    let place = |module: &Module| {
        let folder = module.first()?;
        order.iter().position(|name| name == folder)
    };
    let mut up = BTreeSet::new();
    for (from, all) in of.arrows() {
        for to in all {
            if let (Some(here), Some(there)) = (place(from), place(to))
                && here < there
            {
                up.insert((order[here].to_owned(), order[there].to_owned()));
            }
        }
    }
    up
}

fn shown(circle: &BTreeSet<&Module>) -> String {
    let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
    format!("  {}: {}", names.len(), names.join(" "))
}
