//! Where a boot went, of a trace that our own writer has written.

use std::path::PathBuf;

use tempfile::TempDir;
use terms::function::{Function, FunctionId};

use super::*;
use crate::event::{End, Event};
use crate::export::store::{Ending, Store};
use crate::export::uftrace::{GRAPH, InitCallList, Metadata, UftraceWriter};
use crate::testing::{event as step, text_of};

const NAMES: [&str; 19] = [
    "mutex_lock",
    "start_kernel",
    "setup_arch",
    "init_mem_mapping",
    "kernel_init",
    "do_one_initcall",
    "acpi_init",
    "schedule",
    "schedule_timeout",
    "rest_init",
    "worker_thread",
    "initcall_blacklisted",
    "__register_sysctl_init",
    "init_fs_sysctls",
    "init_events",
    "console_init",
    "con_init",
    "init_kernel_end",
    "init_module",
];
/// The last ones are of a module.
const KERNEL: usize = 18;

/// Calls, each with when it is entered and when it returns; and what the kernel lists as its init calls.
#[derive(Default)]
struct Calls(Vec<Event>, &'static [&'static str]);

fn function(name: &str) -> FunctionId {
    let number = NAMES.iter().position(|known| *known == name).unwrap();
    FunctionId(u32::try_from(number).unwrap())
}

impl Calls {
    /// It does not return.
    fn enter(&mut self, thread: u32, depth: u32, name: &str, at_us: u64) -> FunctionId {
        let function = function(name);
        let entry = EventKind::Entry(function);
        self.0.push(step(at_us * 1000, 0, thread, depth, entry));
        function
    }

    fn call(&mut self, thread: u32, depth: u32, name: &str, from_us: u64, to_us: u64) {
        let function = self.enter(thread, depth, name, from_us);
        let end = EventKind::Exit {
            function,
            end: End::Returned,
            duration: None,
        };
        self.0.push(step(to_us * 1000, 0, thread, depth, end));
    }

    fn written(mut self) -> (TempDir, PathBuf) {
        let depth = |event: &Event| match event.kind {
            EventKind::Entry(_) => i64::from(event.depth),
            _ => -i64::from(event.depth),
        };
        self.0.sort_by_key(|event| (event.time_ns, depth(event)));
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("trace");
        let functions: Vec<Function> = NAMES
            .iter()
            .zip(1u64..)
            .map(|(name, number)| Function {
                module: (number > KERNEL as u64).then(|| "module".into()),
                address: terms::addr::Gva(0xffff_ffff_8100_0000 + 0x40 * number),
                size: 0x40,
                name: (*name).into(),
                display: (*name).into(),
                ..Function::default()
            })
            .collect();
        let listed: Vec<FunctionId> = self.1.iter().map(|name| function(name)).collect();
        let metadata = Metadata {
            vcpus: 1,
            tracer: GRAPH.into(),
            clock: "tsc".into(),
            init_calls: InitCallList::new(&functions, &listed),
            ..Metadata::default()
        };
        let mut writer =
            UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
        for event in self.0 {
            writer.append(event).unwrap();
        }
        Store::finish(&mut writer, Ending::default()).unwrap();
        (root, directory)
    }
}

/// A boot of a millisecond: what an idle task and a worker wait for is no wait of it.
fn boot() -> Calls {
    let mut calls = Calls::default();
    calls.enter(0, 0, "start_kernel", 100);
    calls.call(0, 1, "setup_arch", 110, 300);
    calls.call(0, 2, "init_mem_mapping", 120, 200);
    calls.enter(0, 1, "rest_init", 400);
    calls.call(0, 2, "schedule", 410, 1800);
    calls.call(1, 0, "kernel_init", 450, 1100);
    calls.call(1, 1, "do_one_initcall", 460, 960);
    calls.call(1, 2, "acpi_init", 470, 950);
    calls.call(1, 3, "schedule_timeout", 500, 800);
    calls.call(1, 4, "schedule", 510, 790);
    // An init call that is not traced.
    calls.call(1, 1, "do_one_initcall", 970, 1000);
    calls.call(1, 2, "mutex_lock", 975, 985);
    calls.call(2, 0, "worker_thread", 460, 900);
    calls.call(2, 1, "schedule", 470, 890);
    calls
}

fn printed(view: &View) -> String {
    shown(boot(), view)
}

fn shown(calls: Calls, view: &View) -> String {
    let (_root, directory) = calls.written();
    let mut out = Vec::new();
    print(&directory, view, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// What programs are told.
fn answer(calls: Calls) -> serde_json::Value {
    let view = View {
        format: Format::Boot,
        notation: Notation::Json,
        ..View::default()
    };
    serde_json::from_str(&shown(calls, &view)).unwrap()
}

/// The init calls of an answer.
fn named(json: &serde_json::Value) -> Vec<&str> {
    let rows = json["init_calls"].as_array().unwrap().iter();
    rows.map(|row| row["function"].as_str().unwrap()).collect()
}

#[test]
fn a_boot_is_its_stages_its_init_calls_and_its_waits() {
    let text = printed(&Format::Boot.into());
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let rule = "# init calls are told from the calls alone, as this trace does not have the kernel's list of them: \
                some can be missing, or have the name of what they call";
    let rule: Vec<&str> = rule.split_whitespace().collect();
    let expected: [&[&str]; 9] = [
        &[
            "CALLS", "TOTAL", "us", "WAITED", "us", "ENTERED", "AT", "s", "THREAD", "STAGE",
            "<-CALLER",
        ],
        &[
            "2",
            "530.000",
            "280.000",
            "0.000460",
            "1",
            "do_one_initcall",
            "<-kernel_init",
        ],
        &[
            "1",
            "190.000",
            "0.000",
            "0.000110",
            "0",
            "setup_arch",
            "<-start_kernel",
        ],
        &[
            "1",
            "80.000",
            "0.000",
            "0.000120",
            "0",
            "init_mem_mapping",
            "<-setup_arch",
        ],
        &[
            "#", "the", "boot", "took", "1000.000", "us,", "of", "which", "it", "waited",
            "280.000", "us;", "2", "init", "calls", "(1", "not", "traced", "by", "name:", "30.000",
            "us)",
        ],
        &[
            "CALLS", "TOTAL", "us", "WAITED", "us", "ENTERED", "AT", "s", "THREAD", "INIT", "CALL",
        ],
        &["1", "480.000", "280.000", "0.000470", "1", "acpi_init"],
        &rule,
        &[
            "WAITS", "TOTAL", "us", "MAX", "us", "IN", "FUNCTION", "OF", "STAGE", "OR", "INIT",
            "CALL",
        ],
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(line, expected, "{text}");
    }
    assert_eq!(
        lines[9],
        ["1", "280.000", "280.000", "acpi_init", "of", "acpi_init"],
        "{text}"
    );
    assert_eq!(lines.len(), 10, "{text}");
}

#[test]
fn a_trace_that_has_no_boot_says_so() {
    let mut calls = Calls::default();
    calls.call(0, 0, "worker_thread", 1, 2);
    let text = shown(calls, &Format::Boot.into());
    assert!(
        text.contains("# no boot is in this trace: none of the functions was called"),
        "{text}"
    );
    // It was headed as that of the init calls.
    let first = text.lines().find(|line| line.contains("CALLS")).unwrap();
    assert!(first.ends_with("STAGE <-CALLER"), "{text}");
}

/// What was waited counts for all that was open meanwhile, once, and for nothing that came before or after.
#[test]
fn waits_are_of_who_waits_and_of_all_calls_around_it() {
    let mut calls = Calls::default();
    calls.call(1, 0, "kernel_init", 0, 1000);
    calls.call(1, 1, "do_one_initcall", 10, 900);
    calls.call(1, 2, "acpi_init", 20, 800);
    calls.call(1, 3, "schedule", 100, 200);
    calls.call(1, 3, "schedule_timeout", 300, 500);
    calls.call(1, 4, "schedule", 310, 490);
    // An interrupt.
    calls.call(1, 5, "mutex_lock", 320, 335);
    calls.call(1, 6, "schedule", 321, 330);
    calls.call(1, 3, "init_events", 600, 700);
    calls.call(1, 4, "schedule", 610, 620);
    calls.call(1, 1, "mutex_lock", 910, 950);
    calls.call(1, 2, "schedule", 911, 941);
    calls.call(1, 1, "setup_arch", 960, 970);
    // Whatever the idle task calls.
    calls.enter(0, 0, "start_kernel", 1);
    calls.enter(0, 1, "rest_init", 2);
    calls.call(0, 2, "schedule_timeout", 3, 990);
    calls.call(0, 3, "schedule", 4, 980);
    let json = answer(calls);
    let rows = |table: &str, keys: [&str; 3]| {
        let rows = json[table].as_array().unwrap().iter();
        let row = |row: &serde_json::Value| keys.map(|key| row[key].to_string()).join(" ");
        rows.map(row).collect::<Vec<_>>()
    };
    let stages = rows("stages", ["function", "total_ns", "waited_ns"]);
    let expected = [
        "\"do_one_initcall\" 890000 290000",
        "\"mutex_lock\" 40000 30000",
        "\"setup_arch\" 10000 0",
    ];
    assert_eq!(stages, expected);
    let init_calls = rows("init_calls", ["function", "total_ns", "waited_ns"]);
    assert_eq!(init_calls, ["\"acpi_init\" 780000 290000"]);
    let waits = rows("waits", ["function", "within", "total_ns"]);
    let expected = [
        "\"acpi_init\" \"acpi_init\" 280000",
        "\"mutex_lock\" \"mutex_lock\" 30000",
        "\"init_events\" \"acpi_init\" 10000",
    ];
    assert_eq!(waits, expected);
}

/// An init call has no other caller, and whatever makes it makes one. All else that is called there is called by one that is
/// not traced.
#[test]
fn what_an_untraced_init_call_calls_is_none() {
    let mut calls = boot();
    // This one is called by an init call that is traced, too.
    calls.call(1, 1, "do_one_initcall", 1001, 1010);
    calls.call(1, 2, "init_fs_sysctls", 1002, 1009);
    calls.call(1, 3, "__register_sysctl_init", 1003, 1008);
    calls.call(1, 1, "do_one_initcall", 1011, 1031);
    calls.call(1, 2, "__register_sysctl_init", 1012, 1030);
    // Two of them in one call.
    calls.call(1, 1, "do_one_initcall", 1032, 1072);
    calls.call(1, 2, "init_events", 1033, 1040);
    calls.call(1, 2, "init_events", 1041, 1050);
    // What is looked up before an init call is not one.
    calls.call(1, 1, "do_one_initcall", 1073, 1080);
    calls.call(1, 2, "initcall_blacklisted", 1074, 1075);
    let json = answer(calls);
    let names = named(&json);
    assert_eq!(names, ["acpi_init", "init_fs_sysctls"]);
    let text = json.to_string();
    // 30 us of before, and 20, 40 and 7.
    assert!(
        text.contains("6 init calls (4 not traced by name: 97.000 us)"),
        "{text}"
    );
}

/// Whoever else calls it, wherever it lies and whatever else is called beside it; and nothing that is not listed.
#[test]
fn init_calls_are_those_that_the_kernel_lists() {
    let mut calls = boot();
    calls.1 = &["mutex_lock", "__register_sysctl_init", "init_fs_sysctls"];
    calls.call(1, 1, "do_one_initcall", 1001, 1010);
    calls.call(1, 2, "init_fs_sysctls", 1002, 1009);
    calls.call(1, 3, "__register_sysctl_init", 1003, 1008);
    calls.call(1, 1, "do_one_initcall", 1011, 1041);
    calls.call(1, 2, "init_events", 1012, 1014);
    calls.call(1, 2, "__register_sysctl_init", 1015, 1030);
    calls.call(1, 2, "init_kernel_end", 1031, 1040);
    let json = answer(calls);
    // One that the boot calls, which is not listed here, is none; what lies before the init text is one.
    assert_eq!(
        named(&json),
        ["__register_sysctl_init", "mutex_lock", "init_fs_sysctls"]
    );
    let text = json.to_string();
    assert!(
        text.contains("4 init calls (1 not traced by name: 500.000 us)"),
        "{text}"
    );
    assert!(
        text.contains("init calls are those that the kernel lists"),
        "{text}"
    );
    // Nor does it wait: it is what the boot does then.
    assert_eq!(json["waits"][0]["function"], "acpi_init");
    assert_eq!(json["waits"][0]["within"], "do_one_initcall");
}

#[test]
fn what_calls_several_that_are_listed_is_one_that_is_not_traced() {
    let mut calls = boot();
    calls.1 = &["init_fs_sysctls", "__register_sysctl_init"];
    calls.call(1, 1, "do_one_initcall", 1001, 1020);
    calls.call(1, 2, "init_fs_sysctls", 1002, 1009);
    calls.call(1, 2, "__register_sysctl_init", 1010, 1018);
    assert_eq!(named(&answer(calls)), [""; 0]);
}

#[test]
fn modules_of_a_kernel_that_lists_its_init_calls_are_told_from_the_calls() {
    let mut calls = boot();
    calls.1 = &["acpi_init"];
    calls.call(3, 0, "do_one_initcall", 1001, 1010);
    calls.call(3, 1, "init_module", 1002, 1009);
    // Of the kernel, though nobody else calls it.
    calls.call(3, 0, "do_one_initcall", 1011, 1020);
    calls.call(3, 1, "init_kernel_end", 1012, 1019);
    assert_eq!(named(&answer(calls)), ["acpi_init", "init_module"]);
}

#[test]
fn consoles_have_init_calls_of_their_own() {
    let console = |listed| {
        let mut calls = boot();
        calls.1 = listed;
        calls.call(0, 1, "console_init", 310, 390);
        calls.call(0, 2, "init_events", 311, 320);
        calls.call(0, 2, "con_init", 321, 350);
        calls.call(0, 2, "init_fs_sysctls", 351, 360);
        answer(calls)
    };
    let json = console(&["acpi_init", "con_init", "init_fs_sysctls"]);
    assert_eq!(
        named(&json),
        ["acpi_init", "con_init", "init_fs_sysctls"],
        "{json}"
    );
    assert!(json.to_string().contains("4 init calls (1 not"), "{json}");
    assert_eq!(named(&console(&[])), ["acpi_init"]);
}

#[test]
fn rows_of_a_boot_are_chosen_as_those_of_any_table() {
    let rows = Rows {
        functions: vec![crate::glob::Pattern::new("*_arch").unwrap()],
        ..Rows::default()
    };
    let text = printed(&View {
        format: Format::Boot,
        rows,
        notation: Notation::Json,
        ..View::default()
    });
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["stages"][0]["function"], "setup_arch");
    assert_eq!(json["stages"][0]["total_ns"], 190_000);
    assert_eq!(json["stages"].as_array().unwrap().len(), 1);
    assert_eq!(json["init_calls"], serde_json::json!([]));
}
