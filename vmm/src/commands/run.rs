//! `vmm run`: boots a guest and stays with it until it ends.

use std::time::Duration;

use super::ended::{report, show};
use super::this_host::this_host;
use crate::bell::Bell;
use crate::breakpoint::registers_exit;
use crate::clock::{can_be_set_back, offset_is_applied};
use crate::confine::privileges::{give_up_capabilities, give_up_gains};
use crate::confine::{self, Role};
use crate::control::server::Server;
use crate::devices::console::ConsoleWriter;
use crate::event_loop::{CONTROL, Ended, EventLoop, Limit, Watch};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::host::clock_page::check_cpu;
use crate::host::kernel_events::KernelEvents;
use crate::layout;
use crate::loader::{Initrd, KernelFile};
use crate::machine::{BuildError, Machine, MachineConfig, open_kvm};
use crate::run::Run;
use crate::signals::Signals;
use crate::terminal::{self, ConsoleStdin};
use crate::triggers::{Starter, Triggers};
use crate::verbs::run::RunOptions;
use crate::watchdog::Watchdog;
use image::Image;
use tracer::host_events::HostTeller;
use tracer::tracing::options::{PatchMethod, WaitTime};
use tracer::tracing::{Kernel, Tracing, TracingError};

/// Time that the console output has to get out after the guest has ended.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs the guest.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn run(options: &RunOptions) -> Result<ExitStatus, Failure> {
    if let Some(message) = options.traced.useless(options.control.is_some()) {
        return Err(Failure::bad_input(message));
    }
    options.traced.check_method()?;
    options.traced.session.check_dumps()?;
    // As long as nothing has been made there is nothing to finish: a signal ends the process at once.
    let kernel = read_kernel(options)?;
    // Before any thread is made: all of them inherit what was given up, and what is blocked.
    give_up_gains().map_err(Failure::bad_input)?;
    give_up_capabilities().map_err(Failure::bad_input)?;
    if !options.no_seccomp {
        // Before there is a guest: who looks for the machine of this process finds one.
        try_this_host()?;
        confine::hold_threads(terminal::put_back_at_once).map_err(Failure::bad_input)?;
    }
    let signals = Signals::take_over().map_err(Failure::bad_input)?;
    let console = ConsoleWriter::start(std::io::stdout()).map_err(Failure::output)?;
    let outcome = boot(options, &kernel, signals, &console).and_then(|events| {
        confine::enter(Role::Main);
        events.run().map_err(Failure::bad_input)
    });
    let printed = console.finish(CONSOLE_PATIENCE);
    let Ended { outcome, finished } = outcome?;
    show(finished);
    match (report(outcome)?, printed) {
        (ExitStatus::Success | ExitStatus::Guest(0), Err(lost)) => Err(Failure::output(lost)),
        (status, printed) => {
            // The guest's own failure says more; the output is mentioned all the same.
            printed.unwrap_or_else(|lost| log::warn!("{lost}"));
            Ok(status)
        }
    }
}

/// What is tried when somebody wants to know it is tried now: a thread that is held to its list makes no VM for that.
///
/// # Errors
/// When there is no KVM to try it with.
fn try_this_host() -> Result<(), BuildError> {
    let _ = open_kvm()?;
    let _ = (offset_is_applied(), can_be_set_back(), registers_exit());
    Ok(())
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
    if options.traced.method() == PatchMethod::Live {
        machine
            .serve_breakpoints(&image)
            .map_err(|why| Failure::bad_input(format!("{why}; use --patch-method quiesce")))?;
    }
    Ok(image)
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

/// Has whoever knows most of them tell of host events.
fn choose_teller(options: &RunOptions, machine: &Machine) -> Result<(), Failure> {
    if let (Some(teller), Some(events)) = (options.host_events, &machine.host_events)
        && let Some(source) = host_source(teller, options.traced.session.wait_time)?
    {
        events.know_by(Box::new(source));
    }
    Ok(())
}

/// Everything up to the moment when the guest runs, cheap checks first.
fn boot(
    options: &RunOptions,
    kernel: &KernelFile,
    signals: Signals,
    console: &ConsoleWriter,
) -> Result<EventLoop<Machine>, Failure> {
    if options.nested && options.traced.method() == PatchMethod::Live {
        let message = "--nested: text cannot be changed live, for a vCPU that passes by may show the registers of a guest of the guest; use --patch-method quiesce";
        return Err(Failure::bad_input(message));
    }
    let mut machine = Machine::build(&config(options)?, kernel, console.queue())?;
    choose_teller(options, &machine)?;
    let listen = |path| Server::listen(path, CONTROL).map_err(Failure::bad_input);
    let control = options.control.as_deref().map(listen).transpose()?;
    if let Some(cpu) = options.traced.session.clock_cpu {
        check_cpu(cpu).map_err(Failure::bad_input)?;
    }
    let image = image(options, kernel, &mut machine)?;
    let traced = Kernel {
        image,
        debug: kernel.debug(),
        name: kernel.path().display().to_string(),
    };
    // Last of the checks: it may replace an older trace.
    let mut tracing =
        Tracing::new(options.tracing(), traced, this_host()).map_err(|error| match error {
            TracingError::Image(error) => Failure::bad_input(kernel.refused(&error)),
            other => other.into(),
        })?;
    let mut target = machine.before_start().ok_or(BuildError::AlreadyStarted)?;
    if let Some(at) = tracing.before_start(&mut target)? {
        machine.set_breakpoint(Some(at)).map_err(Failure::tracing)?;
    }
    let stdin = ConsoleStdin::open().map_err(Failure::bad_input)?;
    let limit = options.timeout.map(Limit::start);
    let limit = limit.transpose().map_err(Failure::bad_input)?;
    let bell = Bell::new().map_err(Failure::bad_input)?;
    let triggers = Triggers::begin(
        &options.traced.session.trigger,
        (bell, Starter::start()?),
        &mut tracing,
    )?;
    machine.start()?;
    let name = options.kernel.display().to_string();
    let run = Run::new(machine, tracing, name, triggers);
    let watch = Watch::start(run.watch_period()).map_err(Failure::bad_input)?;
    let watchdog = Watchdog::start().map_err(Failure::bad_input)?;
    Ok(EventLoop {
        run,
        signals,
        stdin,
        limit,
        watch,
        control,
        watchdog,
    })
}
