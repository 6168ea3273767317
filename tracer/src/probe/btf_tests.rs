//! Probes of a kernel that has BTF and no DWARF.

use std::sync::Arc;

use debuginfo::DebugInfo;
use debuginfo::btf::testing::Builder;
use image::Image;
use image::testing::{ElfFile, TEXT};
use proptest::prelude::*;
use terms::expression::Expression;

use crate::capture::Source;
use crate::probe::{ProbeError, parse, resolve};

/// `int vfs_open(const struct path *path, struct file *file, ...)` and `void sync(long flags, double, bool)`, with what
/// `vfs_open` leads to.
fn section() -> Vec<u8> {
    let mut btf = Builder::new();
    let int = btf.add("int", 1, 0, 4, &[1 << 24 | 32]);
    let long = btf.int("unsigned long", 8);
    let char = btf.add("char", 1, 0, 1, &[1 << 24 | 8]);
    let bool = btf.add("_Bool", 1, 0, 1, &[4 << 24 | 8]);
    let float = btf.add("double", 16, 0, 8, &[]);
    let text = btf.pointer(char);
    let name = btf.structure("qstr", 16, &[("hash", int, 0), ("name", text, 8)]);
    let dentry = btf.structure("dentry", 96, &[("d_name", name, 32)]);
    let to_dentry = btf.pointer(dentry);
    let path = btf.structure("path", 16, &[("mnt", text, 0), ("dentry", to_dentry, 8)]);
    let constant = btf.add("", 10, 0, path, &[]);
    let to_path = btf.pointer(constant);
    let file = btf.add("file", 7, 0, 0, &[]);
    let to_file = btf.pointer(file);
    let (path_name, file_name) = (btf.string("path"), btf.string("file"));
    let open = btf.add(
        "",
        13,
        3,
        int,
        &[path_name, to_path, file_name, to_file, 0, 0],
    );
    btf.add("vfs_open", 12, 1, open, &[]);
    let (flags, real, wait) = (btf.string("flags"), btf.string("real"), btf.string("wait"));
    let sync = btf.add("", 13, 3, 0, &[flags, long, real, float, wait, bool]);
    btf.add("sync", 12, 1, sync, &[]);
    btf.build()
}

fn image(section: &[u8]) -> (Image, DebugInfo) {
    let file = ElfFile::new()
        .text(TEXT, &[0x90, 0xc3, 0x90, 0xc3, 0xc3])
        .data(".BTF", TEXT + 0x10_0000, section)
        .function("vfs_open", TEXT, 2)
        .function("sync", TEXT + 2, 2)
        .function("assembly", TEXT + 4, 1)
        .build();
    let image = Image::parse(&file).unwrap();
    (image, DebugInfo::read(Arc::new(file), None).unwrap())
}

/// The values of a probe, each as name, type and number or address.
fn values(section: &[u8], text: &str) -> Result<Vec<(String, String, Expression)>, ProbeError> {
    let (image, debug) = image(section);
    let found = resolve(&image, Some(&debug), &parse(text)?)?.remove(0);
    let values = found.capture.values.into_iter().map(|value| {
        let number = match value.source {
            Source::Operand(_) => panic!("of events only"),
            Source::Number(number) => number,
            Source::Text { text, .. } => text.address,
            Source::Bytes { address, .. } => address,
        };
        (value.name.to_string(), value.kind.name().to_owned(), number)
    });
    Ok(values.collect())
}

fn value(name: &str, kind: &str, number: Expression) -> (String, String, Expression) {
    (name.to_owned(), kind.to_owned(), number)
}

fn extended(register: u8, bits: u8, signed: bool) -> Expression {
    Expression::Extend {
        value: Box::new(Expression::Register(register)),
        bits,
        signed,
    }
}

#[test]
fn parameters_are_where_the_calling_convention_says() {
    let section = section();
    let all = values(&section, "vfs_open $args").unwrap();
    let pointer = |name, register| value(name, "pointer", Expression::Register(register));
    assert_eq!(all, [pointer("path", 7), pointer("file", 6)]);
    let dentry = Expression::Register(7).offset(8).load(8);
    let text = dentry.offset(40).load(8);
    let name = "path->dentry->d_name.name";
    assert_eq!(
        values(&section, &format!("vfs_open {name}:string")).unwrap(),
        [value(name, "string", text)]
    );
    // A vector register is not one of those that integers are passed in.
    assert_eq!(
        values(&section, "sync $args").unwrap(),
        [
            value("flags", "u64", Expression::Register(7)),
            value("wait", "bool", extended(6, 8, false)),
        ]
    );
    assert_eq!(
        values(&section, "vfs_open%return $retval").unwrap(),
        [value("retval", "i32", extended(0, 32, true))]
    );
}

#[test]
fn errors_say_what_btf_knows() {
    let section = section();
    for (text, message) in [
        (
            "vfs_open pat",
            "there is no variable `pat` at vfs_open; did you mean `path`? (there are path, file)",
        ),
        (
            "vfs_open path->dentr",
            "`*path`: path has no member `dentr`; did you mean `dentry`; it has mnt, dentry",
        ),
        (
            "vfs_open file->f_pos",
            "`*file`: is struct file, which has no members",
        ),
        (
            "vfs_open+1 path",
            "`path` cannot be captured at vfs_open+0x1: there is BTF only, which says where parameters are at a \
             function's first instruction",
        ),
        (
            "sync real",
            "`real` cannot be captured at the function's entry: it, or one before it, is not passed as an integer or a \
             pointer",
        ),
        (
            "sync%return $retval",
            "`$retval`: the function returns nothing",
        ),
        (
            "assembly x",
            "there is no debug information for `x`: registers (%rdi), $arg1 to $arg6 at a function's entry, $retval at \
             its return, memory (*(%rsp+8):u64) and symbols work without",
        ),
    ] {
        let error = values(&section, text).unwrap_err().to_string();
        assert_eq!(error, message, "{text}");
    }
}

proptest! {
    /// Bytes changed, or cut off: an error, or an answer.
    #[test]
    fn damage_is_an_error_or_goes_by(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut section = section();
        for (index, byte) in changes {
            let at = index.index(section.len());
            section[at] = byte;
        }
        section.truncate(1 + cut.index(section.len()));
        let _ = values(&section, "vfs_open $args path->dentry->d_name.name:string file->f_pos");
        let _ = values(&section, "vfs_open%return $retval");
    }
}
