//! Where the tests run, and where the programs under test are.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::output::Ended;

/// Says to `vmm` that root may run guests: tests are root in the box, and in images for CI.
pub(crate) const ALLOW_ROOT: &str = "EXOTRACE_ALLOW_ROOT";

/// A command that runs the release build of `vmm`.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn vmm() -> Command {
    // The test program is target/debug/deps/NAME.
    let program = env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(3).unwrap_or(Path::new("target"));
    starts_vmm(built(target.join("release/vmm"), "make build"))
}

/// A command that starts `vmm`, whichever program it is.
#[must_use]
pub fn starts_vmm(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env(ALLOW_ROOT, "1");
    command
}

/// A command that runs a program that is not ours, and ends one that does not end by itself.
#[must_use]
pub fn patient(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.arg(patience().as_secs().to_string()).arg(program);
    command
}

/// A command that runs a program that is killed when the thread has ended that starts it. A guest that spins would else do so for ever
/// when the tests are killed, and make those slow that come next. The process is that of the program.
#[must_use]
pub(crate) fn outlived(program: &str) -> Command {
    // What runs in the box ends with it, and its busybox cannot do this.
    if in_the_box() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// Runs `vmm` with these arguments to its end, without input.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn vmm_says<A: AsRef<OsStr>>(arguments: &[A]) -> Ended {
    let output = vmm().args(arguments).stdin(Stdio::null()).output();
    Ended::from(output.expect("vmm starts"))
}

/// The bundled guest.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn guest() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    built(root.join("images/out/guest.elf"), "make guest")
}

/// The bundled guest with retpolines in its Rust code.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn guest_with_retpolines() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    built(
        root.join("images/out/guest-retpoline.elf"),
        "images/guest/build.sh --retpoline",
    )
}

/// The bundled guest without patch sites in its Rust code.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn bare_guest() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    built(
        root.join("images/out/guest-bare.elf"),
        "images/guest/build.sh --bare",
    )
}

/// A small kernel in C that is not ours: `prefix`, `identity` or `raw` (images/foreign).
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn foreign_kernel(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/out/foreign");
    built(
        folder.join(format!("{name}.elf")),
        "images/foreign/build.sh",
    )
}

/// A distribution's kernel, and an initial RAM disk for it (images/linux).
///
/// # Panics
/// When they have not been made.
#[must_use]
pub fn linux() -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/out/linux");
    let file = |name| built(folder.join(name), "images/linux/build.sh");
    (file("vmlinuz"), file("initrd"))
}

/// Another initial RAM disk: `initrd-modules` or `initrd-kexec` (images/linux).
///
/// # Panics
/// When it has not been made.
#[must_use]
pub fn linux_initrd(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/out/linux");
    built(folder.join(name), "images/linux/build.sh")
}

/// A kernel of another age than the box's (images/linux/kernels).
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its name there.
    pub name: String,
    /// What has to be on its command line for it to come up in the box.
    pub boots_with: String,
    folder: PathBuf,
}

impl Kernel {
    /// The kernel as its package has it.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// The symbols of its debug package, where its release has one.
    #[must_use]
    pub fn system_map(&self) -> Option<PathBuf> {
        Some(self.folder.join("System.map")).filter(|map| map.exists())
    }
}

/// The kernels that run in `suite`, or all of them.
///
/// # Panics
/// When the table cannot be read, or one of them has not been fetched.
#[must_use]
pub fn kernels(suite: Option<&str>) -> Vec<Kernel> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
    let table = std::fs::read_to_string(images.join("linux/kernels"));
    let table = table.expect("images/linux/kernels");
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| suite.is_none_or(|suite| row.get(3) == Some(&suite)));
    let kernel = |row: Vec<&str>| {
        let [name, _, _, _, words @ ..] = &row[..] else {
            panic!("images/linux/kernels: {row:?}");
        };
        let folder = images.join("cache/linux").join(name);
        built(
            folder.join("vmlinuz"),
            &format!("images/linux/kernel {name}"),
        );
        Kernel {
            name: (*name).to_owned(),
            boots_with: words.join(" "),
            folder,
        }
    };
    rows.map(kernel).collect()
}

/// Whether the tests run in the box, where everything takes some ten times longer.
#[must_use]
pub fn in_the_box() -> bool {
    env::var_os("EXOTRACE_PLACE").is_some_and(|place| place == "box")
}

/// How often a test does something that it does `count` times where the processor executes it. The
/// box says by `EXOTRACE_PLACE` (tests/in-box) that the same would take minutes there.
#[must_use]
pub fn scaled(count: u32) -> u32 {
    if in_the_box() { count / 10 } else { count }
}

/// How many changes a storm makes that has `count` of them in `make test-long`: where ring 0 is emulated all of them take minutes.
#[must_use]
pub fn stormy(count: u32) -> u32 {
    scaled(usual_or_long(count / 3, count))
}

/// The first for the tests that everybody runs, the second where they are to do as much as they were made for.
#[must_use]
pub fn usual_or_long<T>(usual: T, long: T) -> T {
    if is_long() { long } else { usual }
}

/// Whether tests are to do as much as they were made for, however long it takes (`make test-long`).
#[must_use]
pub fn is_long() -> bool {
    env::var_os("EXOTRACE_LONG").is_some_and(|long| long == "1")
}

/// Text is changed while every vCPU runs, whoever has made the processor: what our code makes of it is to be seen everywhere.
pub const ATOMIC: [&str; 2] = ["--patch-method=atomic", "--unpromised"];

/// Text is changed by this method.
#[must_use]
pub fn patched_by(method: &'static str) -> [&'static str; 2] {
    match method {
        "atomic" => ATOMIC,
        other => ["--patch-method", other],
    }
}

/// Whether the processor's maker promises what `--patch-method atomic` needs. Where not, it is refused.
///
/// # Panics
/// When Linux does not say who has made it.
#[must_use]
pub fn promises_atomic() -> bool {
    let told = std::fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
    told.lines()
        .any(|line| line.starts_with("vendor_id") && line.ends_with("AuthenticAMD"))
}

/// How long anything may take before it counts as never: on a machine that does ten other things at the same time, too.
#[must_use]
pub fn patience() -> Duration {
    Duration::from_secs(if in_the_box() { 1200 } else { 300 })
}

fn built(path: PathBuf, how: &str) -> PathBuf {
    assert!(path.exists(), "{} is not there: {how}", path.display());
    path
}

/// Waits until this holds, which must be soon.
///
/// # Panics
/// When it does not hold in time.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        look_again();
    }
}

/// Between one look and the next at what nobody is told of: the processor belongs to what is looked at. The box has one for all,
/// and each change between two programs costs it what it has translated.
pub fn look_again() {
    const BETWEEN: Duration = Duration::from_millis(5);
    std::thread::park_timeout(BETWEEN);
}

/// Changes a guest as long as it lives, which is so many iterations. What it lives to see depends on the host: it lives longer until
/// that is enough.
///
/// # Panics
/// When it never is.
pub fn lives_to_see(iterations: u32, enough: impl FnMut(u32) -> bool) {
    let mut lives = [1, 4, 16].map(|times| iterations * times).into_iter();
    assert!(lives.any(enough), "the guest ended too early, each time");
}

/// What ends by its time limit, which is given to `run`. On a busy host a guest has not come far by then: it gets longer ones
/// until it has come as far as is wanted, or the last.
pub fn limited<T>(mut run: impl FnMut(&'static str) -> T, is_enough: impl Fn(&T) -> bool) -> T {
    for seconds in ["2", "20"] {
        let ended = run(seconds);
        if is_enough(&ended) {
            return ended;
        }
    }
    run("200")
}
