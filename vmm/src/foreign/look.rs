//! A look at a guest of another VMM: how much RAM it has, where, and which kernel runs there. Nothing of ours is made in it; it
//! is held for one pause, while its RAM is found.

use std::time::{Duration, Instant};

use tracer::target::VcpuRegisters;
use tracer::{KernelMap, NoKernel};

use super::error::ForeignError;
use super::lock;
use super::machine::LONG;
use super::memory::RemoteRam;
use super::park::park;
use super::process::Process;
use super::slots::{Slots, find};
use super::stopped::LSTAR;
use super::vcpus::Vcpus;

/// What was seen of a guest.
#[derive(Debug)]
pub struct Seen {
    ram: RemoteRam,
    kernel: Result<KernelMap, NoKernel>,
    /// How long it was held.
    pub held: Duration,
}

impl Seen {
    /// Looks at the guest of a process.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub fn of(process: &Process) -> Result<Self, ForeignError> {
        let pid = process.pid();
        let vm = process.vm_descriptor()?;
        lock::left_in(process)?;
        let vcpus = Vcpus::of(process)?;
        let requested = Instant::now();
        let deadline = requested + LONG;
        let mut parked = park(process, vcpus.found(), deadline)?;
        let registers = parked.registers(deadline)?;
        let entry = parked.caller(pid)?.msr(LSTAR, deadline)?;
        let mut slots = Slots::of(&mut parked, process, vm, deadline)?;
        let ram = find(process, &mut slots, &registers)?;
        let online = registers.iter().find(|vcpu| vcpu.is_online());
        let running = online.map(VcpuRegisters::from).unwrap_or_default();
        let kernel = KernelMap::of(&ram, &running, terms::addr::Gva(entry));
        Ok(Self {
            ram,
            kernel,
            held: requested.elapsed(),
        })
    }

    /// How much RAM it has.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.ram.bytes()
    }

    /// Which Linux it is. The guest's memory is read for that, while it runs.
    ///
    /// # Errors
    /// [`NoKernel`] says what was tried.
    pub fn version(&self) -> Result<String, NoKernel> {
        let map = self.kernel.as_ref().map_err(Clone::clone)?;
        map.version(&self.ram)
    }
}
