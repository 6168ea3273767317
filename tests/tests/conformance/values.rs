//! Values of probes, on the bundled guest.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is what narrower types make of a number"
)]

use serde_json::{Value, json};
use tests::{Guest, Trace};

/// Its first argument counts up, and all others follow from it.
const FUNCTION: &str = "unoptimised_registers";

const VCPUS: u32 = 2;

/// What this probe has captured of some calls.
fn captured(fetches: &str) -> Vec<Value> {
    let probe = format!("{FUNCTION} {fetches}");
    let guest = Guest::new("workload=values threads=1 iterations=9").vcpus(VCPUS);
    let (ended, trace): (_, Trace) = guest.with(["--probe", &probe]).output().run();
    let _ = ended.good();
    let found = trace.fields(FUNCTION);
    assert_eq!(found.len(), 9);
    found
}

fn serial(fields: &Value) -> u64 {
    fields["serial"].as_u64().unwrap()
}

/// What can be said, and what cannot; with what is said of it.
#[test]
fn kprobe_args_syntax() {
    let good = [
        "%rdi",
        "%edi",
        "%r15",
        "$arg1",
        "$arg6:u8",
        "$args",
        "serial",
        "other=serial",
        "number:x32",
        "item->part.id",
        "item->next->color",
        "item->table[2]",
        "&item->color",
        "text:string",
        "text:string[8]",
        "*(%rsp+8):u32",
        "*(%rsp + 8)",
        "serial + 1",
        "%rdi if serial % 2 == 0",
        "%rdi if text == \"red\"",
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
        ("item->", "expected a member's name"),
        ("item->nobody", "nobody"),
        ("nobody", "nobody"),
        ("*(%rsp", "expected `)`"),
        ("%rdi)", "found `)`"),
        ("text:string[0]", "0 bytes of text"),
        ("text:string[", "expected a length"),
        ("one=%rdi one=%rsi", "two values are called `one`"),
        ("%rdi if", "has no condition"),
        ("%rdi if serial ==", "expected a value"),
        ("serial @ 1", "`@` means nothing here"),
    ];
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    let digest = client.digest();
    client.call("start", json!({"tracer": "nop"}));
    for fetches in good {
        // Blanks divide values, but in brackets.
        let fetches = match fetches.contains(" + 1") {
            true => "(serial + 1)",
            false => fetches,
        };
        let probe = format!("{FUNCTION} {fetches}");
        client.call("probe.add", json!({"probes": [probe]}));
    }
    let list = client.call("probe.list", Value::Null);
    assert_eq!(list["probes"].as_array().unwrap().len(), good.len());
    for (fetches, words) in bad {
        let probe = format!("{FUNCTION} {fetches}");
        let said = client.refused("probe.add", json!({"probes": [probe]}));
        assert!(said.contains(words), "{fetches}: {said}");
    }
    client.call("probe.remove", json!({"all_of": "default"}));
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
}

/// The place is marked by `^`: the column is that of what is wrong there.
#[test]
fn kprobe_syntax_errors() {
    let marked = [
        "^no_such_function",
        "FUNCTION+^0x10000",
        "FUNCTION+^1",
        "^FUNCTION%returned",
        "FUNCTION %rdi ^%rdj",
        "FUNCTION %rdi ^$arg17",
        "FUNCTION ^$retval",
        "FUNCTION%return ^serial",
        "FUNCTION serial ^nobody",
        "FUNCTION item->part.^nobody",
        "FUNCTION item->^nobody->serial",
        "FUNCTION text:string[^",
        "FUNCTION number:^u65",
        "FUNCTION (serial + ^)",
        "FUNCTION one=%rdi ^one=%rsi",
        "FUNCTION item->table[^nobody]",
        "FUNCTION serial if number ==^",
        "FUNCTION serial if number == 1 && ^nobody",
        "FUNCTION serial ^if",
        "FUNCTION (serial ^@ 1)",
    ];
    let mut running = Guest::spinning(&[]);
    let mut client = running.client();
    client.call("start", json!({"tracer": "nop"}));
    for marked in marked {
        let marked = marked.replace("FUNCTION", FUNCTION);
        let probe = marked.replace('^', "");
        let column = marked.find('^').unwrap();
        let refused = client.ask("probe.add", json!({"probes": [probe]})).unwrap();
        let error = refused.unwrap_err();
        let mark = json!({"text": probe, "column": column + 1});
        assert_eq!(error["data"], mark, "{marked}: {error}");
    }
    running.type_text("q");
    let _ = running.end().0.good();
}

/// One register as every type is the same bits, and bit fields are theirs.
#[test]
fn kprobe_args_type() {
    let widths = [8, 16, 32, 64];
    let mut fetches = "serial item->part.flags item->part.rest".to_owned();
    for letter in ["u", "i", "x"] {
        for width in widths {
            fetches += &format!(" {letter}{width}=%rdi:{letter}{width}");
        }
    }
    for fields in captured(&fetches) {
        let serial = serial(&fields);
        let unsigned = [
            json!(serial as u8),
            json!(serial as u16),
            json!(serial as u32),
            json!(serial),
        ];
        let signed = [
            json!(serial as i8),
            json!(serial as i16),
            json!(serial as i32),
            json!(serial as i64),
        ];
        for (of, width) in widths.iter().enumerate() {
            assert_eq!(fields[format!("u{width}")], unsigned[of], "{fields}");
            assert_eq!(fields[format!("i{width}")], signed[of], "{fields}");
            let hex = fields[format!("x{width}")].as_str().unwrap();
            let hex = u64::from_str_radix(hex.trim_start_matches("0x"), 16);
            assert_eq!(json!(hex.unwrap()), unsigned[of], "{fields}");
        }
        assert_eq!(fields["item->part.flags"], serial & 7, "{fields}");
        assert_eq!(fields["item->part.rest"], serial >> 5 & 0x1fff, "{fields}");
    }
}

/// The names of `guest/workloads/c/values.c`, by turns.
const NAMES: [&str; 3] = [
    "red",
    "",
    "a name that is longer than most other names are, by far",
];

fn name(serial: u64) -> &'static str {
    NAMES[usize::try_from(serial % 3).unwrap()]
}

/// Whole texts and their beginnings, and all those to which the pointers of an array lead.
#[test]
fn kprobe_args_string() {
    for fields in captured("serial text:string start=text:string[3] all=NAMES:string[64][3]") {
        let name = name(serial(&fields));
        assert_eq!(fields["text"], json!({"text": name}), "{fields}");
        let start = fields["start"]["text"].as_str().unwrap();
        assert!(start.starts_with(name.get(..3).unwrap_or(name)), "{fields}");
        for (index, name) in NAMES.iter().enumerate() {
            let found = &fields[format!("all[{index}]")];
            assert_eq!(*found, json!({"text": name}), "{fields}");
        }
    }
}

/// One character, and several that lie in memory one after the other.
#[test]
fn kprobe_args_char() {
    for fields in captured("serial first=*text several=*text:char[3] bytes=*text:u8[3]") {
        let text = name(serial(&fields)).as_bytes();
        // What follows an empty text is another one.
        let known = text.len().min(2) + 1;
        let mut zeroed = text.to_vec();
        zeroed.push(0);
        for (index, byte) in zeroed.iter().take(known).enumerate() {
            assert_eq!(fields[format!("bytes[{index}]")], *byte, "{fields}");
            let letter = &fields[format!("several[{index}]")]["char"];
            if *byte != 0 {
                assert_eq!(*letter, char::from(*byte).to_string(), "{fields}");
            }
        }
        assert_eq!(fields["first"], fields["several[0]"], "{fields}");
    }
}

/// Memory of a symbol, and its address: the guest keeps its number of vCPUs there.
#[test]
fn kprobe_args_symbol() {
    const SYMBOL: &str = "ap_limit";
    let file = std::fs::read(tests::guest()).unwrap();
    let image = image::Image::parse(&file).unwrap();
    let at = image.symbols.address_of(SYMBOL).unwrap();
    let fetches = format!("{SYMBOL}:u32 low={SYMBOL}:u8 next=*(&{SYMBOL}+4):u8 &{SYMBOL}");
    for fields in captured(&fetches) {
        assert_eq!(fields[SYMBOL], VCPUS, "{fields}");
        assert_eq!(fields["low"], VCPUS, "{fields}");
        assert!(fields["next"].is_u64(), "{fields}");
        assert_eq!(fields[format!("&{SYMBOL}")], at.to_string(), "{fields}");
    }
}
