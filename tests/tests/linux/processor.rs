//! What Linux finds its processor to have.

use std::fs;

use tests::Guest;

/// Which of these flags `/proc/cpuinfo` has, on how many processors.
const SCRIPT: &str = "for f in svm vmx monitor mwaitx perfctr_core perfmon_v2 arch_perfmon lm; do \
    echo flag $f $(grep ^flags /proc/cpuinfo | grep -cw $f); done; \
    echo counters $(dmesg | grep -c 'Performance Event[s]:.*PMU driver')";

fn has(nested: bool) -> Vec<String> {
    let guest = Guest::linux(SCRIPT, None).vcpus(2);
    let guest = if nested {
        guest.with(["--nested"])
    } else {
        guest
    };
    let (ended, _) = guest.run();
    let lines = ended.good().stdout;
    let found = lines.lines().map(str::trim);
    let found = found.filter(|line| line.starts_with("flag ") || line.starts_with("counters "));
    found.map(str::to_owned).collect()
}

/// What this processor has for virtual machines, and whether KVM gives guests of it.
fn host() -> (&'static str, bool) {
    let told = fs::read_to_string("/proc/cpuinfo").unwrap();
    let (flag, module) = match told.lines().any(|line| line.ends_with("GenuineIntel")) {
        true => ("vmx", "kvm_intel"),
        false => ("svm", "kvm_amd"),
    };
    let nested = fs::read_to_string(format!("/sys/module/{module}/parameters/nested")).unwrap();
    (flag, ["Y", "1"].contains(&nested.trim()))
}

#[test]
fn virtual_machines_of_its_own_are_only_for_who_was_given_them() {
    let (own, nests) = host();
    let expected = |given| {
        let none = [
            "monitor",
            "mwaitx",
            "perfctr_core",
            "perfmon_v2",
            "arch_perfmon",
        ];
        let none = none.map(|flag| format!("flag {flag} 0"));
        let of = |flag| format!("flag {flag} {}", if flag == own { given } else { 0 });
        let mut all = vec![of("svm"), of("vmx")];
        all.extend(none);
        all.extend(["flag lm 2".to_owned(), "counters 0".to_owned()]);
        all
    };
    assert_eq!(has(false), expected(0));
    if nests {
        assert_eq!(has(true), expected(2));
    } else {
        let (ended, _) = Guest::linux(SCRIPT, None).with(["--nested"]).run();
        let why = "this host's KVM offers guests neither VMX nor SVM";
        assert!(ended.refused(101).contains(why), "{ended}");
    }
}
