//! A client of the control socket that shares no code with `vmm`.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::missed;
use crate::place::{look_again, patience};

/// A reply is waited for in turns of this length: a machine that stands still for a minute, as a virtual one can, has used
/// up one turn and not all of the patience.
const TURN: Duration = Duration::from_secs(1);

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    id: u64,
    /// Notifications that came before replies.
    told: VecDeque<Value>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TURN))?;
        Ok(Self {
            stream: BufReader::new(stream),
            id: 0,
            told: VecDeque::new(),
        })
    }

    /// Sends a request and waits for its reply: the result, or the error. `None` when the VMM has
    /// ended. What a vCPU has missed its pause for is asked again.
    ///
    /// # Panics
    /// When the reply is not one.
    pub fn ask(&mut self, method: &str, params: Value) -> Option<Result<Value, Value>> {
        let ask = || self.ask_once(method, params.clone());
        missed::insist(method, patience(), ask, |reply| {
            let error = reply.as_ref().and_then(|reply| reply.as_ref().err());
            error.is_some_and(|error| missed::is_told(message(error)))
        })
    }

    fn ask_once(&mut self, method: &str, params: Value) -> Option<Result<Value, Value>> {
        self.id += 1;
        let mut request = json!({"jsonrpc": "2.0", "id": self.id, "method": method});
        if let (Some(request), false) = (request.as_object_mut(), params.is_null()) {
            request.insert("params".to_owned(), params);
        }
        let sent = self
            .stream
            .get_mut()
            .write_all(format!("{request}\n").as_bytes());
        sent.ok()?;
        let mut reply = loop {
            let line = self.line(&format!("no reply to {request}"))?;
            if line.get("method").is_none() {
                break line;
            }
            self.told.push_back(line);
        };
        assert_eq!(reply.get("id"), Some(&json!(self.id)), "{reply}");
        let mut take = |name| reply.get_mut(name).map(Value::take);
        Some(match (take("result"), take("error")) {
            (Some(result), None) => Ok(result),
            (None, Some(error)) => Err(error),
            _ => panic!("neither result nor error: {reply}"),
        })
    }

    /// The next notification: its method and parameters. `None` when the VMM has ended.
    ///
    /// # Panics
    /// When something else comes, or nothing.
    pub fn told(&mut self) -> Option<(String, Value)> {
        let next = self.told.pop_front();
        let mut told = next.or_else(|| self.line("no notification"))?;
        let params = told.get_mut("params").map(Value::take);
        let method = told.get("method").and_then(Value::as_str);
        Some((method.expect("a notification").to_owned(), params?))
    }

    fn line(&mut self, missing: &str) -> Option<Value> {
        let mut line = String::new();
        match self.receive(&mut line) {
            Ok(count) if count > 0 => Some(serde_json::from_str(&line).expect("JSON")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("{missing}"),
            _ => None,
        }
    }

    /// The next line, whose parts can come in several turns.
    fn receive(&mut self, line: &mut String) -> io::Result<usize> {
        let mut turns = patience().as_secs() / TURN.as_secs();
        loop {
            match self.stream.read_line(line) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && turns > 0 => turns -= 1,
                Ok(_) => return Ok(line.len()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The result of a request that works.
    ///
    /// # Panics
    /// When it does not.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        match self.ask(method, params) {
            Some(Ok(result)) => result,
            other => panic!("{method}: {other:?}"),
        }
    }

    /// The message of a request that is refused.
    ///
    /// # Panics
    /// When it is not.
    pub fn refused(&mut self, method: &str, params: Value) -> String {
        match self.ask(method, params) {
            Some(Err(error)) => message(&error).to_owned(),
            other => panic!("{method}: {other:?}"),
        }
    }

    /// `status`.
    pub fn status(&mut self) -> Value {
        self.call("status", Value::Null)
    }

    /// The digest of the guest's text.
    ///
    /// # Panics
    /// When there is none.
    pub fn digest(&mut self) -> String {
        let digest = self.call("digest", Value::Null);
        let digest = digest.get("sha256").and_then(Value::as_str);
        digest.expect("a digest").to_owned()
    }

    /// Asks for the status until it is what the test waits for.
    ///
    /// # Panics
    /// When it never is.
    pub fn wait_until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + patience();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "never {what}: {status}");
            look_again();
        }
    }

    /// Waits until nobody serves it any more.
    ///
    /// # Panics
    /// When that does not come.
    pub fn is_left(&mut self) {
        while self.line("its VMM serves it still").is_some() {}
    }

    /// The sum of a number over all rings of all sessions of the status.
    #[must_use]
    pub fn rings(status: &Value, number: &str) -> u64 {
        let sessions = status
            .pointer("/tracing/sessions")
            .and_then(Value::as_array);
        let numbers = sessions
            .into_iter()
            .flatten()
            .filter_map(|session| session.get("rings")?.as_array())
            .flatten()
            .filter_map(|ring| ring.get(number)?.as_u64());
        numbers.sum()
    }
}

/// Why a request was refused.
fn message(error: &Value) -> &str {
    let message = error.get("message").and_then(Value::as_str);
    message.expect("a message")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Answers the requests of a client, each with the next of these; which numbers they had.
    fn answering(listener: &UnixListener, answers: &[Value]) -> Vec<Value> {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        let each = answers.iter().map(|answer| {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(request["method"], "start");
            let mut answer = answer.clone();
            answer["id"] = request["id"].clone();
            writeln!(stream.get_mut(), "{answer}").unwrap();
            request["id"].clone()
        });
        each.collect()
    }

    #[test]
    fn what_a_vcpu_has_missed_its_pause_for_is_asked_again_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("control");
        let listener = UnixListener::bind(&at).unwrap();
        let missed = "'x': vCPU 1 did not pause within 2s; the guest runs on unchanged";
        let refused = |message: &str| json!({"error": {"code": 1, "message": message}});
        let answers = [
            refused(missed),
            refused(missed),
            json!({"result": 7}),
            refused("started already"),
        ];
        let server = thread::spawn(move || answering(&listener, &answers));
        let mut client = Client::connect(&at).unwrap();
        assert_eq!(client.call("start", Value::Null), 7);
        assert_eq!(client.refused("start", Value::Null), "started already");
        assert_eq!(server.join().unwrap(), [1, 2, 3, 4]);
        assert!(client.ask("start", Value::Null).is_none());
    }
}
