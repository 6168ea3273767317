//! The vCPU thread: runs the guest, serves its exits, parks when told to.
//!
//! ```text
//!            kick seen, nothing half done
//!  Running ───────────────────────────────▶ Parked ──▶ Running (order: run)
//!   │  │ ▲                                    ▲  └───▶ Stopped (order: stop)
//!   │  │ └────────── exit served ──────┐      │
//!   │  └─ kick seen after an I/O exit ─▶ Completing   (KVM re-entered with immediate_exit
//!   │                                                  until the access is complete)
//!   ├─ doorbell ─────▶ Announcing ──▶ Running (acknowledged)
//!   ├─ turnstile ────▶ Waiting ─────▶ Running (the reader has been there)
//!   ├─ time is held ─▶ Held ────────▶ Running (nobody holds it any more)
//!   ├─ breakpoint ───▶ Trapped ──▶ Running (released); a text trap's port write is completed first
//!   └─ exit port, reset, crash ──▶ Exited ──▶ Stopped
//! ```
//!
//! Parked, Waiting, Trapped and Exited are the same wait; they differ in what ends it. Registers are read
//! by this thread when it parks, so that no controller waits for them later.

use std::sync::Arc;

use insn::trap::TRAP_LENGTH;
use kvm_ioctls::{VcpuExit, VcpuFd};
use terms::addr::{Gpa, Gva};

use super::Surroundings;
use super::debug::Debugging;
use super::detours::Detours;
use super::event::{EventSender, VcpuEvent, VcpuEventKind};
use super::guest_time::GuestTime;
use super::host_log::HostLog;
use super::kick::{self, ImmediateExit, KickTarget, KickTargets};
use super::mailbox::{Mailbox, Order, Pending, Reply, Request, Resting, Shared, VcpuState};
use super::msr;
use super::registers::RegisterReader;
use crate::counter;
use crate::devices::{PortEffect, Ports};
use crate::layout::{DOORBELL_PORT, PROBE_PORT, TRAP_PORT};
use crate::memory::Memory;
use tracer::waits::{Wait, Waits};

/// The states of the thread's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// Leave by way of a complete access, then continue at the state named.
    Completing(Rest),
    Resting(Rest),
    Stopped,
}

/// The ways of being out of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Parked,
    Trapped,
    Announcing,
    /// For the reader of a ring that is full.
    Waiting,
    /// With one that waits and hides that.
    Held,
    /// On the way to the stub of a probe; the vCPU does not rest there.
    Diverted,
    Exited,
}

/// Where a vCPU is that has written to this port, if the port is one of ours.
fn rest_after(port: u16) -> Option<Rest> {
    match u8::try_from(port).ok()? {
        TRAP_PORT => Some(Rest::Trapped),
        PROBE_PORT => Some(Rest::Diverted),
        DOORBELL_PORT => Some(Rest::Announcing),
        _ => None,
    }
}

/// Whether KVM completes it when it is entered again.
const fn is_access(exit: &VcpuExit<'_>) -> bool {
    matches!(
        exit,
        VcpuExit::IoOut(..) | VcpuExit::IoIn(..) | VcpuExit::MmioRead(..) | VcpuExit::MmioWrite(..)
    )
}

/// What is wrong with an exit that ends the guest.
fn unserved(exit: &VcpuExit<'_>) -> String {
    match exit {
        VcpuExit::FailEntry(reason, cpu) => {
            format!("VM entry failed, hardware reason {reason:#x}, CPU {cpu}")
        }
        VcpuExit::SystemEvent(kind, _) => format!("KVM system event {kind}"),
        other => format!("exit that this VMM does not serve: {other:?}"),
    }
}

impl Rest {
    fn shown_as(self) -> VcpuState {
        match self {
            Self::Parked => VcpuState::Parked,
            Self::Trapped => VcpuState::Trapped,
            Self::Announcing => VcpuState::Announcing,
            Self::Waiting | Self::Held => VcpuState::Waiting,
            Self::Diverted => VcpuState::Running,
            Self::Exited => VcpuState::Exited,
        }
    }
}

/// A vCPU with all that its thread needs.
#[derive(Debug)]
pub(crate) struct Vcpu {
    number: u16,
    fd: VcpuFd,
    immediate_exit: Arc<ImmediateExit>,
    shared: Arc<Shared>,
    ports: Arc<Ports>,
    detours: Arc<Detours>,
    events: EventSender,
    reader: RegisterReader,
    /// KVM has yet to complete the last I/O, MMIO or MSR access.
    half_done: bool,
    /// The registers of the last exit are still those of the vCPU.
    unchanged: bool,
    /// The last pass that was made.
    passed: u64,
    debugging: Debugging,
    time: GuestTime,
    host_events: Option<HostLog>,
    waits: Arc<Waits>,
    /// For the reader of a ring.
    wait: Option<Wait>,
    targets: Arc<KickTargets>,
    /// Keeps the guest's memory mapped while KVM can still use it.
    _memory: Memory,
}

impl Vcpu {
    pub(super) fn new(
        number: u16,
        mut fd: VcpuFd,
        shared: Arc<Shared>,
        around: &Surroundings,
    ) -> Result<Self, kvm_ioctls::Error> {
        let reader = RegisterReader::new(&mut fd, around.sync_registers, around.model.nested);
        let immediate_exit = Arc::new(ImmediateExit::map(&fd)?);
        Ok(Self {
            number,
            fd,
            immediate_exit,
            shared,
            ports: Arc::clone(&around.ports),
            detours: Arc::clone(&around.detours),
            events: around.events.clone(),
            reader,
            half_done: false,
            unchanged: false,
            passed: 0,
            debugging: Debugging::new(),
            time: GuestTime::new(number, &around.clocks),
            host_events: around
                .host_events
                .as_ref()
                .map(|events| HostLog::new(number, events)),
            waits: Arc::clone(&around.waits),
            wait: None,
            targets: Arc::clone(&around.targets),
            _memory: around.memory.clone(),
        })
    }

    /// The thread's body.
    pub(super) fn run(mut self) {
        let _farewell = Farewell {
            number: self.number,
            shared: Arc::clone(&self.shared),
            events: self.events.clone(),
        };
        let _target =
            KickTarget::register(Arc::clone(&self.immediate_exit), Arc::clone(&self.targets));
        let mut state = State::Running;
        while state != State::Stopped {
            state = match state {
                State::Running => self.running(),
                State::Completing(rest) => self.completing(rest),
                State::Resting(rest) => self.resting(rest),
                State::Stopped => State::Stopped,
            };
        }
    }

    /// One entry into the guest. A kick between the look at the order and `KVM_RUN` makes the
    /// latter return at once: its handler has set `immediate_exit` again.
    fn running(&mut self) -> State {
        kick::set_immediate_exit(false);
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        if self.shared.order() != Order::Run {
            return State::Completing(Rest::Parked);
        }
        let wanted = self.shared.wanted_pass();
        if wanted != self.passed {
            self.pass(wanted);
        }
        if self.time.is_due() {
            self.time.check(&self.fd);
        }
        let fd = &self.fd;
        match self.time.enters(|ticks| counter::set_back(fd, ticks)) {
            true => self.enter(),
            false => State::Completing(Rest::Held),
        }
    }

    /// Passes a serialising point on the way into the guest: what the guest fetches from now on is as
    /// memory was when the pass was asked for, or newer. A kick that comes before `KVM_RUN` makes it
    /// return at once, so none is missed.
    fn pass(&mut self, wanted: u64) {
        self.passed = wanted;
        kick::serialise_core();
        let shared = Arc::clone(&self.shared);
        let mut mailbox = shared.lock();
        mailbox.passed = wanted;
        if let Some(asked) = mailbox.asked.take() {
            mailbox.away += asked.elapsed();
        }
        drop(mailbox);
        shared.acknowledged.notify_all();
    }

    /// Re-enters KVM with `immediate_exit`, so that it completes the access in progress and runs
    /// nothing. A string instruction or an access over two pages can bring another exit: again.
    fn completing(&mut self, rest: Rest) -> State {
        if self.unchanged && !self.half_done {
            return match rest {
                Rest::Trapped => self.at_trap(),
                Rest::Announcing => {
                    self.tell(VcpuEventKind::Announcement);
                    State::Resting(rest)
                }
                Rest::Diverted => self.divert(),
                Rest::Parked | Rest::Waiting | Rest::Held | Rest::Exited => State::Resting(rest),
            };
        }
        kick::set_immediate_exit(true);
        match self.enter() {
            // A guest that ended is not parked, and what ended it is not forgotten.
            State::Resting(Rest::Exited) | State::Completing(Rest::Exited) => {
                State::Completing(Rest::Exited)
            }
            State::Resting(Rest::Trapped) => State::Resting(Rest::Trapped),
            _ => State::Completing(rest),
        }
    }

    /// A port write to the probes' port is complete. When it was a probe's, the vCPU continues at its stub.
    fn divert(&mut self) -> State {
        let mut registers = match self.fd.get_regs() {
            Ok(registers) => registers,
            Err(error) => return self.crashed(&format!("KVM_GET_REGS failed: {error}")),
        };
        let Some(stub) = self.detours.of(Gva(registers.rip)) else {
            return State::Running;
        };
        registers.rip = stub.0;
        self.unchanged = false;
        match self.fd.set_regs(&registers) {
            Ok(()) => State::Running,
            Err(error) => self.crashed(&format!("KVM_SET_REGS failed: {error}")),
        }
    }

    /// A port write to the trap port is complete. When it was the text trap's, the vCPU goes back
    /// to where the trap stands, and KVM is entered once more so that everybody sees it there.
    fn at_trap(&mut self) -> State {
        let Some(at) = self.debugging.breakpoint() else {
            return State::Running;
        };
        let mut registers = match self.fd.get_regs() {
            Ok(registers) => registers,
            Err(error) => return self.crashed(&format!("KVM_GET_REGS failed: {error}")),
        };
        if registers.rip == at.0 {
            self.tell(VcpuEventKind::Breakpoint(at));
            return State::Resting(Rest::Trapped);
        }
        if registers.rip != at.0.wrapping_add(TRAP_LENGTH as u64) {
            return State::Running;
        }
        registers.rip = at.0;
        self.unchanged = false;
        match self.fd.set_regs(&registers) {
            Ok(()) => State::Completing(Rest::Trapped),
            Err(error) => self.crashed(&format!("KVM_SET_REGS failed: {error}")),
        }
    }

    /// A debug exception. It is the guest's own business unless it came where it was asked for, and in the
    /// guest itself.
    fn debug_exit(&mut self, at: Gva, dr6: u64) -> State {
        let is_nested = match self.reader.is_nested(&self.fd) {
            Ok(is_nested) => is_nested,
            Err(error) => return self.crashed(&format!("KVM_GET_NESTED_STATE failed: {error}")),
        };
        if self.debugging.is_ours(at) && !is_nested {
            self.tell(VcpuEventKind::Breakpoint(at));
            return State::Resting(Rest::Trapped);
        }
        self.unchanged = false;
        match self.debugging.give_back(&self.fd, dr6) {
            Ok(()) => State::Running,
            Err(error) => self.crashed(&format!("a debug exception at {at} is stuck: {error}")),
        }
    }

    /// Enters the guest, and serves why it came back.
    fn enter(&mut self) -> State {
        let Some(mut log) = self.host_events.take() else {
            return self.enter_and(|_| ());
        };
        log.enters(&self.fd);
        let state = self.enter_and(|exit| log.is_back(exit));
        log.tells(&self.fd);
        self.host_events = Some(log);
        state
    }

    /// The same; `is_back` hears of it first.
    fn enter_and(
        &mut self,
        is_back: impl FnOnce(&Result<VcpuExit<'_>, kvm_ioctls::Error>),
    ) -> State {
        self.half_done = false;
        self.unchanged = true;
        let exit = self.fd.run();
        self.time.is_back();
        is_back(&exit);
        let exit = match exit {
            Ok(exit) => exit,
            // EINTR: kicked. EAGAIN: an AP that waits for its SIPI. Both leave nothing half done.
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                return State::Running;
            }
            Err(error) => return self.crashed(&format!("KVM_RUN failed: {error}")),
        };
        let (shared, passed) = (&self.shared, self.passed);
        self.half_done = is_access(&exit);
        match exit {
            VcpuExit::IoOut(port, data) => {
                if let Some(rest) = rest_after(port) {
                    return State::Completing(rest);
                }
                let patient = || !shared.is_wanted(passed);
                match self.ports.write(port, data, patient) {
                    PortEffect::None => State::Running,
                    PortEffect::Exit(status) => self.ended(VcpuEventKind::GuestExit(status)),
                    PortEffect::Reset => self.ended(VcpuEventKind::Reset),
                    PortEffect::PowerOff => self.ended(VcpuEventKind::PowerOff),
                }
            }
            VcpuExit::IoIn(port, data) => {
                self.ports.read(port, data);
                State::Running
            }
            VcpuExit::MmioRead(at, data) => {
                data.fill(0xff);
                self.has_read_nothing(Gpa(at))
            }
            VcpuExit::Debug(debug) => {
                let (at, dr6) = (Gva(debug.pc), debug.dr6);
                self.debug_exit(at, dr6)
            }
            VcpuExit::MmioWrite(..) | VcpuExit::Intr => State::Running,
            VcpuExit::Shutdown => self.crashed("triple fault"),
            VcpuExit::InternalError => {
                let details = internal_error(&mut self.fd);
                self.crashed(&details)
            }
            other => {
                let details = unserved(&other);
                self.crashed(&details)
            }
        }
    }

    /// There is no memory at `at`: it is a device that we do not have, or a turnstile.
    fn has_read_nothing(&mut self, at: Gpa) -> State {
        // One read over two pages brings two exits.
        if self.wait.is_none() {
            self.wait = self.waits.enter(at, self.number);
        }
        match self.wait {
            Some(_) => State::Completing(Rest::Waiting),
            None => State::Running,
        }
    }

    fn crashed(&mut self, details: &str) -> State {
        let place = self.place();
        self.ended(VcpuEventKind::Crashed(format!("{details}{place}")))
    }

    fn ended(&mut self, kind: VcpuEventKind) -> State {
        self.wait = None;
        self.tell(kind);
        State::Completing(Rest::Exited)
    }

    fn tell(&self, kind: VcpuEventKind) {
        self.events.send(VcpuEvent {
            vcpu: self.number,
            kind,
        });
    }

    /// ` at RIP …` for crash messages.
    fn place(&mut self) -> String {
        match self.reader.read(&self.fd) {
            Ok(all) => all.place(),
            Err(_) => String::new(),
        }
    }

    /// Out of the guest until the order (or the release from the breakpoint) says otherwise.
    fn resting(&mut self, rest: Rest) -> State {
        let registers = self.reader.at_exit(&self.fd);
        let shared = Arc::clone(&self.shared);
        let mut mailbox = shared.lock();
        mailbox.state = rest.shown_as();
        mailbox.registers = match registers {
            Ok(registers) => Some(registers),
            Err(error) => {
                log::error!(
                    "vCPU {}: its registers cannot be read: {error}",
                    self.number
                );
                None
            }
        };
        shared.acknowledged.notify_all();
        if self.time.is_due() {
            // Nobody waits for this thread now.
            drop(mailbox);
            self.time.check(&self.fd);
            mailbox = shared.lock();
        }
        let mut at_rest = AtRest { vcpu: self, rest };
        let Some(mut mailbox) = shared.rest(mailbox, &mut at_rest) else {
            return State::Stopped;
        };
        self.wait = None;
        mailbox.goes_on();
        drop(mailbox);
        shared.acknowledged.notify_all();
        kick::serialise_core();
        State::Running
    }

    fn serve(&mut self, mailbox: &mut Mailbox, request: Request) {
        let done = |outcome: Result<(), kvm_ioctls::Error>| outcome.map(|()| Reply::Done);
        let mut kernel_gs_base = None;
        let reply = match request {
            Request::SetGeneral(registers) => done(self.fd.set_regs(&registers)),
            Request::SetSystem(registers) => done(self.fd.set_sregs(&registers)),
            Request::SetBreakpoint(at) => done(self.set_breakpoint(at)),
            Request::SingleStep => done(self.debugging.single_step(&self.fd)),
            Request::ReadTsc(samples) => self.time.read(&self.fd, samples).map(Reply::Tsc),
            Request::ReadSyscallEntry => {
                let entry = msr::read(&self.fd, msr::LSTAR);
                entry.map(|entry| Reply::SyscallEntry(Gva(entry)))
            }
            Request::ReadKernelGsBase => msr::read(&self.fd, msr::KERNEL_GS_BASE).map(|base| {
                kernel_gs_base = Some(base);
                Reply::Done
            }),
        };
        if let Ok(mut registers) = self.reader.read(&self.fd) {
            registers.kernel_gs_base = kernel_gs_base;
            mailbox.registers = Some(registers);
        }
        self.unchanged = false;
        mailbox.pending = Pending::Answered(reply);
    }

    /// Arms one breakpoint, or none.
    pub(super) fn set_breakpoint(&mut self, at: Option<Gva>) -> Result<(), kvm_ioctls::Error> {
        self.debugging.set_breakpoint(&self.fd, at)
    }
}

/// A vCPU that is out of the guest.
struct AtRest<'a> {
    vcpu: &'a mut Vcpu,
    rest: Rest,
}

impl Resting for AtRest<'_> {
    fn serve(&mut self, mailbox: &mut Mailbox, request: Request) {
        self.vcpu.serve(mailbox, request);
    }

    fn may_go(&self, mailbox: &Mailbox) -> bool {
        let (vcpu, rest) = (&*self.vcpu, self.rest);
        let has_room = vcpu.wait.as_ref().is_none_or(Wait::is_over);
        let is_held = rest == Rest::Held && vcpu.time.is_held();
        rest != Rest::Exited && has_room && !is_held && !mailbox.state.waits()
    }
}

/// However the thread ends, everybody hears of it: nobody waits for one that has panicked.
struct Farewell {
    number: u16,
    shared: Arc<Shared>,
    events: EventSender,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.shared.lock().state = VcpuState::Stopped;
        self.shared.acknowledged.notify_all();
        if std::thread::panicking() {
            self.events.send(VcpuEvent {
                vcpu: self.number,
                kind: VcpuEventKind::Panicked,
            });
        }
    }
}

/// What KVM says about an internal error: the suberror and its data words.
fn internal_error(fd: &mut VcpuFd) -> String {
    let run = fd.get_kvm_run();
    // SAFETY: the exit reason, which the kernel wrote, says that `internal` is the valid member.
    let internal = unsafe { run.__bindgen_anon_1.internal };
    let name = match internal.suberror {
        1 => "instruction emulation failed",
        2 => "simultaneous exceptions",
        3 => "exit while delivering an event",
        4 => "unexpected exit reason",
        _ => "unknown",
    };
    let words = usize::try_from(internal.ndata)
        .unwrap_or(0)
        .min(internal.data.len());
    let data = internal.data.get(..words).unwrap_or_default();
    format!(
        "KVM internal error {} ({name}), data {data:x?}",
        internal.suberror
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::{Gate, events};

    #[test]
    fn a_thread_that_panics_is_out_of_the_guest_and_said_to_be() {
        let shared = Arc::new(Shared::new(Arc::new(Gate::default())));
        let (sender, receiver) = events().unwrap();
        let farewell = Farewell {
            number: 3,
            shared: Arc::clone(&shared),
            events: sender,
        };
        let thread = std::thread::spawn(move || {
            let _farewell = farewell;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(shared.lock().state, VcpuState::Stopped);
        let said = receiver.next().map(|event| (event.vcpu, event.kind));
        assert_eq!(said, Some((3, VcpuEventKind::Panicked)));
    }
}
