//! Starts the commands of triggers, on a thread that is made before any other is held to a list of system calls: what a
//! thread starts has its list, too, and a shell would end by that.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::failure::Failure;

/// A command, and who waits for it to have started.
type Wanted = (Command, Sender<io::Result<Child>>);

/// The thread ends with the last of these.
#[derive(Debug, Clone)]
pub struct Starter(Sender<Wanted>);

/// Who starts the commands of a run.
#[derive(Debug)]
pub struct Starters {
    /// Those that were named when it began.
    pub named: Starter,
    /// Those that clients ask for.
    pub asked: Starter,
}

impl Starters {
    /// One for all, whose commands can write where the caller can.
    ///
    /// # Errors
    /// As of [`Starter::start`].
    pub fn of_one(name: &str) -> Result<Self, Failure> {
        let named = Starter::start(name)?;
        let asked = named.clone();
        Ok(Self { named, asked })
    }
}

impl Starter {
    /// Makes the thread, whose commands can write where the caller can now. `name` is the thread's.
    ///
    /// # Errors
    /// [`Failure`], when there can be no thread.
    pub fn start(name: &str) -> Result<Self, Failure> {
        let (asks, asked) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let _ = thread
            .spawn(move || serve(&asked))
            .map_err(Failure::bad_input)?;
        Ok(Self(asks))
    }

    /// Starts a command, and waits until it has started.
    ///
    /// # Errors
    /// As of [`Command::spawn`].
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts commands has ended");
        let (answers, answered) = channel();
        self.0.send((command, answers)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }
}

fn serve(asked: &Receiver<Wanted>) {
    while let Ok((mut command, answers)) = asked.recv() {
        // Whoever does not wait any more has ended, and with it the run.
        let _ = answers.send(command.spawn());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_starts_and_one_that_cannot_is_an_error() {
        let starter = Starter::start("commands").unwrap();
        let mut started = starter.spawn(Command::new("true")).unwrap();
        assert!(started.wait().unwrap().success());
        let error = starter.spawn(Command::new("/does/not/exist")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
