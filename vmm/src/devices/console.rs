//! The guest's console output on its way to stdout.
//!
//! vCPU threads only append to a queue; one thread writes it out. So a stalled terminal or pipe
//! can slow the guest down, but never keep a vCPU from being paused.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::confine::{self, Role};

/// Bytes in the queue from which on vCPUs wait for the writer.
const QUEUE_SOFT_LIMIT: usize = 1 << 20;
/// Bytes that are written at a time: a pipe takes so many as a whole or not at all (`PIPE_BUF`), so that it is known how many
/// wait for one that takes none.
const PIECE: usize = 4096;
/// How long a stdout that takes nothing, and does not wait itself (`O_NONBLOCK`), is left alone.
const STALL: Duration = Duration::from_millis(5);
/// How often a waiting vCPU looks whether it is to pause.
const ROOM_POLL: Duration = Duration::from_millis(1);

/// Console output that did not get out.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleLost {
    /// stdout refused it.
    #[error("the guest's console output is lost: stdout: {0}")]
    Refused(#[source] io::Error),
    /// stdout did not take it in time.
    #[error("the guest's last {0} bytes of console output are lost: stdout is stalled")]
    Stalled(usize),
}

#[derive(Debug, Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// How many the writer has taken that are not written yet.
    unwritten: usize,
    finished: bool,
    broken: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing end, for the serial port.
#[derive(Debug, Clone)]
pub struct ConsoleQueue(Arc<Shared>);

impl ConsoleQueue {
    /// Waits until the queue has room, as long as `patient` says so.
    pub fn wait_for_room(&self, patient: impl Fn() -> bool) {
        let mut queue = self.0.lock();
        while queue.bytes.len() >= QUEUE_SOFT_LIMIT && queue.broken.is_none() && patient() {
            let waited = self.0.changed.wait_timeout(queue, ROOM_POLL);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Write for ConsoleQueue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.lock();
        if queue.broken.is_none() {
            queue.bytes.extend(bytes);
            self.0.changed.notify_all();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread that writes the queue to `out`.
#[derive(Debug)]
pub struct ConsoleWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ConsoleWriter {
    /// Starts a thread that writes to `out`.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(Role::Console.name().to_owned())
            .spawn(move || {
                confine::enter(Role::Console);
                write_out(&theirs, out);
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The end that the serial port writes to.
    #[must_use]
    pub fn queue(&self) -> ConsoleQueue {
        ConsoleQueue(Arc::clone(&self.shared))
    }

    /// Writes out what is queued, for at most `patience`.
    ///
    /// # Errors
    /// [`ConsoleLost`] when not everything that the guest printed got out.
    pub fn finish(mut self, patience: Duration) -> Result<(), ConsoleLost> {
        let deadline = Instant::now() + patience;
        let mut queue = self.shared.lock();
        queue.finished = true;
        self.shared.changed.notify_all();
        while queue.unwritten > 0 || !(queue.bytes.is_empty() || queue.broken.is_some()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConsoleLost::Stalled(queue.unwritten + queue.bytes.len()));
            }
            let waited = self.shared.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let broken = queue.broken.take();
        drop(queue);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::warn!("the console thread panicked");
        }
        broken.map_or(Ok(()), |error| Err(ConsoleLost::Refused(error)))
    }
}

fn write_out(shared: &Shared, mut out: impl Write) {
    let mut queue = shared.lock();
    loop {
        if queue.bytes.is_empty() {
            if queue.finished {
                return;
            }
            queue = shared
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let chunk = std::mem::take(&mut queue.bytes);
        queue.unwritten = chunk.len();
        drop(queue);
        let written = write_chunk(shared, &mut out, &chunk);
        queue = shared.lock();
        queue.unwritten = 0;
        if let Err(error) = written {
            queue.broken = Some(error);
            queue.bytes.clear();
        }
        shared.changed.notify_all();
        if queue.broken.is_some() {
            return;
        }
    }
}

fn write_chunk(shared: &Shared, out: &mut impl Write, chunk: &VecDeque<u8>) -> io::Result<()> {
    let (front, back) = chunk.as_slices();
    for piece in front.chunks(PIECE).chain(back.chunks(PIECE)) {
        let mut rest = piece;
        while !rest.is_empty() {
            let taken = patiently(|| out.write(rest))?.min(rest.len());
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            patiently(|| out.flush())?;
            rest = rest.get(taken..).unwrap_or_default();
            shared.lock().unwritten -= taken;
        }
    }
    Ok(())
}

/// Asks until stdout has taken something, or refuses: whoever has the same terminal or pipe can have made it one that does
/// not wait.
fn patiently<T>(mut ask: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match ask() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(STALL),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes so many bytes, and then none for as long as the other end is kept.
    struct Stalls(usize, std::sync::mpsc::Receiver<()>);

    impl Write for Stalls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                let _ = self.1.recv();
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the writer had taken and nobody had read was said to be 0 bytes.
    #[test]
    fn what_a_stalled_stdout_has_not_taken_is_counted() {
        let (kept, other_end) = std::sync::mpsc::channel();
        let writer = ConsoleWriter::start(Stalls(2 * PIECE, other_end)).unwrap();
        let mut queue = writer.queue();
        queue.write_all(&[0; 5 * PIECE + 7]).unwrap();
        let has_stalled = || {
            let queue = writer.shared.lock();
            queue.bytes.is_empty() && queue.unwritten == 3 * PIECE + 7
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_stalled() {
            assert!(Instant::now() < deadline, "it does not stall");
            std::thread::yield_now();
        }
        queue.write_all(b"more").unwrap();
        let lost = writer.finish(Duration::ZERO).unwrap_err().to_string();
        assert!(lost.contains("last 12299 bytes"), "{lost}");
        drop(kept);
    }

    /// Takes half of what it is given every second time, and else nothing without waiting.
    struct Halves(Sink, bool);

    impl Write for Halves {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.0.write(&bytes[..bytes.len().div_ceil(2)])
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// All that came after the first refusal was lost.
    #[test]
    fn a_stdout_that_does_not_wait_is_waited_for() {
        let sink = Sink::default();
        let writer = ConsoleWriter::start(Halves(sink.clone(), false)).unwrap();
        let printed: Vec<u8> = (0..=u8::MAX).cycle().take(PIECE + 7).collect();
        writer.queue().write_all(&printed).unwrap();
        writer.finish(Duration::from_secs(60)).unwrap();
        assert_eq!(*sink.0.lock().unwrap(), printed);
    }

    /// Takes nothing for as long as the other end is kept.
    struct Full(std::sync::mpsc::Receiver<()>);

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(match self.0.try_recv() {
                Err(std::sync::mpsc::TryRecvError::Disconnected) => io::ErrorKind::BrokenPipe,
                _ => io::ErrorKind::WouldBlock,
            }
            .into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stdout_that_takes_nothing_does_not_hold_up_the_end() {
        let (kept, other_end) = std::sync::mpsc::channel();
        let writer = ConsoleWriter::start(Full(other_end)).unwrap();
        writer.queue().write_all(b"unread").unwrap();
        let lost = writer.finish(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(lost, ConsoleLost::Stalled(6)), "{lost}");
        drop(kept);
    }

    #[test]
    fn everything_queued_is_written_before_finish_returns() {
        let sink = Sink::default();
        let writer = ConsoleWriter::start(sink.clone()).unwrap();
        let mut queue = writer.queue();
        for _ in 0..1000 {
            queue.write_all(b"0123456789").unwrap();
        }
        writer.finish(Duration::from_secs(10)).unwrap();
        assert_eq!(sink.0.lock().unwrap().len(), 10_000);
    }

    #[test]
    fn a_closed_stdout_stops_nobody() {
        let writer = ConsoleWriter::start(Closed).unwrap();
        let mut queue = writer.queue();
        queue.write_all(b"x").unwrap();
        queue.wait_for_room(|| true);
        queue.write_all(&[0; 1 << 16]).unwrap();
        let lost = writer.finish(Duration::from_secs(10)).unwrap_err();
        assert!(matches!(lost, ConsoleLost::Refused(_)), "{lost}");
    }
}
