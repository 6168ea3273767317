//! The image of a stock kernel, whole and damaged: whatever has happened to the file, `vmm sites` lists
//! functions or says in one line why it does not, and ends.
//!
//! An initrd is not here: `vmm` copies it and does not look inside.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use image::bzimage::BzImage;
use tests::{Ended, Random, linux, vmm};

/// Longer than reading a kernel can take on any machine that runs tests, in seconds.
const HANG: &str = "60";

/// Damaged copies of each part.
const COPIES: u32 = 20;

/// A part of the file that something of ours parses.
struct Part {
    name: &'static str,
    bytes: Range<usize>,
}

#[test]
fn a_damaged_bzimage_is_read_or_refused() {
    let whole = fs::read(linux().0).unwrap();
    let parts = [
        part("setup header", 0x1f0..0x280),
        part("everything", 0..whole.len()),
    ];
    read_or_refused(&whole, &parts);
}

#[test]
fn a_damaged_kernel_is_read_or_refused() {
    let whole = unpacked();
    let parts = [
        part("ELF header", 0..64 + 56 * 8),
        part("section headers", section_headers(&whole)),
        part("types", types(&whole)),
        part("kallsyms", kallsyms(&whole)),
        part("everything", 0..whole.len()),
    ];
    read_or_refused(&whole, &parts);
}

/// What the damage is measured by: the same way of running finds nothing wrong with what is whole.
#[test]
fn an_undamaged_kernel_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel");
    for whole in [fs::read(linux().0).unwrap(), unpacked()] {
        fs::write(&file, whole).unwrap();
        let ended = sites(&file);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.contains("do_sys_openat2"), "{}", ended.stdout);
    }
}

fn part(name: &'static str, bytes: Range<usize>) -> Part {
    Part { name, bytes }
}

fn unpacked() -> Vec<u8> {
    let file = fs::read(linux().0).unwrap();
    BzImage::parse(&file).unwrap().unpack().unwrap()
}

/// Damages copies of the file at random, and has each read.
fn read_or_refused(whole: &[u8], parts: &[Part]) {
    let mut random = Random::new();
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("kernel");
    let mut refused = 0;
    for part in parts {
        for copy in 0..COPIES {
            let mut bytes = whole.to_vec();
            let damage = damage(&mut bytes, &part.bytes, &mut random);
            fs::write(&file, &bytes).unwrap();
            let ended = sites(&file);
            let what = format!("{} of {}, copy {copy}", damage, part.name);
            match ended.code {
                Some(0) => {}
                Some(100) => {
                    refused += 1;
                    assert_eq!(ended.stderr.lines().count(), 1, "{what}: {}", ended.stderr);
                }
                status => panic!("{what}: ended with {status:?}: {}", ended.stderr),
            }
        }
    }
    println!(
        "{refused} of {} refused",
        parts.len() as u64 * u64::from(COPIES)
    );
    assert!(refused > 0, "nothing was damaged so that it matters");
}

/// Does one kind of damage to these bytes, or cuts the file there. Returns its name.
fn damage(bytes: &mut Vec<u8>, part: &Range<usize>, random: &mut Random) -> &'static str {
    let place = |random: &mut Random| {
        let length = (part.end - part.start) as u64;
        part.start + usize::try_from(random.next_u64() % length).unwrap()
    };
    match random.next_u64() % 5 {
        0 => {
            for _ in 0..=random.next_u64() % 3 {
                let at = place(random);
                bytes[at] ^= 1 << (random.next_u64() % 8);
            }
            "a few bits"
        }
        1 => {
            for _ in 0..2000 {
                let at = place(random);
                bytes[at] = random.next_u64().to_le_bytes()[0];
            }
            "many bytes"
        }
        2 => {
            let at = place(random);
            let value = *random.pick(&[0, 0x7f, 0xff]);
            let end = part.end.min(at + 64);
            bytes[at..end].fill(value);
            "a run of one byte"
        }
        3 => {
            let (from, to) = (place(random), place(random));
            let length = 4096.min(part.end - from.max(to));
            bytes.copy_within(from..from + length, to);
            "bytes from elsewhere"
        }
        _ => {
            let at = place(random);
            bytes.truncate(at);
            "an end too early"
        }
    }
}

/// `vmm sites`, ended after a minute with status 124.
fn sites(file: &Path) -> Ended {
    let mut command = Command::new("timeout");
    command.arg(HANG).arg(vmm().get_program());
    command.arg("sites").arg(file).stdin(Stdio::null());
    Ended::from(command.output().unwrap())
}

fn section_headers(image: &[u8]) -> Range<usize> {
    let field = |at: usize, length: usize| {
        let mut value = [0; 8];
        value[..length].copy_from_slice(&image[at..at + length]);
        usize::try_from(u64::from_le_bytes(value)).unwrap()
    };
    let start = field(0x28, 8);
    start..start + field(0x3a, 2) * field(0x3c, 2)
}

/// The header of .BTF, and the types and names after it.
fn types(image: &[u8]) -> Range<usize> {
    let start = position(image, &[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]);
    start..(start + (3 << 20)).min(image.len())
}

/// Around the token table of kallsyms, which has the digits one after the other and, as no symbol has a
/// colon, something longer after them. (The kernel's tables of characters have the colon.)
fn kallsyms(image: &[u8]) -> Range<usize> {
    let digits = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
    let mut windows = image.windows(digits.len() + 1);
    let table = windows.position(|bytes| bytes.starts_with(digits) && !bytes.ends_with(b":"));
    let table = table.expect("the kernel has no table of kallsyms tokens");
    table - (2 << 20)..table + (64 << 10)
}

fn position(image: &[u8], pattern: &[u8]) -> usize {
    let mut windows = image.windows(pattern.len());
    let found = windows.position(|bytes| bytes == pattern);
    found.unwrap_or_else(|| panic!("the kernel has no {pattern:x?}"))
}
