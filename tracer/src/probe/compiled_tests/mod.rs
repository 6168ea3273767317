//! Programs compiled by the system's compiler, asked for their variables; the answers are worked out against
//! registers and memory that the tests make up.

mod rust;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use debuginfo::DebugInfo;
use image::Image;
use proptest::prelude::*;
use terms::expression::{Expression, Operator};
use terms::field::FieldValue;

use crate::capture::{Captured, Source};
use crate::probe::{BadProbe, Resolved, parse, resolve};

const SOURCE: &str = r#"
typedef unsigned long u64;
enum color { RED, GREEN = 5, BLUE = -1 };
struct part { unsigned short id; signed char level; unsigned flags : 3; int rest : 13; };
struct item {
    u64 serial;
    const struct item *next;
    struct part part;
    enum color color;
    const char *name;
    int table[4];
    char label[8];
    union { struct { int low, high; }; double real; };
    _Bool ready;
};
struct pair { long first, second; };
struct only_declared;
volatile u64 sink;
struct item global = { .serial = 77 };
__attribute__((noinline)) u64 registers(u64 serial, int number, unsigned char small, short narrow,
                                        const struct item *item, const char *text)
{
    u64 sum = serial + number + small + narrow + item->part.id + text[0];
    sink = sum;
    return sum;
}
__attribute__((noinline)) long stacked(long a, long b, long c, long d, long e, long f, long seventh, int eighth)
{
    sink = a;
    return a + b + c + d + e + f + seventh + eighth;
}
__attribute__((noinline)) struct pair pieces(struct pair pair, u64 serial)
{
    struct pair turned = { pair.second + 1, pair.first + 2 };
    sink = serial;
    turned.first += sink; /* the line */
    return turned;
}
__attribute__((noinline)) double floats(double real, int whole, struct only_declared *hidden)
{
    return real + whole + (hidden != 0);
}
__attribute__((noinline)) long locals(long count)
{
    long early = count * 3 + 1;
    sink = early;
    long late = sink ^ count;
    sink = late;
    return late;
}
enum protocol { TCP = 6, SCTP = 132, RAW = 255, BIG = 40000, HUGE_ONE = 0x90000000 };
__attribute__((noinline)) u64 carries(enum protocol protocol)
{
    int limit = 200, below = -56;
    unsigned mask = 0xffffffff;
    unsigned char most = 255;
    short low = -200;
    sink = limit;
    sink = below;
    sink = mask;
    sink = most;
    sink = low;
    return sink + protocol;
}
__attribute__((noinline)) void nothing(void) { sink = 0; }
void _start(void)
{
    registers(1, 2, 3, 4, &global, "x");
    stacked(1, 2, 3, 4, 5, 6, 7, 8);
    pieces((struct pair){ 1, 2 }, 3);
    floats(1, 2, 0);
    locals(4);
    carries(RAW);
    nothing();
}
"#;

/// The ways in which the source is compiled.
const WAYS: [[&str; 2]; 4] = [
    ["-O0", "-gdwarf-4"],
    ["-O0", "-gdwarf-5"],
    ["-O2", "-gdwarf-4"],
    ["-O2", "-gdwarf-5"],
];

struct Program {
    image: Image,
    debug: DebugInfo,
}

fn compile(flags: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("known.c");
    std::fs::write(&source, SOURCE).unwrap();
    let program = directory.path().join("known");
    let fixed = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-fno-stack-protector",
        "-fcf-protection=none",
        "-fno-ipa-icf",
    ];
    let mut gcc = Command::new("gcc");
    let gcc = gcc.args(fixed).args(flags).arg("-o");
    let done = gcc
        .arg(&program)
        .arg(Path::new("known.c"))
        .current_dir(directory.path())
        .status();
    assert!(done.unwrap().success(), "gcc {flags:?}");
    std::fs::read(program).unwrap()
}

fn programs() -> &'static [Vec<u8>] {
    static PROGRAMS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    PROGRAMS.get_or_init(|| WAYS.iter().map(|flags| compile(flags)).collect())
}

fn opened(file: &[u8]) -> Program {
    Program {
        image: Image::parse(file).unwrap(),
        debug: DebugInfo::read(Arc::new(file.to_vec()), None).unwrap(),
    }
}

impl Program {
    fn resolve(&self, text: &str) -> Result<Vec<Resolved>, BadProbe> {
        resolve(&self.image, Some(&self.debug), &parse(text)?)
    }

    fn values(&self, text: &str) -> Vec<Captured> {
        self.resolve(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .remove(0)
            .capture
            .values
    }

    fn error(&self, text: &str) -> String {
        match self.resolve(text) {
            Ok(found) => panic!("{text}: {found:?}"),
            Err(error) => error.to_string(),
        }
    }
}

/// Registers and memory that are made up.
#[derive(Default)]
struct State {
    registers: [u64; 16],
    memory: HashMap<u64, u8>,
}

impl State {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        self.memory.extend((address..).zip(bytes.iter().copied()));
    }

    fn byte(&self, at: u64) -> u8 {
        *self
            .memory
            .get(&at)
            .unwrap_or_else(|| panic!("nothing at {at:#x}"))
    }

    fn read(&self, address: u64, bytes: u8) -> u64 {
        (0..u64::from(bytes))
            .rev()
            .fold(0, |high, at| high << 8 | u64::from(self.byte(address + at)))
    }

    fn value(&self, expression: &Expression) -> u64 {
        match expression {
            Expression::Own(_) => panic!("this process has none"),
            Expression::Constant(value) => *value,
            Expression::Register(number) => self.registers[usize::from(*number)],
            Expression::Load {
                address,
                bytes,
                signed,
            } => extended(self.read(self.value(address), *bytes), 8 * bytes, *signed),
            Expression::Extend {
                value,
                bits,
                signed,
            } => extended(self.value(value), *bits, *signed),
            Expression::Apply(operator, left, right) => {
                let (left, right) = (self.value(left), self.value(right));
                match operator {
                    Operator::Add => left.wrapping_add(right),
                    Operator::Subtract => left.wrapping_sub(right),
                    Operator::Multiply => left.wrapping_mul(right),
                    Operator::And => left & right,
                    Operator::Or => left | right,
                    Operator::Xor => left ^ right,
                    Operator::ShiftLeft => left.checked_shl(small(right)).unwrap_or(0),
                    Operator::ShiftRight => left.checked_shr(small(right)).unwrap_or(0),
                    Operator::Equal => u64::from(left == right),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn shown(&self, captured: &Captured) -> String {
        let value = match &captured.source {
            Source::Stack { .. } => panic!("is no value of a variable"),
            Source::Operand(_) => panic!("of events only"),
            Source::Number(number) => captured.kind.value(self.value(number)),
            Source::Bytes { address, length } => {
                let start = self.value(address);
                let bytes: Vec<u8> = (0..u64::from(*length))
                    .map(|at| self.byte(start + at))
                    .collect();
                FieldValue::of_bytes(&bytes)
            }
            Source::Text { text, max } => {
                let start = self.value(&text.address);
                let bytes: Vec<u8> = (start..start + u64::from(*max))
                    .map(|at| self.byte(at))
                    .take_while(|byte| *byte != 0)
                    .collect();
                FieldValue::of_text(&bytes, false)
            }
        };
        format!("{}={value}", captured.name)
    }

    fn all(&self, captured: &[Captured]) -> String {
        let shown: Vec<String> = captured.iter().map(|one| self.shown(one)).collect();
        shown.join(" ")
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn extended(value: u64, bits: u8, signed: bool) -> u64 {
    let unused = 64 - u32::from(bits);
    match signed {
        true => ((value << unused).cast_signed() >> unused).cast_unsigned(),
        false => value << unused >> unused,
    }
}

const ITEM: u64 = 0x5000;
const NAME: u64 = 0x6000;
const STACK: u64 = 0x7000;

/// A call of `registers`: everything that it is given differs.
fn called() -> State {
    let mut state = State::default();
    state.registers[7] = 1000;
    state.registers[6] = 0x1_ffff_fffe;
    state.registers[2] = 0xabcd_ef83;
    state.registers[1] = 0xffff_8000;
    state.registers[8] = ITEM;
    state.registers[9] = NAME;
    state.registers[4] = STACK;
    state.put(NAME, b"hello\0");
    state.put(ITEM, &9_u64.to_le_bytes());
    state.put(ITEM + 8, &(ITEM + 0x100).to_le_bytes());
    state.put(ITEM + 0x100, &10_u64.to_le_bytes());
    // id, level, 3 bits of 5 and then, in a unit of their own, 13 bits of -2.
    state.put(ITEM + 16, &[0x34, 0x12, 0xf0, 0x05, 0xfe, 0x1f, 0, 0]);
    state.put(ITEM + 24, &5_u32.to_le_bytes());
    state.put(ITEM + 32, &NAME.to_le_bytes());
    for (index, value) in [-1_i32, 22, 33, -44].iter().enumerate() {
        state.put(ITEM + 40 + 4 * index as u64, &value.to_le_bytes());
    }
    state.put(ITEM + 56, b"label\0\0\0");
    state.put(ITEM + 64, &[1, 0, 0, 0, 2, 0, 0, 0]);
    state.put(ITEM + 72, &[1]);
    state
}

#[test]
fn parameters_are_found_at_the_first_instruction_however_compiled() {
    for (file, way) in programs().iter().zip(WAYS) {
        let program = opened(file);
        let all = program.values("registers $args");
        assert_eq!(
            called().all(&all),
            "serial=1000 number=-2 small=131 narrow=-32768 item=0x5000 text=0x6000",
            "{way:?}"
        );
        let mut state = State::default();
        for (number, value) in [(7, 1), (6, 2), (2, 3), (1, 4), (8, 5), (9, 6), (4, STACK)] {
            state.registers[number] = value;
        }
        state.put(STACK + 8, &(-7_i64).to_le_bytes());
        state.put(STACK + 16, &8_u64.to_le_bytes());
        let all = program.values("stacked a f seventh eighth $arg8:x32");
        assert_eq!(
            state.all(&all),
            "a=1 f=6 seventh=-7 eighth=8 arg8=0x8",
            "{way:?}"
        );
        let all = program.values("pieces $args");
        assert_eq!(
            state.all(&all),
            "pair.first=1 pair.second=2 serial=3",
            "{way:?}"
        );
    }
}

/// Compilers write a number in the fewest bytes that it fits into, whether it has a sign or not.
#[test]
fn constants_are_what_the_source_says() {
    for (file, way) in programs().iter().zip(WAYS) {
        let program = opened(file);
        for (number, name) in [
            (6, "TCP"),
            (132, "SCTP"),
            (255, "RAW"),
            (40_000, "BIG"),
            (0x9000_0000, "HUGE_ONE"),
        ] {
            let mut state = State::default();
            state.registers[7] = number;
            let values = program.values(&format!("carries protocol protocol=={name}"));
            assert_eq!(
                state.all(&values),
                format!("protocol={name} protocol=={name}=1"),
                "{way:?}"
            );
        }
        if way[0] == "-O2" {
            let values = program.values("carries limit below mask most low");
            assert_eq!(
                State::default().all(&values),
                "limit=200 below=-56 mask=4294967295 most=255 low=-200",
                "{way:?}"
            );
        }
    }
}

#[test]
fn members_are_followed_as_in_c() {
    for (file, way) in programs().iter().zip(WAYS) {
        let program = opened(file);
        let values = program.values(
            "registers item->serial item->next->serial item->part.id item->part.level item->part.flags \
             item->part.rest item->color item->name:string *item->name item->table[3] (*item).label item->low \
             item->high item->ready &item->table[1] item->serial+1",
        );
        assert_eq!(
            called().all(&values),
            "item->serial=9 item->next->serial=10 item->part.id=4660 item->part.level=-16 item->part.flags=5 \
             item->part.rest=-2 item->color=GREEN item->name=\"hello\" *item->name='h' item->table[3]=-44 \
             (*item).label=\"label\" item->low=1 item->high=2 item->ready=true &item->table[1]=0x502c \
             item->serial+1=10",
            "{way:?}"
        );
        let bytes = program.values("registers item->part (item-1)+1:u64");
        assert_eq!(
            called().all(&bytes),
            "item->part=3412f005fe1f0000 (item-1)+1=20480",
            "{way:?}"
        );
    }
}

#[test]
fn what_is_returned_is_found() {
    for file in programs() {
        let program = opened(file);
        let mut state = State::default();
        state.registers[0] = 0xffff_ffff_ffff_fff0;
        state.registers[2] = 5;
        let shown = |text: &str| state.all(&program.values(text));
        assert_eq!(shown("stacked%return $retval"), "retval=-16");
        assert_eq!(
            shown("pieces%return $retval"),
            "retval.first=-16 retval.second=5"
        );
        assert_eq!(
            program.error("nothing%return $retval"),
            "`$retval`: the function returns nothing"
        );
        assert_eq!(
            program.error("floats%return $retval"),
            "`$retval` cannot be captured at floats%return: double is not returned as an integer or a pointer"
        );
    }
}

#[test]
fn globals_and_lines_are_found() {
    for (file, way) in programs().iter().zip(WAYS) {
        let program = opened(file);
        let at = program.image.symbols.address_of("global").unwrap().0;
        let mut state = State::default();
        state.put(at, &77_u64.to_le_bytes());
        assert_eq!(
            state.all(&program.values("locals global.serial")),
            "global.serial=77",
            "{way:?}"
        );
        let line = 1 + SOURCE
            .lines()
            .position(|line| line.contains("the line"))
            .unwrap();
        let found = program.resolve(&format!("known.c:{line} serial")).unwrap();
        let pieces = program.image.symbols.named("pieces").next().unwrap();
        for one in &found {
            let crate::probe::Point::At { at, .. } = one.point else {
                panic!("{one:?}");
            };
            assert!((pieces.address..pieces.address.wrapping_add(pieces.size)).contains(&at));
        }
        let is_first = |line: &str| line.contains("const char *text)");
        let first = 2 + SOURCE.lines().position(is_first).unwrap();
        assert_eq!(
            program.error("known.c:1"),
            format!("there is no code for known.c:1; the nearest line with code is {first}")
        );
        assert_eq!(
            program.error("knwon.c:1"),
            "no source file `knwon.c` is known; did you mean `known.c`?"
        );
    }
}

/// In the middle of an unoptimised function variables lie in its frame, each for itself.
#[test]
fn locals_lie_in_the_frame() {
    let program = opened(&programs()[1]);
    let line = 1 + SOURCE
        .lines()
        .position(|line| line.contains("sink = late;"))
        .unwrap();
    let mut state = State::default();
    state.registers[5] = STACK;
    state.registers[4] = STACK - 0x40;
    let places = program.values(&format!("known.c:{line} &count &early &late"));
    let mut places: Vec<u64> = places
        .iter()
        .map(|one| match &one.source {
            Source::Number(address) => state.value(address),
            other => panic!("{other:?}"),
        })
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[1] - pair[0] >= 8, "{places:x?}");
    }
    assert!(
        places.iter().all(|at| (STACK - 0x40..STACK).contains(at)),
        "{places:x?}"
    );
}

#[test]
fn errors_name_what_there_is() {
    for file in programs() {
        let program = opened(file);
        for (text, message) in [
            (
                "registers itm",
                "there is no variable `itm` at registers; did you mean `item`? (there are ",
            ),
            (
                "registers item->nam",
                "`*item`: item has no member `nam`; did you mean `name`; it has serial, next, part, color, name, table, \
                 label, low, high, real, ready",
            ),
            (
                "registers item->part.id.x",
                "`item->part.id`: is short unsigned int, which has no members",
            ),
            (
                "registers item->table[4]",
                "`item->table[4]`: the last element is item->table[3]",
            ),
            (
                "registers item->real",
                "`item->real`: is a double of 8 bytes, which a record cannot hold: `item->real:x64` has its bits",
            ),
            (
                "floats hidden->x",
                "`*hidden`: is struct only_declared, which has no members",
            ),
            ("floats real", "`real` cannot be captured at floats: "),
            (
                "registers &item->part.flags",
                "`item->part.flags`: is a bit field and has no address",
            ),
            (
                "registers item->part+1",
                "`item->part`: is a structure (part), not a number: name a member (id, level, flags, rest)",
            ),
            (
                "registers number:string",
                "`number`: is int, not the address of text",
            ),
            (
                "registers%return serial",
                "`serial`: variables are gone at a function's return: ",
            ),
        ] {
            let error = program.error(text);
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
    let optimised = opened(&programs()[3]);
    let error = optimised.error("locals late");
    let message = "`late` is optimised out at locals; it is available at locals+0x";
    assert!(error.starts_with(message), "{error}");
}

fn ask_everything(file: &[u8]) {
    let Ok(image) = Image::parse(file) else {
        return;
    };
    let Ok(debug) = DebugInfo::read(Arc::new(file.to_vec()), None) else {
        return;
    };
    for text in [
        "registers $args item->next->next->part.rest item->name:string item->table[1]",
        "pieces%return $retval",
        "known.c:40 turned.first serial",
        "locals+4 late early count",
        "floats hidden->x",
    ] {
        let _ = parse(text).and_then(|request| resolve(&image, Some(&debug), &request));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Bytes of the debug sections changed: an error, or an answer.
    #[test]
    fn damage_is_an_error_or_goes_by(
        way in 0..WAYS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
    ) {
        let mut file = programs()[way].clone();
        // After the text, which begins a page into the file, and its headers.
        let start = 0x1000;
        let room = file.len() - start;
        for (index, byte) in changes {
            let at = start + index.index(room);
            file[at] = byte;
        }
        ask_everything(&file);
    }

    /// A file that is cut off, with headers that still name what was there.
    #[test]
    fn sections_that_are_cut_short_are_an_error_or_go_by(way in 0..WAYS.len(), cut in any::<prop::sample::Index>()) {
        let mut file = programs()[way].clone();
        let from = cut.index(file.len());
        let to = file.len().min(from + 4096);
        file[from..to].fill(0);
        ask_everything(&file);
    }
}
