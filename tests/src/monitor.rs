//! QEMU's monitor, on a socket (QMP).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::place::patience;

/// A connection to it.
#[derive(Debug)]
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor at this socket, if it is there.
    ///
    /// # Panics
    /// When what is there is no monitor.
    #[must_use]
    pub fn connect(path: &Path) -> Option<Self> {
        let stream = UnixStream::connect(path).ok()?;
        let limited = stream.set_read_timeout(Some(patience()));
        limited.expect("no length of time that a socket refuses");
        let mut monitor = Self {
            stream: BufReader::new(stream),
        };
        monitor.answer();
        monitor.command("qmp_capabilities", &json!({}));
        Some(monitor)
    }

    /// Has it do this; returns what it says.
    ///
    /// # Panics
    /// When it refuses.
    pub fn command(&mut self, name: &str, arguments: &Value) -> Value {
        let line = json!({"execute": name, "arguments": arguments});
        writeln!(self.stream.get_mut(), "{line}").expect("the monitor takes a command");
        self.answer()
    }

    /// The next answer, past what the monitor says of its own accord.
    fn answer(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line);
            assert!(
                read.expect("the monitor answers") > 0,
                "the monitor has gone"
            );
            let mut answer: Value = serde_json::from_str(&line).expect("JSON of the monitor");
            assert!(answer.get("error").is_none(), "{answer}");
            if answer.get("QMP").is_some() {
                return Value::Null;
            }
            if let Some(answer) = answer.get_mut("return") {
                return answer.take();
            }
        }
    }
}
