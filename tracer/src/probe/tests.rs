use std::sync::Arc;

use debuginfo::DebugInfo;
use image::Image;
use image::testing::{ElfFile, TEXT};
use terms::addr::Gva;
use terms::expression::{Expression, Operator};
use terms::function::FunctionId;

use super::{BadProbe, Point, Resolved, parse, resolve};
use crate::capture::{Condition, Source, Text};

/// push rbp; mov rbp, rsp; ret, twice; and a word of data.
fn guest() -> (Image, DebugInfo) {
    let code = [0x55, 0x48, 0x89, 0xe5, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0xc3];
    let file = ElfFile::new()
        .text(TEXT, &code)
        .data(".data", TEXT + 0x1000, &[0; 8])
        .function("vfs_open", TEXT, 5)
        .local("vfs_close", TEXT + 5, 5)
        .label("jiffies", TEXT + 0x1000)
        .build();
    let image = Image::parse(&file).unwrap();
    (image, DebugInfo::read(Arc::new(file), None).unwrap())
}

fn resolved(text: &str) -> Result<Vec<Resolved>, BadProbe> {
    let (image, debug) = guest();
    resolve(&image, Some(&debug), &parse(text)?)
}

fn one(text: &str) -> Resolved {
    resolved(text).unwrap().remove(0)
}

/// The value of the only fetch.
fn value(fetch: &str) -> (String, String, Source) {
    let mut values = one(&format!("vfs_open {fetch}")).capture.values;
    let value = values.remove(0);
    assert!(values.is_empty());
    (
        value.name.to_string(),
        value.kind.name().to_owned(),
        value.source,
    )
}

fn number(fetch: &str) -> Expression {
    match value(fetch).2 {
        Source::Number(number) => number,
        other => panic!("{fetch}: {other:?}"),
    }
}

fn register(number: u8) -> Expression {
    Expression::Register(number)
}

fn apply(operator: Operator, left: Expression, right: Expression) -> Expression {
    Expression::apply(operator, left, right)
}

#[test]
fn places_are_found() {
    let at = |address| Point::At {
        function: Some(FunctionId(0)),
        at: Gva(address),
    };
    for (text, name, point) in [
        ("vfs_open", "vfs_open", Point::Entry(FunctionId(0))),
        ("'vfs_close'", "vfs_close", Point::Entry(FunctionId(1))),
        ("vfs_open+1", "vfs_open+0x1", at(TEXT + 1)),
        ("vfs_open+0x4", "vfs_open+0x4", at(TEXT + 4)),
        (
            "vfs_open%return",
            "vfs_open%return",
            Point::Return(FunctionId(0)),
        ),
        ("0xffffffff80100001", "vfs_open+0x1", at(TEXT + 1)),
        (
            "0xffffffff80100005",
            "vfs_close",
            Point::Entry(FunctionId(1)),
        ),
    ] {
        let found = one(text);
        assert_eq!((&*found.name, found.point), (name, point), "{text}");
    }
}

#[test]
fn values_without_types_are_registers_arguments_memory_and_symbols() {
    let u64 = |expression| Source::Number(expression);
    let rsp8 = register(4).offset(8);
    for (fetch, name, kind, source) in [
        ("%rdi", "rdi", "x64", u64(register(7))),
        ("n=%rdi:i64", "n", "i64", u64(register(7))),
        ("$arg1:u64", "arg1", "u64", u64(register(7))),
        (
            "*(%rsp+8):u64",
            "*(%rsp+8)",
            "u64",
            u64(rsp8.clone().load(8)),
        ),
        (
            "*(%rsp + 8):u8",
            "*(%rsp + 8)",
            "u8",
            u64(rsp8.clone().load(1)),
        ),
        ("$arg7", "arg7", "x64", u64(rsp8.clone().load(8))),
        (
            "jiffies:u64",
            "jiffies",
            "u64",
            u64(Expression::Constant(TEXT + 0x1000).load(8)),
        ),
        (
            "&jiffies",
            "&jiffies",
            "pointer",
            u64(Expression::Constant(TEXT + 0x1000)),
        ),
        (
            "name=%rsi:string[9]",
            "name",
            "string",
            Source::Text {
                text: Text {
                    address: register(6),
                    length: None,
                },
                max: 9,
            },
        ),
    ] {
        let found = value(fetch);
        assert_eq!(found, (name.to_owned(), kind.to_owned(), source), "{fetch}");
    }
    assert_eq!(
        number("%eax"),
        Expression::Extend {
            value: Box::new(register(0)),
            bits: 32,
            signed: false
        }
    );
}

#[test]
fn operators_bind_as_in_c() {
    use Operator::{Add, And, Equal, Multiply, ShiftLeft};
    let (a, b, c) = (|| register(7), || register(6), || register(2));
    let times = apply(Multiply, b(), c());
    assert_eq!(number("%rdi+%rsi*%rdx"), apply(Add, a(), times));
    let sum = apply(Add, a(), b());
    assert_eq!(number("(%rdi+%rsi)*%rdx"), apply(Multiply, sum, c()));
    let equal = apply(Equal, b(), c());
    assert_eq!(number("%rdi&%rsi==%rdx"), apply(And, a(), equal));
    let by = apply(Add, b(), Expression::Constant(1));
    assert_eq!(number("%rdi<<%rsi+1"), apply(ShiftLeft, a(), by));
    assert_eq!(number("1-2-3"), number("(1-2)-3"));
    assert_eq!(number("%rdi%%rsi"), apply(Operator::Remainder, a(), b()));
}

/// Each side of each operator was once worked out again for the operator around it: of 40, for hours.
#[test]
fn many_operators_are_worked_out_one_by_one() {
    for (sign, operand) in [
        ("+", "1"),
        ("-", "%di"),
        ("|", "jiffies"),
        ("*", "jiffies"),
        ("<<", "1"),
    ] {
        let all = vec![operand; 60].join(sign);
        assert!(resolved(&format!("vfs_open {all}")).is_ok(), "{all}");
        assert!(
            resolved(&format!("vfs_open if ({all}) == {all}")).is_ok(),
            "{all}"
        );
    }
}

#[test]
fn conditions_are_conditions() {
    let condition = |text: &str| one(&format!("vfs_open {text}")).capture.condition.unwrap();
    let less = apply(Operator::Less, Expression::Constant(4096), register(6));
    let more = Condition::NonZero(less);
    assert_eq!(condition("if %rsi > 4096"), more);
    let text = Condition::TextIs(
        Text {
            address: register(7),
            length: None,
        },
        b"a b"[..].into(),
    );
    assert_eq!(
        condition(r#"%rdi if %rsi > 4096 && %rdi == "a b""#),
        Condition::All(vec![more.clone(), text.clone()])
    );
    assert_eq!(
        condition(r#"if !(%rsi > 4096) || %rdi != "a b""#),
        Condition::Any(vec![
            Condition::Not(Box::new(more)),
            Condition::Not(Box::new(text))
        ])
    );
}

#[test]
fn errors_say_what_is_wrong_and_what_works() {
    for (text, message) in [
        (
            "",
            "a probe needs a place: FUNCTION, FUNCTION+OFFSET, FUNCTION%return, FILE:LINE or an ADDRESS",
        ),
        (
            "vfs_opne",
            "there is no function `vfs_opne`; did you mean `vfs_open`, `vfs_close`?",
        ),
        (
            "vfs_open+2",
            "`vfs_open+2` is inside the instruction `mov rbp,rsp`, which goes from vfs_open+0x1 to vfs_open+0x4: \
             probe one of these",
        ),
        (
            "vfs_open+5",
            "`vfs_open+5` is past the end of the function, which has 0x5 bytes",
        ),
        ("0x10", "0x10 is not in the text of the image"),
        (
            "vfs_open%retrun",
            "`vfs_open%retrun`: expected `%return` after a function",
        ),
        (
            "vfs_open %xmm0",
            "`%xmm0` is no register that can be captured: %rax to %r15 can, and their lower parts (%eax, %ax, %al)",
        ),
        (
            "vfs_open $rteval",
            "`$rteval` is unknown: there are $retval, $args, $current, $stack and $arg1 to $arg16",
        ),
        (
            "vfs_open %rdi:u23",
            "`:u23` is no type: there are u8 to u64, i8 to i64, x8 to x64, bool, char, pointer, string and string[N]",
        ),
        (
            "vfs_open path",
            "there is no debug information for `path`: registers (%rdi), $arg1 to $arg6 at a function's entry, \
             $retval at its return, memory (*(%rsp+8):u64) and symbols work without",
        ),
        (
            "fs.c:12",
            "there is no debug information for fs.c:12: registers (%rdi), $arg1 to $arg6 at a function's entry, \
             $retval at its return, memory (*(%rsp+8):u64) and symbols work without",
        ),
        (
            "vfs_open $retval",
            "`$retval`: is there at a function's return: FUNCTION%return",
        ),
        (
            "vfs_open+1 $arg1",
            "`$arg1`: arguments are where the calling convention says at a function's first instruction only",
        ),
        (
            "vfs_open %rdi %rdi:u8",
            "two values are called `rdi`: give one another name, as in `other=rdi`",
        ),
        ("vfs_open (%rdi", "`(%rdi`: expected `)`, found the end"),
        ("vfs_open %rdi if", "`if`: has no condition after it"),
        (
            "vfs_open %rdi->x",
            "`*%rdi`: has no type with members: only its bits are known",
        ),
        (
            "vfs_open &%rdi",
            "`%rdi`: is not in memory here and has no address",
        ),
        (
            "vfs_open %rdi:string[0]",
            "`%rdi`: 0 bytes of text: 1 to 4096 can be kept",
        ),
        ("vfs_open if 1 == \"a", "`\"a`: has no closing quote"),
    ] {
        let error = resolved(text).unwrap_err().to_string();
        assert_eq!(error, message, "{text}");
    }
    for sign in ["(", "-"] {
        let deep = format!("vfs_open {}1", sign.repeat(2000));
        let said = resolved(&deep).unwrap_err().to_string();
        assert!(said.contains("expressions lie in each other"), "{said}");
    }
}

/// Values that lie one after the other have the name with a number, from 0.
#[test]
fn several_in_memory_are_one_value_each() {
    let all = |fetch: &str| {
        let values = one(&format!("vfs_open {fetch}")).capture.values;
        let named = values
            .iter()
            .map(|value| (value.name.to_string(), value.source.clone()));
        named.collect::<Vec<_>>()
    };
    let at = |offset: i64| register(6).offset(offset);
    let number = |offset, bytes| Source::Number(at(offset).load(bytes));
    let named = |name: &str, source| (name.to_owned(), source);
    assert_eq!(
        all("two=*%rsi:u16[2]"),
        [named("two[0]", number(0, 2)), named("two[1]", number(2, 2))]
    );
    let text = |offset: i64| Source::Text {
        text: Text {
            address: at(offset).load(8),
            length: None,
        },
        max: 5,
    };
    assert_eq!(
        all("*%rsi:string[5][2]"),
        [named("*%rsi[0]", text(0)), named("*%rsi[1]", text(8))]
    );
    for (fetch, words) in [
        (
            "%rsi:u8[2]",
            "`%rsi`: is not in memory here: `*%rsi` is what it leads to",
        ),
        ("*%rsi:u8[0]", "0 of a kind: 1 to 32 can be captured"),
        ("*%rsi:u8[33]", "33 of a kind"),
        ("*%rsi:u8[2][2]", "`:u8` is no type"),
        ("*%rsi:u9[2]", "`:u9` is no type"),
    ] {
        let error = resolved(&format!("vfs_open {fetch}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{fetch}: {error}");
    }
}

/// The character that is wrong, marked: what comes before it is right, as far as it goes.
#[test]
fn errors_point_at_what_is_wrong() {
    for marked in [
        "^vfs_opne",
        "  ^vfs_opne %rdi",
        "vfs_open+^2",
        "^0x10",
        "vfs_open %rdi ^%xmm0",
        "vfs_open n=%rdi m=^$rteval",
        "vfs_open %rdi ^path:string",
        "vfs_open %rdi:^u23",
        "vfs_open n=(jiffies+^path)",
        "vfs_open %rdi ^$retval",
        "vfs_open %rdi é=%rsi ^é=%rdx",
        "vfs_open (%rdi^",
        "vfs_open (%rdi + 1 ^@ 2)",
        "vfs_open %rdi ^if",
        "vfs_open jiffies:u8 if %rdi == ^path",
        "vfs_open jiffies:u8 if 1 ==^",
        "vfs_open if 1 == ^\"a",
        "vfs_open &^%rdi",
        "vfs_open 1 2 3 %rdi:string[^x]",
    ] {
        let text = marked.replace('^', "");
        let column = marked.chars().position(|char| char == '^').unwrap() + 1;
        let error = resolved(&text).unwrap_err();
        assert_eq!(error.column(), Some(column), "{marked}: {error}");
    }
}

proptest::proptest! {
    /// Whatever is written: an error, or a probe.
    #[test]
    fn text_is_a_probe_or_an_error(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "vfs_open", "+1", "%return", " ", "%rdi", "$arg1", "$args", "jiffies", "(", ")", "*", "&", "->", ".", "[",
                "]", "0x10", "7", ":", "u8", "string", "=", "==", "\"", "'", "if", "&&", "||", "!", "<<", "%", "-", "x",
                "18446744073709551616", "\\", "é",
            ]),
            0..24,
        ),
    ) {
        let text = format!("vfs_open {}", words.concat());
        let _ = resolved(&text);
        let _ = resolved(&words.concat());
    }
}
