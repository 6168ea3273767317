//! A program in Rust.

use std::process::Command;

use super::{ITEM, NAME, STACK, State, opened};

use crate::capture::Source;

const SOURCE: &str = r#"
#[derive(Clone, Copy)]
pub enum Shape { Dot, Line(u32), Box { width: u16, height: i64 } }
pub struct Point { pub pair: (i32, u64), pub label: &'static str, pub few: &'static [u16], pub shape: Shape }
static mut SINK: u64 = 0;
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn work(point: &Point, wide: u64, small: i8) -> i32 {
    unsafe { core::ptr::write_volatile(&raw mut SINK, wide + small as u64 + point.pair.1) };
    point.pair.0 + point.few[0] as i32 + point.label.len() as i32
}
fn main() {
    for shape in [Shape::Dot, Shape::Line(2), Shape::Box { width: 3, height: 4 }] {
        work(&Point { pair: (5, 6), label: "seven", few: &[8], shape }, 9, 10);
    }
}
"#;

/// Rust's tuples, text, slices and enums; and parameters that unoptimised code says are above the stack pointer, where
/// they are after the prologue only.
#[test]
fn rust_is_followed_as_in_rust() {
    for level in ["opt-level=0", "opt-level=2"] {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("known");
        std::fs::write(directory.path().join("known.rs"), SOURCE).unwrap();
        let mut rustc = Command::new("rustc");
        let options = [
            "--edition=2024",
            "-Crelocation-model=static",
            "-g",
            "-C",
            level,
        ];
        let rustc = rustc.args(options);
        let done = rustc.arg("known.rs").current_dir(directory.path()).status();
        assert!(done.unwrap().success(), "rustc {level}");
        let program = opened(&std::fs::read(program).unwrap());
        let mut state = State::default();
        for (number, value) in [(7, ITEM), (6, 99), (2, 0xfb), (4, STACK)] {
            state.registers[number] = value;
        }
        state.memory.extend((ITEM..ITEM + 128).map(|at| (at, 0)));
        let address = |text: &str| match &program.values(&format!("work &{text}"))[0].source {
            Source::Number(address) => state.value(address),
            other => panic!("{other:?}"),
        };
        let label = address("point.label");
        let few = address("point.few");
        let places = [
            (
                address("point.pair.0"),
                (-5_i64).cast_unsigned() & 0xffff_ffff,
            ),
            (address("point.pair.1"), 6),
            (label, NAME),
            (label + 8, 5),
            (few, NAME + 16),
            (few + 8, 2),
            (address("point.shape"), 1),
        ];
        let line = address("point.shape.Line.0");
        for (at, value) in places {
            state.put(at, &value.to_le_bytes());
        }
        state.put(line, &77_u32.to_le_bytes());
        state.put(NAME, b"seven\0");
        state.put(NAME + 16, &[8, 0, 9, 0]);
        let shown = |text: &str| state.all(&program.values(&format!("work {text}")));
        assert_eq!(shown("wide small"), "wide=99 small=-5", "{level}");
        assert_eq!(
            shown(
                "point.pair.0 point.pair.1 point.few[1] point.few.length point.shape point.shape.Line.0"
            ),
            "point.pair.0=-5 point.pair.1=6 point.few[1]=9 point.few.length=2 point.shape=Line point.shape.Line.0=77",
            "{level}"
        );
        let text = &program.values("work point.label")[0].source;
        let Source::Text { text, .. } = text else {
            panic!("{text:?}");
        };
        let length = text.length.as_ref().map(|length| state.value(length));
        assert_eq!((state.value(&text.address), length), (NAME, Some(5)));
    }
}
