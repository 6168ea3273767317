//! `vmm run`: boots a guest and stays with it until it ends.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use super::ended::{report, show};
use super::this_host::this_host;
use super::written::{outputs, places, scratch};
use crate::bell::Bell;
use crate::breakpoint::registers_exit;
use crate::clock::{can_be_set_back, offset_is_applied};
use crate::confine::places::{hold_files, write_only_in};
use crate::confine::privileges::{give_up_capabilities, give_up_gains};
use crate::confine::root::{Deed, refuse_root};
use crate::confine::{self, Guest, Role};
use crate::control::outputs::Outputs;
use crate::control::server::Server;
use crate::devices::console::{ConsoleLost, ConsoleWriter};
use crate::event_loop::{CONTROL, Ended, EventLoop, Limit, Watch};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::host::clock_page::check_cpu;
use crate::host::kernel_events::KernelEvents;
use crate::layout;
use crate::loader::{Initrd, KernelFile};
use crate::machine::{BuildError, Machine, MachineConfig, open_kvm};
use crate::options::trigger::{Action, Trigger};
use crate::run::{Places, Run};
use crate::signals::Signals;
use crate::terminal::ConsoleStdin;
use crate::trial::TrialError;
use crate::trial::features::{Speed, ring0_speed};
use crate::triggers::{Starter, Starters, Triggers, check_room};
use crate::verbs::run::RunOptions;
use crate::watchdog::Watchdog;
use image::Image;
use tempfile::TempDir;
use tracer::host_events::HostTeller;
use tracer::tracing::options::WaitTime;
use tracer::tracing::{Kernel, Tracing, TracingError};

/// Time that the console output has to get out after the guest has ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the guest.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn run(options: &RunOptions) -> Result<ExitStatus, Failure> {
    refuse_root(Deed::Run, options.as_root.allow_root).map_err(Failure::bad_input)?;
    if let Some(message) = options.traced.useless(options.control.is_some()) {
        return Err(Failure::bad_input(message));
    }
    options.traced.check_method()?;
    options.traced.session.check_dumps()?;
    check_room(0, options.traced.session.trigger.len())?;
    // As long as nothing has been made there is nothing to finish: a signal ends the process at once.
    let kernel = read_kernel(options)?;
    // Before any thread is made: all of them inherit what was given up, and what is blocked.
    give_up_gains().map_err(Failure::bad_input)?;
    give_up_capabilities().map_err(Failure::bad_input)?;
    // Before there is a guest: who looks for the machine of this process finds one.
    try_this_host()?;
    if kernel.is_linux() {
        warn_of_emulation(ring0_speed());
    }
    options.traced.try_method()?;
    hold_files().map_err(Failure::bad_input)?;
    options.held.hold(Guest::Own).map_err(Failure::bad_input)?;
    let signals = Signals::take_over().map_err(Failure::bad_input)?;
    let console = console().map_err(Failure::output)?;
    let outcome = boot(options, &kernel, signals, &console).and_then(|(events, scratch)| {
        confine::enter(Role::Main);
        let ended = events.run().map_err(Failure::bad_input)?;
        Ok((ended, scratch))
    });
    let printed = console.finish(CONSOLE_PATIENCE);
    // What is there is shown before it goes.
    let ended = outcome.and_then(|(Ended { outcome, finished }, _scratch)| {
        show(finished);
        report(outcome)
    });
    let (ended, lost) = with_console(ended, printed);
    if let Some(lost) = lost {
        log::warn!("{lost}");
    }
    ended
}

/// Writes to stdout what the guest prints, without a buffer: what waits in one would count as written.
fn console() -> std::io::Result<ConsoleWriter> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
    ConsoleWriter::start(File::from(stdout))
}

/// How the run ends that has ended so, and printed what came of that; and what is to be mentioned beside: an end that failed
/// says more than that output is lost.
fn with_console(
    ended: Result<ExitStatus, Failure>,
    printed: Result<(), ConsoleLost>,
) -> (Result<ExitStatus, Failure>, Option<ConsoleLost>) {
    match (ended, printed) {
        (Ok(ExitStatus::Success | ExitStatus::Guest(0)), Err(lost)) => {
            (Err(Failure::output(lost)), None)
        }
        (ended, printed) => (ended, printed.err()),
    }
}

/// What is tried when somebody wants to know it is tried now: later no thread makes a VM for that, or opens KVM.
///
/// # Errors
/// When there is no KVM to try it with.
fn try_this_host() -> Result<(), BuildError> {
    let _ = open_kvm()?;
    let _ = (offset_is_applied(), can_be_set_back(), registers_exit());
    Ok(())
}

/// Says so before it boots where that would take hours, or not come to an end at all.
fn warn_of_emulation(ring0: Result<Speed, TrialError>) {
    if let Some(warning) = ring0.ok().and_then(of_emulation) {
        log::warn!("{warning}");
    }
}

fn of_emulation(ring0: Speed) -> Option<String> {
    let ns = ring0.ns_per_instruction;
    ring0.is_emulated().then(|| {
        format!(
            "the KVM of this host emulates each instruction of a guest's kernel ({ns:.0} ns each): a Linux does not get through its boot; \
             `vmm doctor` says what to do"
        )
    })
}

fn read_kernel(options: &RunOptions) -> Result<KernelFile, Failure> {
    KernelFile::read(&options.kernel)
        .and_then(|kernel| kernel.with_symbols(options.symbols.as_deref()))
        .and_then(|kernel| kernel.with_module(options.module.as_deref()))
        .map_err(Failure::bad_input)
}

/// What the guest is to have.
fn config(options: &RunOptions) -> Result<MachineConfig, Failure> {
    let initrd = options.initrd.as_deref().map(Initrd::read).transpose();
    Ok(MachineConfig {
        initrd: initrd.map_err(Failure::bad_input)?,
        cmdline: options.cmdline.clone(),
        vcpus: options.vcpus,
        memory_mib: options.memory,
        window_bytes: layout::WINDOW_SIZE,
        nested: options.nested,
        host_events: options.host_events.is_some(),
    })
}

/// What the kernel's file says, once it is known that its text can be changed as is asked.
fn image(
    options: &RunOptions,
    kernel: &KernelFile,
    machine: &mut Machine,
) -> Result<Image, Failure> {
    let image = kernel
        .image()
        .map_err(|error| Failure::bad_input(kernel.refused(&error)))?;
    if options.traced.is_live() {
        machine
            .serve_breakpoints(&image)
            .map_err(|why| Failure::bad_input(format!("{why}; use --patch-method quiesce")))?;
    }
    Ok(image)
}

/// Its tracing, with the output made.
fn tracing(options: &RunOptions, kernel: &KernelFile, image: Image) -> Result<Tracing, Failure> {
    let traced = Kernel {
        image,
        debug: kernel.debug(),
        name: kernel.path().display().to_string(),
    };
    let tracing = Tracing::new(options.tracing(), traced, this_host());
    tracing.map_err(|error| match error {
        TracingError::Image(error) => Failure::bad_input(kernel.refused(&error)),
        other => other.into(),
    })
}

/// The host's kernel, if it is what tells of host events; else the threads do.
fn host_source(teller: HostTeller, wait_time: WaitTime) -> Result<Option<KernelEvents>, Failure> {
    let asked = match (teller, wait_time) {
        (HostTeller::Threads, _) => return Ok(None),
        (HostTeller::Kernel, _) => {
            return KernelEvents::new().map(Some).map_err(Failure::bad_input);
        }
        (HostTeller::Auto, WaitTime::Hidden) => Err("no kernel knows of hidden waits".to_owned()),
        (HostTeller::Auto, WaitTime::Visible) => {
            KernelEvents::new().map_err(|error| error.to_string())
        }
    };
    match asked {
        Ok(source) => {
            log::info!("host events: told by the host's kernel");
            Ok(Some(source))
        }
        Err(why) => {
            log::info!("host events: told by the threads of the vCPUs ({why})");
            Ok(None)
        }
    }
}

/// Has whoever knows most of them tell of host events. Returns where the host's kernel has something of ours then.
fn choose_teller(options: &RunOptions, machine: &Machine) -> Result<Option<PathBuf>, Failure> {
    if let (Some(teller), Some(events)) = (options.host_events, &machine.host_events)
        && let Some(source) = host_source(teller, options.traced.session.wait_time)?
    {
        let instances = source.instances();
        events.know_by(Box::new(source));
        return Ok(Some(instances));
    }
    Ok(None)
}

/// From now on what is written has its places. What triggers run that were named when the run began can write wherever its
/// user can; what clients have run can write where the run can.
fn hold_to_places(
    options: &RunOptions,
    outputs: &Outputs,
    scratch: Option<&TempDir>,
    instances: Option<PathBuf>,
) -> Result<Starters, Failure> {
    let runs = |trigger: &Trigger| matches!(trigger.action, Action::Run(_));
    let has_any = options.traced.session.trigger.iter().any(runs);
    let named = has_any.then(|| Starter::start("commands")).transpose()?;
    write_only_in(&places(options, outputs, scratch, instances)).map_err(Failure::bad_input)?;
    let asked = Starter::start("client commands")?;
    Ok(Starters {
        named: named.unwrap_or_else(|| asked.clone()),
        asked,
    })
}

/// Everything up to the moment when the guest runs, cheap checks first. Returns, too, what goes when the run is over.
fn boot(
    options: &RunOptions,
    kernel: &KernelFile,
    signals: Signals,
    console: &ConsoleWriter,
) -> Result<(EventLoop<Machine>, Option<TempDir>), Failure> {
    let outputs = outputs(&options.traced)?;
    let mut machine = Machine::build(&config(options)?, kernel, console.queue())?;
    let instances = choose_teller(options, &machine)?;
    let listen = |path| Server::listen(path, CONTROL).map_err(Failure::bad_input);
    let control = options.control.as_deref().map(listen).transpose()?;
    if let Some(cpu) = options.traced.session.clock_cpu {
        check_cpu(cpu).map_err(Failure::bad_input)?;
    }
    let image = image(options, kernel, &mut machine)?;
    // Last of the checks: it may replace an older trace.
    let mut tracing = tracing(options, kernel, image)?;
    let mut target = machine.before_start().ok_or(BuildError::AlreadyStarted)?;
    if let Some(at) = tracing.before_start(&mut target)? {
        machine.set_breakpoint(Some(at)).map_err(Failure::tracing)?;
    }
    let stdin = Some(ConsoleStdin::open().map_err(Failure::bad_input)?);
    let limit = options.timeout.map(Limit::start);
    let limit = limit.transpose().map_err(Failure::bad_input)?;
    let bell = Bell::new().map_err(Failure::bad_input)?;
    let scratch = scratch(options);
    // What is opened for writing elsewhere is open by now.
    let starters = hold_to_places(options, &outputs, scratch.as_ref(), instances)?;
    let triggers = &options.traced.session.trigger;
    let triggers = Triggers::begin(triggers, (bell, starters), &mut tracing)?;
    machine.start()?;
    let name = options.kernel.display().to_string();
    let places = Places {
        outputs,
        scratch: scratch
            .as_ref()
            .map_or_else(std::env::temp_dir, |folder| folder.path().to_owned()),
    };
    let run = Run::new(machine, tracing, name, triggers, places);
    let watch = Watch::start(run.watch_period()).map_err(Failure::bad_input)?;
    let watchdog = Watchdog::start().map_err(Failure::bad_input)?;
    let events = EventLoop {
        run,
        signals,
        stdin,
        limit,
        watch,
        control,
        watchdog,
    };
    Ok((events, scratch))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who booted a Linux there saw a few lines of it, or none, and no word of why.
    #[test]
    fn a_kvm_that_emulates_is_warned_of_with_where_more_is_said() {
        let at = |ns_per_instruction| of_emulation(Speed { ns_per_instruction });
        let warning = at(612.4).unwrap();
        assert!(warning.contains("(612 ns each)"), "{warning}");
        assert!(warning.contains("`vmm doctor`"), "{warning}");
        assert_eq!(at(0.4), None);
    }

    /// Of a guest that panicked, crashed or had no time left, and of an interrupted run, nothing said so.
    #[test]
    fn console_output_that_is_lost_is_said_however_the_run_ends() {
        let lost = || Err(ConsoleLost::Stalled(7));
        for good in [ExitStatus::Success, ExitStatus::Guest(0)] {
            let (ended, more) = with_console(Ok(good), lost());
            let failure = ended.unwrap_err();
            assert_eq!(failure.status, ExitStatus::OutputFailed);
            assert!(failure.message.contains("7 bytes") && more.is_none());
            let (ended, more) = with_console(Ok(good), Ok(()));
            assert_eq!((ended.unwrap(), more.is_none()), (good, true));
        }
        let (ended, more) = with_console(Ok(ExitStatus::Guest(2)), lost());
        assert_eq!(
            (ended.unwrap(), more.is_some()),
            (ExitStatus::Guest(2), true)
        );
        let panicked = Failure::new(ExitStatus::GuestPanicked, "it panicked");
        let (ended, more) = with_console(Err(panicked), lost());
        let failure = ended.unwrap_err();
        assert_eq!(
            (failure.status, more.is_some()),
            (ExitStatus::GuestPanicked, true)
        );
    }
}
