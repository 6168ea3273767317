//! Probes of a kernel that has BTF and no DWARF.

use std::sync::Arc;

use debuginfo::DebugInfo;
use debuginfo::btf::testing::Builder;
use image::Image;
use image::testing::{ElfFile, TEXT};
use proptest::prelude::*;
use terms::expression::{Expression, Operator};

use crate::capture::Source;
use crate::probe::{BadProbe, parse, resolve};

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
    let task = btf.structure("task_struct", 64, &[("pid", int, 24)]);
    let to_task = btf.pointer(task);
    let queue = btf.structure("rq", 32, &[("count", int, 0), ("curr", to_task, 16)]);
    btf.add("runqueues", 14, 0, queue, &[1]);
    btf.build()
}

fn image(section: &[u8]) -> (Image, DebugInfo) {
    let file = ElfFile::new()
        .text(TEXT, &[0x90, 0xc3, 0x90, 0xc3, 0xc3])
        .data(".BTF", TEXT + 0x10_0000, section)
        .function("vfs_open", TEXT, 2)
        .function("sync", TEXT + 2, 2)
        .function("assembly", TEXT + 4, 1)
        .label("__per_cpu_start", 0x1000)
        .label("this_cpu_off", 0x1008)
        .label("current_task", 0x1010)
        .label("runqueues", 0x1080)
        .label("__per_cpu_end", 0x2000)
        .label("jiffies", 0x3000)
        .build();
    let image = Image::parse(&file).unwrap();
    (image, DebugInfo::read(Arc::new(file), None).unwrap())
}

/// The values of a probe, each as name, type and number or address.
fn values(section: &[u8], text: &str) -> Result<Vec<(String, String, Expression)>, BadProbe> {
    let (image, debug) = image(section);
    let found = resolve(&image, Some(&debug), &parse(text)?)?.remove(0);
    let values = found.capture.values.into_iter().map(|value| {
        let number = match value.source {
            Source::Stack { .. } => panic!("has no address"),
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

/// What a kernel says of its types that is read out of the memory of a guest: one parameter of `vfs_open`, of this type.
fn said_of(types: impl FnOnce(&mut Builder) -> u32) -> Vec<u8> {
    let mut btf = Builder::new();
    let of = types(&mut btf);
    let name = btf.string("path");
    let open = btf.add("", 13, 1, 0, &[name, of]);
    btf.add("vfs_open", 12, 1, open, &[]);
    btf.build()
}

#[test]
fn elements_of_any_size_are_refused() {
    let section = said_of(|btf| {
        let huge = btf.structure("huge", u32::MAX, &[]);
        let fifteen = btf.array(huge, 15);
        let element = (0..7).fold(fifteen, |of, _| btf.array(of, 16));
        let two = btf.array(element, 2);
        btf.structure("s", 16, &[("m", two, 0)])
    });
    for element in ["path.m[0]", "path.m[1]"] {
        values(&section, &format!("vfs_open {element}")).unwrap_err();
    }
}

/// Eight to the power of fifteen members, if they were all looked at.
#[test]
fn structures_within_each_other_come_to_an_end() {
    let section = said_of(|btf| {
        let long = btf.int("long", 8);
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        (0..15).fold(long, |of, _| {
            btf.structure("s", 16, &names.map(|name| (name, of, 0)))
        })
    });
    values(&section, "vfs_open path.a").unwrap_err();
}

/// Where a number of 32 bits lies, with its sign.
fn int(address: Expression) -> Expression {
    Expression::Load {
        address: Box::new(address),
        bytes: 4,
        signed: true,
    }
}

#[test]
fn a_cast_says_what_a_pointer_leads_to() {
    let section = section();
    let (rdi, rsi) = (Expression::Register(7), Expression::Register(6));
    // As in the kernel's probes, as in C, and both with what binds more closely.
    for (text, number) in [
        ("(dentry)%rsi->d_name.hash", int(rsi.clone().offset(32))),
        (
            "(struct dentry)%rsi->d_name.hash",
            int(rsi.clone().offset(32)),
        ),
        (
            "((struct dentry *)%rsi)->d_name.hash",
            int(rsi.clone().offset(32)),
        ),
        ("((dentry*)%rsi)->d_name.hash", int(rsi.clone().offset(32))),
        (
            "((struct dentry *)path->dentry)->d_name.hash",
            int(rdi.clone().offset(8).load(8).offset(32)),
        ),
        ("(dentry,d_name)%rsi->d_name.hash", int(rsi.clone())),
        (
            "(dentry,d_name.name)%rsi->d_name.hash",
            int(rsi.clone().offset(-8)),
        ),
        (
            "(dentry, d_name.name)(%rsi + 8)->d_name.hash",
            int(rsi.offset(0)),
        ),
        // Not casts.
        ("(%rdi)+1", rdi.clone().offset(1)),
        ("(path)->dentry", rdi.offset(8).load(8)),
    ] {
        let found = values(&section, &format!("vfs_open x={text}")).unwrap();
        assert_eq!(found[0].2, number, "{text}");
    }
}

#[test]
fn what_each_processor_has_its_own_of_is_found_by_gs() {
    let section = section();
    let base = Expression::Own(0x1008);
    let queue = Expression::apply(Operator::Add, base, Expression::Constant(0x1080));
    let curr = queue.clone().offset(16).load(8);
    for (text, number) in [
        ("$current", Expression::Own(0x1010)),
        ("$current->pid", int(Expression::Own(0x1010).offset(24))),
        ("this_cpu_ptr(runqueues)", queue.clone()),
        (
            "this_cpu_read(runqueues).curr->pid",
            int(curr.clone().offset(24)),
        ),
        ("this_cpu_ptr( runqueues )->curr->pid", int(curr.offset(24))),
        (
            "this_cpu_read(current_task)",
            Expression::apply(
                Operator::Add,
                Expression::Own(0x1008),
                Expression::Constant(0x1010),
            )
            .load(8),
        ),
    ] {
        let found = values(&section, &format!("vfs_open x={text}")).unwrap();
        assert_eq!(found[0].2, number, "{text}");
    }
}

#[test]
fn errors_of_casts_and_of_what_processors_own_point_at_their_place() {
    let section = section();
    for (text, column, message) in [
        (
            "(dentri)%rsi->d_name",
            13,
            "there is no structure `dentri`; did you mean `dentry`?",
        ),
        (
            "((struct fil *)%rsi)->f_pos",
            21,
            "there is no structure `fil`",
        ),
        (
            "(dentry,d_nam)%rsi->d_name",
            20,
            "`dentry`: dentry has no member `d_nam`; did you mean `d_name`; it has d_name",
        ),
        (
            "(dentry,d_name.x)%rsi->d_name",
            20,
            "`dentry`: qstr has no member `x`; it has hash, name",
        ),
        (
            "(dentry)%rsi->x",
            26,
            "`*(dentry)%rsi`: dentry has no member `x`; it has d_name",
        ),
        (
            "this_cpu_read(jiffies)",
            26,
            "`jiffies`: is no variable of which each processor has its own",
        ),
        (
            "this_cpu_ptr(1)",
            25,
            "expected the name of a variable of each processor, found `1`",
        ),
        ("this_cpu_ptr(runqueues", 34, "expected `)`, found the end"),
        (
            "$curent",
            12,
            "`$curent` is unknown: there are $retval, $args, $current, $stack and $arg1 to $arg16",
        ),
    ] {
        let text = format!("vfs_open x={text}");
        let error = values(&section, &text).unwrap_err();
        let BadProbe::At { column: found, .. } = error else {
            panic!("{text}: {error}");
        };
        assert!(error.to_string().contains(message), "{text}: {error}");
        assert_eq!(found, column, "{text}: {error}");
    }
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
