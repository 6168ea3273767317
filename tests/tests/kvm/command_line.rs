//! Help, completions, and hosts without a KVM.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::empty_dev::with_empty_dev;
use tests::users::AS_NOBODY;
use tests::{Ended, Guest, guest, vmm, vmm_says};

/// Nobody wants to type it each time; what is typed counts more.
#[test]
fn the_control_socket_may_stand_in_the_environment() {
    let mut running = Guest::spinning(&[]);
    let status = |variable: &Path, words: &[&str]| {
        let mut ctl = vmm();
        ctl.arg("ctl").args(words).arg("status");
        Ended::from(ctl.env("EXOTRACE_CONTROL", variable).output().unwrap())
    };
    let socket = running.socket().to_owned();
    assert!(status(&socket, &[]).good().stdout.contains("running"));
    let nowhere = Path::new("/nowhere");
    assert!(status(nowhere, &[]).refused(100).contains("/nowhere"));
    let typed = ["--control", socket.to_str().unwrap()];
    assert!(status(nowhere, &typed).good().stdout.contains("running"));
    running.client().call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

#[test]
fn help_names_every_verb_and_option() {
    let help = vmm_says(&["--help"]).good().stdout;
    for verb in ["run", "ctl", "sites", "report", "doctor", "completions"] {
        assert!(help.contains(&format!("\n  {verb}")), "{verb}: {help}");
        let own = vmm_says(&[verb, "--help"]).good().stdout;
        assert!(own.contains("Usage: vmm"), "{verb}: {own}");
    }
    let help = vmm_says(&["run", "--help"]).good().stdout;
    for option in [
        "kernel",
        "cmdline",
        "vcpus",
        "memory",
        "control",
        "trace",
        "filter",
        "notrace",
        "attach-at",
        "mode",
        "ring-size",
        "output",
        "force",
        "timeout",
        "clock",
    ] {
        assert!(help.contains(&format!("--{option}")), "{option}: {help}");
    }
    let help = vmm_says(&["ctl", "--help"]).good().stdout;
    for verb in [
        "status",
        "functions",
        "start",
        "stop",
        "filter",
        "tracing-on",
        "tracing-off",
        "pause",
        "resume",
        "dump",
        "shutdown",
    ] {
        assert!(help.contains(&format!("\n  {verb}")), "{verb}: {help}");
    }
    assert!(vmm_says(&["--version"]).good().stdout.starts_with("vmm "));
}

/// What bash offers after these words, of which the last is being typed.
fn offered(words: &[&str]) -> Vec<String> {
    const ASK: &str = r#"source <(vmm completions bash); COMP_WORDS=(vmm "$@"); COMP_CWORD=$#
        _clap_complete_vmm vmm "${!#}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let program = vmm().get_program().to_owned();
    let folder = Path::new(&program).parent().expect("its folder");
    let path = std::env::var("PATH").expect("a path");
    let said = Command::new("bash")
        .args(["-c", ASK, "bash"])
        .args(words)
        .env("PATH", format!("{}:{path}", folder.display()))
        .output()
        .expect("bash");
    let [offered, errors] = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(errors, "", "{words:?}");
    let offered = offered.lines().map(|word| word.trim_end().to_owned());
    offered.filter(|word| !word.is_empty()).collect()
}

#[test]
fn shells_are_told_verbs_options_and_what_these_can_be() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = vmm_says(&["completions", shell]).good().stdout;
        assert!(
            script.contains("COMPLETE") && script.contains("vmm"),
            "{shell}"
        );
    }
    assert!(
        vmm_says(&["completions", "abacus"])
            .refused(100)
            .contains("abacus")
    );
    assert_eq!(offered(&["do"]), ["doctor"]);
    assert_eq!(offered(&["run", "--attach-"]), ["--attach-at"]);
    assert_eq!(offered(&["run", "--trace", "gr"]), ["graph"]);
    assert_eq!(offered(&["export", "--format", "pa"]), ["parquet"]);
    assert_eq!(offered(&["ctl", "tracing-of"]), ["tracing-off"]);
}

/// Of the kernel, of a trace, of a guest that runs: whichever is named.
#[test]
fn shells_are_told_functions_and_sessions() {
    let kernel = guest();
    let kernel = kernel.to_str().unwrap();
    let twigs = ["calls_trunk", "calls_twig"];
    assert_eq!(
        offered(&["run", "--kernel", kernel, "--filter", "calls_t"]),
        twigs
    );
    assert!(offered(&["run", "--kernel", "/none", "--filter", "calls_t"]).is_empty());
    let (ended, trace) = Guest::new("workload=calls iterations=1")
        .with(["--trace", "graph", "--filter", "calls_*"])
        .output()
        .run();
    let _ = ended.good();
    let path = trace.path();
    let path = path.to_str().unwrap();
    assert_eq!(offered(&["report", path, "--function", "calls_t"]), twigs);

    let mut running = Guest::spinning(&[]);
    let socket = running.socket().to_str().unwrap().to_owned();
    let ctl = |rest: &[&str]| offered(&[&["ctl", "--control", &socket], rest].concat());
    assert_eq!(ctl(&["start", "--filter", "spin_l"]), ["spin_leaf"]);
    let made = vmm_says(&["ctl", "--control", &socket, "session", "create", "times"]);
    let _ = made.good();
    assert_eq!(ctl(&["--session", ""]), ["default", "times"]);
    assert_eq!(ctl(&["--session", "t"]), ["times"]);
    running.client().call("shutdown", Value::Null);
    let _ = running.end().0.good();
}

/// A reader that has seen enough is no failure; a stdout that is full is one, and is named.
#[test]
fn what_is_printed_may_be_read_in_part_and_must_be_taken() {
    let kernel = guest();
    let kernel = kernel.to_str().unwrap();
    let verbs: [&[&str]; 3] = [&["completions", "bash"], &["sites", kernel], &["doctor"]];
    for verb in verbs {
        let printing_to = |stdout: Stdio| {
            let mut command = vmm();
            command.args(verb).stdin(Stdio::null()).stdout(stdout);
            command.stderr(Stdio::piped()).spawn().expect("vmm starts")
        };
        let mut unread = printing_to(Stdio::piped());
        drop(unread.stdout.take());
        let ended = Ended::from(unread.wait_with_output().unwrap()).good();
        assert_eq!(ended.stderr, "", "{verb:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = Ended::from(printing_to(full.into()).wait_with_output().unwrap());
        assert!(ended.refused(106).contains("stdout: No space"), "{ended}");
    }
}

#[test]
fn without_a_kvm_the_way_to_one_is_told() {
    let ended = with_empty_dev("exec \"$1\" run --kernel \"$2\"");
    assert!(
        ended.refused(101).contains("/dev/kvm does not exist"),
        "{ended}"
    );
    let ended = with_empty_dev("exec \"$1\" doctor");
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.stdout.contains("/dev/kvm"), "{ended}");
    ended.no_panic();
    let ended = with_empty_dev("touch /dev/kvm; exec \"$1\" run --kernel \"$2\"");
    assert!(
        ended.refused(101).contains("/dev/kvm is not KVM's device"),
        "{ended}"
    );
    // What needs no KVM works.
    let _ = with_empty_dev("exec \"$1\" sites \"$2\"").good();
}

#[test]
fn without_permission_on_the_kvm_the_way_to_it_is_told() {
    let as_nobody = format!("touch /dev/kvm; chmod 600 /dev/kvm; {AS_NOBODY} \"$1\"");
    let ended = with_empty_dev(&format!("{as_nobody} run --kernel \"$2\""));
    assert!(
        ended.refused(101).contains("no permission on /dev/kvm"),
        "{ended}"
    );
    let ended = with_empty_dev(&format!("{as_nobody} doctor"));
    assert_eq!(ended.code, Some(1), "{ended}");
    ended.no_panic();
    let kernel = "chmod 600 \"$2\"; ";
    let ended = with_empty_dev(&format!("{kernel}{as_nobody} run --kernel \"$2\""));
    assert!(
        ended.refused(100).contains("guest.elf: Permission denied"),
        "{ended}"
    );
}
