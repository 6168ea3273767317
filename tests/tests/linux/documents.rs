//! What README and the documentation say of Linux can be typed, and does what they say.

use tests::{linux, reader};

fn follow(name: &str, document: &str) {
    let (kernel, initrd) = linux();
    let files = [("vmlinuz", kernel), ("initrd", initrd)];
    reader::follow(name, document, "linux", &files);
}

#[test]
fn the_readme_can_be_followed() {
    follow("README.md", include_str!("../../../README.md"));
}

#[test]
fn the_page_about_linux_can_be_followed() {
    follow("docs/linux.md", include_str!("../../../docs/linux.md"));
}
