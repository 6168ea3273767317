//! Types of values: numbers, texts, characters, and memory of symbols.

use serde_json::{Value, json};

use super::CALL;
use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "kprobe_args_type",
        asked: "records 'null_lseek u8=%si:u8 u16=%si:u16 u32=%si:u32 u64=%si:u64 i8=%si:s8 i16=%si:s16 i32=%si:s32 i64=%si:s64 \
            x8=%si:x8 x16=%si:x16 x32=%si:x32 x64=%si:x64 b3=%si:b3@2/8 b8=%si:b8@4/16 b20=%si:b20@40/64' \
            'dd if=/dev/zero of=/dev/null bs=1 count=1 skip=8526495043095935699'; echo own kprobe_args_type $(grep -o 'u8=.*' /tmp/recorded).",
        show: kprobe_args_type,
    },
    Step {
        name: "kprobe_args_string",
        asked: "echo some text >/tmp/a-long-name; \
            records 'vfs_open name=+0(+40(+8(%di))):string all=@vmstat_text:string[8]' 'cat /tmp/a-long-name'; \
            echo own kprobe_args_string $(grep -o 'name=.a-long-name.*' /tmp/recorded).; \
            echo own kprobe_args_string $(head -8 /proc/vmstat | cut -d' ' -f1).",
        show: kprobe_args_string,
    },
    Step {
        name: "kprobe_args_char",
        asked: "echo >$T/error_log; asks kprobe_args_char 'vfs_open +0(+40(+8(%di))):char[3]'; \
            echo own kprobe_args_char $(grep -o 'error: .*' $T/error_log).; echo >$T/error_log
            records 'vfs_open first=+0(+40(+8(%di))):x8 bytes=+0(+40(+8(%di))):u8[3] name=+0(+40(+8(%di))):string' 'cat /tmp/a-long-name'; \
            echo own kprobe_args_char $(grep -o 'first=.*a-long-name.*' /tmp/recorded).",
        show: kprobe_args_char,
    },
    Step {
        name: "kprobe_args_symbol",
        asked: "before=$(cat /proc/sys/kernel/pid_max); echo 77777 >/proc/sys/kernel/pid_max; \
            records '__x64_sys_sched_get_priority_max value=@pid_max:u32 low=@pid_max:u8 next=@pid_max+1:u8' 'syscalls 1'; \
            echo own kprobe_args_symbol $(grep -o 'value=.*' /tmp/recorded).; echo $before >/proc/sys/kernel/pid_max
            asks kprobe_args_symbol '__x64_sys_sched_get_priority_max &pid_max'; echo own kprobe_args_symbol 0x$(grep ' pid_max$' /proc/kallsyms | cut -d' ' -f1).",
        show: kprobe_args_symbol,
    },
];

/// To where `dd` seeks: 8526495043095935699.
const OFFSET: u64 = 0x7654_3210_fedc_bad3;

/// It in all widths: without a sign, with one, and as hex.
fn in_all_widths() -> Vec<(&'static str, String)> {
    let low = |bits: u32| OFFSET & (u64::MAX >> (64 - bits));
    vec![
        ("u8", low(8).to_string()),
        ("u16", low(16).to_string()),
        ("u32", low(32).to_string()),
        ("u64", OFFSET.to_string()),
        ("i8", "-45".to_owned()),
        ("i16", "-17709".to_owned()),
        ("i32", "-19088685".to_owned()),
        ("i64", OFFSET.to_string()),
        ("x8", "0xd3".to_owned()),
        ("x16", "0xbad3".to_owned()),
        ("x32", "0xfedcbad3".to_owned()),
        ("x64", "0x76543210fedcbad3".to_owned()),
        ("b3", (OFFSET >> 2 & 0x7).to_string()),
        ("b8", (OFFSET >> 4 & 0xff).to_string()),
        ("b20", (OFFSET >> 40 & 0xf_ffff).to_string()),
    ]
}

/// A number as a record has it, as a text.
fn number(value: &Value) -> String {
    value.as_str().map_or(value.to_string(), str::to_owned)
}

fn kprobe_args_type(stock: &mut Stock) {
    let mut probe =
        "null_lseek b3=(offset>>2)&7 b8=(offset>>4)&255 b20=(offset>>40)&0xfffff".to_owned();
    for letter in ["u", "i", "x"] {
        for width in [8, 16, 32, 64] {
            probe += &format!(" {letter}{width}=%rsi:{letter}{width}");
        }
    }
    stock.trace("types", "nop", json!({}), &[]);
    stock.probe("types", &[&probe]);
    stock.shell.does(&format!(
        "dd if=/dev/zero of=/dev/null bs=1 count=1 skip={OFFSET}"
    ));
    let found = stock.fields("types", "null_lseek");
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = in_all_widths();
    for (name, expected) in &expected {
        assert_eq!(number(&found[0][name]), *expected, "{name}: {found:?}");
    }
    let said: Vec<String> = expected
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(stock.own("kprobe_args_type"), [said.join(" ")]);
    bit_fields(stock);
}

/// Bit fields of structures: of a task that is about to become another program, and of a mount of which another thing is wanted.
fn bit_fields(stock: &mut Stock) {
    stock.trace("fields", "nop", json!({}), &[]);
    let task = "$current->in_execve $current->in_iowait";
    let mount = "purpose=fc->purpose";
    stock.probe(
        "fields",
        &[
            &format!("kernel_read {task}"),
            &format!("vfs_read {task} if count == 77"),
            &format!("vfs_get_tree {mount}"),
            &format!("reconfigure_super {mount}"),
        ],
    );
    stock
        .shell
        .does("syscalls 1; dd if=/proc/version of=/dev/null bs=77 count=1");
    stock.shell.does(
        "mkdir /tmp/some; mount -t tmpfs none /tmp/some; mount -t tmpfs -o remount none /tmp/some; umount /tmp/some; rmdir /tmp/some",
    );
    let found = stock.events("fields");
    for (event, fields) in [
        (
            "kernel_read",
            json!({"current->in_execve": 1, "current->in_iowait": 0}),
        ),
        (
            "vfs_read",
            json!({"current->in_execve": 0, "current->in_iowait": 0}),
        ),
        (
            "vfs_get_tree",
            json!({"purpose": {"enum": "FS_CONTEXT_FOR_MOUNT"}}),
        ),
        (
            "reconfigure_super",
            json!({"purpose": {"enum": "FS_CONTEXT_FOR_RECONFIGURE"}}),
        ),
    ] {
        let of: Vec<&Value> = found
            .iter()
            .filter_map(|(name, fields)| (name == event).then_some(fields))
            .collect();
        assert!(!of.is_empty(), "{event}: {found:?}");
        assert!(of.iter().all(|one| **one == fields), "{event}: {of:?}");
    }
}

/// A file's name, and the names of what the kernel counts: they are what it prints of itself.
fn kprobe_args_string(stock: &mut Stock) {
    stock.trace("texts", "nop", json!({}), &[]);
    let name = "path->dentry->d_name.name";
    stock.probe(
        "texts",
        &[&format!(
            "vfs_open name={name}:string start={name}:string[3] all=vmstat_text:string[32][8] if {name} == \"a-long-name\""
        )],
    );
    stock.shell.does("cat /tmp/a-long-name");
    let found = stock.fields("texts", "vfs_open");
    let theirs = stock.own("kprobe_args_string");
    let names: Vec<&str> = theirs[1].split(' ').collect();
    assert_eq!(names.len(), 8);
    let mut expected =
        json!({"name": {"text": "a-long-name"}, "start": {"text": "a-l", "truncated": true}});
    for (index, name) in names.iter().enumerate() {
        expected[format!("all[{index}]")] = json!({"text": name});
    }
    assert_eq!(found, [expected]);
    let all = names.join("\",\"");
    assert_eq!(theirs[0], format!("name=\"a-long-name\" all={{\"{all}\"}}"));
}

fn kprobe_args_char(stock: &mut Stock) {
    stock.trace("characters", "nop", json!({}), &[]);
    let name = "path->dentry->d_name.name";
    stock.probe(
        "characters",
        &[&format!(
            "vfs_open first=*{name}:char several=*{name}:char[3] inside=path->dentry->d_iname:char[3] bytes=*{name}:u8[3] if {name} == \"a-long-name\""
        )],
    );
    stock.shell.does("cat /tmp/a-long-name");
    let found = stock.fields("characters", "vfs_open");
    let mut expected = json!({"first": {"char": "a"}});
    for (index, letter) in ["a", "-", "l"].iter().enumerate() {
        expected[format!("several[{index}]")] = json!({"char": letter});
        expected[format!("inside[{index}]")] = json!({"char": letter});
        expected[format!("bytes[{index}]")] = json!(letter.as_bytes()[0]);
    }
    assert_eq!(found, [expected]);
    assert_eq!(
        stock.own("kprobe_args_char"),
        [
            "vfs_open +0(+40(+8(%di))):char[3]: refused",
            "error: Unknown type is specified",
            "first=0x61 bytes={97,45,108} name=\"a-long-name\"",
        ]
    );
}

/// The highest number of a task, 77777: in memory that is 0xd1, 0x2f, 1, 0.
fn kprobe_args_symbol(stock: &mut Stock) {
    stock.trace("symbols", "nop", json!({}), &[]);
    stock.probe(
        "symbols",
        &[&format!(
            "{CALL} value=pid_max:u32 low=pid_max:u8 next=*(&pid_max+1):u8 at=&pid_max"
        )],
    );
    stock.shell.does(
        "before=$(cat /proc/sys/kernel/pid_max); echo 77777 >/proc/sys/kernel/pid_max; syscalls 1; \
         echo $before >/proc/sys/kernel/pid_max",
    );
    let found = stock.fields("symbols", CALL);
    let theirs = stock.own("kprobe_args_symbol");
    assert_eq!(theirs[0], "value=77777 low=209 next=47");
    assert_eq!(
        stock.refused_by_it("kprobe_args_symbol"),
        [format!("{CALL} &pid_max")]
    );
    let expected = json!({"value": 77777, "low": 0xd1, "next": 0x2f, "at": theirs[2]});
    assert_eq!(found, [expected]);
}
