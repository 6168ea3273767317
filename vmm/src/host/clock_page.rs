//! The thread that keeps the clock page (`tracer::clock::page`).
//!
//! It exists while a session with that clock has rings in the guest, and spins while one of them is
//! started: so it takes a host CPU for itself, on which no vCPU should run (`--clock-cpu`).
//!
//! *All vCPUs are halted* when none of their threads has used any CPU time for a millisecond: a vCPU
//! that halts in the in-kernel interrupt controller, is paused, or has lost its host CPU uses none, and one
//! that executes guest code uses all of it. Then the thread sleeps, and looks every 50 µs (plus what the
//! host's timers are late); each look is a beat. It spins again when any of them has used some.
//!
//! The page holds the host's counter, whatever offset the vCPUs' counters have: so a guest that sets its own does
//! not change the times of sessions with that clock.
//!
//! *A stall* is a gap between two beats, longer than ten periods and 10 µs, in which a vCPU may have
//! run: because the thread lost its CPU, or was asleep when a vCPU woke. Times of that while are those of the
//! beat before it. Each is counted, and noted in the traces of the sessions that use the page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use terms::addr::Gpa;
use tracer::clock::RunClock;
use tracer::clock::page::{Beat, Beats, ClockPage, Stall};
use vm_memory::{VolatileMemory, VolatileSlice};

use crate::clock::host_tsc;
use crate::confine::{self, Role};
use crate::memory::Memory;
use crate::vcpu::cpu_time::CpuTime;

/// How often it is looked at whether the vCPUs work.
const LOOK_NS: u64 = 1_000_000;
/// Sleep while they do not.
const NAP: Duration = Duration::from_micros(50);
/// Sleep while nothing is traced.
const IDLE: Duration = Duration::from_millis(1);
/// The shortest stall, in nanoseconds and in periods.
const STALL_NS: u64 = 10_000;
const STALL_PERIODS: u64 = 10;

/// Why the clock page cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ClockPageError {
    /// No such CPU, or not for us.
    #[error("--clock-cpu {cpu}: this process cannot run there, but on {usable}")]
    Cpu {
        /// Which CPU.
        cpu: usize,
        /// The numbers of those that are possible.
        usable: String,
    },
    /// No thread.
    #[error("the system gives no thread for the clock page: {0}")]
    Thread(#[source] std::io::Error),
    /// No page.
    #[error("the clock page at {0} is not in the window")]
    NoPage(Gpa),
}

/// The page and its thread.
#[derive(Debug)]
pub struct ClockThread {
    beat: Beat,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    beats: Arc<Beats>,
    spins: AtomicBool,
    ends: AtomicBool,
}

impl ClockThread {
    /// Starts the thread. When this returns, the page holds the time. `goes_on` when another thread
    /// has just kept it: the time between the two is then looked at as that between two beats.
    ///
    /// # Errors
    /// A [`ClockPageError`].
    pub fn start(
        memory: &Memory,
        at: Gpa,
        clock: RunClock,
        beat: Beat,
        vcpus: Vec<CpuTime>,
        beats: Arc<Beats>,
        goes_on: bool,
    ) -> Result<Self, ClockPageError> {
        if !memory.contains(at, usize::try_from(Beats::PAGE_BYTES).unwrap_or(usize::MAX)) {
            return Err(ClockPageError::NoPage(at));
        }
        let shared = Arc::new(Shared {
            beats,
            spins: AtomicBool::new(true),
            ends: AtomicBool::new(false),
        });
        let (tell, started) = sync_channel(1);
        let (memory, keeper_shared) = (memory.clone(), Arc::clone(&shared));
        let run = move || {
            let pinned = beat.cpu.map_or(Ok(()), pin);
            confine::enter(Role::Clock);
            let is_pinned = pinned.is_ok();
            // The starter waits for it.
            let told = tell.send(pinned).is_ok();
            let length = usize::try_from(Beats::PAGE_BYTES).unwrap_or_default();
            if let (true, true, Ok(page)) = (is_pinned, told, memory.window_slice(at, length)) {
                Keeper::new(Page(&page), &clock, beat, vcpus, &keeper_shared).run(goes_on);
            }
        };
        let thread = std::thread::Builder::new().name(Role::Clock.name().to_owned());
        let thread = thread.spawn(run).map_err(ClockPageError::Thread)?;
        let before = shared.beats.last();
        started.recv().unwrap_or(Ok(()))?;
        while shared.beats.last() == before && !thread.is_finished() {
            std::thread::yield_now();
        }
        Ok(Self {
            beat,
            shared,
            thread: Some(thread),
        })
    }
}

impl ClockPage for ClockThread {
    fn beat(&self) -> Beat {
        self.beat
    }

    fn spin(&self, spins: bool) {
        self.shared.spins.store(spins, Ordering::Release);
    }
}

impl Drop for ClockThread {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the clock thread has failed: times may have stood still");
        }
    }
}

/// Whether a thread of this process can be kept on that CPU.
///
/// # Errors
/// [`ClockPageError::Cpu`].
pub fn check_cpu(cpu: usize) -> Result<(), ClockPageError> {
    on_other_thread(|| pin(cpu)).unwrap_or(Ok(()))
}

/// The CPUs on which a thread of this process can be kept, as `0, 2-3`. That can be more than those that it
/// is kept on now.
fn usable_cpus() -> String {
    let usable = || (0..CPUS_MAX).filter(|cpu| try_pin(*cpu)).collect();
    let usable: Vec<usize> = on_other_thread(usable).unwrap_or_default();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in usable {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let text = |(first, last): (usize, usize)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// What `work` returns on a thread that ends with it; none when there is no thread.
fn on_other_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        thread.ok()?.join().ok()
    })
}

/// Keeps this thread on one CPU.
fn pin(cpu: usize) -> Result<(), ClockPageError> {
    if try_pin(cpu) {
        return Ok(());
    }
    let usable = usable_cpus();
    Err(ClockPageError::Cpu { cpu, usable })
}

/// CPUs that a set has numbers for.
const CPUS_MAX: usize = size_of::<libc::cpu_set_t>() * 8;

fn try_pin(cpu: usize) -> bool {
    // SAFETY: a set of all zeros is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < CPUS_MAX {
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set outlives the call, and 0 is the calling thread.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    failed == 0
}

/// The page in guest memory.
struct Page<'a>(&'a VolatileSlice<'a>);

impl Page<'_> {
    fn store(&self, offset: u64, value: u64) {
        let offset = usize::try_from(offset).unwrap_or_default();
        // It lies in the page, which was checked to be memory.
        if let Ok(word) = self.0.get_ref::<u64>(offset) {
            word.store(value);
        }
    }
}

/// The thread's work.
struct Keeper<'a> {
    page: Page<'a>,
    period: u64,
    stall: u64,
    look: u64,
    vcpus: Vec<CpuTime>,
    used: u64,
    shared: &'a Shared,
    last: u64,
    count: u64,
}

impl<'a> Keeper<'a> {
    fn new(
        page: Page<'a>,
        clock: &RunClock,
        beat: Beat,
        vcpus: Vec<CpuTime>,
        shared: &'a Shared,
    ) -> Self {
        let period = clock.ticks(beat.period_ns).max(1);
        let stall = clock.ticks(STALL_NS).max(STALL_PERIODS * period);
        Self {
            page,
            period,
            stall,
            look: clock.ticks(LOOK_NS),
            vcpus,
            used: 0,
            shared,
            // Another thread may have kept the page before.
            last: shared.beats.last(),
            count: 0,
        }
    }

    fn run(mut self, goes_on: bool) {
        let now = host_tsc();
        if goes_on {
            self.note_stall(now);
        }
        self.beat(now);
        let mut looked = self.last;
        while !self.shared.ends.load(Ordering::Acquire) {
            if !self.shared.spins.load(Ordering::Acquire) {
                std::thread::sleep(IDLE);
                let now = host_tsc();
                // Somebody has begun to look at it meanwhile.
                if self.shared.spins.load(Ordering::Acquire) {
                    self.note_stall(now);
                }
                self.beat(now);
                continue;
            }
            let now = self.wait();
            self.note_stall(now);
            self.beat(now);
            if now.wrapping_sub(looked) >= self.look {
                if !self.have_worked() {
                    self.nap();
                }
                looked = self.last;
            }
        }
    }

    /// Spins until the next beat is due.
    fn wait(&self) -> u64 {
        let begin = host_tsc();
        let left = self
            .period
            .saturating_sub(host_tsc().wrapping_sub(self.last));
        while host_tsc().wrapping_sub(begin) < left {
            std::hint::spin_loop();
        }
        host_tsc()
    }

    fn beat(&mut self, now: u64) {
        // Never back, whatever the host's counters do.
        if now > self.last {
            self.last = now;
        }
        self.count += 1;
        let page = &self.page;
        let beats = &self.shared.beats;
        beats.beat(self.last, self.count, |at, word| page.store(at, word));
    }

    /// Before the beat that ends it: whoever sees a time after the stall finds it noted.
    fn note_stall(&self, now: u64) {
        if now.saturating_sub(self.last) > self.stall {
            let (begin, end) = (self.last, now);
            self.shared.beats.note(Stall { begin, end });
        }
    }

    /// Whether any vCPU's thread has used CPU time since this was asked last.
    fn have_worked(&mut self) -> bool {
        let used = self.vcpus.iter().map(CpuTime::nanoseconds).sum();
        std::mem::replace(&mut self.used, used) != used
    }

    fn nap(&mut self) {
        while !self.shared.ends.load(Ordering::Acquire) && self.shared.spins.load(Ordering::Acquire)
        {
            std::thread::sleep(NAP);
            let now = host_tsc();
            if self.have_worked() {
                self.note_stall(now);
                self.beat(now);
                return;
            }
            self.beat(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracer::target::PhysicalMemory;

    use super::*;

    // Where stubs look for them.
    const SHIFTED: u64 = 0;
    const COUNTER: u64 = 128;
    const BEATS: u64 = 256;
    use crate::memory::Ram;

    fn word(memory: &Memory, at: Gpa, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        memory
            .read_physical(at.wrapping_add(offset), &mut bytes)
            .unwrap();
        u64::from_le_bytes(bytes)
    }

    fn started(
        vcpus: Vec<CpuTime>,
        cpu: Option<usize>,
    ) -> Result<(ClockThread, Memory, Gpa), ClockPageError> {
        started_with(vcpus, cpu, Arc::default())
    }

    fn started_with(
        vcpus: Vec<CpuTime>,
        cpu: Option<usize>,
        beats: Arc<Beats>,
    ) -> Result<(ClockThread, Memory, Gpa), ClockPageError> {
        let memory = Ram::create(8, 2 << 20).unwrap().memory().clone();
        let at = memory.window().start;
        let clock = RunClock::new(host_tsc(), 2_000_000);
        let beat = Beat {
            period_ns: 100,
            cpu,
        };
        let page = ClockThread::start(&memory, at, clock, beat, vcpus, beats, false)?;
        Ok((page, memory, at))
    }

    #[test]
    fn the_page_holds_the_time_and_goes_on() {
        let (page, memory, at) = started(vec![CpuTime::own()], None).unwrap();
        let first = word(&memory, at, COUNTER);
        // After that: the page is never ahead of the clock, but it continues.
        let now = host_tsc();
        assert!(now.wrapping_sub(first) < 1 << 34, "{first} is near {now}");
        let mut last = 0;
        for _ in 0..1000 {
            let time = word(&memory, at, SHIFTED);
            assert!(time >= last, "never back");
            last = time;
        }
        // Also when no vCPU works: it naps, and beats all the same.
        while word(&memory, at, COUNTER) == first {
            std::hint::spin_loop();
        }
        drop(page);
        let (ended, beats) = (word(&memory, at, COUNTER), word(&memory, at, BEATS));
        assert!(beats > 1);
        assert_eq!(word(&memory, at, COUNTER), ended, "nobody writes any more");
    }

    /// Nobody looked at it, so it was kept from growing old only: who begins to, before the next beat, sees that of before.
    #[test]
    fn who_comes_while_the_page_rests_is_told_of_that() {
        let beats = Arc::new(Beats::default());
        let (page, ..) = started_with(vec![CpuTime::own()], None, Arc::clone(&beats)).unwrap();
        let next_beat = || {
            let before = beats.last();
            while beats.last() == before {
                std::hint::spin_loop();
            }
        };
        // It may have been busy until it was asked to rest, or not rest yet when it is asked again.
        for _ in 0..1000 {
            page.spin(false);
            next_beat();
            next_beat();
            let (before, _) = beats.stalls();
            let begun = beats.last();
            page.spin(true);
            next_beat();
            let (told, _) = beats.since(before);
            if told.iter().any(|stall| stall.begin >= begun) {
                return;
            }
        }
        panic!("it was never told");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        for cpu in [1023, 100_000] {
            let error = started(Vec::new(), Some(cpu)).unwrap_err().to_string();
            assert!(error.contains(&format!("--clock-cpu {cpu}")), "{error}");
            let usable = error.rsplit_once("but on ").unwrap().1;
            let first = usable.split([',', '-']).next().unwrap();
            check_cpu(first.parse().unwrap()).unwrap();
            assert_eq!(check_cpu(cpu).unwrap_err().to_string(), error);
        }
    }
}
