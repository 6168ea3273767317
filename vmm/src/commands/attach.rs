//! `vmm attach`: traces a guest that another VMM runs, and lets it go.

use super::ended::{report, show};
use super::this_host::this_host;
use crate::control::server::Server;
use crate::event_loop::{CONTROL, Ended, EventLoop, Limit, Watch};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::foreign::Foreign;
use crate::foreign::listed::chosen;
use crate::host::clock_page::check_cpu;
use crate::loader::KernelFile;
use crate::run::Run;
use crate::signals::Signals;
use crate::verbs::attach::AttachOptions;
use tracer::guest::Guest as _;
use tracer::tracing::{Kernel, Tracing};

/// Traces the guest.
///
/// # Errors
/// [`Failure`] with one line for the user; then nothing of ours is in the guest.
pub fn attach(options: &AttachOptions) -> Result<ExitStatus, Failure> {
    if options.output_is_useless() {
        let message = "--output: nothing would be written; say what to trace (--trace, --event, --probe), or how to be told (--control)";
        return Err(Failure::bad_input(message));
    }
    let pid = chosen(options.guest.as_deref())?;
    let kernel = KernelFile::read(&options.kernel)
        .and_then(|kernel| kernel.with_symbols(options.symbols.as_deref()))
        .map_err(Failure::bad_input)?;
    // Before any thread is made: all of them inherit what is blocked.
    let signals = Signals::take_over().map_err(Failure::bad_input)?;
    let events = begin(options, pid, &kernel, signals)?;
    let Ended { outcome, finished } = events.run().map_err(Failure::bad_input)?;
    show(finished);
    report(outcome)
}

/// Everything up to the moment when tracing has begun, cheap checks first.
fn begin(
    options: &AttachOptions,
    pid: i32,
    kernel: &KernelFile,
    signals: Signals,
) -> Result<EventLoop<Foreign>, Failure> {
    let listen = |path| Server::listen(path, CONTROL).map_err(Failure::bad_input);
    let control = options.control.as_deref().map(listen).transpose()?;
    if let Some(cpu) = options.traced.session.clock_cpu {
        check_cpu(cpu).map_err(Failure::bad_input)?;
    }
    let image = kernel
        .image()
        .map_err(|error| Failure::bad_input(kernel.refused(&error)))?;
    let guest = Foreign::attach(pid)?;
    let traced = Kernel {
        image,
        debug: kernel.debug(),
        name: kernel.path().display().to_string(),
    };
    let options_of = options.tracing(guest.vcpus());
    let mut tracing = Tracing::new(options_of, traced, this_host())?;
    tracing.before_attaching();
    let limit = options.duration.map(Limit::wanted).transpose();
    let limit = limit.map_err(Failure::bad_input)?;
    let mut run = Run::new(guest, tracing, options.kernel.display().to_string());
    run.begin()?;
    let watch = Watch::start(run.watch_period()).map_err(Failure::bad_input)?;
    Ok(EventLoop {
        run,
        signals,
        stdin: None,
        limit,
        watch,
        control,
    })
}
