//! Instructions to be moved: an error, or code that is decoded to instructions, no more than there can be. And code as a
//! function: what it can lead to, and what can be put where.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer::addr::Gva;
use tracer::insn::flow;
use tracer::insn::relocate::{decode, relocate};

fuzz_target!(|input: (u64, i32, Vec<u8>)| {
    let (from, distance, code) = input;
    let from = Gva(from);
    let to = Gva(from.0.wrapping_add_signed(distance.into()));
    if let Ok(moved) = relocate(&code, from, to) {
        let before = decode(&code, from).expect("it was decoded before");
        let after = decode(&moved, to).expect("what is made are instructions");
        assert!(after.len() >= before.len());
        assert!(moved.len() <= 24 * before.len() + 5);
    }
    let _ = flow::follow(&code, from);
    let _ = flow::far_branches(&code, from).count();
    let _ = flow::whole_instructions(&code, from, to, 5);
    assert!(flow::trailing_padding(&code, from) <= code.len());
});
