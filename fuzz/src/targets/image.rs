//! Kernel images and their parts, as files that may come from anywhere.

use std::sync::Arc;

use debuginfo::DebugInfo;
use debuginfo::btf::Btf;
use image::Image;
use image::bzimage::BzImage;
use insn::flow;
use insn::relocate;
use terms::addr::Gva;
use terms::function::FunctionId;
use tracer::probe;
use vmm::commands::listing::Listing;

use super::input::Input;

/// A bzImage: an error, or no more than the kernel that it says it holds.
pub fn bzimage(bytes: &[u8]) {
    if let Ok(image) = BzImage::parse(bytes) {
        let _ = image.unpack();
    }
}

/// An ELF image with its symbols, kallsyms, lists of sites and types: an error, or an image that can
/// be listed.
pub fn image(bytes: &[u8]) {
    if let Ok(image) = Image::parse(bytes) {
        let _ = image.check_traceable();
        let _ = Listing::of(&image, "image").table(std::io::sink());
    }
}

/// A `.BTF` section: an error, or types that can be asked for anything.
pub fn btf(bytes: &[u8]) {
    if let Ok(btf) = Btf::parse(bytes) {
        for path in ["list", "name", "mem[0].base", "core_layout.text_size"] {
            let _ = btf.field("module", path);
        }
        let _ = btf.enumerator("module_state", "MODULE_STATE_LIVE");
    }
}

/// An ELF file with DWARF or BTF: an error, or places for everything that can be asked. The input is the file, so that
/// real ones are seeds: small programs, built with `-g`.
pub fn debug(file: &[u8]) {
    let Ok(image) = Image::parse(file) else {
        return;
    };
    let Ok(debug) = DebugInfo::read(Arc::new(file.to_vec()), None) else {
        return;
    };
    for id in (0..).map(FunctionId).take(image.functions.len().min(16)) {
        let _ = probe::parameters(&image, &debug, id);
        let _ = probe::return_value(&image, &debug, id);
        let Some(function) = image.function(id) else {
            continue;
        };
        let at = function.address;
        for (offset, asked) in [
            (0, "$args"),
            (4, "$args"),
            (9, "s t k x q p->next->v[1] p->e p->f"),
            (20, "s t p->name:string *p q.a"),
        ] {
            let text = format!("{} {asked}", at.wrapping_add(offset));
            let _ = probe::parse(&text)
                .and_then(|request| probe::resolve(&image, Some(&debug), &request));
        }
    }
    let _ = debug.line("s.c", 2);
}

/// A probe's text: an error, or a request that is about nothing in an image without anything.
pub fn probe(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Ok(request) = probe::parse(text) {
        let _ = probe::resolve(&Image::default(), None, &request);
    }
}

/// A kernel, and a file of symbols for it; the first bytes say where the one ends.
pub fn symbols(bytes: &[u8]) {
    let mut input = Input(bytes);
    let length = usize::from(input.half()).min(input.0.len());
    let (kernel, symbols) = input.0.split_at(length);
    let _ = Image::parse_with_symbols(kernel, symbols);
}

/// Instructions to be moved: an error, or code that is decoded to instructions, no more than there can be. And code as a
/// function: what it can lead to, and what can be put where.
pub fn relocate(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (from, distance) = (Gva(input.word()), i32::from_le_bytes(input.bytes()));
    let code = input.0;
    let to = Gva(from.0.wrapping_add_signed(distance.into()));
    if let Ok(moved) = relocate::relocate(code, from, to) {
        let before = relocate::decode(code, from).expect("it was decoded before");
        let after = relocate::decode(&moved, to).expect("what is made are instructions");
        assert!(after.len() >= before.len());
        assert!(moved.len() <= 24 * before.len() + 5);
    }
    let _ = flow::follow(code, from);
    let _ = flow::far_branches(code, from).count();
    let _ = flow::whole_instructions(code, from, to, 5);
    assert!(flow::trailing_padding(code, from) <= code.len());
}

/// A prologue, a branch, a load relative to itself, and what is no instruction.
pub fn code() -> Vec<Vec<u8>> {
    let place = [
        0xffff_ffff_8100_0000u64.to_le_bytes(),
        0x0020_0000u64.to_le_bytes(),
    ]
    .concat();
    let parts: [&[u8]; 4] = [
        b"\x55\x48\x89\xe5\x48\x83\xec\x20\xc9\xc3",
        b"\xe8\x10\x00\x00\x00\x74\x02\xeb\xf7\xc3",
        b"\x48\x8b\x05\x10\x00\x00\x00\xff\x25\x00\x00\x00\x00",
        b"\x06\xff\xff",
    ];
    parts.map(|part| [&place[..], part].concat()).to_vec()
}

/// Of those whose seeds are real files (kernels, programs built with `-g`) no more than a beginning.
pub fn none() -> Vec<Vec<u8>> {
    vec![Vec::new(), b"\x7fELF\x02\x01\x01".to_vec()]
}

/// Probes of every form.
pub fn probes() -> Vec<Vec<u8>> {
    [
        "do_sys_open %rdi %rsi:string",
        "f+0x10 a=+8(%rsp):u32 b=p->q[2].r if %rax > 3 && %rcx != 0",
        "f%return $retval:s64",
        "s.c:12 *p $args",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
