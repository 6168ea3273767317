//! All workloads, and for each the exact number of calls of every traced function.

use workloads::bench::{bench_leaf_nop, bench_leaf_traced};
use workloads::c::fentry::{fentry_empty, fentry_floats, fentry_marks, fentry_root};
use workloads::c::mcount::{mcount_empty, mcount_floats, mcount_marks, mcount_root};
use workloads::c::patchable::{patchable_empty, patchable_floats, patchable_marks, patchable_root};
use workloads::c::values::{optimised_values, unoptimised_values};
use workloads::calls::{
    calls_bough, calls_branch, calls_leaf, calls_root, calls_trunk, calls_twig, smp_branch,
    smp_leaf, smp_root, spin_branch, spin_leaf, spin_root, threads_branch, threads_leaf,
    threads_root,
};
use workloads::dynamic::{
    func0_first, func0_second, func0_third, func1_first, func1_second, func1_third, func2_first,
    func2_second, func2_third, func3_first, func3_second, func3_third,
};
use workloads::events::{events_carry, events_pass, received_count, sent_count, sent_sum};
use workloads::floats::{
    rust_floats, rust_give_mixed, rust_give_reals, rust_ten_doubles, rust_turn_large, rust_wide,
};
use workloads::init::{init_leaf, init_root};
use workloads::locks::locks_step;
use workloads::marks::rust_marks;
use workloads::messages::{messages_receive, messages_send};
use workloads::micro::micro_nested;
use workloads::recursion::{DEPTH, recursion_step};
use workloads::tail_calls::{
    tail_calls_end, tail_calls_even, tail_calls_first, tail_calls_odd, tail_calls_second,
    tail_calls_third,
};
use workloads::values::{rust_values, rust_values_arguments, rust_values_text};

use crate::workload::Threads::{Given, OnePerVcpu};
use crate::workload::{Body, Function, Workload};
use crate::{
    accidents, bench, clock, dynfunc, events, hostile, list, locks, many, messages, micro, modules,
    spin, tables,
};

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

/// The functions of one build of c/tree.c, of which Rust knows the root only.
macro_rules! c_tree {
    ($prefix:literal) => {
        &[
            Function {
                name: concat!($prefix, "_root"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_branch"),
                per_iteration: 2,
            },
            Function {
                name: concat!($prefix, "_leaf"),
                per_iteration: 6,
            },
            Function {
                name: concat!($prefix, "_recurse"),
                per_iteration: 10,
            },
            Function {
                name: concat!($prefix, "_tail_jump"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_tail_end"),
                per_iteration: 1,
            },
        ]
    };
}

/// The functions of one build of c/marks.c.
macro_rules! c_marks {
    ($prefix:literal) => {
        &[
            Function {
                name: concat!($prefix, "_marks"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_marked"),
                per_iteration: 1,
            },
        ]
    };
}

/// The functions of one build of c/values.c.
macro_rules! c_values {
    ($prefix:literal: $($name:literal: $per_iteration:expr),*) => {
        &[$(Function {
            name: concat!($prefix, "_", $name),
            per_iteration: $per_iteration,
        }),*]
    };
    ($prefix:literal) => {
        c_values!($prefix: "values": 1, "registers": 1, "stacked": 1, "pieces": 1, "nowhere": 1,
            "locals": 1, "step": 2, "color": 1, "name": 1, "pair": 1, "is_odd": 1)
    };
}

/// The functions of one build of c/floats.c.
macro_rules! c_floats {
    ($prefix:literal) => {
        &[
            Function {
                name: concat!($prefix, "_floats"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_ten_doubles"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_nine_words"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_give_reals"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_give_mixed"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_give_words"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_turn_large"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_quads"),
                per_iteration: 1,
            },
            Function {
                name: concat!($prefix, "_varargs"),
                per_iteration: 1,
            },
        ]
    };
}

/// What `spin` calls; it counts the iterations itself.
pub static SPIN: &[Function] = functions![spin_root: 1, spin_branch: 2, spin_leaf: 4];

/// What `dynfunc` can call; which of them it calls is not up to it.
pub static DYNFUNC: &[Function] = functions![
    func0_first: 1, func0_second: 0, func0_third: 0,
    func1_first: 1, func1_second: 0, func1_third: 0,
    func2_first: 1, func2_second: 0, func2_third: 0,
    func3_first: 1, func3_second: 0, func3_third: 0,
];

/// What `events` calls.
pub static EVENTS: &[Function] = functions![events_pass: 1, events_carry: 1];

/// What is called at the tracepoints of `events`, if somebody enables it.
static CALLBACKS: &[Function] = functions![sent_count: 0, sent_sum: 0, received_count: 0];

/// Every workload there is.
pub static CATALOGUE: &[Workload] = &[
    Workload {
        name: "calls",
        functions: &[functions![
            calls_root: 1,
            calls_trunk: 2,
            calls_bough: 4,
            calls_branch: 8,
            calls_twig: 16,
            calls_leaf: 32,
        ]],
        body: Body::Iterations(Given(1), |value| calls_root(value)),
    },
    Workload {
        name: "recursion",
        functions: &[functions![recursion_step: DEPTH]],
        body: Body::Iterations(Given(1), |value| recursion_step(DEPTH, value)),
    },
    Workload {
        name: "tail_calls",
        functions: &[functions![
            tail_calls_first: 1,
            tail_calls_second: 1,
            tail_calls_third: 1,
            tail_calls_end: 1,
            tail_calls_even: 6,
            tail_calls_odd: 5,
        ]],
        body: Body::Iterations(Given(1), |value| {
            tail_calls_even(10, tail_calls_first(value, 0))
        }),
    },
    Workload {
        name: "threads",
        functions: &[functions![threads_root: 1, threads_branch: 2, threads_leaf: 4]],
        body: Body::Iterations(Given(4), |value| threads_root(value)),
    },
    Workload {
        name: "smp",
        functions: &[functions![smp_root: 1, smp_branch: 2, smp_leaf: 4]],
        body: Body::Iterations(OnePerVcpu, |value| smp_root(value)),
    },
    Workload {
        name: "clock",
        functions: &[functions![smp_root: 1, smp_branch: 2, smp_leaf: 4]],
        body: Body::Counting(OnePerVcpu, clock::step, clock::print_back),
    },
    Workload {
        name: "tables",
        functions: &[functions![smp_root: 1, smp_branch: 2, smp_leaf: 4]],
        body: Body::Counting(
            OnePerVcpu,
            |value| tables::step(1, value),
            tables::print_spoilt,
        ),
    },
    Workload {
        name: "all_tables",
        functions: &[functions![smp_root: 1, smp_branch: 2, smp_leaf: 4]],
        body: Body::Counting(
            OnePerVcpu,
            |value| tables::step(tables::ALL_LEVELS, value),
            tables::print_spoilt,
        ),
    },
    Workload {
        name: "c_fentry",
        functions: &[c_tree!("fentry")],
        body: Body::Iterations(Given(1), |value| fentry_root(value)),
    },
    Workload {
        name: "c_mcount",
        functions: &[c_tree!("mcount")],
        body: Body::Iterations(Given(1), |value| mcount_root(value)),
    },
    Workload {
        name: "c_patchable",
        functions: &[c_tree!("patchable")],
        body: Body::Iterations(Given(1), |value| patchable_root(value)),
    },
    Workload {
        name: "nops",
        functions: &[functions![fentry_empty: 10, mcount_empty: 10, patchable_empty: 10]],
        body: Body::Iterations(Given(4), |value| {
            for _ in 0..10 {
                fentry_empty();
                mcount_empty();
                patchable_empty();
            }
            value
        }),
    },
    Workload {
        name: "variadic_float",
        functions: &[
            functions![
                rust_floats: 1,
                rust_ten_doubles: 1,
                rust_give_mixed: 1,
                rust_give_reals: 1,
                rust_wide: 1,
                rust_turn_large: 1,
            ],
            c_floats!("fentry"),
            c_floats!("mcount"),
            c_floats!("patchable"),
        ],
        body: Body::Iterations(Given(1), |value| {
            let value = fentry_floats(rust_floats(value));
            patchable_floats(mcount_floats(value))
        }),
    },
    Workload {
        name: "init",
        functions: &[functions![init_root: 1, init_leaf: 3]],
        body: Body::Iterations(Given(1), |value| init_root(value)),
    },
    Workload {
        name: "modules",
        functions: &[],
        body: Body::Own(modules::run),
    },
    Workload {
        name: "locks",
        functions: &[functions![locks_step: 1]],
        body: Body::Counting(Given(4), |value| locks_step(value), locks::print_words),
    },
    Workload {
        name: "spin",
        functions: &[SPIN],
        body: Body::Own(spin::run),
    },
    Workload {
        name: "dynfunc",
        functions: &[DYNFUNC],
        body: Body::Own(dynfunc::run),
    },
    Workload {
        name: "marks",
        functions: &[
            c_marks!("fentry"),
            c_marks!("mcount"),
            c_marks!("patchable"),
            functions![rust_marks: 1],
        ],
        body: Body::Iterations(Given(4), |value| {
            rust_marks(patchable_marks(mcount_marks(fentry_marks(value))))
        }),
    },
    Workload {
        name: "values",
        functions: &[
            c_values!("unoptimised"),
            c_values!("optimised"),
            functions![rust_values: 1, rust_values_arguments: 1, rust_values_text: 1],
        ],
        body: Body::Iterations(Given(4), |value| {
            optimised_values(unoptimised_values(rust_values(value)).wrapping_sub(1))
        }),
    },
    Workload {
        name: "events",
        functions: &[EVENTS, CALLBACKS],
        body: Body::Own(events::run),
    },
    Workload {
        name: "many",
        functions: &[],
        body: Body::Own(many::run),
    },
    Workload {
        name: "bench",
        functions: &[functions![bench_leaf_nop: 1, bench_leaf_traced: 1]],
        body: Body::Own(bench::leaves),
    },
    Workload {
        name: "bench_tree",
        functions: &[],
        body: Body::Own(bench::tree),
    },
    Workload {
        name: "bench_smp",
        functions: &[],
        body: Body::Own(bench::smp),
    },
    Workload {
        name: "messages",
        functions: &[functions![messages_send: 1, messages_receive: 1]],
        body: Body::Own(messages::run),
    },
    Workload {
        name: "micro_nops",
        functions: &[],
        body: Body::Own(micro::nops::run),
    },
    Workload {
        name: "micro_calls",
        functions: &[],
        body: Body::Own(micro::calls::run),
    },
    Workload {
        name: "micro_depth",
        functions: &[functions![micro_nested: 1]],
        body: Body::Own(micro::depth::run),
    },
    Workload {
        name: "micro_dispatch",
        functions: &[],
        body: Body::Own(micro::dispatch::run),
    },
    Workload {
        name: "micro_locks",
        functions: &[],
        body: Body::Own(micro::locks::run),
    },
    Workload {
        name: "micro_probes",
        functions: &[],
        body: Body::Own(micro::probes::run),
    },
    Workload {
        name: "hostile",
        functions: &[],
        body: Body::Own(hostile::run),
    },
    Workload {
        name: "fault",
        functions: &[],
        body: Body::Own(accidents::fault),
    },
    Workload {
        name: "panic",
        functions: &[],
        body: Body::Own(accidents::panic),
    },
    Workload {
        name: "list",
        functions: &[],
        body: Body::Own(list::workloads),
    },
    Workload {
        name: "functions",
        functions: &[],
        body: Body::Own(list::functions),
    },
];
