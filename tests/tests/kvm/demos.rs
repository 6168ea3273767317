//! `make demo` and `make attach-demo` do what they say.

use tests::demo::shown;

#[test]
fn the_demo_shows_what_a_guest_called_and_how_long_it_was_paused() {
    let ended = shown("demo").good();
    for words in [
        "patched   spin_root",
        " spin_root\n",
        "== Tracing off and on again, twenty times",
        "guest    running",
        "pauses",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {ended}");
    }
}

/// It says at its end that nothing of ours is left.
#[test]
fn the_demo_of_attaching_leaves_nothing() {
    let ended = shown("attach-demo").good();
    let nothing = "Nothing: the guest's text is as before";
    for words in ["spin_branch() {", nothing] {
        assert!(ended.stdout.contains(words), "{words}: {ended}");
    }
}
