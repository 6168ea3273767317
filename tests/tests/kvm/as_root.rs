//! Root works on guests only if somebody has said that it may.

use tests::empty_dev::with_empty_dev;
use tests::users::AS_NOBODY;

/// In scripts: a KVM that anyone may use, and what every run writes to.
const KVM: &str = "mknod -m 666 /dev/kvm c 10 232; mknod -m 666 /dev/null c 1 3;";
/// The bundled guest, which ends at once.
const RUN: &str = "run --kernel \"$2\" --cmdline workload=calls";

#[test]
fn root_is_refused_and_told_who_may() {
    for said in [
        "unset EXOTRACE_ALLOW_ROOT",
        "EXOTRACE_ALLOW_ROOT=0",
        "EXOTRACE_ALLOW_ROOT=",
    ] {
        for verb in [
            RUN,
            "attach 1 --trace function",
            "attach --restore 1",
            "ps --guest",
            "doctor --attach",
        ] {
            let ended = with_empty_dev(&format!("{KVM} {said}; exec \"$1\" {verb}"));
            let why = ended.refused(100);
            for words in [
                "not as root",
                "/dev/kvm",
                "--allow-root",
                "EXOTRACE_ALLOW_ROOT=1",
            ] {
                let is_said = why.contains(words) || (words == "/dev/kvm" && verb != RUN);
                assert!(is_said, "{said} {verb}: {why}");
            }
        }
    }
}

#[test]
fn root_may_when_option_or_variable_say_so() {
    for (said, option) in [
        ("unset EXOTRACE_ALLOW_ROOT", "--allow-root"),
        ("EXOTRACE_ALLOW_ROOT=1", ""),
    ] {
        let script = format!("{KVM} {said}; exec \"$1\" {RUN} {option}");
        let _ = with_empty_dev(&script).good();
    }
}

#[test]
fn what_touches_no_guest_is_root_s_as_ever() {
    for verb in ["ps", "doctor", "sites \"$2\""] {
        let script = format!("{KVM} unset EXOTRACE_ALLOW_ROOT; exec \"$1\" {verb}");
        let _ = with_empty_dev(&script).good();
    }
}

#[test]
fn another_user_is_not_asked() {
    let script = format!("{KVM} unset EXOTRACE_ALLOW_ROOT; {AS_NOBODY} \"$1\" {RUN}");
    let _ = with_empty_dev(&script).good();
}
