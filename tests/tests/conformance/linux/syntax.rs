//! What can be said of a probe, and what cannot.

use serde_json::json;

use super::{Step, Stock};

/// The steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "kprobe_args_syntax",
        // Its own way to say the like, where it has one.
        asked: "set -f
            for one in %di %r15 '$arg1' '$arg6:u8' '$args' count other=%dx %dx:x32 '+0(%di)' '+0(+24(%di)):x64' 'file->f_path.dentry' \
            '+0(+40(+24(%di))):string' '+0(+40(+24(%di))):string[8]' '+8(%sp):u32' '$stack1' '$stack' '$comm' '@pid_max:u32' '%dx:b3@2/8' '%dx if count == 1'; \
            do asks kprobe_args_syntax \"vfs_read $one\"; done
            for one in %dj % '$arg0' '$arg17' '$nothing' %di:u65 %di: name= =%di '+0(' '+0(%di' '+0(%di))' '+(%di)' '%di)' '@' '@nobody' '+0(%di):string[0]' \
            '+0(%di):string[' 'one=%di one=%si' '%di:b9@0/8'; do asks kprobe_args_syntax_bad \"vfs_read $one\"; done; set +f",
        show: kprobe_args_syntax,
    },
    Step {
        name: "kprobe_syntax_errors",
        asked: "for line in '^no_such_function' 'vfs_read %di ^%dj' 'vfs_read %di ^$arg17' 'vfs_read ^$retval' 'vfs_read %di:^u65' 'vfs_read one=%di ^one=%si' \
            'vfs_read+^1' 'vfs_read +0(^%dj)' 'vfs_read +0(%di^' 'vfs_read one=^' 'vfs_read ^nobody' 'vfs_read +0(%di):string[^'; do \
            echo >$T/error_log; taken \"${line%%^*}${line#*^}\"; \
            echo \"own kprobe_syntax_errors $line: $(awk '/error:/ { sub(/.*error: /, \"\"); said = $0 } index($0, \"^\") { print index($0, \"^\") - 15, said }' $T/error_log).\"; done; \
            echo >$T/error_log; echo >$T/kprobe_events",
        show: kprobe_syntax_errors,
    },
];

fn kprobe_args_syntax(stock: &mut Stock) {
    let good = [
        "%rdi",
        "%edi",
        "%r15",
        "$arg1",
        "$arg6:u8",
        "$args",
        "count",
        "other=count",
        "count:x32",
        "file->f_path.dentry",
        "file->f_path.dentry->d_inode->i_ino",
        "file->f_path.dentry->d_iname[2]",
        "&file->f_path",
        "file->f_path.dentry->d_name.name:string",
        "file->f_path.dentry->d_name.name:string[8]",
        "*(%rsp+8):u32",
        "*(%rsp + 8)",
        "(count + 1)",
        "%rdi if count % 2 == 0",
        "%rdi if file->f_path.dentry->d_name.name == \"version\"",
    ];
    let bad = [
        ("%rdj", "%rdj"),
        ("%", "`%`"),
        ("$arg0", "$arg0"),
        ("$arg17", "$arg17"),
        ("$nothing", "$nothing"),
        ("%rdi:u65", ":u65"),
        ("%rdi:", "expected a type"),
        ("name=", "expected a value"),
        ("=%rdi", "expected a value"),
        ("file->", "expected a member's name"),
        ("file->nobody", "nobody"),
        ("nobody", "nobody"),
        ("*(%rsp", "expected `)`"),
        ("%rdi)", "found `)`"),
        ("buf:string[0]", "0 bytes of text"),
        ("buf:string[", "expected a length"),
        ("one=%rdi one=%rsi", "two values are called `one`"),
        ("%rdi if", "has no condition"),
        ("%rdi if count ==", "expected a value"),
        ("count @ 1", "`@` means nothing here"),
    ];
    stock.trace("syntax", "nop", json!({}), &[]);
    for fetches in good {
        stock.probe("syntax", &[&format!("vfs_read {fetches}")]);
    }
    assert_eq!(stock.probes("syntax").len(), good.len());
    for (fetches, words) in bad {
        let probe = json!({"session": "syntax", "probes": [format!("vfs_read {fetches}")]});
        let said = stock.client.refused("probe.add", probe);
        assert!(said.contains(words), "{fetches}: {said}");
    }
    stock.delete("syntax");
    // Names, members and conditions are not known there, and any number of arguments is.
    let places = |lines: &[&str]| -> Vec<String> {
        let lines = lines.iter();
        lines.map(|line| format!("vfs_read {line}")).collect()
    };
    let unknown = ["$args", "count", "file->f_path.dentry", "%dx if count == 1"];
    assert_eq!(stock.own("kprobe_args_syntax").len(), 20);
    assert_eq!(stock.refused_by_it("kprobe_args_syntax"), places(&unknown));
    let bad = stock.own("kprobe_args_syntax_bad");
    assert_eq!(bad.len(), 20);
    let taken = bad.iter().filter_map(|line| line.strip_suffix(": taken"));
    assert_eq!(taken.collect::<Vec<_>>(), places(&["$arg17"]));
}

/// The place is marked by `^`: the column is that of what is wrong there.
fn kprobe_syntax_errors(stock: &mut Stock) {
    let marked = [
        "^no_such_function",
        "vfs_read+^0x10000",
        "vfs_read+^1",
        "^vfs_read%returned",
        "vfs_read %rdi ^%rdj",
        "vfs_read %rdi ^$arg17",
        "vfs_read ^$retval",
        "vfs_read%return ^count",
        "vfs_read count ^nobody",
        "vfs_read file->f_path.^nobody",
        "vfs_read file->^nobody->f_pos",
        "vfs_read buf:string[^",
        "vfs_read count:^u65",
        "vfs_read (count + ^)",
        "vfs_read one=%rdi ^one=%rsi",
        "vfs_read file->f_path.dentry->d_iname[^nobody]",
        "vfs_read count if count ==^",
        "vfs_read count if count == 1 && ^nobody",
        "vfs_read count ^if",
        "vfs_read (count ^@ 1)",
    ];
    stock.trace("errors", "nop", json!({}), &[]);
    for marked in marked {
        let probe = marked.replace('^', "");
        let column = marked.find('^').unwrap() + 1;
        let add = json!({"session": "errors", "probes": [probe]});
        let error = stock.client.ask("probe.add", add).unwrap().unwrap_err();
        let mark = json!({"text": probe, "column": column});
        assert_eq!(error["data"], mark, "{marked}: {error}");
    }
    stock.delete("errors");
    // Theirs marks the place for its offset, and knows of no last argument.
    let theirs = stock.own("kprobe_syntax_errors").into_iter();
    let theirs: Vec<(&str, &str, &str)> = theirs.map(said_of_an_error).collect();
    assert_eq!(theirs.len(), 12);
    let others = theirs.iter().filter(|(marked, column, _)| {
        let expected = marked.find('^').unwrap() + 1;
        *column != expected.to_string()
    });
    let others: Vec<_> = others.copied().collect();
    assert_eq!(
        others,
        [
            ("vfs_read %di ^$arg17", "", ""),
            (
                "vfs_read+^1",
                "1",
                "Probe point is not an instruction boundary"
            ),
        ]
    );
}

/// A line with its mark, the column that theirs says, and what it says.
fn said_of_an_error(line: &str) -> (&str, &str, &str) {
    let (marked, said) = line
        .split_once(": ")
        .unwrap_or((line.trim_end_matches(':'), ""));
    let (column, said) = said.split_once(' ').unwrap_or((said, ""));
    (marked, column, said)
}
