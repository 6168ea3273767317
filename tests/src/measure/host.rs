//! The host of a measurement, and how it is asked to give way.

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::process::{setpriority_process, setsid};
use serde_json::{Value, json};
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

/// What kind of machine this is: figures of two machines are to be compared only when it is the same.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The vendor, as the CPU names it.
    pub vendor: String,
    /// The CPU's family.
    pub family: u32,
    /// Its model in the family.
    pub model: u32,
    /// Its name.
    pub name: String,
    /// How many of them.
    pub cpus: usize,
    /// Cycles of a core in a nanosecond, by a chain of multiplications that wait for each other.
    pub core_ghz: f64,
    /// Ticks of the counter in a nanosecond.
    pub tsc_ghz: f64,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn this() -> Result<Self, Failed> {
        let text = fs::read_to_string("/proc/cpuinfo")?;
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(name, _)| name.trim() == key);
            found.map_or("", |(_, value)| value.trim())
        };
        Ok(Self {
            vendor: value("vendor_id").to_owned(),
            family: value("cpu family").parse().unwrap_or_default(),
            model: value("model").parse().unwrap_or_default(),
            name: value("model name").to_owned(),
            cpus: std::thread::available_parallelism()?.get(),
            core_ghz: core_ghz(),
            tsc_ghz: tsc_ghz(),
        })
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "vendor": self.vendor,
            "family": self.family,
            "model": self.model,
            "name": self.name,
            "cpus": self.cpus,
            "core_ghz": self.core_ghz,
            "tsc_ghz": self.tsc_ghz,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} family {} model {} ({}), {} CPUs, core {:.2} GHz, counter {:.2} GHz",
            self.vendor, self.family, self.model, self.name, self.cpus, self.core_ghz, self.tsc_ghz
        )
    }
}

/// Cycles of a core in a nanosecond: the best of many short chains of multiplications, three cycles each on
/// the processors that this is for.
fn core_ghz() -> f64 {
    const LENGTH: u32 = 100_000;
    const CYCLES_EACH: f64 = 3.0;
    let chain = || {
        let start = Instant::now();
        let product = (0..LENGTH).fold(black_box(3u64), |product, _| product.wrapping_mul(product));
        black_box(product);
        start.elapsed()
    };
    let best = (0..100).map(|_| chain()).min().unwrap_or_default();
    f64::from(LENGTH) * CYCLES_EACH / best.as_secs_f64() / 1e9
}

/// The load average of the last minute: what else ran.
///
/// # Errors
/// When the system does not say.
pub fn load() -> Result<String, Failed> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}
