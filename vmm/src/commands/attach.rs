//! `vmm attach`: traces a guest that another VMM runs, and lets it go.

use std::time::{Duration, Instant};

use super::ended::{report, show};
use super::follow::{Followed, follow};
use super::given_kernel::GivenKernel;
use super::in_memory;
use super::restore::restore;
use super::this_host::this_host;
use super::written::outputs;
use crate::bell::Bell;
use crate::confine;
use crate::confine::privileges::give_up_gains;
use crate::confine::root::{Deed, refuse_root};
use crate::control::server::Server;
use crate::event_loop::{CONTROL, Ended, EventLoop, Limit, Watch};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::foreign::Foreign;
use crate::foreign::listed::chosen;
use crate::foreign::process::Process;
use crate::host::clock_page::check_cpu;
use crate::host::kernel_events::KernelEvents;
use crate::layout::MIB;
use crate::options::trigger::Trigger;
use crate::outcome::Outcome;
use crate::provider::Provider as _;
use crate::run::{Places, Run};
use crate::signals::{Signals, set_last_words};
use crate::triggers::{Starters, Triggers, check_room};
use crate::verbs::attach::AttachOptions;
use crate::watchdog::Watchdog;
use terms::quantity::counted;
use trace::export::uftrace::take_away;
use tracer::Mode;
use tracer::guest::Guest;
use tracer::tracing::lossless::NotLossless;
use tracer::tracing::{Kernel, Tracing, TracingError};

/// Traces the guest.
///
/// # Errors
/// [`Failure`] with one line for the user; then nothing of ours is in the guest.
pub fn attach(options: &AttachOptions) -> Result<ExitStatus, Failure> {
    refuse_root(Deed::Attach, options.as_root.allow_root).map_err(Failure::bad_input)?;
    if options.restore {
        return only_restore(options);
    }
    check(options)?;
    let pid = chosen(options.guest.as_deref())?;
    let file = options.kernel.as_deref();
    let file = file.map(|path| GivenKernel::read(path, options));
    let file = file.transpose()?;
    // Before any thread is made: all of them inherit what was given up, and what is blocked.
    give_up_gains().map_err(Failure::bad_input)?;
    let process = Process::open(pid)?;
    // What is no guest, or may not be looked at, is said alone: nothing was tried for it.
    let found = process.vm_descriptor();
    let found = found.and_then(|_| process.check_mapped_files());
    let found = found.map_err(Failure::from);
    found.map_err(|failure| ended_instead(&process, failure))?;
    options.traced.try_method()?;
    // The main thread is not held: it holds another process, and has that process call what it needs.
    options
        .held
        .hold(confine::Guest::OfProcess(pid))
        .map_err(Failure::bad_input)?;
    let signals = Signals::take_over().map_err(Failure::bad_input)?;
    let end = options.duration.map(|duration| Instant::now() + duration);
    let begin = |kernel, end| {
        begin(
            options,
            (pid, kernel),
            file.as_ref(),
            (signals.clone(), end),
        )
        // Of one that could not be traced nothing is changed.
        .inspect_err(|_| set_last_words(None))
    };
    let mut events = begin(1, end).map_err(|failure| ended_instead(&process, failure))?;
    for kernel in 2.. {
        let Ended { outcome, finished } = events.run().map_err(Failure::bad_input)?;
        // It was let go.
        set_last_words(None);
        show(finished);
        let outcome = vanished_instead(&process, outcome);
        if !options.follow || !matches!(outcome, Outcome::Replaced) {
            return report(outcome);
        }
        log::info!("waiting for the guest's next kernel");
        let mut heard = signals.clone();
        match follow(&process, &mut heard, end, || begin(kernel, end))? {
            Followed::Begun(next) => events = *next,
            Followed::Ended(outcome) => return report(outcome),
        }
    }
    Ok(ExitStatus::Success)
}

/// Whether what was asked for can be done to any guest of another process.
fn check(options: &AttachOptions) -> Result<(), Failure> {
    if let Some(message) = options.traced.useless(options.control.is_some()) {
        return Err(Failure::bad_input(message));
    }
    if !options.traced.is_enabled() && options.control.is_none() {
        let message = "nothing would be traced: say what (--trace, --event, --probe), or how to be told (--control)";
        return Err(Failure::bad_input(message));
    }
    options.traced.check_method()?;
    options.traced.to_tracing().check_filter(None)?;
    options.traced.session.check_output()?;
    options.traced.session.check_dumps()?;
    check_room(0, options.traced.session.trigger.len())?;
    if options.follow {
        options.check_later().map_err(TracingError::from)?;
    }
    // Before the guest is held for what cannot be.
    if options.traced.session.mode == Mode::Lossless {
        return Err(TracingError::from(NotLossless::Foreign).into());
    }
    if options.traced.is_live() {
        let message = "--patch-method live: not with `vmm attach`: its breakpoints would be exits to the guest's VMM, which does not serve them; \
                       use --patch-method quiesce";
        return Err(Failure::bad_input(message));
    }
    Ok(())
}

/// Why a guest is not traced: of one whose VMM has ended meanwhile that, and not what could not be done for it.
fn ended_instead(process: &Process, failure: Failure) -> Failure {
    match process.is_ending() {
        true => {
            log::debug!("{}", failure.message);
            let pid = process.pid();
            Failure::bad_input(format!(
                "process {pid} has ended, and the guest with it, before it was traced"
            ))
        }
        false => failure,
    }
}

/// The same for how a run has ended.
fn vanished_instead(process: &Process, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed(failure) if failure.status != ExitStatus::TracingFailed => {
            Outcome::Failed(failure)
        }
        // It was seen when it ended.
        Outcome::Vanished(_) | Outcome::Killed { .. } => outcome,
        _ if process.is_ending() => Outcome::of_ended(process),
        outcome => outcome,
    }
}

/// Gives back what was left, and traces nothing.
fn only_restore(options: &AttachOptions) -> Result<ExitStatus, Failure> {
    if options.traced.is_enabled() {
        let message = "--restore gives back what was left in the guest, and traces nothing: leave the rest out";
        return Err(Failure::bad_input(message));
    }
    let pid = chosen(options.guest.as_deref())?;
    if restore(pid)? == 0 {
        log::info!("process {pid}: nobody has left anything there");
    }
    Ok(ExitStatus::Success)
}

/// Everything up to the moment when tracing has begun, cheap checks first.
fn begin(
    options: &AttachOptions,
    (pid, kernel_number): (i32, u32),
    file: Option<&GivenKernel>,
    (signals, end): (Signals, Option<Instant>),
) -> Result<EventLoop<Foreign>, Failure> {
    let outputs = outputs(&options.traced)?;
    let listen = |path| Server::listen(path, CONTROL).map_err(Failure::bad_input);
    // Of a guest that is waited for, when it can be traced: nobody is to be heard and not served.
    let first = options.control.as_deref().filter(|_| kernel_number == 1);
    let mut control = first.map(listen).transpose()?;
    let (guest, kernel) = find(options, (pid, kernel_number), file)?;
    let name = kernel.name.clone();
    let options_of = options.tracing(Guest::vcpus(&guest), kernel_number);
    let output = options_of.session.output.clone();
    let host = this_host();
    let command = host.command_line.clone();
    let tracing = Tracing::new(options_of, kernel, host)?;
    let triggers = options.triggers(kernel_number);
    let begun = || {
        if control.is_none() {
            control = options.control.as_deref().map(listen).transpose()?;
        }
        let places = Places {
            outputs,
            scratch: std::env::temp_dir(),
        };
        let run = run_of(guest, (tracing, name), &triggers, places)?;
        begun(run, (signals, limit(end)?), control)
    };
    begun().inspect_err(|_| {
        if let Some(Err(error)) = output.map(|output| take_away(&output, &command)) {
            log::warn!("a trace without anything in it is left: {error}");
        }
    })
}

/// The guest, which is held for that, and the kernel that it runs.
fn find(
    options: &AttachOptions,
    (pid, kernel_number): (i32, u32),
    file: Option<&GivenKernel>,
) -> Result<(Foreign, Kernel), Failure> {
    if let Some(cpu) = options.traced.session.clock_cpu {
        check_cpu(cpu).map_err(Failure::bad_input)?;
    }
    let host = options.host_events.then(KernelEvents::new).transpose();
    let host = host.map_err(Failure::bad_input)?;
    // While nobody holds it: who has just been let go is not seen to be stopped yet.
    let is_stopped = Process::open(pid)?.is_stopped();
    restore(pid)?;
    set_last_words(Some(last_words(pid)));
    let mut guest = Foreign::attach(pid)?;
    let held = guest.last_pause().as_secs_f64() * 1000.0;
    let kernel = kernel_of(&guest, file, kernel_number)?;
    log::info!(
        "attached to process {pid}: {}, {} MiB; held for {held:.1} ms",
        counted(u64::from(Guest::vcpus(&guest)), "vCPU"),
        guest.ram_bytes() / MIB
    );
    if is_stopped {
        log::warn!(
            "process {pid} is stopped (SIGSTOP): nothing of its guest is executed until it continues (SIGCONT)"
        );
    }
    guest.watch(&kernel.image);
    if let Some(source) = host {
        guest.tell_of_host(source);
    }
    Ok((guest, kernel))
}

/// A run of it, of which nothing has begun.
fn run_of(
    guest: Foreign,
    (mut tracing, kernel): (Tracing, String),
    triggers: &[Trigger],
    places: Places,
) -> Result<Run<Foreign>, Failure> {
    let bell = Bell::new().map_err(Failure::bad_input)?;
    let starters = Starters::of_one("commands")?;
    let triggers = Triggers::begin(triggers, (bell, starters), &mut tracing)?;
    Ok(Run::new(guest, tracing, kernel, triggers, places))
}

/// Begins to trace.
fn begun(
    mut run: Run<Foreign>,
    (signals, limit): (Signals, Option<Limit>),
    control: Option<Server>,
) -> Result<EventLoop<Foreign>, Failure> {
    let watch = Watch::start(run.watch_period()).map_err(Failure::bad_input)?;
    let watchdog = Watchdog::start().map_err(Failure::bad_input)?;
    // Last: what is changed in the guest from here on the end of the run gives back.
    run.begin()?;
    Ok(EventLoop {
        run,
        signals,
        stdin: None,
        limit,
        watch,
        control,
        watchdog,
    })
}

/// What is left when this is ended at once.
fn last_words(pid: i32) -> String {
    format!(
        "ended at once: what is changed in the guest of process {pid} stays until `vmm attach {pid} --restore`"
    )
}

/// Lets the guest go then.
fn limit(end: Option<Instant>) -> Result<Option<Limit>, Failure> {
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    // A timer of no time would never fire.
    let left = left.map(|left| left.max(Duration::from_millis(1)));
    let limit = left.map(Limit::wanted).transpose();
    limit.map_err(Failure::bad_input)
}

/// The kernel that runs, by its file or as the memory has it.
fn kernel_of(
    guest: &Foreign,
    file: Option<&GivenKernel>,
    kernel_number: u32,
) -> Result<Kernel, Failure> {
    let Some(file) = file else {
        return in_memory::kernel(guest);
    };
    let kernel = of_file(file, guest)?;
    if kernel_number > 1 && kernel.image.linux.is_some() {
        // One that starts just now says so itself.
        in_memory::kernel(guest)?;
    }
    Ok(kernel)
}

/// The kernel, as its file says; a Linux wherever it was put, if it is the one that runs.
fn of_file(file: &GivenKernel, guest: &Foreign) -> Result<Kernel, Failure> {
    let Kernel { image, debug, name } = file.kernel()?;
    if image.linux.is_none() {
        return Ok(Kernel { image, debug, name });
    }
    let refused = |error| Failure::bad_input(format!("{name}: {error}"));
    let moved = in_memory::map_of(guest)?
        .moved(guest.memory(), image)
        .map_err(refused)?;
    let debug = debug.map(|debug| debug.moved_by(moved.slide));
    let image = moved.image;
    Ok(Kernel { image, debug, name })
}
