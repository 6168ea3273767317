//! The control socket: accepts clients of our own user, and keeps them apart from each other and
//! from the guest. An error of a client is that client's; nothing here ever waits. Nobody can lock others out: with
//! all places taken, the client that has been silent for longest makes room for a new one.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use event_manager::{EventOps, Events};
use serde_json::Value;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::timerfd::TimerFd;

use super::claim::{Claim, NotClaimed};
use super::connection::{Alive, Answer, Connection, is_passing};
use super::protocol::{Response, RpcError, TOO_MANY_CLIENTS};

/// Most clients at a time.
const CLIENTS_MAX: usize = 64;
/// Longest path of a socket: `sun_path` of Linux without its NUL.
const PATH_MAX: usize = 107;
/// When nobody can be let in, for want of descriptors for one, it is tried again after so long.
const RETRY: Duration = Duration::from_millis(100);
/// Time that all clients together have to take their last replies and do not take any,
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);
/// and time that they have in all.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// Why the control socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system has no room for the path.
    #[error(
        "--control {}: a socket's path has at most {PATH_MAX} bytes; choose a shorter one",
        path.display()
    )]
    TooLong {
        /// Which path.
        path: PathBuf,
    },
    /// Another process serves it.
    #[error("--control {}: in use by a running process; choose another path", path.display())]
    InUse {
        /// Which path.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("--control {}: exists and is no socket; choose another path", path.display())]
    NotASocket {
        /// Which path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("--control {}: {source}; its directory must exist and be writable", path.display())]
    Bind {
        /// Which path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The control socket with its clients.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Which file at `path` is ours.
    identity: Option<(u64, u64)>,
    /// Nobody else removes or makes a socket at `path` while we have it.
    _claim: Claim,
    clients: HashMap<u32, Client>,
    /// Counts what clients do: each has the number of what it did last.
    deeds: u64,
    /// Made while there are descriptors: it is for when there are none.
    retry: TimerFd,
    /// Event tokens: `first` is the listener's, the next one the timer's, clients have those after it.
    first: u32,
    next: u32,
}

#[derive(Debug)]
struct Client {
    connection: Connection,
    last_deed: u64,
}

impl Server {
    /// Makes the socket at `path`, mode 0600. A socket that nobody serves any more is replaced.
    /// Events of this server carry tokens from `first_token` on.
    ///
    /// # Errors
    /// [`ListenError`] names the path and what is in the way.
    pub fn listen(path: &Path, first_token: u32) -> Result<Self, ListenError> {
        let path = path.to_path_buf();
        if path.as_os_str().len() > PATH_MAX {
            return Err(ListenError::TooLong { path });
        }
        // Between looking whether a socket is stale and removing it, another starter could have put its own there.
        let claim = Claim::of(&path).map_err(|error| match error {
            NotClaimed::Held => ListenError::InUse { path: path.clone() },
            NotClaimed::Failed(source) => ListenError::Bind {
                path: path.clone(),
                source,
            },
        })?;
        clear_stale(&path)?;
        let retry = TimerFd::new().map_err(|error| ListenError::Bind {
            path: path.clone(),
            source: io::Error::from_raw_os_error(error.errno()),
        })?;
        let bound = UnixListener::bind(&path).and_then(|listener| {
            // Whoever connects before this is turned away by the check of the user.
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match bound {
            Ok(listener) => Ok(Self {
                listener,
                identity: identity(&path),
                path,
                _claim: claim,
                clients: HashMap::new(),
                deeds: 0,
                retry,
                first: first_token,
                next: first_token.saturating_add(2),
            }),
            Err(source) => Err(ListenError::Bind { path, source }),
        }
    }

    /// Registers the socket with the event loop.
    ///
    /// # Errors
    /// When epoll refuses.
    pub fn register(&self, ops: &mut EventOps<'_>) -> Result<(), event_manager::Error> {
        ops.add(Events::with_data(&self.listener, self.first, EventSet::IN))?;
        ops.add(Events::with_data(&self.retry, self.timer(), EventSet::IN))
    }

    fn timer(&self) -> u32 {
        self.first.saturating_add(1)
    }

    /// Whether events with this token are for this server.
    #[must_use]
    pub fn owns(&self, token: u32) -> bool {
        token >= self.first
    }

    /// Serves the event: a new client, or requests that `answer` gives replies to. What a client has asked that
    /// `is_gone`, and can read no reply, is not carried out.
    pub fn serve(
        &mut self,
        token: u32,
        is_gone: bool,
        ops: &mut EventOps<'_>,
        answer: impl FnOnce(&[u8]) -> Answer,
    ) {
        if token == self.first {
            return self.accept(ops);
        }
        if token == self.timer() {
            return self.accept_again(ops);
        }
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        self.deeds += 1;
        client.last_deed = self.deeds;
        let connection = &mut client.connection;
        if !is_gone && connection.serve(answer) == Alive::Yes {
            let events = Events::with_data(connection, token, interest(connection));
            if ops.modify(events).is_ok() {
                return;
            }
        }
        self.dismiss(token, ops);
    }

    /// Somebody has something to tell: has those clients listened to that can be told of it.
    pub fn tell(&mut self, ops: &mut EventOps<'_>) {
        let told = self.clients.iter_mut();
        for (token, client) in told.filter(|(_, client)| client.connection.has_news()) {
            self.deeds += 1;
            client.last_deed = self.deeds;
            let connection = &client.connection;
            // When it can be written to, it is its turn.
            let _ = ops.modify(Events::with_data(connection, *token, interest(connection)));
        }
    }

    fn dismiss(&mut self, token: u32, ops: &mut EventOps<'_>) {
        if let Some(client) = self.clients.remove(&token) {
            let _ = ops.remove(Events::empty(&client.connection));
        }
    }

    fn accept(&mut self, ops: &mut EventOps<'_>) {
        // One per event: the loop comes back while more are waiting.
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_passing(&error) => return,
            Err(error) => {
                log::debug!("a control client did not get in: {error}");
                return self.accept_later(ops);
            }
        };
        if !is_same_user(&stream) {
            log::warn!("a control client of another user was turned away");
            return;
        }
        if let Err(error) = self.admit(stream, ops) {
            log::debug!("a control client did not get in: {error}");
        }
    }

    /// The system has no descriptor for a client, and the client waits: the listener would be ready again at once, and
    /// again, until one is free.
    fn accept_later(&mut self, ops: &mut EventOps<'_>) {
        let quiet = Events::with_data(&self.listener, self.first, EventSet::empty());
        if self.retry.reset(RETRY, None).is_ok() {
            let _ = ops.modify(quiet);
        }
    }

    fn accept_again(&mut self, ops: &mut EventOps<'_>) {
        let _ = self.retry.wait();
        let _ = ops.modify(Events::with_data(&self.listener, self.first, EventSet::IN));
    }

    fn admit(&mut self, stream: UnixStream, ops: &mut EventOps<'_>) -> io::Result<()> {
        let connection = Connection::new(stream)?;
        if self.clients.len() >= CLIENTS_MAX {
            self.make_room(ops);
        }
        let token = self.free_token();
        ops.add(Events::with_data(&connection, token, interest(&connection)))
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.deeds += 1;
        let last_deed = self.deeds;
        self.clients.insert(
            token,
            Client {
                connection,
                last_deed,
            },
        );
        Ok(())
    }

    /// Closes the client that has done nothing for longest, and tells it.
    fn make_room(&mut self, ops: &mut EventOps<'_>) {
        let oldest = self.clients.iter_mut();
        let Some((token, client)) = oldest.min_by_key(|(_, client)| client.last_deed) else {
            return;
        };
        let message = format!(
            "there are {CLIENTS_MAX} clients, another one came, and of all of them this one had been silent for longest: connect again"
        );
        let error = RpcError::new(TOO_MANY_CLIENTS, message);
        let reply = Response::new(Value::Null, Err(error));
        client.connection.reply_and_close(&reply);
        client.connection.serve(|_| Answer::default());
        let token = *token;
        self.dismiss(token, ops);
    }

    fn free_token(&mut self) -> u32 {
        loop {
            let token = self.next;
            self.next = token.checked_add(1).unwrap_or(self.first.saturating_add(1));
            if token > self.timer() && !self.clients.contains_key(&token) {
                return token;
            }
        }
    }

    /// Gives clients a last chance to take their replies, and removes the socket.
    pub fn close(mut self) {
        let end = Instant::now() + FLUSH_MAX;
        let each = FLUSH_PATIENCE / u32::try_from(self.clients.len().max(1)).unwrap_or(1);
        let clients = self.clients.values_mut();
        let connections = clients.map(|client| &mut client.connection);
        for connection in connections.filter(|one| one.wants_output()) {
            connection.tell_all();
            connection.flush(each, end);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have removed ours and put another's there.
        if self.identity.is_none() || identity(&self.path) != self.identity {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::debug!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

/// The device and the number of the file at `path`.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let status = std::fs::symlink_metadata(path).ok()?;
    Some((status.dev(), status.ino()))
}

fn interest(client: &Connection) -> EventSet {
    let mut events = EventSet::empty();
    events.set(EventSet::IN, client.wants_input());
    events.set(EventSet::OUT, client.wants_output());
    events
}

/// Removes a socket that a dead process has left.
fn clear_stale(path: &Path) -> Result<(), ListenError> {
    let Ok(status) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    let path = path.to_path_buf();
    if !status.file_type().is_socket() {
        return Err(ListenError::NotASocket { path });
    }
    match UnixStream::connect(&path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(&path).map_err(|source| ListenError::Bind { path, source })
        }
        Ok(_) | Err(_) => Err(ListenError::InUse { path }),
    }
}

fn is_same_user(stream: &UnixStream) -> bool {
    // SAFETY: the call cannot fail and changes nothing.
    let ours = unsafe { libc::geteuid() };
    is_ours(peer_user(stream.as_raw_fd()), ours)
}

/// Whether the user at the other end is this one. Who is not known is not.
fn is_ours(peer: Option<libc::uid_t>, ours: libc::uid_t) -> bool {
    peer == Some(ours)
}

fn peer_user(socket: RawFd) -> Option<libc::uid_t> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: `peer` has the size that `length` says, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (failed == 0).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use event_manager::{EventManager, MutEventSubscriber, SubscriberOps};

    use super::*;

    #[test]
    fn the_socket_is_ours_alone_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let server = Server::listen(&path, 10).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Server::listen(&path, 10).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        server.close();
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_of_another_in_the_place_of_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let ours = Server::listen(&path, 10).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let error = Server::listen(&path, 10).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        let _others = UnixListener::bind(&path).unwrap();
        ours.close();
        assert!(path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_but_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let stale = dir.path().join("stale");
        drop(UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        Server::listen(&stale, 10).unwrap().close();
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let error = Server::listen(&file, 10).unwrap_err();
        assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        let error = Server::listen(&dir.path().join("no/control"), 10).unwrap_err();
        assert!(error.to_string().contains("directory"), "{error}");
        let error = Server::listen(&dir.path().join("x".repeat(PATH_MAX)), 10).unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
    }

    /// The event loop with nothing but a server, and what it was asked.
    struct Loop {
        server: Server,
        asked: Arc<AtomicUsize>,
    }

    impl MutEventSubscriber for Loop {
        fn init(&mut self, ops: &mut EventOps<'_>) {
            self.server.register(ops).unwrap();
        }

        fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
            let gone = EventSet::HANG_UP | EventSet::ERROR;
            let is_gone = events.event_set().intersects(gone);
            self.server.serve(events.data(), is_gone, ops, |_| {
                self.asked.fetch_add(1, Ordering::Relaxed);
                Some("done\n".to_owned()).into()
            });
        }
    }

    fn serving(path: &Path) -> (EventManager<Loop>, Arc<AtomicUsize>) {
        let mut events = EventManager::new().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        events.add_subscriber(Loop {
            server: Server::listen(path, 10).unwrap(),
            asked: Arc::clone(&asked),
        });
        (events, asked)
    }

    fn settle(events: &mut EventManager<Loop>) {
        while events.run_with_timeout(0).unwrap() > 0 {}
    }

    #[test]
    fn what_a_client_asked_that_is_gone_is_not_carried_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let (mut events, asked) = serving(&path);
        let mut gone = UnixStream::connect(&path).unwrap();
        gone.write_all(b"one\ntwo\n").unwrap();
        drop(gone);
        // One that has only said all that it has to say is served.
        let mut half = UnixStream::connect(&path).unwrap();
        half.write_all(b"three\n").unwrap();
        half.shutdown(std::net::Shutdown::Write).unwrap();
        settle(&mut events);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let mut reply = String::new();
        half.read_to_string(&mut reply).unwrap();
        assert_eq!(reply, "done\n");
    }

    #[test]
    fn silent_clients_make_room_for_one_more_and_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let (mut events, _) = serving(&path);
        let connect = |events: &mut EventManager<Loop>| {
            let client = UnixStream::connect(&path).unwrap();
            settle(events);
            client.set_nonblocking(true).unwrap();
            client
        };
        let mut clients: Vec<_> = (0..CLIENTS_MAX).map(|_| connect(&mut events)).collect();
        // The first speaks: now the second is the one that has been silent for longest.
        clients[0].write_all(b"half").unwrap();
        settle(&mut events);
        let mut new = connect(&mut events);
        new.write_all(b"all\n").unwrap();
        settle(&mut events);
        let read = |client: &mut UnixStream| {
            let mut said = String::new();
            let end = client.read_to_string(&mut said);
            (said, end.is_ok())
        };
        assert_eq!(read(&mut new), ("done\n".to_owned(), false));
        let (told, is_closed) = read(&mut clients[1]);
        assert!(told.contains("silent for longest") && is_closed, "{told}");
        for silent in clients.iter_mut().skip(2) {
            assert_eq!(read(silent), (String::new(), false));
        }
        assert_eq!(read(&mut clients[0]), (String::new(), false));
    }

    #[test]
    fn of_many_starters_on_a_stale_socket_one_has_it_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        for _ in 0..50 {
            // As a killed process leaves it.
            drop(UnixListener::bind(&path).unwrap());
            let starters: Vec<_> = (0..4)
                .map(|_| {
                    let path = path.clone();
                    std::thread::spawn(move || Server::listen(&path, 10).ok())
                })
                .collect();
            let started: Vec<Server> = starters
                .into_iter()
                .filter_map(|starter| starter.join().unwrap())
                .collect();
            assert_eq!(started.len(), 1);
            UnixStream::connect(&path).unwrap();
            drop(started);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn the_peer_of_a_pair_is_ourselves() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_same_user(&ours));
        assert_eq!(peer_user(-1), None);
    }

    #[test]
    fn nobody_else_is_we_and_who_is_not_known_neither() {
        assert!(is_ours(Some(1000), 1000));
        for peer in [Some(0), Some(1001), None] {
            assert!(!is_ours(peer, 1000), "{peer:?}");
        }
    }
}
