//! A run writes where it was told to when it began, and its clients have something written below its output root: nowhere
//! else, whoever asks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use serde_json::json;
use tests::forced::{forced_on_path, threads};
use tests::{Ended, Guest, Running, guest, until};
use vmm::confine::places::is_known;

/// `mkdir`.
const MKDIR: u64 = 83;
/// What the system says to who may not.
const EACCES: i64 = 13;
const PRIVATE: u64 = 0o700;
/// `read`, `ioctl`, `futex`, `clock_nanosleep`, `epoll_wait`.
const WAITS: [u64; 5] = [0, 16, 202, 230, 232];

/// Everything in a directory, by name.
fn names(of: &Path) -> Vec<String> {
    let all = fs::read_dir(of).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = all
        .map(|one| one.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// What a client names outside is refused, in one line that says what to do, and nothing is made there.
pub fn refuses_outside(running: &Running) {
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), running.path("link")).unwrap();
    let root = running.path("");
    let root = root.file_name().unwrap().to_str().unwrap();
    let out = |name: &str| outside.path().join(name).display().to_string();
    let paths = [
        out("direct"),
        running.path("link/through").display().to_string(),
        running.path("../up").display().to_string(),
        format!("{}-beside", running.path("").display()).replace("/-", "-"),
    ];
    for path in &paths {
        let trigger = format!("spin_leaf: dump {path}");
        let output = ["session", "create", "x", "--output", path];
        let triggered = ["session", "create", "x", "--trigger", &trigger];
        for verb in [&["dump", path][..], &output, &triggered] {
            running.refuses(verb, &["is not below", root, "--output-root"]);
        }
    }
    assert_eq!(names(outside.path()), [""; 0]);
    assert!(paths.iter().all(|path| !Path::new(path).exists()));
    fs::remove_file(running.path("link")).unwrap();
}

#[test]
fn a_client_has_nothing_written_outside_of_the_output_root() {
    let mut running = Guest::spinning(&["--trace", "function", "--filter", "spin_*"]);
    refuses_outside(&running);
    let mut client = running.client();
    // From the root on, wherever the client is.
    let dumped = client.call("dump", json!({"dir": "inside"}));
    assert_eq!(dumped["dir"], json!(running.path("inside")));
    let other = json!({"name": "other", "options": {"output": "other"}});
    client.call("session.create", other);
    assert!(running.path("inside/info").exists() && running.path("other").is_dir());
    running.type_text("q");
    let _ = running.end().0.good();
}

/// The directories that are named when it begins are written wherever they are, and below them what clients name.
#[test]
fn what_was_named_at_the_start_is_written_outside_of_the_root() {
    let elsewhere = tempfile::tempdir().unwrap();
    let at = |name: &str| elsewhere.path().join(name);
    let (trace, dump) = (at("trace"), at("slow"));
    let trigger = format!("spin_leaf: dump {} x2", dump.display());
    let options = ["--trace", "function", "--filter", "spin_*", "--trigger"];
    let output = [trigger.as_str(), "--output", trace.to_str().unwrap()];
    let mut running = Guest::spinning(&[&options[..], &output].concat());
    let mut client = running.client();
    client.wait_until("it has dumped twice", |status| {
        status["triggers"][0]["fired"] == 2
    });
    client.call("dump", json!({"dir": trace.join("below")}));
    let beside = client.refused("dump", json!({"dir": at("beside")}));
    assert!(beside.contains("is not below"), "{beside}");
    running.type_text("q");
    let _ = running.end().0.good();
    assert_eq!(names(elsewhere.path()), ["slow", "slow.2", "trace"]);
    assert!(trace.join("exotrace.json").exists() && trace.join("below/info").exists());
}

/// Whether a thread has begun what it is for: it waits for something, or is one that never does.
fn has_begun(pid: u32, (thread, name): &(Pid, String)) -> bool {
    let call = format!("/proc/{pid}/task/{thread}/syscall");
    let call = fs::read_to_string(call).unwrap_or_default();
    let number = call.split(' ').next().and_then(|word| word.parse().ok());
    let waits = number.is_some_and(|number: u64| WAITS.contains(&number));
    waits || name.starts_with("vcpu") || name == "clock"
}

/// A guest that is traced with everything that has a thread, of which each has got so far.
fn with_all_threads() -> Running {
    let all = [
        "--trace",
        "function",
        "--filter",
        "spin_*",
        "--clock",
        "page",
        "--no-seccomp",
    ];
    let mut running = Guest::spinning(&all);
    let seen = |status: &serde_json::Value| tests::Client::rings(status, "written") > 0;
    running.client().wait_until("it records", seen);
    until("all threads have begun", || {
        let threads = threads(running.pid());
        threads.iter().all(|one| has_begun(running.pid(), one))
    });
    running
}

/// Whatever a thread is made to ask for: where landlock is, nothing of what is checked before counts.
#[test]
fn a_thread_that_was_taken_over_writes_in_its_places_alone() {
    let mut running = with_all_threads();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), running.path("link")).unwrap();
    let refused = if is_known() { -EACCES } else { 0 };
    for (name, inside) in [
        ("vmm", 0),
        ("drain", 0),
        ("vcpu0", refused),
        ("console", refused),
        ("look", refused),
        ("clock", refused),
        ("signals", refused),
        ("watchdog", refused),
        ("client commands", 0),
    ] {
        let make = |path: PathBuf| forced_on_path(running.pid(), name, MKDIR, &path, PRIVATE);
        assert_eq!(make(running.path(name)), inside, "{name}");
        for (path, there) in [
            (outside.path().join(name), name.to_owned()),
            (
                running.path("link").join(format!("{name}-link")),
                format!("{name}-link"),
            ),
        ] {
            assert_eq!(make(path), refused, "{name}: {there}");
        }
        let up = format!(
            "../{}/{name}-up",
            outside.path().file_name().unwrap().display()
        );
        assert_eq!(make(running.path(&up)), refused, "{name}: {up}");
    }
    assert_eq!(names(outside.path()).is_empty(), is_known());
    running.type_text("q");
    let _ = running.end().0.good();
}

/// Who starts the run says what it starts; whoever talks to it later has less.
#[test]
fn commands_of_clients_write_where_the_run_does_and_those_of_the_start_anywhere() {
    let outside = tempfile::tempdir().unwrap();
    let at = |name: &str| outside.path().join(name);
    let of_start = format!("spin_leaf: run touch {}", at("started").display());
    let options = ["--trace", "function", "--filter", "spin_*", "--trigger"];
    let mut running = Guest::spinning(&[&options[..], &[&of_start]].concat());
    let there = running.path("asked");
    let of_client = format!(
        "spin_leaf: run touch {0} 2>/dev/null; echo $? > {1}.new; mv {1}.new {1}",
        at("asked").display(),
        there.display()
    );
    let mut client = running.client();
    let options = json!({"trigger": [of_client]});
    client.call("session.create", json!({"name": "x", "options": options}));
    client.call("start", json!({"session": "x", "filter": ["spin_leaf"]}));
    client.wait_until("both have been started", |status| {
        let fired = |at: usize| status["triggers"][at]["fired"] == 1;
        fired(0) && fired(1)
    });
    let said = || fs::read_to_string(&there).is_ok_and(|said| said.ends_with('\n'));
    until("both have ended", || said() && at("started").exists());
    let expected = if is_known() { "1\n" } else { "0\n" };
    assert_eq!(fs::read_to_string(there).unwrap(), expected);
    assert_eq!(at("asked").exists(), !is_known());
    running.type_text("q");
    let _ = running.end().0.good();
}

/// The socket and its lock are elsewhere, and the last calls have a directory of their own.
#[test]
fn what_a_run_makes_for_itself_is_gone_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let run = |timeout: &str| {
        let mut run = tests::vmm();
        run.arg("run").arg("--kernel").arg(guest());
        run.args(["--cmdline", "workload=spin", "--timeout", timeout]);
        run.args(["--trace", "function", "--filter", "spin_*"]);
        run.arg("--control").arg(&socket).env("TMPDIR", &temporary);
        run.current_dir(guest().parent().unwrap());
        let ended = Ended::from(run.output().unwrap());
        assert_eq!(ended.code, Some(103), "{ended}");
        assert_eq!(names(folder.path()), ["temporary"], "{ended}");
        assert_eq!(names(&temporary), [""; 0], "{ended}");
        ended
    };
    let has_spun = |ended: &Ended| ended.stderr.contains("spin_leaf");
    let ended = tests::limited(run, has_spun);
    assert!(has_spun(&ended), "{ended}");
}

#[test]
fn a_root_that_is_none_or_for_nobody_is_refused() {
    let refused = |options: &[&str]| {
        let mut run = tests::vmm();
        run.arg("run").arg("--kernel").arg(guest()).args(options);
        let ended = Ended::from(run.output().unwrap());
        ended.refused(100).to_owned()
    };
    let none = refused(&["--control", "/tmp/never/x", "--output-root", "/no/such"]);
    assert!(none.contains("--output-root /no/such"), "{none}");
    let nobody = refused(&["--trace", "graph", "--output-root", "/"]);
    assert!(nobody.contains("--control"), "{nobody}");
}
