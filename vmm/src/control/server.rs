//! The control socket: accepts clients of our own user, and keeps them apart from each other and
//! from the guest. An error of a client is that client's; nothing here ever waits.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use event_manager::{EventOps, Events};
use serde_json::Value;
use vmm_sys_util::epoll::EventSet;

use super::connection::{Alive, Connection};
use super::protocol::{Response, RpcError, TOO_MANY_CLIENTS};

/// Most clients at a time.
const CLIENTS_MAX: usize = 64;
/// Longest path of a socket: `sun_path` of Linux without its NUL.
const PATH_MAX: usize = 107;
/// Time that all clients together have to take their last replies.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);

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
    clients: HashMap<u32, Connection>,
    /// Event tokens: `first` is the listener's, clients have those after it.
    first: u32,
    next: u32,
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
        clear_stale(&path)?;
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
                clients: HashMap::new(),
                first: first_token,
                next: first_token.saturating_add(1),
            }),
            Err(source) => Err(ListenError::Bind { path, source }),
        }
    }

    /// Registers the socket with the event loop.
    ///
    /// # Errors
    /// When epoll refuses.
    pub fn register(&self, ops: &mut EventOps<'_>) -> Result<(), event_manager::Error> {
        ops.add(Events::with_data(&self.listener, self.first, EventSet::IN))
    }

    /// Whether events with this token are for this server.
    #[must_use]
    pub fn owns(&self, token: u32) -> bool {
        token >= self.first
    }

    /// Serves the event: a new client, or requests that `answer` gives replies to.
    pub fn serve(
        &mut self,
        token: u32,
        ops: &mut EventOps<'_>,
        answer: impl FnOnce(&[u8]) -> Option<String>,
    ) {
        if token == self.first {
            return self.accept(ops);
        }
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if client.serve(answer) == Alive::Yes {
            let events = Events::with_data(client, token, interest(client));
            if ops.modify(events).is_ok() {
                return;
            }
        }
        let _ = ops.remove(Events::empty(client));
        self.clients.remove(&token);
    }

    fn accept(&mut self, ops: &mut EventOps<'_>) {
        // One per event: the loop comes back while more are waiting.
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::debug!("a control client did not get in: {error}");
                return;
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

    fn admit(&mut self, stream: UnixStream, ops: &mut EventOps<'_>) -> io::Result<()> {
        let mut client = Connection::new(stream)?;
        if self.clients.len() >= CLIENTS_MAX {
            let message = format!("there are {CLIENTS_MAX} clients already; try again later");
            let error = RpcError::new(TOO_MANY_CLIENTS, message);
            client.reply_and_close(&Response::new(Value::Null, Err(error)));
            client.serve(|_| None);
            return Ok(());
        }
        let token = self.free_token();
        ops.add(Events::with_data(&client, token, interest(&client)))
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.clients.insert(token, client);
        Ok(())
    }

    fn free_token(&mut self) -> u32 {
        loop {
            let token = self.next;
            self.next = token.checked_add(1).unwrap_or(self.first.saturating_add(1));
            if token > self.first && !self.clients.contains_key(&token) {
                return token;
            }
        }
    }

    /// Gives clients a last chance to take their replies, and removes the socket.
    pub fn close(mut self) {
        let each = FLUSH_PATIENCE / u32::try_from(self.clients.len().max(1)).unwrap_or(1);
        for client in self
            .clients
            .values_mut()
            .filter(|client| client.wants_output())
        {
            client.flush(each);
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

/// Removes a socket that a dead process has left behind.
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
    peer_user(stream.as_raw_fd()) == Some(ours)
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
        let others = Server::listen(&path, 10).unwrap();
        ours.close();
        assert!(path.exists());
        others.close();
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_left_behind_is_replaced_but_a_file_is_not() {
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

    #[test]
    fn the_peer_of_a_pair_is_ourselves() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_same_user(&ours));
        assert_eq!(peer_user(-1), None);
    }
}
