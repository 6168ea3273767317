//! What a process is at, for a test that waited for it in vain: the place of each of its threads, and what it says of itself.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// One that stands still does not answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Of a thread: its state, where it waits, the system call that it is in, how long it has run and how often it has waited.
const FILES: [&str; 3] = ["wchan", "syscall", "schedstat"];

/// A line for each thread of the process, and its status as the control socket says it, where there is one.
#[must_use]
pub fn shown(pid: u32, socket: &Path) -> String {
    let mut text = format!("process {pid} still runs:\n");
    for thread in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        text.push_str(&line(&thread.path()));
    }
    let status = status(socket).unwrap_or_else(|error| format!("no status: {error}\n"));
    text + &status
}

fn line(thread: &Path) -> String {
    let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
    let mut line = format!("  {}", read("comm").trim());
    let status = read("status");
    let told = status.lines().filter(|line| {
        line.starts_with("State")
            || line.contains("voluntary")
            || line.starts_with("Cpus_allowed_list")
    });
    for told in told {
        let told: Vec<&str> = told.split_whitespace().collect();
        let _ = write!(line, ", {}", told.join(" "));
    }
    for name in FILES {
        let _ = write!(line, ", {name} {}", read(name).trim());
    }
    line + "\n"
}

fn status(socket: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_shown_and_who_does_not_answer_is_not_waited_for_long() {
        let told = shown(std::process::id(), Path::new("/nowhere"));
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        assert!(told.matches("State: ").count() >= threads.min(2), "{told}");
        assert!(told.contains("no status: No such file"), "{told}");
    }
}
