//! Which functions are traced.

use serde_json::json;

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_filter_glob",
        // Each glob, and the regular expression that is meant by it.
        asked: "set -f
            for pair in '*schedule schedule$' '*schedule* schedule' 'schedule* ^schedule' '*pin*lock pin.*lock$' 'mutex*try* ^mutex.*try' \
            'sch*ule ^sch.*ule$' '[Ss]y[Ss]_* ^[Ss]y[Ss]_' 'sch?dule ^sch.dule$'; do set -- $pair; echo $1 >$T/set_ftrace_filter; \
            echo own func_filter_glob $1 $(grep -vc '^#' $T/set_ftrace_filter) $(grep -cE $2 /tmp/functions).; done
            set +f; echo >$T/set_ftrace_filter",
        show: func_filter_glob,
    },
];

/// What must never be traced is left out here, and said; some of it is in theirs.
fn func_filter_glob(stock: &mut Stock) {
    let theirs = stock.own("func_filter_glob").into_iter();
    let theirs: Vec<(String, u64, u64)> = theirs.map(said_of_a_glob).collect();
    assert_eq!(theirs.len(), 8);
    stock.trace("globs", "function", json!({}), &["schedule"]);
    for (glob, theirs, expression) in theirs {
        assert_eq!(theirs, expression, "{glob}: their own tracer");
        let set = json!({"session": "globs", "filter": [glob]});
        let changed = stock.client.call("filter.set", set);
        let skipped = changed["skipped"].as_array().unwrap().iter();
        let denied =
            skipped.filter(|one| one["reason"].as_str().unwrap().starts_with("never traced"));
        let denied = denied.count() as u64;
        let traced = changed["traced"].as_u64().unwrap();
        println!("{glob}: {traced} are traced, {denied} never are, {theirs} are theirs");
        assert!(traced > 0 && traced <= theirs, "{glob}: {changed}");
        assert!(theirs - traced <= denied, "{glob}: {changed}");
    }
    stock
        .client
        .call("session.delete", json!({"session": "globs"}));
}

/// A glob, how many functions it selects, and how many the regular expression does.
fn said_of_a_glob(line: &str) -> (String, u64, u64) {
    let words: Vec<&str> = line.split(' ').collect();
    let [glob, theirs, expression] = words[..] else {
        panic!("{line}")
    };
    let number = |text: &str| text.parse().unwrap();
    (glob.to_owned(), number(theirs), number(expression))
}
