//! What arrives on the control socket: in pieces, as lines, as requests. A request that is understood is understood in the
//! same way when it is written anew, and every reply is one line.

use serde_json::Value;
use vmm::control::line_buffer::{LINE_MAX, LineBuffer, Taken};
use vmm::control::method::{Method, Visitor};
use vmm::control::methods::visit_all;
use vmm::control::protocol::{Call, Response, parse};

/// The first byte says how long the pieces are.
pub fn run(bytes: &[u8]) {
    let Some((first, stream)) = bytes.split_first() else {
        return;
    };
    let mut buffer = LineBuffer::default();
    let mut left = stream;
    while !left.is_empty() {
        let (piece, rest) = left.split_at(left.len().min(usize::from(*first) * 8 + 1));
        left = rest;
        buffer.push(piece);
        if rest.is_empty() {
            buffer.end();
        }
        if !take_all(&mut buffer) {
            return;
        }
    }
}

/// Every line that is there; false when the connection has to be closed.
fn take_all(buffer: &mut LineBuffer) -> bool {
    loop {
        let is_waiting = buffer.is_waiting();
        match buffer.take() {
            Taken::Line(line) => {
                assert!(is_waiting && line.len() <= LINE_MAX && !line.contains(&b'\n'));
                request(&line);
            }
            Taken::TooLong => return false,
            Taken::Nothing => {
                assert!(!is_waiting);
                return true;
            }
        }
    }
}

fn request(line: &[u8]) {
    let parsed = parse(line);
    let outcome = match &parsed.call {
        Ok(call) => {
            visit_all(&mut Again(call));
            Ok(Value::Null)
        }
        Err(error) => Err(error.clone()),
    };
    let reply = Response::new(parsed.id.unwrap_or(Value::Null), outcome).line();
    assert!(
        reply.ends_with('\n') && reply.lines().count() == 1,
        "{reply:?}"
    );
    serde_json::from_str::<Response>(&reply).expect("a reply can be read");
}

/// Reads a request as the method that it is for, and what is written of that once more.
struct Again<'a>(&'a Call);

impl Visitor for Again<'_> {
    fn visit<M: Method>(&mut self) {
        if self.0.method != M::NAME {
            return;
        }
        if let Ok(method) = self.0.read::<M>() {
            let call = method.call().expect("what was text can be written");
            let line = call.line(1);
            let parsed = parse(line.trim_end().as_bytes());
            assert_eq!(parsed.call.as_ref(), Ok(&call), "{line}");
            let read: M = call.read().expect("what was written can be read");
            assert_eq!(read.call().ok(), Some(call), "{line}");
        }
    }
}

/// Requests of every kind, right and wrong.
pub fn seeds() -> Vec<Vec<u8>> {
    let request = |method: &str, params: &str| {
        format!(
            "\u{7}{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}\n"
        )
    };
    let many = "\u{0}{\"jsonrpc\":\"2.0\",\"method\":\"pause\"}\n\n[]\n{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"status\"}";
    [
        request(
            "start",
            r#"{"filter":["a*","[b-c]?"],"notrace":["d"],"tracer":"graph"}"#,
        ),
        request(
            "session.create",
            r#"{"name":"x","tracer":"function","options":{"output":"o"}}"#,
        ),
        request("functions", r#"{"glob":"calls_*"}"#),
        request(
            "events.enable",
            r#"{"session":"x","events":["a"],"callbacks":["b"]}"#,
        ),
        request("probe.add", r#"{"probes":["f %rdi"],"tactic":2}"#),
        request("dynfunc.set", r#"{"changes":[{"name":"a","target":"b"}]}"#),
        request("smp-locks", r#"{"state":"off"}"#),
        request("dump", r#"{"dir":"out"}"#),
        many.to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
