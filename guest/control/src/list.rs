//! What there is: `workload=list` and `workload=functions`.

use crate::catalogue::CATALOGUE;
use crate::console::print;
use crate::many;
use crate::options::Options;

/// One line `workload NAME` for each.
pub fn workloads(_: &Options) {
    for workload in CATALOGUE {
        print(format_args!("workload {}", workload.name));
    }
}

/// One line `function NAME` for each traced function of any workload. A patch site in none of these is
/// a function whose calls nobody counts.
pub fn functions(options: &Options) {
    for function in CATALOGUE
        .iter()
        .flat_map(|workload| workload.functions)
        .copied()
        .flatten()
    {
        print(format_args!("function {}", function.name));
    }
    many::list(options);
    for (function, _) in crate::modules::FUNCTIONS {
        print(format_args!("function {function}"));
    }
}
