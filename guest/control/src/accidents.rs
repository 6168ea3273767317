//! `fault` and `panic`: how the guest ends when something goes wrong, to be tried on purpose.

use crate::options::Options;

/// Reads where nothing is mapped: an exception that nobody expects.
pub fn fault(options: &Options) {
    let nowhere = (0xdead_0000 + options.seed) as *const u8;
    // SAFETY: this is the accident. Nothing is mapped there, so the read does not return.
    let _ = unsafe { nowhere.read_volatile() };
}

/// Panics in ring 3.
#[expect(clippy::panic, reason = "this is the accident")]
pub fn panic(_: &Options) {
    panic!("on purpose");
}
