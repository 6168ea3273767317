//! A guest under `vmm run`, as a child process with a folder of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::control::Client;
use crate::missed;
use crate::monitor::Monitor;
use crate::output::Ended;
use crate::place::{bare_guest, guest, linux, look_again, outlived, patience, starts_vmm, vmm};
use crate::standstill;
use crate::trace::Trace;

/// The functions of the workload `calls`, each of which calls the next one twice.
pub const CALLS: [&str; 6] = [
    "calls_root",
    "calls_trunk",
    "calls_bough",
    "calls_branch",
    "calls_twig",
    "calls_leaf",
];

/// The socket of QEMU's monitor, in the guest's folder.
const MONITOR: &str = "monitor";

/// What is to be run.
#[derive(Debug)]
pub struct Guest {
    command: Command,
    folder: TempDir,
    time_limited: bool,
    /// Whether it is our `vmm`, which listens for `vmm ctl`.
    is_controlled: bool,
}

impl Guest {
    /// The bundled guest with this command line, on one vCPU.
    ///
    /// # Panics
    /// When there is no room for its folder.
    #[must_use]
    pub fn new(cmdline: &str) -> Self {
        Self::of(&guest(), cmdline)
    }

    /// The bundled guest without patch sites in its Rust code, traced by displacing instructions.
    ///
    /// # Panics
    /// When it has not been built, or there is no room for its folder.
    #[must_use]
    pub fn bare(cmdline: &str) -> Self {
        Self::of(&bare_guest(), cmdline).with(["--any"])
    }

    /// This kernel with this command line, on one vCPU.
    #[must_use]
    pub fn of(kernel: &Path, cmdline: &str) -> Self {
        let mut command = vmm();
        command.arg("run").arg("--kernel").arg(kernel);
        command.args(["--cmdline", cmdline]);
        Self {
            command,
            folder: TempDir::new().expect("a temporary folder"),
            time_limited: false,
            is_controlled: true,
        }
    }

    /// `vmm attach` to the guest of another process, which runs this kernel; the kernel in its memory without one.
    ///
    /// # Panics
    /// When there is no room for its folder.
    #[must_use]
    pub fn attached(pid: u32, kernel: Option<&Path>) -> Self {
        let mut command = vmm();
        command.arg("attach").arg(pid.to_string());
        if let Some(kernel) = kernel {
            command.arg("--kernel").arg(kernel);
        }
        Self {
            command,
            folder: TempDir::new().expect("a temporary folder"),
            // It lasts as long as the guest.
            time_limited: true,
            is_controlled: true,
        }
    }

    /// The bundled guest under QEMU and KVM, which calls it `name`.
    ///
    /// # Panics
    /// When there is no room for its folder.
    #[must_use]
    pub fn under_qemu(name: &str, cmdline: &str, vcpus: u32) -> Self {
        let mut command = microvm_of(name, &guest(), vcpus);
        command.args(["-append", &format!("{cmdline} vcpus={vcpus}")]);
        Self::foreign(command)
    }

    /// A kernel that ends as the bundled guest does under QEMU and KVM, which calls it `name`, on one vCPU.
    ///
    /// # Panics
    /// When there is no room for its folder.
    #[must_use]
    pub fn kernel_under_qemu(name: &str, kernel: &Path) -> Self {
        Self::foreign(microvm_of(name, kernel, 1))
    }

    /// A stock Linux under QEMU and KVM, put somewhere by its own loader (KASLR), that does `script`.
    ///
    /// # Panics
    /// When there is no room for its folder.
    #[must_use]
    pub fn linux_under_qemu(name: &str, script: &str, initrd: &Path, vcpus: u32) -> Self {
        Self::linux_under_qemu_of(name, &linux().0, "", script, initrd, vcpus)
    }

    /// The same with another kernel, and more words on its command line.
    ///
    /// # Panics
    /// As [`Self::linux_under_qemu`].
    #[must_use]
    pub fn linux_under_qemu_of(
        name: &str,
        kernel: &Path,
        words: &str,
        script: &str,
        initrd: &Path,
        vcpus: u32,
    ) -> Self {
        let mut command = microvm(name, vcpus, 512);
        command.arg("-no-reboot").arg("-kernel").arg(kernel);
        command.arg("-initrd").arg(initrd);
        let cmdline = format!("console=ttyS0 quiet panic=-1 {words} run=\"{script}\"");
        command.args(["-append", &cmdline]);
        Self::foreign(command)
    }

    fn foreign(mut command: Command) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let monitor = folder.path().join(MONITOR);
        command.arg("-qmp");
        command.arg(format!("unix:{},server=on,wait=off", monitor.display()));
        Self {
            command,
            folder,
            time_limited: true,
            is_controlled: false,
        }
    }

    /// A stock Linux that does `script` and switches itself off; an interactive shell without a script.
    /// `initrd` replaces the usual one.
    ///
    /// # Panics
    /// When there is no room for its folder, or the script does not fit a command line.
    #[must_use]
    pub fn linux(script: &str, initrd: Option<&Path>) -> Self {
        Self::linux_with("", script, initrd)
    }

    /// The same with more words on its command line.
    ///
    /// # Panics
    /// As [`Self::linux`].
    #[must_use]
    pub fn linux_with(words: &str, script: &str, initrd: Option<&Path>) -> Self {
        Self::linux_of(&linux().0, words, script, initrd)
    }

    /// The same with another kernel.
    ///
    /// # Panics
    /// As [`Self::linux`].
    #[must_use]
    pub fn linux_of(kernel: &Path, words: &str, script: &str, initrd: Option<&Path>) -> Self {
        assert!(!script.contains('"'), "the kernel's quotes do not nest");
        let usual = linux().1;
        let run = match script {
            "" => String::new(),
            script => format!(" run=\"{script}\""),
        };
        let mut command = vmm();
        command.arg("run").arg("--kernel").arg(kernel);
        command.arg("--initrd").arg(initrd.unwrap_or(&usual));
        command.args(["--memory", "512", "--cmdline"]);
        command.arg(format!("console=ttyS0 quiet panic=-1 {words}{run}"));
        Self {
            command,
            folder: TempDir::new().expect("a temporary folder"),
            time_limited: false,
            is_controlled: true,
        }
    }

    /// Not by itself, but by a Python script, which gets the command.
    #[must_use]
    pub fn started_by(mut self, script: &str) -> Self {
        let mut command = starts_vmm("python3");
        command.args(["-c", script]);
        command.arg(self.command.get_program());
        command.args(self.command.get_args());
        self.command = command;
        self
    }

    /// More options of `vmm run`.
    #[must_use]
    pub fn with<const N: usize>(mut self, options: [&str; N]) -> Self {
        self.time_limited |= options.contains(&"--timeout");
        self.command.args(options);
        self
    }

    /// It says more of what it does.
    #[must_use]
    pub fn verbose(mut self) -> Self {
        self.command.env("RUST_LOG", "debug");
        self
    }

    /// With what it makes for a moment in its folder.
    #[must_use]
    pub fn temporary_here(mut self) -> Self {
        self.command.env("TMPDIR", self.folder.path());
        self
    }

    /// With this many vCPUs.
    #[must_use]
    pub fn vcpus(self, count: u32) -> Self {
        self.with(["--vcpus", &count.to_string()])
    }

    /// Writes its trace to the folder.
    #[must_use]
    pub fn output(mut self) -> Self {
        self.command
            .arg("--output")
            .arg(self.folder.path().join("trace"));
        self
    }

    /// The bundled guest on two vCPUs, spinning until a `q` is typed, with these options.
    #[must_use]
    pub fn spinning(options: &[&str]) -> Running {
        let guest = Self::new("workload=list,spin").vcpus(2);
        let with_one = |guest: Self, option: &&str| guest.with([*option]);
        let running = options.iter().fold(guest, with_one).start();
        running.wait_for("workload spin");
        running
    }

    /// Starts it, with a control socket.
    ///
    /// # Panics
    /// When `vmm` cannot be started.
    #[must_use]
    pub fn start(mut self) -> Running {
        let socket = self.folder.path().join("control");
        if self.is_controlled {
            self.command.arg("--control").arg(&socket);
            // What its clients name is there.
            self.command.arg("--output-root").arg(self.folder.path());
        }
        if !self.time_limited {
            // Whoever waits for its end gives up before, and says what it was at.
            let limit = (ends_within() * 2).as_secs().to_string();
            self.command.args(["--timeout", &limit]);
        }
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("vmm starts");
        let stdout = child.stdout.take().expect("its stdout");
        let stderr = child.stderr.take().expect("its stderr");
        let (console, said) = (Arc::new(Printed::default()), Arc::new(Printed::default()));
        let (reader, listener) = (Arc::clone(&console), Arc::clone(&said));
        Running {
            stdout: Some(std::thread::spawn(move || reader.fill(stdout))),
            stderr: Some(std::thread::spawn(move || listener.fill(stderr))),
            console,
            said,
            socket,
            child,
            folder: self.folder,
        }
    }

    /// Runs it to its end.
    #[must_use]
    pub fn run(self) -> (Ended, Trace) {
        self.start().end()
    }
}

/// How long the end of a guest is waited for, which may have much to do before. A guest of which a test wants much before it waits
/// for its end lives longer: its limit is twice as long.
fn ends_within() -> Duration {
    patience() * 3
}

/// QEMU with a kernel that ends by the port of a debugging device: the status is that of the guest, doubled, and one more.
fn microvm_of(name: &str, kernel: &Path, vcpus: u32) -> Command {
    let mut command = microvm(name, vcpus, 256);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    command.arg("-kernel").arg(kernel);
    command
}

/// QEMU with a guest on KVM: its smallest machine, with a serial port.
fn microvm(name: &str, vcpus: u32, memory: u32) -> Command {
    let mut command = outlived("qemu-system-x86_64");
    command.args(["-accel", "kvm", "-M", "microvm,acpi=on"]);
    // Some hosts' KVM has less than QEMU asks of it.
    command.args(["-cpu", "host,-arch-capabilities"]);
    command.args(["-smp", &vcpus.to_string(), "-m", &memory.to_string()]);
    command.args(["-name", name, "-nodefaults", "-no-user-config"]);
    command.args(["-display", "none", "-serial", "stdio"]);
    command
}

/// A console, or what a program says, as far as it has been printed.
#[derive(Debug, Default)]
struct Printed {
    text: Mutex<(String, bool)>,
    more: Condvar,
}

impl Printed {
    fn fill(&self, output: impl Read) {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .is_ok_and(|count| count > 0)
        {
            let mut text = self.text.lock().expect("the console");
            text.0.push_str(&String::from_utf8_lossy(&line));
            line.clear();
            self.more.notify_all();
        }
        self.text.lock().expect("the console").1 = true;
        self.more.notify_all();
    }

    fn wait_for(&self, what: &str, times: usize) {
        let text = self.text.lock().expect("the console");
        let is_there = |text: &str| text.matches(what).count() >= times;
        let waiting = |text: &mut (String, bool)| !is_there(&text.0) && !text.1;
        let (text, late) = self
            .more
            .wait_timeout_while(text, patience(), waiting)
            .expect("the console");
        let (is_late, found) = (late.timed_out(), is_there(&text.0));
        let printed = if found { String::new() } else { text.0.clone() };
        // Whoever shows what became of it wants it, too.
        drop(text);
        assert!(!is_late, "the guest does not print '{what}': {printed}");
        assert!(found, "the guest ended without '{what}': {printed}");
    }

    fn so_far(&self) -> String {
        self.text.lock().expect("the console").0.clone()
    }
}

/// A guest that runs. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    folder: TempDir,
    socket: PathBuf,
    console: Arc<Printed>,
    said: Arc<Printed>,
    stdout: Option<JoinHandle<()>>,
    stderr: Option<JoinHandle<()>>,
}

impl Running {
    /// The control socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it this signal, by its name (`-KILL`).
    ///
    /// # Panics
    /// When that cannot be done.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill starts").success(), "{name}");
    }

    /// A path in the guest's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A new connection to the control socket, as soon as it is there.
    ///
    /// # Panics
    /// When it does not come, or `vmm` ends before.
    pub fn client(&mut self) -> Client {
        self.connected().unwrap_or_else(|| {
            let said = self.all_said();
            panic!("vmm ended without a control socket: {said}");
        })
    }

    /// The same; none when it has ended before.
    ///
    /// # Panics
    /// When neither comes.
    pub fn connected(&mut self) -> Option<Client> {
        let deadline = Instant::now() + patience();
        loop {
            if let Ok(client) = Client::connect(&self.socket) {
                return Some(client);
            }
            if let Ok(Some(_)) = self.child.try_wait() {
                return None;
            }
            assert!(Instant::now() < deadline, "no control socket");
            look_again();
        }
    }

    /// The monitor of a guest of QEMU, as soon as it is there.
    ///
    /// # Panics
    /// When it does not come.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let deadline = Instant::now() + patience();
        loop {
            if let Some(monitor) = Monitor::connect(&self.path(MONITOR)) {
                return monitor;
            }
            assert!(Instant::now() < deadline, "no monitor");
            look_again();
        }
    }

    /// Waits until the guest has printed this.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for(&self, what: &str) {
        self.console.wait_for(what, 1);
    }

    /// Waits until the guest has printed this so many times.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_for_times(&self, what: &str, times: usize) {
        self.console.wait_for(what, times);
    }

    /// What the guest has printed so far.
    ///
    /// # Panics
    /// When its reader did.
    #[must_use]
    pub fn printed(&self) -> String {
        self.console.so_far()
    }

    /// What `vmm` has said so far, on its stderr.
    ///
    /// # Panics
    /// When its reader did.
    #[must_use]
    pub fn said(&self) -> String {
        self.said.so_far()
    }

    /// The same, after its end.
    fn all_said(&mut self) -> String {
        // What was read before it panicked is there.
        let _ = self.stderr.take().map(JoinHandle::join);
        self.said()
    }

    /// Types this on the guest's console.
    ///
    /// # Panics
    /// When `vmm` does not take it.
    pub fn type_text(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("its stdin");
        stdin
            .write_all(text.as_bytes())
            .expect("vmm reads its stdin");
        stdin.flush().expect("vmm reads its stdin");
    }

    /// `vmm ctl` on this guest. What a vCPU has missed its pause for is asked again.
    #[must_use]
    pub fn ctl(&self, arguments: &[&str]) -> Ended {
        let mut command = vmm();
        command
            .arg("ctl")
            .arg("--control")
            .arg(&self.socket)
            .args(arguments);
        let says = || Ended::from(command.output().expect("vmm ctl starts"));
        missed::insist("vmm ctl", patience(), says, |ended| {
            ended.code != Some(0) && missed::is_told(&ended.stderr)
        })
    }

    /// Checks that `vmm ctl` refuses this, in one line that has all these words.
    ///
    /// # Panics
    /// When not.
    pub fn refuses(&self, verb: &[&str], words: &[&str]) {
        let said = self.ctl(verb);
        for word in words {
            assert!(said.refused(100).contains(word), "{verb:?}: {said}");
        }
    }

    /// Waits for the end.
    fn wait(&mut self) -> ExitStatus {
        let (pid, child) = (self.child.id(), &mut self.child);
        let (tell, told) = mpsc::channel();
        let (status, is_killed) = std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                let status = child.wait();
                // Nobody listens any more once it has been killed.
                let _ = tell.send(());
                status
            });
            let is_late = told.recv_timeout(ends_within()).is_err();
            let is_killed = is_late && {
                let kill = Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status();
                kill.expect("kill starts").success()
            };
            (waits.join().expect("it waits"), is_killed)
        });
        // What it has said is shown when this is dropped.
        assert!(!is_killed, "no end; it has printed: {}", self.printed());
        status.expect("it ends")
    }

    /// Waits for the end. The trace's folder lives as long as what is returned.
    ///
    /// # Panics
    /// When the child cannot be waited for, or does not end: then it is killed, and what it has said is shown.
    #[must_use]
    pub fn end(mut self) -> (Ended, Trace) {
        let status = self.wait();
        if let Some(reader) = self.stdout.take() {
            reader.join().expect("the console is read");
        }
        let ended = Ended {
            code: status.code(),
            stdout: self.printed(),
            stderr: self.all_said(),
        };
        let folder = std::mem::replace(&mut self.folder, TempDir::new().expect("a folder"));
        (ended, Trace::new(folder, "trace"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() && matches!(self.child.try_wait(), Ok(None)) {
            let shown = standstill::shown(self.pid(), &self.socket);
            eprintln!("{shown}it has printed:\n{}", self.printed());
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() && self.stderr.is_some() {
            eprintln!("vmm said: {}", self.all_said());
        }
    }
}
