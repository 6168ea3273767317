//! The client's end of the control socket: one request, one reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::method::Method;
use super::protocol::{Response, RpcError};
use super::subscription::Told;

/// Longest wait for a reply: a `start` of everything on a slow host takes its time.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest reply: the list of all functions of a large kernel.
const REPLY_MAX: u64 = 256 << 20;

/// Why a request had no result.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Nobody there.
    #[error("--control {}: {source}; is a guest running with this --control?", path.display())]
    Connect {
        /// Which socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("--control {}: the VMM did not reply: {source}", path.display())]
    Broken {
        /// Which socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The reply is no reply.
    #[error("--control {}: not a reply of a VMM: {source}", path.display())]
    NotAReply {
        /// Which socket.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// There is something in the request that JSON has no way to say.
    #[error("the request cannot be sent: {0}")]
    Unsayable(#[source] serde_json::Error),
    /// Another version replied.
    #[error("the VMM's result is not what this version expects ({0}); --json shows it")]
    Unexpected(#[source] serde_json::Error),
    /// The VMM said no.
    #[error("{0}")]
    Refused(#[source] RpcError),
}

/// Asks the VMM at `path`.
///
/// # Errors
/// [`RequestError`] when there is no VMM, no reply, or the reply is an error or another one than this version knows.
pub fn call<M: Method>(path: &Path, method: &M) -> Result<M::Result, RequestError> {
    read::<M>(request(path, method)?)
}

/// A result of this method.
///
/// # Errors
/// [`RequestError::Unexpected`].
pub fn read<M: Method>(result: Value) -> Result<M::Result, RequestError> {
    serde_json::from_value(result).map_err(RequestError::Unexpected)
}

/// Asks the VMM at `path` and returns the result as it came.
///
/// # Errors
/// [`RequestError`] when there is no VMM, no reply, or the reply is an error.
pub fn request<M: Method>(path: &Path, method: &M) -> Result<Value, RequestError> {
    Asked::new(path, method).map(|(_, result)| result)
}

/// A request that was made, on a connection that is still open: for those whose reply is not the end.
#[derive(Debug)]
pub struct Asked {
    path: PathBuf,
    from: BufReader<UnixStream>,
}

impl Asked {
    /// Makes the request; its result as it came.
    ///
    /// # Errors
    /// [`RequestError`] when there is no VMM, no reply, or the reply is an error.
    pub fn new<M: Method>(path: &Path, method: &M) -> Result<(Self, Value), RequestError> {
        let call = method.call().map_err(RequestError::Unsayable)?;
        let path = path.to_path_buf();
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(source) => return Err(RequestError::Connect { path, source }),
        };
        let from = BufReader::new(stream);
        let mut asked = Self { path, from };
        let line = asked.exchange(&call.line(1));
        let line = line.map_err(|source| asked.broken(source))?;
        let response: Response = asked.read(&line)?;
        match response.error {
            Some(error) => Err(RequestError::Refused(error)),
            None => Ok((asked, response.result.unwrap_or(Value::Null))),
        }
    }

    /// The next notification. Waits for it as long as it takes.
    ///
    /// # Errors
    /// [`RequestError::Refused`] when the VMM tells no more and says why, others when the connection breaks, or brings
    /// something else.
    pub fn told(&mut self) -> Result<Told, RequestError> {
        let waits = self.from.get_ref().set_read_timeout(None);
        let line = waits.and_then(|()| self.line());
        let line = line.map_err(|source| self.broken(source))?;
        let told = self.read::<Notification>(&line);
        // What refuses names no method. It is the last line, and the others can be long.
        if told.is_err()
            && let Refusal { error: Some(error) } = self.read(&line)?
        {
            return Err(RequestError::Refused(error));
        }
        let Notification { method, params } = told?;
        Told::read(&method, params).map_err(RequestError::Unexpected)
    }

    /// The connection: who shuts it down ends the wait for the next notification.
    ///
    /// # Errors
    /// [`RequestError::Broken`] when the system has no descriptor left.
    pub fn connection(&self) -> Result<UnixStream, RequestError> {
        let connection = self.from.get_ref().try_clone();
        connection.map_err(|source| self.broken(source))
    }

    fn exchange(&mut self, request: &str) -> io::Result<String> {
        let mut stream = self.from.get_ref();
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.from).take(REPLY_MAX).read_line(&mut line)?;
        if line.ends_with('\n') {
            return Ok(line);
        }
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection was closed",
        ))
    }

    fn read<T: DeserializeOwned>(&self, line: &str) -> Result<T, RequestError> {
        serde_json::from_str(line).map_err(|source| RequestError::NotAReply {
            path: self.path.clone(),
            source,
        })
    }

    fn broken(&self, source: io::Error) -> RequestError {
        RequestError::Broken {
            path: self.path.clone(),
            source,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Notification {
    method: String,
    params: Value,
}

/// What comes unasked, if it is an error.
#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    error: Option<RpcError>,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use crate::control::methods::listening::Subscribe;
    use crate::control::methods::sessions::OfSession;
    use crate::control::protocol::{TOO_MANY_CLIENTS, notification};
    use crate::control::subscription::{ENDED, TailEnded};

    /// It was once said to be no reply of a VMM.
    #[test]
    fn a_vmm_that_tells_no_more_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let ended = TailEnded {
            session: "s".to_owned(),
            unread: 7,
        };
        let lines = [
            Response::new(1.into(), Ok(Value::Null)).line(),
            notification(ENDED, &ended),
            Response::new(
                Value::Null,
                Err(RpcError::new(TOO_MANY_CLIENTS, "connect again")),
            )
            .line(),
            "{\"jsonrpc\":\"2.0\"}\n".to_owned(),
        ];
        let vmm = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut from = BufReader::new(client.try_clone().unwrap());
            from.read_line(&mut String::new()).unwrap();
            client.write_all(lines.concat().as_bytes()).unwrap();
        });
        let session = "s".to_owned().into();
        let (mut asked, _) = Asked::new(&path, &Subscribe(OfSession { session })).unwrap();
        assert_eq!(asked.told().unwrap(), Told::Ended(ended));
        let error = asked.told().unwrap_err();
        assert!(matches!(error, RequestError::Refused(_)), "{error:?}");
        assert_eq!(error.to_string(), "connect again");
        let error = asked.told().unwrap_err();
        assert!(matches!(error, RequestError::NotAReply { .. }), "{error:?}");
        let error = asked.told().unwrap_err();
        assert!(matches!(error, RequestError::Broken { .. }), "{error:?}");
        vmm.join().unwrap();
    }
}
