//! Which functions are traced.

use serde_json::json;
use tests::Client;

use super::{CALL, Step, Stock, session, written};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "func_set_ftrace_file",
        asked: "of_filter() { echo own func_set_ftrace_file $(grep -v '^#' $T/set_ftrace_filter | sort).; }
            set -f; echo vfs_read >$T/set_ftrace_filter; of_filter
            for glob in vfs_rea* !vfs_read vfs_read !vfs_r*; do echo $glob >>$T/set_ftrace_filter; of_filter; done
            echo 'bm_status_*:mod:binfmt_misc' >>$T/set_ftrace_filter; of_filter; echo vfs_w?it* >$T/set_ftrace_filter; of_filter
            echo vfs_raed >>$T/set_ftrace_filter; echo own func_set_ftrace_file $?.; set +f; echo >$T/set_ftrace_filter",
        show: func_set_ftrace_file,
    },
    Step {
        name: "func_cpumask",
        asked: "echo $CALL >$T/set_ftrace_filter; echo function >$T/current_tracer; echo 2 >$T/tracing_cpumask; taskset 1 syscalls 20; taskset 2 syscalls 30
            echo 3 >$T/tracing_cpumask; echo own func_cpumask $(grep -c \"$CALL <-\" $T/trace).
            echo nop >$T/current_tracer; echo >$T/set_ftrace_filter; echo >$T/trace",
        show: func_cpumask,
    },
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

/// The names of what is traced, in order.
fn traced(stock: &mut Stock) -> String {
    let all = stock.client.call("functions", json!({"glob": "vfs_*"}));
    let all = all["functions"].as_array().unwrap().iter();
    let patched = all.filter(|one| one["state"] == "patched");
    let mut names: Vec<&str> = patched.map(|one| one["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.join(" ")
}

/// Appended, taken out, cleared and read back, each time the same as theirs has; what waits for a module is kept.
fn func_set_ftrace_file(stock: &mut Stock) {
    const WAITS: &str = "mod:binfmt_misc:bm_status_*";
    let own: Vec<String> = stock
        .own("func_set_ftrace_file")
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut own = own.into_iter();
    stock.trace("files", "function", json!({}), &["vfs_read"]);
    assert_eq!(Some(traced(stock)), own.next());
    let globs = |stock: &mut Stock| session(&stock.client.status(), "files")["filter"].clone();
    let change = |stock: &mut Stock, verb: &str, glob: &str| {
        stock
            .client
            .call(verb, json!({"session": "files", "filter": [glob]}));
    };
    for (glob, read_back) in [
        ("vfs_rea*", json!(["vfs_read", "vfs_rea*"])),
        ("!vfs_read", json!(["vfs_rea*", "!vfs_read"])),
        ("vfs_read", json!(["vfs_rea*", "vfs_read"])),
    ] {
        change(stock, "filter.add", glob);
        assert_eq!(Some(traced(stock)), own.next(), "{glob}");
        assert_eq!(globs(stock), read_back);
    }
    // With nothing in it theirs is no filter: all is traced. Ours says so, and changes nothing.
    let nothing = json!({"session": "files", "filter": ["!vfs_r*"]});
    let said = stock.client.refused("filter.add", nothing);
    assert!(said.contains("leaves no function"), "{said}");
    assert_eq!(own.next().as_deref(), Some(""));
    change(stock, "filter.add", WAITS);
    assert_eq!(globs(stock), json!(["vfs_rea*", "vfs_read", WAITS]));
    assert_eq!(own.next().as_deref(), Some("bm_status_*:mod:binfmt_misc"));
    change(stock, "filter.set", "vfs_w?it*");
    assert_eq!(Some(traced(stock)), own.next());
    let wrong = json!({"session": "files", "filter": ["vfs_raed"]});
    let said = stock.client.refused("filter.add", wrong);
    assert!(said.contains("vfs_read"), "{said}");
    assert_eq!(own.next().as_deref(), Some("1"));
    stock
        .client
        .call("filter.clear", json!({"session": "files"}));
    assert_eq!(globs(stock), json!([]));
    stock.delete("files");
}

/// A program that stays on one vCPU, and one on the other.
fn func_cpumask(stock: &mut Stock) {
    let only = json!({"mode": "discard", "only_vcpus": [1]});
    stock.trace("second", "function", only, &[CALL]);
    stock.trace("both", "function", json!({"mode": "discard"}), &[CALL]);
    stock.trace("times", "profile", json!({"only_vcpus": [1]}), &[CALL]);
    stock
        .shell
        .does("taskset 1 syscalls 20; taskset 2 syscalls 30");
    let status = stock.client.status();
    assert_eq!(
        session(&status, "second")["only_vcpus"]["by"],
        "stub",
        "{status}"
    );
    assert_eq!(written(&status, "second"), [0, 30], "{status}");
    assert_eq!(written(&status, "both"), [20, 30], "{status}");
    let profile = stock.client.call("profile", json!({"session": "times"}));
    assert_eq!(profile["functions"][0]["hits"], 30, "{profile}");
    stock
        .client
        .call("vcpus.set", json!({"session": "second", "vcpus": [0]}));
    stock
        .shell
        .does("taskset 1 syscalls 5; taskset 2 syscalls 6");
    let status = stock.client.status();
    assert_eq!(written(&status, "second"), [5, 30], "{status}");
    assert_eq!(Client::rings(&status, "lost"), 0, "{status}");
    for name in ["second", "both", "times"] {
        stock.delete(name);
    }
    assert_eq!(stock.own("func_cpumask"), ["30"]);
}
