//! What README and the documentation tell a reader to type does what they say.

use tests::{guest, reader};

fn follow(name: &str, document: &str) {
    reader::follow(name, document, "", &[("guest.elf", guest())]);
}

#[test]
fn the_readme_can_be_followed() {
    follow("README.md", include_str!("../../../README.md"));
}

#[test]
fn the_guide_can_be_followed() {
    follow("docs/guide.md", include_str!("../../../docs/guide.md"));
}

#[test]
fn the_page_about_probes_can_be_followed() {
    follow("docs/probes.md", include_str!("../../../docs/probes.md"));
}

#[test]
fn the_page_about_other_vmms_can_be_followed() {
    follow("docs/attach.md", include_str!("../../../docs/attach.md"));
}
