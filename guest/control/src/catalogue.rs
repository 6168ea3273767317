//! All workloads, and for each the exact number of calls of every traced function.

use workloads::calls::{
    calls_bough, calls_branch, calls_leaf, calls_root, calls_trunk, calls_twig, smp_branch,
    smp_leaf, smp_root, threads_branch, threads_leaf, threads_root,
};
use workloads::recursion::{DEPTH, recursion_step};
use workloads::tail_calls::{
    tail_calls_end, tail_calls_even, tail_calls_first, tail_calls_odd, tail_calls_second,
    tail_calls_third,
};

use crate::workload::Threads::{Given, OnePerVcpu};
use crate::workload::{Body, Function, Workload};

/// The table of a workload: functions that exist, under their own names.
macro_rules! functions {
    ($($function:ident: $per_iteration:expr),* $(,)?) => {
        &[$({
            // A name that is not a function's does not compile.
            let _ = $function as *const ();
            Function { name: stringify!($function), per_iteration: $per_iteration }
        }),*]
    };
}

/// Every workload there is.
pub static CATALOGUE: &[Workload] = &[
    Workload {
        name: "calls",
        functions: functions![
            calls_root: 1,
            calls_trunk: 2,
            calls_bough: 4,
            calls_branch: 8,
            calls_twig: 16,
            calls_leaf: 32,
        ],
        body: Body::Iterations(Given(1), |value| calls_root(value)),
    },
    Workload {
        name: "recursion",
        functions: functions![recursion_step: DEPTH],
        body: Body::Iterations(Given(1), |value| recursion_step(DEPTH, value)),
    },
    Workload {
        name: "tail_calls",
        functions: functions![
            tail_calls_first: 1,
            tail_calls_second: 1,
            tail_calls_third: 1,
            tail_calls_end: 1,
            tail_calls_even: 6,
            tail_calls_odd: 5,
        ],
        body: Body::Iterations(Given(1), |value| {
            tail_calls_even(10, tail_calls_first(value, 0))
        }),
    },
    Workload {
        name: "threads",
        functions: functions![threads_root: 1, threads_branch: 2, threads_leaf: 4],
        body: Body::Iterations(Given(4), |value| threads_root(value)),
    },
    Workload {
        name: "smp",
        functions: functions![smp_root: 1, smp_branch: 2, smp_leaf: 4],
        body: Body::Iterations(OnePerVcpu, |value| smp_root(value)),
    },
];
