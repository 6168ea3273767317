//! `make linux-demo` does what it says.

use tests::demo::shown;

#[test]
fn the_demo_of_a_stock_linux_shows_its_boot_and_an_open() {
    let ended = shown("linux-demo").good();
    for words in [
        "it has booted",
        "== The top functions of the boot",
        " FUNCTION\n",
        "do_sys_openat2() {",
        "guest    running",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {ended}");
    }
}
