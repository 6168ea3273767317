//! Values of probes.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "add_remove_btfarg",
        asked: "asks add_remove_btfarg 'vfs_read $args' 'vfs_read count' 'vfs_read nothing' 'vfs_read $arg3'",
        show: add_remove_btfarg,
    },
    Step {
        name: "btf_probe_event",
        asked: "asks btf_probe_event 'vfs_read file->f_path.dentry->d_inode->i_ino'; echo some text >/tmp/chained; set -- $(ls -i /tmp/chained); \
            records 'vfs_read size=%dx number=+64(+48(+24(%di))):u64' 'dd if=/tmp/chained of=/dev/null bs=78 count=1'; \
            echo own btf_probe_event $1 $(grep -o 'size=0x4e.*' /tmp/recorded).",
        show: btf_probe_event,
    },
    Step {
        name: "btf_typecast_accepted",
        asked: "asks btf_typecast_accepted 'vfs_read (file)$arg1->f_path' 'vfs_read ((struct file *)%di)->f_path' 'vfs_read $current->pid' 'vfs_read this_cpu_read(runqueues)' 'vfs_read $comm'",
        show: btf_typecast_accepted,
    },
    Step {
        name: "fprobe_args_vfs",
        asked: "asks fprobe_args_vfs 'vfs_open path->dentry->d_name.name:string' 'vfs_open $arg1:%pd'; \
            echo f:x vfs_open >>$T/dynamic_events && said=taken || said=refused; echo own fprobe_args_vfs f:x vfs_open: $said.; \
            echo some text >/tmp/a-file-of-this-name; records 'vfs_open name=+0(+40(+8(%di))):string' 'cat /tmp/a-file-of-this-name'; \
            echo own fprobe_args_vfs $(grep -o 'name=.a-file-of-this-name.*' /tmp/recorded).",
        show: fprobe_args_vfs,
    },
];

fn add_remove_btfarg(stock: &mut Stock) {
    stock.trace("args", "nop", json!({}), &[]);
    let refused = json!({"session": "args", "probes": ["vfs_read nothing"]});
    let said = stock.client.refused("probe.add", refused);
    assert!(said.contains("there is no variable `nothing`"), "{said}");
    stock.probe("args", &["vfs_read $args if count == 77"]);
    stock
        .shell
        .does("dd if=/proc/version of=/dev/null bs=77 count=1");
    let found = stock.fields("args", "vfs_read");
    assert_eq!(found.len(), 1, "{found:?}");
    let names: BTreeSet<&str> = found[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(names, BTreeSet::from(["buf", "count", "file", "pos"]));
    assert_eq!(found[0]["count"], 77, "{found:?}");
    let all = ["$args", "count", "nothing"];
    let all = all.map(|name| format!("vfs_read {name}"));
    assert_eq!(stock.refused_by_it("add_remove_btfarg"), all);
    let taken = stock.own("add_remove_btfarg")[3];
    assert_eq!(taken, "vfs_read $arg3: taken");
}

fn btf_probe_event(stock: &mut Stock) {
    stock.trace("chain", "nop", json!({}), &[]);
    let chain = "number=file->f_path.dentry->d_inode->i_ino";
    stock.probe("chain", &[&format!("vfs_read {chain} if count == 78")]);
    stock
        .shell
        .does("echo some text >/tmp/chained; echo number $(ls -i /tmp/chained)");
    stock
        .shell
        .does("dd if=/tmp/chained of=/dev/null bs=78 count=1");
    let printed = stock.shell.running.printed();
    let said = printed
        .lines()
        .find_map(|line| line.trim().strip_prefix("number "));
    let number: u64 = said.unwrap().split(' ').next().unwrap().parse().unwrap();
    let found = stock.fields("chain", "vfs_read");
    assert_eq!(found, [json!({"number": number})]);
    // The file is another one to it, of which the shell has said the number.
    let theirs = stock.own("btf_probe_event");
    assert_eq!(
        theirs[0],
        "vfs_read file->f_path.dentry->d_inode->i_ino: refused"
    );
    let (number, recorded) = theirs[1].split_once(' ').unwrap();
    assert_eq!(recorded, format!("size=0x4e number={number}"));
}

/// One inode, by five ways; one task, by four.
fn btf_typecast_accepted(stock: &mut Stock) {
    stock.trace("casts", "nop", json!({}), &[]);
    let said = |stock: &mut Stock, probe: &str| {
        let refused = json!({"session": "casts", "probes": [probe]});
        stock.client.refused("probe.add", refused)
    };
    let error = said(stock, "vfs_read (inod)$arg1->i_ino");
    assert!(
        error.contains("column 11: there is no structure `inod`"),
        "{error}"
    );
    let error = said(stock, "vfs_read this_cpu_read(jiffies)");
    assert!(
        error.contains("column 24: `jiffies`: is no variable of which"),
        "{error}"
    );
    stock.probe(
        "casts",
        &["vfs_read a=(file)$arg1->f_path.dentry->d_inode->i_ino \
           b=((struct file *)%rdi)->f_path.dentry->d_inode->i_ino \
           c=(inode,i_data)(file->f_mapping)->i_ino \
           d=(dentry,d_name.name)(&file->f_path.dentry->d_name.name)->d_inode->i_ino \
           e=file->f_path.dentry->d_inode->i_ino \
           p=$current->pid comm=$current->comm q=this_cpu_read(runqueues).curr->pid \
           r=this_cpu_ptr(runqueues)->curr->pid s=((struct task_struct *)$current)->tgid \
           if count == 81 && $current->comm == \"dd\""],
    );
    stock
        .shell
        .does("echo some text >/tmp/cast; echo number $(ls -i /tmp/cast)");
    stock
        .shell
        .does("sh -c 'echo process $$.; exec dd if=/tmp/cast of=/dev/null bs=81 count=1'");
    let printed = stock.shell.running.printed();
    let after = |word: &str| -> u64 {
        let mut said = printed.lines().rev();
        let found = said.find_map(|line| line.trim().strip_prefix(word));
        let end = |char: char| !char.is_ascii_digit();
        found.unwrap().split(end).next().unwrap().parse().unwrap()
    };
    let (inode, process) = (after("number "), after("process "));
    let found = stock.fields("casts", "vfs_read");
    assert_eq!(found.len(), 1, "{found:?}");
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(found[0][name], inode, "{name}: {found:?}");
    }
    for name in ["p", "q", "r", "s"] {
        assert_eq!(found[0][name], process, "{name}: {found:?}");
    }
    assert_eq!(found[0]["comm"]["text"], "dd", "{found:?}");
    let theirs = stock.own("btf_typecast_accepted");
    assert_eq!(
        stock.refused_by_it("btf_typecast_accepted"),
        [
            "vfs_read (file)$arg1->f_path",
            "vfs_read ((struct file *)%di)->f_path",
            "vfs_read $current->pid",
            "vfs_read this_cpu_read(runqueues)",
        ]
    );
    assert_eq!(theirs[4..], ["vfs_read $comm: taken"]);
}

fn fprobe_args_vfs(stock: &mut Stock) {
    const NAME: &str = "a-file-of-this-name";
    stock.trace("names", "nop", json!({}), &[]);
    let dentry = "vfs_open name=path->dentry->d_name.name:string";
    let file = "vfs_read name=file->f_path.dentry->d_name.name:string if count == 79";
    stock.probe("names", &[dentry, file]);
    stock.shell.does(&format!("echo some text >/tmp/{NAME}"));
    stock
        .shell
        .does(&format!("dd if=/tmp/{NAME} of=/dev/null bs=79 count=1"));
    let dir = stock.recorded("names");
    let events = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let events = events.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let text: String = events
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    for event in ["vfs_open", "vfs_read"] {
        let named = format!(r#""event":"{event}","fields":{{"name":{{"text":"{NAME}"}}}}"#);
        assert!(text.contains(&named), "{event}: {text}");
    }
    let theirs = stock.own("fprobe_args_vfs");
    assert_eq!(
        stock.refused_by_it("fprobe_args_vfs").len(),
        3,
        "{theirs:?}"
    );
    assert_eq!(theirs[3..], [format!("name=\"{NAME}\"")]);
}
