//! More clients of the control socket than the VMM can have files open.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tests::{Client, Guest, patience};
use vmm::event_loop::CONTROL;

/// More than there is room for, and fewer than the system lets wait.
const CLIENTS: usize = 40;

fn of_process(pid: u32, what: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/{what}")).expect("it runs");
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// How many files the process, a child of ours, can open from now on.
fn limit_files(pid: u32, limit: u64) {
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    // It has its hard limit from us.
    let files = Rlimit {
        current: Some(limit),
        ..getrlimit(Resource::Nofile)
    };
    prlimit(Some(process), Resource::Nofile, files).expect("it is ours");
}

/// Has the process open no more files: the first number that is free is beyond what it may have.
fn open_no_more(pid: u32) {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
    let open: BTreeSet<u64> = of_process(pid, "fd").iter().filter_map(number).collect();
    let free = (0..).find(|number| !open.contains(number));
    limit_files(pid, free.expect("a number"));
}

/// Whether its event loop waits for new clients now: epoll says what it was asked to wait for.
fn is_listening(pid: u32) -> bool {
    let waits = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["tfd:", _, "events:", events, "data:", data, ..] = words.as_slice() else {
            return None;
        };
        let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
        // The token is in the high half.
        let is_listener = hexadecimal(data)? >> 32 == u64::from(CONTROL);
        is_listener.then_some(hexadecimal(events)? & 1 != 0)
    };
    let files = of_process(pid, "fdinfo").into_iter();
    let texts = files.filter_map(|path| fs::read_to_string(path).ok());
    let mut found = texts.flat_map(|text| text.lines().filter_map(waits).collect::<Vec<_>>());
    found.next().expect("the listener is in an epoll")
}

#[test]
fn without_descriptors_for_more_clients_those_there_are_served_and_the_rest_later() {
    let mut running = Guest::spinning(&[]);
    let mut first = running.client();
    first.status();
    let pid = running.pid();
    assert!(is_listening(pid));
    open_no_more(pid);
    let connect = |_| UnixStream::connect(running.socket()).expect("it waits for its turn");
    let clients: Vec<UnixStream> = (0..CLIENTS).map(connect).collect();
    let wait_until = |wanted: bool, client: &mut Client| {
        let deadline = Instant::now() + patience();
        while is_listening(pid) != wanted {
            // Who is in is served meanwhile.
            client.status();
            assert!(Instant::now() < deadline, "never: listening {wanted}");
        }
    };
    // As long as it listened with nowhere to put who comes, it would do nothing else.
    wait_until(false, &mut first);
    drop(clients);
    limit_files(pid, 1000);
    let mut last = running.client();
    last.status();
    wait_until(true, &mut last);
    first.status();
    last.call("shutdown", Value::Null);
    let (ended, _) = running.end();
    ended.no_panic();
}
