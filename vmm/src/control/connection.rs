//! One control client: requests in, replies out, never waiting for it.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::line_buffer::{LineBuffer, Taken};
use super::protocol::{LINE_TOO_LONG, Response, RpcError};
use super::subscription::Subscription;
use serde_json::Value;

/// A client that leaves this many bytes of replies unread gets no further requests served.
const UNREAD_MAX: usize = 1 << 20;

/// Bytes read of one client at a time.
const READ_MAX: usize = 4 << 10;
/// Bytes that are sent at a time while it is waited for.
const FLUSH_MAX: usize = 16 << 10;

/// Bytes of notifications that are made at a time, and only when all before them are out.
const TOLD_MAX: usize = 64 << 10;

/// What is replied to a request, and what its client listens to from now on.
#[derive(Debug, Default)]
pub struct Answer {
    /// A line; none to a notification.
    pub reply: Option<String>,
    /// What is told after it.
    pub subscription: Option<Subscription>,
}

impl From<Option<String>> for Answer {
    fn from(reply: Option<String>) -> Self {
        let subscription = None;
        Self {
            reply,
            subscription,
        }
    }
}

/// Whether a connection continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// It continues.
    Yes,
    /// It is over: close it.
    No,
}

/// One client.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    input: LineBuffer,
    output: Vec<u8>,
    subscriptions: Vec<Subscription>,
    /// No more requests are wanted of it; it is closed when its replies are out.
    closing: bool,
}

impl Connection {
    /// Takes over an accepted stream.
    ///
    /// # Errors
    /// When it cannot be made non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: LineBuffer::default(),
            output: Vec::new(),
            subscriptions: Vec::new(),
            closing: false,
        })
    }

    /// Whether the client should be listened to.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.closing && self.output.len() < UNREAD_MAX && !self.input.is_waiting()
    }

    /// Whether replies or notifications are waiting to get out, or to be made.
    #[must_use]
    pub fn wants_output(&self) -> bool {
        !self.output.is_empty() || self.input.is_waiting() || self.has_news()
    }

    /// Whether there is something to tell that it has not asked for now.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.subscriptions.iter().any(Subscription::has_news)
    }

    /// Makes notifications of what there is to tell: at most about so many bytes.
    fn tell(&mut self, most: usize) {
        let Self {
            subscriptions,
            output,
            ..
        } = self;
        for subscription in subscriptions.iter_mut() {
            while output.len() < most
                && let Some(line) = subscription.line()
            {
                output.extend_from_slice(line.as_bytes());
            }
        }
        subscriptions.retain(|one| !one.has_ended());
    }

    /// Makes notifications of all that there is to tell.
    pub fn tell_all(&mut self) {
        self.tell(usize::MAX);
    }

    /// Reads a little of what has arrived, has one request of it answered by `answer`, and sends
    /// what can be sent now. One, since it can take seconds: in between it is the turn of others, of
    /// signals and of the time limit.
    pub fn serve<A: Into<Answer>>(&mut self, answer: impl FnOnce(&[u8]) -> A) -> Alive {
        if self.wants_input() {
            self.receive();
        }
        // First what it has left unread: nothing is answered before there is room for it.
        if self.send() == Alive::No {
            return Alive::No;
        }
        if self.output.len() < UNREAD_MAX {
            self.answer_one(answer);
        }
        if self.output.is_empty() {
            self.tell(TOLD_MAX);
        }
        let is_done = |this: &Self| !this.wants_output() && this.subscriptions.is_empty();
        if self.send() == Alive::No || self.closing && is_done(self) {
            Alive::No
        } else {
            Alive::Yes
        }
    }

    fn answer_one<A: Into<Answer>>(&mut self, answer: impl FnOnce(&[u8]) -> A) {
        loop {
            match self.input.take() {
                Taken::Line(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                Taken::Line(line) => {
                    let answer = answer(&line).into();
                    let reply = answer.reply.unwrap_or_default();
                    self.subscriptions.extend(answer.subscription);
                    return self.output.extend_from_slice(reply.as_bytes());
                }
                Taken::TooLong => {
                    let message = "the line is longer than 65536 bytes; the connection is closed";
                    let error = RpcError::new(LINE_TOO_LONG, message);
                    return self.reply_and_close(&Response::new(Value::Null, Err(error)));
                }
                Taken::Nothing => return,
            }
        }
    }

    /// Sends `reply` and then closes.
    pub fn reply_and_close(&mut self, reply: &Response) {
        self.output.extend_from_slice(reply.line().as_bytes());
        self.closing = true;
        self.subscriptions.clear();
        self.input = LineBuffer::default();
    }

    fn receive(&mut self) {
        let mut bytes = [0; READ_MAX];
        match self.stream.read(&mut bytes) {
            // The client may only have ended its side, and wait for replies.
            Ok(0) => {
                self.closing = true;
                self.input.end();
            }
            Ok(count) => self.input.push(bytes.get(..count).unwrap_or_default()),
            Err(error) if is_passing(&error) => {}
            Err(_) => {
                self.closing = true;
                self.output.clear();
            }
        }
    }

    fn send(&mut self) -> Alive {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Alive::No,
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Alive::No,
            }
        }
        Alive::Yes
    }

    /// Gives the client a last chance to take its replies: for as long as it takes some of them in each `patience`, and
    /// not after `end`.
    pub fn flush(&mut self, patience: Duration, end: Instant) {
        let mut deadline = end.min(Instant::now() + patience);
        if self.stream.set_nonblocking(false).is_err() {
            return;
        }
        let mut rest = self.output.as_slice();
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            // Little at a time: the system waits so long for each buffer that it needs, not for the whole.
            let some = rest.get(..FLUSH_MAX).unwrap_or(rest);
            let sent = match left.is_zero() {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => self
                    .stream
                    .set_write_timeout(Some(left))
                    .and_then(|()| (&self.stream).write(some)),
            };
            match sent {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    deadline = end.min(Instant::now() + patience);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::debug!("a control client did not take its last reply: {error}");
                    break;
                }
            }
        }
        let left = rest.len();
        drop(self.output.drain(..self.output.len().saturating_sub(left)));
    }
}

/// Whether nothing is wrong: there is nothing now.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;
    use crate::bell::Bell;
    use crate::control::line_buffer::LINE_MAX;
    use crate::control::subscription::Subscriptions;

    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Connection::new(ours).unwrap(), theirs)
    }

    fn echo(line: &[u8]) -> Option<String> {
        Some(format!("{}\n", String::from_utf8_lossy(line)))
    }

    #[test]
    fn requests_in_pieces_are_answered_in_order() {
        let (mut connection, mut client) = pair();
        client.write_all(b"one\ntw").unwrap();
        assert_eq!(connection.serve(echo), Alive::Yes);
        client.write_all(b"o\n").unwrap();
        assert_eq!(connection.serve(echo), Alive::Yes);
        drop(connection);
        let lines: Vec<String> = BufReader::new(client).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn many_requests_at_once_are_answered_one_a_turn() {
        let (mut connection, mut client) = pair();
        client.write_all(b"1\n\n2\n3\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        for number in [b'1', b'2', b'3'] {
            assert!(connection.wants_output() || number == b'1');
            let mut seen = Vec::new();
            let answer = |line: &[u8]| {
                seen.extend_from_slice(line);
                echo(line)
            };
            let alive = connection.serve(answer);
            assert_eq!((alive, seen), (Alive::Yes, vec![number]));
            // Nothing more is read before all is answered.
            assert_eq!(connection.wants_input(), number == b'3');
        }
        assert_eq!(connection.serve(echo), Alive::No);
        drop(connection);
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "1\n2\n3\n");
    }

    #[test]
    fn a_client_that_leaves_in_mid_request_is_closed() {
        let (mut connection, mut client) = pair();
        client.write_all(b"half").unwrap();
        drop(client);
        assert_eq!(connection.serve(echo), Alive::Yes);
        assert_eq!(connection.serve(echo), Alive::No);
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        let (mut connection, mut client) = pair();
        client.write_all(b"one\ntwo").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(connection.serve(echo), Alive::Yes);
        assert_eq!(connection.serve(echo), Alive::No);
        drop(connection);
        let lines: Vec<String> = BufReader::new(client).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn an_endless_line_gets_an_error_and_the_end() {
        let (mut connection, mut client) = pair();
        let writer = std::thread::spawn(move || {
            // The other end closes in the middle of this, which is the point.
            let _ = client.write_all(&vec![b'x'; LINE_MAX + 1]);
            client
        });
        while connection.serve(echo) == Alive::Yes {}
        drop(connection);
        let mut reply = String::new();
        BufReader::new(writer.join().unwrap())
            .read_line(&mut reply)
            .unwrap();
        assert!(reply.contains("longer than"), "{reply}");
    }

    #[test]
    fn a_client_that_never_reads_is_neither_waited_for_nor_buffered_without_end() {
        let (mut connection, mut client) = pair();
        client.set_nonblocking(true).unwrap();
        let big = |_: &[u8]| Some("y".repeat(100_000));
        for _ in 0..1000 {
            let _ = client.write(b"x\nx\nx\n");
            assert_eq!(connection.serve(big), Alive::Yes);
        }
        assert!(!connection.wants_input());
        assert!(connection.output.len() < UNREAD_MAX + 100_000 + 1);
    }

    #[test]
    fn a_client_that_reads_a_little_now_and_then_is_not_waited_for_after_the_end() {
        let (mut connection, mut client) = pair();
        client.write_all(b"x\n").unwrap();
        connection.serve(|_| Some("z".repeat(64 * UNREAD_MAX)));
        let (over, is_over) = std::sync::mpsc::channel::<()>();
        client.set_nonblocking(true).unwrap();
        let slow = std::thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            // As slowly as a wait for one buffer allows.
            let pause = Duration::from_millis(20);
            while is_over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let _ = client.read(&mut bytes);
            }
        });
        let patience = Duration::from_millis(50);
        connection.flush(patience, Instant::now() + patience);
        // 64 MiB at 3 MiB/s would have been 20 s.
        assert!(connection.output.len() > 32 * UNREAD_MAX);
        drop(over);
        slow.join().unwrap();
    }

    #[test]
    fn who_listens_is_told_after_the_reply_and_has_to_stay_for_it() {
        let (mut connection, mut client) = pair();
        let subscriptions = Subscriptions::new(Bell::new().unwrap());
        let (subscription, listener) = subscriptions.make("one").unwrap();
        let mut fresh = Some(subscription);
        client.write_all(b"x\n").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = |_: &[u8]| Answer {
            reply: Some("reply\n".to_owned()),
            subscription: fresh.take(),
        };
        // It will ask nothing more, but it listens.
        assert_eq!(connection.serve(answer), Alive::Yes);
        assert_eq!(connection.serve(|_| None), Alive::Yes);
        assert!(!connection.has_news() && !connection.wants_output());
        drop(listener);
        assert!(connection.has_news() && connection.wants_output());
        assert_eq!(connection.serve(|_| None), Alive::No);
        drop(connection);
        let lines: Vec<String> = BufReader::new(client).lines().map(Result::unwrap).collect();
        let ended = r#"{"jsonrpc":"2.0","method":"ended","params":{"session":"one","unread":0}}"#;
        assert_eq!(lines, ["reply", ended]);
    }

    #[test]
    fn a_reply_of_more_than_may_be_left_unread_gets_out_as_it_is_read() {
        let (mut connection, mut client) = pair();
        client.write_all(b"x\ny\n").unwrap();
        let big = |line: &[u8]| Some(format!("{}\n", "z".repeat(4 * UNREAD_MAX * line.len())));
        assert_eq!(connection.serve(big), Alive::Yes);
        let (mut replies, mut bytes) = (Vec::new(), vec![0; 64 << 10]);
        // Each event says that there is room: something must come of each.
        while connection.wants_output() {
            let count = client.read(&mut bytes).unwrap();
            replies.extend_from_slice(&bytes[..count]);
            let before = connection.output.len();
            assert_eq!(connection.serve(big), Alive::Yes);
            assert_ne!(connection.output.len(), before, "nothing was sent");
        }
        client.set_nonblocking(true).unwrap();
        let _ = client.read_to_end(&mut replies);
        assert_eq!(replies.len(), 2 * (4 * UNREAD_MAX + 1));
    }
}
