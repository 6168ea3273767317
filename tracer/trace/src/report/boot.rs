//! Where a boot went: what its first functions called, each init call by its name, and what it waited for.
//!
//! A boot is what is called by a few functions that every kernel of a kind has. They are known by their names, which are
//! those of Linux; in the trace of another kernel there are none.

use std::cmp::Reverse;
use std::collections::HashMap;

use terms::function::FunctionId;
use terms::quantity::{counted, in_microseconds};

use super::directory::TraceDirectory;
use super::functions::Functions;
use super::init_calls::{InitCalls, IsInitCall, Listed, Made};
use super::rows::Rows;
use super::spent::Spent;
use super::table::{Cell, Column, Table, Unit};
use crate::event::{Event, EventKind};

/// The boot is what these call, the first ones for all, the last for those that run init calls and the first program.
const STAGED: [&str; 6] = [
    "x86_64_start_kernel",
    "start_kernel",
    "setup_arch",
    "kernel_init",
    "kernel_init_freeable",
    "do_basic_setup",
];
/// Lies where the init text begins, which is after all other text of the kernel and before modules.
const OF_INIT_TEXT: &str = "start_kernel";
/// Each call of it makes one init call, of the kernel or of a module.
const RUNS_INIT_CALLS: &str = "do_one_initcall";
/// Makes those of consoles, all in one call.
const RUNS_OF_CONSOLES: &str = "console_init";
/// What [`RUNS_INIT_CALLS`] calls of the init text beside that.
const BESIDE_INIT_CALLS: [&str; 3] = [
    "initcall_blacklisted",
    "trace_initcall_start_cb",
    "trace_initcall_finish_cb",
];
/// What calls that has nothing to do any more: it is the idle task.
const IDLE: &str = "rest_init";
/// Another task runs until it returns.
const WAITS: &str = "schedule";
/// How the names of functions begin that wait for somebody, whoever it is.
const WAITING: [&str; 8] = [
    "schedule",
    "io_schedule",
    "wait_",
    "__wait_",
    "do_wait",
    "__mutex_lock",
    "rwsem_down",
    "__down_",
];

/// Where none of [`STAGED`] was called.
const NO_BOOT: &str = "no boot is in this trace: none of the functions was called that one begins with (start_kernel, ...)";

/// Rows of each table when nobody says how many.
const ROWS: usize = 20;

/// What a function is in a boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Any,
    Staged,
    RunsInitCalls,
    RunsOfConsoles,
    BesideInitCalls,
    Idle,
    Waits,
    Waiting,
}

impl Role {
    fn of(name: &str) -> Self {
        let is_waiting = || WAITING.iter().any(|begin| name.starts_with(begin));
        match name {
            WAITS => Self::Waits,
            IDLE => Self::Idle,
            RUNS_INIT_CALLS => Self::RunsInitCalls,
            RUNS_OF_CONSOLES => Self::RunsOfConsoles,
            _ if STAGED.contains(&name) => Self::Staged,
            _ if BESIDE_INIT_CALLS.contains(&name) => Self::BesideInitCalls,
            _ if is_waiting() => Self::Waiting,
            _ => Self::Any,
        }
    }
}

/// A call that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    function: FunctionId,
    role: Role,
    is_init_call: IsInitCall,
    entered_ns: u64,
    /// How long its thread had waited by then.
    waited_ns: u64,
    /// It makes an init call: what it called that may be that.
    made: Made,
    place: Place,
}

/// What is known of a call and of all calls around it, so that nobody has to look at each of them.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    is_of_boot: bool,
    is_idle: bool,
    /// Another task runs.
    is_wait: bool,
    /// Who waits where this does: the innermost that is not about waiting itself.
    waiter: Option<FunctionId>,
    /// Which stage it is in, or init call: the innermost.
    within: Option<FunctionId>,
}

/// What a thread has open, and how long it has waited.
#[derive(Debug, Default)]
struct Thread {
    open: Vec<Open>,
    waited_ns: u64,
}

impl Open {
    /// It has returned after so long, and its thread had waited so long by then.
    const fn spent(&self, total_ns: u64, thread: u32, waited_ns: u64) -> Spent {
        Spent {
            calls: 1,
            total_ns,
            waited_ns: waited_ns.saturating_sub(self.waited_ns),
            entered_ns: self.entered_ns,
            thread,
        }
    }

    /// It has called another one, which lies in the text that comes after that of the kernel if it `is_late`.
    fn has_called(&mut self, ended: Self, spent: Spent, is_late: bool) {
        if self.role != Role::RunsInitCalls {
            return;
        }
        let function = ended.function;
        self.made = match ended.is_init_call {
            IsInitCall::Listed => self.made.and_listed(function, spent),
            IsInitCall::Unsaid if is_late && ended.role == Role::Any => {
                self.made.and(function, spent)
            }
            IsInitCall::Unsaid | IsInitCall::NotListed => return,
        };
    }
}

impl Place {
    /// Of a call of this function, in another one if any is open.
    fn of(function: FunctionId, callee: Known, caller: Option<&Open>) -> Self {
        let around = caller.map(|caller| caller.place).unwrap_or_default();
        let is_named = caller.is_some_and(|caller| match caller.role {
            Role::Staged => true,
            Role::RunsInitCalls => callee.is_init_call != IsInitCall::NotListed,
            Role::RunsOfConsoles => callee.is_init_call == IsInitCall::Listed,
            _ => false,
        });
        let waiter = match callee.role {
            Role::Waiting | Role::Waits => around.waiter,
            _ => Some(function),
        };
        Self {
            is_of_boot: around.is_of_boot || callee.role == Role::Staged,
            is_idle: around.is_idle || callee.role == Role::Idle,
            is_wait: around.is_wait || callee.role == Role::Waits,
            waiter,
            within: is_named.then_some(function).or(around.within),
        }
    }
}

/// What is known of a function.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    role: Role,
    is_init_call: IsInitCall,
    /// It is called by others than who makes init calls.
    has_callers: bool,
}

/// What a boot waited for in one function.
#[derive(Debug, Clone, Copy, Default)]
struct Waited {
    times: u64,
    total_ns: u64,
    longest_ns: u64,
}

/// The boot of a trace, as far as it has been read.
#[derive(Debug, Default)]
pub(super) struct Boot {
    known: HashMap<FunctionId, Known>,
    threads: HashMap<u32, Thread>,
    stages: HashMap<(FunctionId, FunctionId), Spent>,
    init_calls: InitCalls,
    /// By who waited, and in which stage or init call that was.
    waits: HashMap<(Option<FunctionId>, Option<FunctionId>), Waited>,
    /// [`OF_INIT_TEXT`].
    first: Option<FunctionId>,
    begun_ns: Option<u64>,
    /// When a call of the boot was seen last.
    ended_ns: u64,
}

impl Boot {
    /// Of a trace, which has these functions.
    pub fn new(trace: &TraceDirectory, functions: &Functions) -> Self {
        Self {
            init_calls: InitCalls::new(Listed::of(trace, functions)),
            ..Self::default()
        }
    }

    /// The next step of a thread. `name` is that of a function.
    pub fn add(&mut self, step: &Event, name: impl Fn(FunctionId) -> String) {
        let Thread { open, waited_ns } = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                let (first, init_calls) = (&mut self.first, &self.init_calls);
                let known = self.known.entry(function).or_insert_with(|| {
                    let name = name(function);
                    *first = first.or_else(|| (name == OF_INIT_TEXT).then_some(function));
                    Known {
                        role: Role::of(&name),
                        is_init_call: init_calls.says(function),
                        has_callers: false,
                    }
                });
                open.truncate(step.depth as usize);
                let caller = open.last().map(|caller| caller.role);
                known.has_callers |= caller != Some(Role::RunsInitCalls);
                let role = known.role;
                open.push(Open {
                    function,
                    role,
                    is_init_call: known.is_init_call,
                    entered_ns: step.time_ns,
                    waited_ns: *waited_ns,
                    made: Made::Nothing,
                    place: Place::of(function, *known, open.last()),
                });
                if role == Role::Staged {
                    self.begun_ns.get_or_insert(step.time_ns);
                }
            }
            EventKind::Exit { duration, .. } => {
                open.truncate((step.depth as usize).saturating_add(1));
                if let (Some(ended), Some(duration_ns)) = (open.pop(), duration) {
                    self.returned(step, ended, duration_ns);
                }
            }
            _ => {}
        }
    }

    fn returned(&mut self, step: &Event, ended: Open, duration_ns: u64) {
        let Some(Thread { open, waited_ns }) = self.threads.get_mut(&step.thread) else {
            return;
        };
        let around = open.last().map(|caller| caller.place).unwrap_or_default();
        let (is_of_boot, is_idle) = (around.is_of_boot, around.is_idle);
        if (is_of_boot || ended.role == Role::Staged) && !is_idle {
            self.ended_ns = self.ended_ns.max(step.time_ns);
        }
        let spent = ended.spent(duration_ns, step.thread, *waited_ns);
        if let Some(caller) = open.last_mut() {
            if caller.role == Role::Staged {
                let key = (ended.function, caller.function);
                self.stages.entry(key).or_default().add(spent);
            }
            // Numbers of functions are in the order of their addresses.
            let is_late = self.first.is_none_or(|it| ended.function > it);
            caller.has_called(ended, spent, is_late);
            if caller.role == Role::RunsOfConsoles && ended.is_init_call == IsInitCall::Listed {
                let made = Made::default().and_listed(ended.function, spent);
                self.init_calls.add(made, spent);
            }
        }
        if ended.role == Role::RunsInitCalls {
            self.init_calls.add(ended.made, spent);
        }
        let is_outermost = !around.is_wait;
        if ended.role == Role::Waits && is_of_boot && !is_idle && is_outermost {
            *waited_ns = waited_ns.saturating_add(duration_ns);
            let key = (around.waiter, around.within);
            let waited = self.waits.entry(key).or_default();
            waited.times += 1;
            waited.total_ns = waited.total_ns.saturating_add(duration_ns);
            waited.longest_ns = waited.longest_ns.max(duration_ns);
        }
    }

    /// Calls that are open, in all threads.
    #[cfg(test)]
    pub fn open_calls(&self) -> usize {
        self.threads.values().map(|thread| thread.open.len()).sum()
    }

    /// The init calls that are traced: what they took, and what the calls took that made them.
    fn init_calls(&self) -> impl Iterator<Item = (FunctionId, Spent, Spent)> {
        let known = |id| self.known.get(&id);
        let has_callers = move |id| known(id).is_none_or(|known| known.has_callers);
        let named = self.init_calls.named(has_callers);
        named.map(|(id, call)| (id, call.spent, call.made_in))
    }

    /// What stages, init calls and waits there were.
    pub fn tables(&self, rows: &Rows, name: impl Fn(FunctionId) -> String) -> [(Table, usize); 3] {
        let have = |id: FunctionId| rows.have(Some(&name(id)));
        let stages = self
            .stages
            .iter()
            .filter(|((function, _), _)| have(*function))
            .map(|((function, caller), spent)| (*spent, *function, Some(*caller)));
        let init_calls = self
            .init_calls()
            .filter(|(function, ..)| have(*function))
            .map(|(function, spent, _)| (spent, function, None));
        let stages = spent_table(STAGES, stages.collect(), &name);
        let init_calls = spent_table("init_calls", init_calls.collect(), &name);
        let waits = self.waits_table(have, &name);
        let [mut stages, mut init_calls, waits] =
            [stages, init_calls, waits].map(|table| (table.rows.len(), table));
        stages.1.remarks.push(self.remark());
        let rule = self.init_calls.rule().to_owned();
        init_calls.1.remarks.push(rule);
        [stages, init_calls, waits].map(|(all, table)| (table, all))
    }

    /// From where to where, and how much of it was waited.
    fn remark(&self) -> String {
        let Some(begun_ns) = self.begun_ns else {
            return NO_BOOT.to_owned();
        };
        let waited = self.waits.values().map(|waited| waited.total_ns);
        let waited: u64 = waited.fold(0, u64::saturating_add);
        let took = in_microseconds(self.ended_ns.saturating_sub(begun_ns));
        let waited = in_microseconds(waited);
        let runs = self.init_calls.runs;
        let init_calls = counted(runs.calls, "init call");
        let mut named = Spent::default();
        self.init_calls()
            .for_each(|(.., made_in)| named.add(made_in));
        let unnamed = runs.total_ns.saturating_sub(named.total_ns);
        let unnamed = in_microseconds(unnamed);
        let unnamed = match runs.calls.saturating_sub(named.calls) {
            0 => String::new(),
            calls => format!(" ({calls} not traced by name: {unnamed} us)"),
        };
        format!("the boot took {took} us, of which it waited {waited} us; {init_calls}{unnamed}")
    }

    fn waits_table(
        &self,
        have: impl Fn(FunctionId) -> bool,
        name: &impl Fn(FunctionId) -> String,
    ) -> Table {
        let waits = self.waits.iter();
        let mut waits: Vec<_> = waits
            .filter(|((waiter, _), _)| waiter.is_none_or(&have))
            .collect();
        waits.sort_by_key(|(key, waited)| (Reverse(waited.total_ns), **key));
        let row = |((waiter, within), waited): (&(Option<_>, Option<_>), &Waited)| {
            vec![
                waited.times.into(),
                waited.total_ns.into(),
                waited.longest_ns.into(),
                Cell::Name(waiter.map(name)),
                Cell::Name(within.map(name)),
            ]
        };
        Table {
            name: "waits",
            columns: vec![
                Column::new("waits", "WAITS", Unit::Number(7)),
                Column::new("total", "TOTAL us", Unit::Duration(14)),
                Column::new("max", "MAX us", Unit::Duration(14)),
                Column::new("function", "IN FUNCTION", Unit::Name("")),
                Column::new("within", "OF STAGE OR INIT CALL", Unit::Name("of ")),
            ],
            rows: waits.into_iter().map(row).collect(),
            remarks: Vec::new(),
        }
    }
}

/// The table of what calls have callers.
const STAGES: &str = "stages";

/// What took longest comes first.
fn spent_table(
    table: &'static str,
    mut all: Vec<(Spent, FunctionId, Option<FunctionId>)>,
    name: &impl Fn(FunctionId) -> String,
) -> Table {
    all.sort_by_key(|(spent, function, caller)| (Reverse(spent.total_ns), *function, *caller));
    // Also where there is none, and so none that has a caller.
    let has_callers = table == STAGES;
    let row = |(spent, function, caller): (Spent, FunctionId, Option<FunctionId>)| {
        let mut row = vec![
            spent.calls.into(),
            spent.total_ns.into(),
            spent.waited_ns.into(),
            spent.entered_ns.into(),
            u64::from(spent.thread).into(),
            Cell::name(name(function)),
        ];
        row.extend(caller.map(|caller| Cell::name(name(caller))));
        row
    };
    let heading = match has_callers {
        true => "STAGE",
        false => "INIT CALL",
    };
    let mut columns = vec![
        Column::new("calls", "CALLS", Unit::Number(7)),
        Column::new("total", "TOTAL us", Unit::Duration(14)),
        Column::new("waited", "WAITED us", Unit::Duration(14)),
        Column::new("entered", "ENTERED AT s", Unit::Time),
        Column::new("thread", "THREAD", Unit::Number(7)),
        Column::new("function", heading, Unit::Name("")),
    ];
    if has_callers {
        columns.push(Column::new("caller", "<-CALLER", Unit::Name("<-")));
    }
    Table {
        name: table,
        columns,
        rows: all.into_iter().map(row).collect(),
        remarks: Vec::new(),
    }
}

impl Rows {
    /// Of the tables of a boot.
    pub(super) fn of_boot(&self) -> Self {
        Self {
            most: self.most.or(Some(ROWS)),
            ..self.clone()
        }
    }
}
