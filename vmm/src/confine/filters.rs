//! The lists as the system takes them: programs of seccomp (seccomp(2)), one for each role.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use super::lists::{Call, Only, Value, calls};
use super::{Guest, Role};

/// Threads cannot be held to lists.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// A list is not one.
    #[error("the system calls of {role} threads are no program: {source}")]
    Compile {
        /// Whose list.
        role: &'static str,
        /// What is wrong with it.
        #[source]
        source: seccompiler::BackendError,
    },
    /// The system refuses.
    #[error(
        "this system does not hold {role} threads to their system calls (seccomp: {source}); --no-seccomp goes on without"
    )]
    Refused {
        /// Of which threads.
        role: &'static str,
        /// What it said.
        #[source]
        source: seccompiler::Error,
    },
    /// No handler can be installed.
    #[error("no handler for calls that are not on a list (SIGSYS): {0}")]
    Handler(vmm_sys_util::errno::Error),
}

/// One for each role.
#[derive(Debug)]
pub(super) struct Filters(Vec<(Role, BpfProgram)>);

impl Filters {
    pub(super) fn compile(guest: Guest) -> Result<Self, HoldError> {
        let program = |role: Role| match compiled(role, guest) {
            Ok(program) => Ok((role, program)),
            Err(source) => Err(HoldError::Compile {
                role: role.name(),
                source,
            }),
        };
        Role::ALL
            .into_iter()
            .map(program)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Holds this thread to the list of a role, for good.
    pub(super) fn apply(&self, role: Role) -> Result<(), HoldError> {
        let found = self.0.iter().find(|(of, _)| *of == role);
        found.map_or(Ok(()), |(_, program)| {
            apply_filter(program).map_err(|source| HoldError::Refused {
                role: role.name(),
                source,
            })
        })
    }
}

fn compiled(role: Role, guest: Guest) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in calls(role, guest) {
        let rules = rules.entry(i64::from(call.number.id())).or_default();
        if let Some(rule) = rule(call, guest)? {
            rules.push(rule);
        }
    }
    // One without rules is for all arguments.
    for call in calls(role, guest).filter(|call| call.only.is_none()) {
        rules.insert(i64::from(call.number.id()), Vec::new());
    }
    // What is not allowed is a signal of the thread itself: its handler knows what was called.
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    filter.try_into()
}

fn rule(call: &Call, guest: Guest) -> Result<Option<SeccompRule>, seccompiler::BackendError> {
    let Some(only) = call.only else {
        return Ok(None);
    };
    let bits = SeccompCmpOp::MaskedEq(only.mask.into());
    let dword = SeccompCmpArgLen::Dword;
    let is = SeccompCondition::new(only.argument, dword, bits, value(only, guest).into())?;
    SeccompRule::new(vec![is]).map(Some)
}

fn value(only: Only, guest: Guest) -> u32 {
    match (only.value, guest) {
        (Value::Is(value), _) => value,
        (Value::Vmm, Guest::OfProcess(pid)) => pid.cast_unsigned(),
        // No process has this number.
        (Value::Vmm, Guest::Own) => u32::MAX,
    }
}
