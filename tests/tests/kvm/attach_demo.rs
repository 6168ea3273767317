//! `make attach-demo` does what it says, and says at its end that nothing of ours is left.

use tests::{Ended, patient};

#[test]
fn the_demo_of_attaching_leaves_nothing() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let vmm = tests::vmm();
    let target = std::path::Path::new(vmm.get_program()).ancestors().nth(2);
    let mut demo = patient("sh");
    demo.args(["tests/attach-demo", "--here"]).current_dir(root);
    demo.env("CARGO_TARGET_DIR", target.unwrap());
    let ended = Ended::from(demo.output().expect("sh"));
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.stdout.contains("spin_branch() {"), "{ended}");
    assert!(
        ended
            .stdout
            .contains("Nothing: the guest's text is as before"),
        "{ended}"
    );
}
