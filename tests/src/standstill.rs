//! What a process is at, for a test that waited for it in vain: the place of each of its threads, and what it says of itself.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// So long an answer is waited for: a process that stands still gives none.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Of a thread, beside its state: where it waits, the system call that it is in, how long it has run and waited for a processor.
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
    let status =
        status(socket, ANSWERS_WITHIN).unwrap_or_else(|error| format!("no status: {error}\n"));
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

/// By hand: a [`Client`](crate::Client) is more patient, and panics where it gets no answer.
fn status(socket: &Path, within: Duration) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(within))?;
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn each_thread_is_shown_by_name() {
        let (end, ends) = channel::<()>();
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let (began, begun) = channel();
        let stands = named("who_stands").spawn(move || {
            began.send(()).unwrap();
            ends.recv()
        });
        begun.recv().unwrap();
        let told = shown(std::process::id(), Path::new("/nowhere"));
        drop(end);
        assert!(stands.unwrap().join().unwrap().is_err());
        assert!(told.contains("\n  who_stands, State: "), "{told}");
        assert!(told.contains("no status: No such file"), "{told}");
    }

    #[test]
    fn who_does_not_answer_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control");
        let _silent = UnixListener::bind(&socket).unwrap();
        let error = status(&socket, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}
