//! Arguments of `vmm ctl`. Its verbs are the methods of the control protocol: what they take and what is told of them is
//! said there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::control::methods::dynfunc::{ListDynamic, ResetDynamic, SetDynamic};
use crate::control::methods::events::{DisableEvents, EnableEvents, ListEvents};
use crate::control::methods::filters::{AddFilter, ClearFilter, RemoveFilter, SetFilter};
use crate::control::methods::guest::{
    Pause, Resume, ShowStatus, ShutDown, SwitchLocks, TakeDigest,
};
use crate::control::methods::probes::{
    AddProbes, DisableProbes, EnableProbes, ListProbes, RemoveProbes,
};
use crate::control::methods::service::{ShowErrors, ShowVersion};
use crate::control::methods::sessions::{CreateSession, DeleteSession, ListSessions, SessionName};
use crate::control::methods::tasks::{AddTasks, ClearTasks, RemoveTasks, SetTasks, ShowTasks};
use crate::control::methods::tracing::{
    ClearVcpus, Dump, ListFunctions, SetVcpus, ShowProfile, Start, Stop, Thaw, TracingOff,
    TracingOn,
};
use crate::failure::Failure;
use crate::options::quantities;

/// Talk to a running `vmm run --control PATH`
///
/// Example: vmm ctl --control vm.sock start --filter 'calls_*'
#[derive(Debug, Args)]
pub struct CtlOptions {
    /// The socket that was given to `vmm run`
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "EXOTRACE_CONTROL",
        hide_env_values = true
    )]
    control: Option<PathBuf>,
    /// The session that start, stop, filter, probe, tracing-on, tracing-off, dump, profile and top are
    /// about
    #[arg(long, global = true, value_name = "NAME", default_value_t)]
    pub session: SessionName,
    /// Print the raw JSON result
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub(crate) verb: CtlVerb,
}

impl CtlOptions {
    /// The socket.
    ///
    /// # Errors
    /// [`Failure`] where it is not named.
    pub fn control(&self) -> Result<&Path, Failure> {
        self.control.as_deref().ok_or_else(|| {
            Failure::bad_input(
                "which run? --control PATH names the socket that was given to `vmm run`, and so does EXOTRACE_CONTROL in the environment",
            )
        })
    }
}

/// The verbs: each is one method.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlVerb {
    Status(ShowStatus),
    Functions(ListFunctions),
    /// Make, delete and list sessions: up to 16, each with filters and rings of its own
    #[command(subcommand)]
    Session(SessionVerb),
    Start(Start),
    Stop(Stop),
    /// Change which functions are traced
    #[command(subcommand)]
    Filter(FilterVerb),
    TracingOn(TracingOn),
    TracingOff(TracingOff),
    /// Choose the vCPUs that a session records
    #[command(subcommand)]
    Vcpus(VcpusVerb),
    /// Choose the tasks that a session records
    #[command(subcommand)]
    Tasks(TasksVerb),
    /// List, enable and disable the events that the guest declares
    #[command(subcommand)]
    Events(EventsVerb),
    /// Set, list and remove probes: what a session captures at places that you name
    #[command(subcommand)]
    Probe(ProbeVerb),
    /// List and retarget the guest's dynamic functions
    #[command(subcommand)]
    Dynfunc(DynfuncVerb),
    Pause(Pause),
    Resume(Resume),
    Dump(Dump),
    Profile(ShowProfile),
    Top(TopOptions),
    Tail(TailOptions),
    SmpLocks(SwitchLocks),
    Thaw(Thaw),
    Digest(TakeDigest),
    Errors(ShowErrors),
    Shutdown(ShutDown),
    Version(ShowVersion),
}

/// Watch what a session counts: on a terminal a screen with keys, else tables, most self time first
#[derive(Debug, Clone, Args)]
pub struct TopOptions {
    /// Which session: a profile, or any other, of which calls are counted from now on
    #[arg(from_global)]
    pub session: SessionName,
    /// Print N tables as text, no screen (default: 1 where the output is no terminal)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Time between two looks, in ms or with a unit, as 2s
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = quantities::milliseconds)]
    pub interval: Duration,
}

/// Show what a session records, as it comes: text, or with --json one object per line
#[derive(Debug, Clone, Args)]
pub struct TailOptions {
    /// Which session
    #[arg(from_global)]
    pub session: SessionName,
    /// End after N events of the guest, lines about what is missing not counted (default: with the session)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// What can be done with sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionVerb {
    Create(Box<CreateSession>),
    List(ListSessions),
    Delete(DeleteSession),
}

/// Ways to change the filter.
#[derive(Debug, Subcommand)]
pub(crate) enum FilterVerb {
    Add(AddFilter),
    Remove(RemoveFilter),
    Set(SetFilter),
    Clear(ClearFilter),
}

/// What can be done with vCPUs.
#[derive(Debug, Subcommand)]
pub(crate) enum VcpusVerb {
    Set(SetVcpus),
    Clear(ClearVcpus),
}

/// What can be done with tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum TasksVerb {
    Set(SetTasks),
    Add(AddTasks),
    Remove(RemoveTasks),
    Clear(ClearTasks),
    Show(ShowTasks),
}

/// What can be done with events.
#[derive(Debug, Subcommand)]
pub(crate) enum EventsVerb {
    List(ListEvents),
    Enable(EnableEvents),
    Disable(DisableEvents),
}

/// What can be done with probes.
#[derive(Debug, Subcommand)]
pub(crate) enum ProbeVerb {
    Add(AddProbes),
    List(ListProbes),
    Remove(RemoveProbes),
    Enable(EnableProbes),
    Disable(DisableProbes),
}

/// What can be done with dynamic functions.
#[derive(Debug, Subcommand)]
pub(crate) enum DynfuncVerb {
    List(ListDynamic),
    Set(SetDynamic),
    Reset(ResetDynamic),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory};

    use crate::cli::Cli;
    use crate::control::method::{Method, Visitor};
    use crate::control::methods::visit_all;

    /// What each method says of itself.
    #[derive(Default)]
    struct Methods(BTreeSet<(String, String)>);

    impl Visitor for Methods {
        fn visit<M: Method>(&mut self) {
            let method = M::augment_args(Command::new(M::NAME));
            self.0.insert((M::NAME.to_owned(), about(&method)));
        }
    }

    fn about(command: &Command) -> String {
        command.get_about().unwrap().to_string()
    }

    /// The verbs below a command, by their names with dots between them.
    fn verbs(of: &Command, path: &str, into: &mut BTreeSet<(String, String)>) {
        for verb in of.get_subcommands() {
            let name = format!("{path}{}", verb.get_name());
            match verb.has_subcommands() {
                true => verbs(verb, &format!("{name}."), into),
                false => drop(into.insert((name, about(verb)))),
            }
        }
    }

    #[test]
    fn each_verb_is_the_method_of_its_name_and_each_method_has_a_verb() {
        let mut methods = Methods::default();
        visit_all(&mut methods);
        let command = Cli::command();
        let mut found = BTreeSet::new();
        verbs(command.find_subcommand("ctl").unwrap(), "", &mut found);
        // The only one that is another's, again and again, and the one that has what is told after a reply.
        found.retain(|(name, _)| name != "top" && name != "tail");
        methods.0.retain(|(name, _)| name != "subscribe");
        let differ: Vec<_> = found.symmetric_difference(&methods.0).collect();
        assert!(differ.is_empty(), "only one of them has {differ:?}");
    }
}
