//! The host of a measurement, and how it is asked to give way.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{setpriority_process, setsid};
use vmm::clock::host_tsc;

use super::Failed;

/// Asks that whatever else runs on this host gives way to this process, as to its guests: what it
/// asks of them would have to wait. For that it needs a session, and with it a scheduling group, of
/// its own.
pub fn step_forward() {
    if setsid().is_ok() {
        let _ = fs::write("/proc/self/autogroup", "-20");
        let _ = setpriority_process(None, -20);
    }
}

/// Ticks of the counter in a nanosecond.
#[must_use]
pub fn tsc_ghz() -> f64 {
    let (since, start) = (Instant::now(), host_tsc());
    while since.elapsed() < Duration::from_millis(100) {
        std::hint::spin_loop();
    }
    #[expect(clippy::cast_precision_loss, reason = "a tenth of a second")]
    let ticks = (host_tsc() - start) as f64;
    ticks / since.elapsed().as_secs_f64() / 1e9
}

/// The CPU, as it names itself, and how many there are.
///
/// # Errors
/// When the system does not say.
pub fn name() -> Result<String, Failed> {
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':']);
    let cpus = std::thread::available_parallelism()?;
    Ok(format!("{model}, {cpus} CPUs"))
}

/// The load average of the last minute: what else ran.
///
/// # Errors
/// When the system does not say.
pub fn load() -> Result<String, Failed> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}
