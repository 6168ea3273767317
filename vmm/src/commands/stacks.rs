//! Stacks of a trace, folded, and pictures of them: flame graphs, icicles, and what became of them since another run.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use inferno::differential;
use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Direction};
use terms::printable::masked;
use terms::quantity::{counted, grouped, in_microseconds};
use trace::convert::{folded, weight};
use trace::export::uftrace::VcpuTotals;
use trace::report::calls::Calls;
use trace::report::directory::TraceDirectory;
use trace::report::{Missing, ReportError};

/// What inferno knows the frame around all others by.
const EVERYTHING: &str = "";
const GREY: Color = Color {
    r: 210,
    g: 210,
    b: 210,
};
/// Characters of a command line that a picture has room for.
const COMMAND_MAX: usize = 130;

/// How stacks are written or drawn.
#[derive(Debug, Clone, Default, Args)]
pub struct StackOptions {
    /// In stacks, show arguments: calls of a function with other arguments are other frames (folded, flamegraph, html)
    #[arg(long)]
    pub values: bool,
    /// Show what took longer than in this trace and what less: numbers of both (folded), red and blue (flamegraph, html)
    #[arg(long, value_name = "DIR")]
    pub before: Option<PathBuf>,
    /// Draw stacks from the top down (flamegraph, html)
    #[arg(long)]
    pub icicle: bool,
}

impl StackOptions {
    /// The stacks of a trace, or of both with two numbers each. What is lost of the trace or in doubt goes to `note`, and is said of the
    /// other one as well.
    pub(super) fn folded(
        &self,
        trace: &TraceDirectory,
        calls: &mut Calls,
        note: impl Fn(&str),
    ) -> Result<Vec<u8>, ReportError> {
        let after = folded(trace, calls, self.values, note)?;
        let Some(before) = &self.before else {
            return Ok(after);
        };
        let other = TraceDirectory::open(before)?;
        if other.is_graph() != trace.is_graph() {
            let one = if other.is_graph() { trace } else { &other };
            return Err(one.is_no_graph("comparing stacks"));
        }
        if weight(&other) != weight(trace) {
            return Err(ReportError::NoTimes("comparing how long stacks took"));
        }
        let mut others = Calls::open(&other, &calls.excerpt)?;
        others.watch = calls.watch.clone();
        // Of this one nobody else says anything.
        let say = |said: &str| log::warn!("{}: {said}", masked(&before.display().to_string()));
        let stacks = folded(&other, &mut others, self.values, say)?;
        let missing = Missing::of(&other, &others).map(|missing| missing.to_string());
        let remark = other.remark.as_deref().filter(|_| !other.is_damaged);
        missing.as_deref().into_iter().chain(remark).for_each(say);
        let mut both = Vec::new();
        differential::from_readers(
            differential::Options::default(),
            stacks.as_slice(),
            after.as_slice(),
            &mut both,
        )
        .map_err(ReportError::Output)?;
        // They come in any order.
        let mut lines: Vec<&[u8]> = both.split_inclusive(|byte| *byte == b'\n').collect();
        lines.sort_unstable();
        Ok(lines.concat())
    }

    /// Draws folded stacks of this trace.
    pub(super) fn draw(
        &self,
        trace: &TraceDirectory,
        folded: &[u8],
        out: &mut impl Write,
    ) -> Result<(), ReportError> {
        if folded.is_empty() {
            return Err(ReportError::NothingToDraw);
        }
        let mut palette = palette(folded);
        let mut options = flamegraph::Options::default();
        options.title = match &self.before {
            None => "exotrace".to_owned(),
            Some(before) => {
                let before = before.display().to_string();
                format!(
                    "exotrace: red took longer than in {}, blue less",
                    masked(&before)
                )
            }
        };
        options.subtitle = about(trace);
        options.count_name = weight(trace).unit().to_owned();
        options.palette_map = Some(&mut palette);
        if self.icicle {
            options.direction = Direction::Inverted;
        }
        let failed = |error| ReportError::Output(io::Error::other(format!("{error}")));
        if self.before.is_none() {
            return flamegraph::from_reader(&mut options, folded, out).map_err(failed);
        }
        let mut svg = Vec::new();
        flamegraph::from_reader(&mut options, folded, &mut svg).map_err(failed)?;
        let svg = readable(&String::from_utf8_lossy(&svg));
        out.write_all(svg.as_bytes()).map_err(ReportError::Output)
    }
}

/// What took less is blue, from white to a blue on which black letters cannot be read: less far, then.
fn readable(svg: &str) -> String {
    /// So much of the other two colours the darkest has.
    const LEAST: u32 = 96;
    let mut parts = svg.split(FILL);
    let mut lighter = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        lighter.push_str(FILL);
        let colour = part.split_once(",255)").and_then(|(colour, rest)| {
            let (red, green) = colour.split_once(',')?;
            let shade: u8 = red.parse().ok().filter(|_| red == green)?;
            Some((u32::from(shade), rest))
        });
        match colour {
            Some((shade, rest)) => {
                let shade = LEAST + shade * (255 - LEAST) / 255;
                lighter.push_str(&format!("{shade},{shade},255){rest}"));
            }
            None => lighter.push_str(part),
        }
    }
    lighter
}

/// Before each colour of a picture.
const FILL: &str = "fill=\"rgb(";

/// What a picture is of, in a line: the guest, the command that traced it, how many calls there are and are not.
fn about(trace: &TraceDirectory) -> Option<String> {
    let side = trace.side.as_ref()?;
    let sum = |of: fn(&VcpuTotals) -> u64| side.totals.iter().map(of).fold(0, u64::saturating_add);
    let (calls, lost) = (sum(|totals| totals.entries), sum(|totals| totals.lost));
    let (calls, lost) = (counted(calls, "call"), grouped(lost));
    let command = &side.metadata.command_line;
    // Where its files are is not what the picture is of.
    let words = command.split(' ');
    let words = words.map(|word| word.rsplit_once('/').map_or(word, |(_, name)| name));
    let command = words.collect::<Vec<_>>().join(" ");
    let shown: String = command.chars().take(COMMAND_MAX).collect();
    let more = if shown.len() < command.len() {
        "..."
    } else {
        ""
    };
    // In whose time nobody sees by a stack.
    let waits = &side.waits;
    let waits = match waits.count {
        0 => String::new(),
        count => {
            let (count, total) = (counted(count, "wait"), in_microseconds(waits.total_ns));
            format!(", {count} for the reader ({total} us)")
        }
    };
    let cut = match trace.remark {
        Some(_) => ", not whole",
        None => "",
    };
    Some(masked(&format!("{calls}, {lost} lost{cut}{waits}: {shown}{more}")).into_owned())
}

/// Functions of one module or subsystem in one colour.
fn palette(folded: &[u8]) -> PaletteMap {
    let text = String::from_utf8_lossy(folded);
    let stacks = text.lines().filter_map(|line| line.rsplit_once(' '));
    let frames: BTreeSet<&str> = stacks.flat_map(|(stack, _)| stack.split(';')).collect();
    let mut palette = PaletteMap::default();
    palette.insert(EVERYTHING, GREY);
    for frame in frames {
        palette.insert(frame, colour(subsystem(frame)));
    }
    palette
}

/// What a function belongs to, by its name: `ext4` for `ext4_iget [ext4]`, `tokio` for `tokio::spawn`, `vfs` for `__vfs_read`.
fn subsystem(frame: &str) -> &str {
    if let Some((_, module)) = frame.rsplit_once(" [") {
        return module.trim_end_matches(']');
    }
    let name = frame.trim_start_matches(['_', '<', '&']);
    let end = name.find("::").or_else(|| name.find(['_', '.', '(']));
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

/// A colour of its own: any hue, light enough for black letters.
fn colour(name: &str) -> Color {
    // FNV-1a: the same in each picture.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    // Around the wheel, a step of a byte from each of six colours to the next.
    let [step, sector, ..] = hash.rotate_right(32).to_le_bytes();
    let (up, down) = (step, u8::MAX - step);
    let [r, g, b] = match sector % 6 {
        0 => [u8::MAX, up, 0],
        1 => [down, u8::MAX, 0],
        2 => [0, u8::MAX, up],
        3 => [0, down, u8::MAX],
        4 => [up, 0, u8::MAX],
        _ => [u8::MAX, 0, down],
    }
    .map(lighter);
    Color { r, g, b }
}

/// Nearly half way to white.
const fn lighter(part: u8) -> u8 {
    u8::MAX - (u8::MAX - part) / 20 * 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_belongs_to_what_its_name_says() {
        for (frame, expected) in [
            ("ext4_iget [ext4]", "ext4"),
            ("__vfs_read", "vfs"),
            ("vfs_read(file=0x1)", "vfs"),
            ("tokio::runtime::spawn", "tokio"),
            ("<alloc::vec::Vec<T> as Drop>::drop", "alloc"),
            ("schedule", "schedule"),
            ("schedule.constprop.0", "schedule"),
            ("_", ""),
        ] {
            assert_eq!(subsystem(frame), expected, "{frame}");
        }
    }

    /// As WCAG 2 reckons the contrast of a colour with black.
    fn contrast(colour: Color) -> f64 {
        let part = |value: u8| {
            let value = f64::from(value) / 255.0;
            match value <= 0.04045 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        };
        let luminance = 0.2126 * part(colour.r) + 0.7152 * part(colour.g) + 0.0722 * part(colour.b);
        (luminance + 0.05) / 0.05
    }

    #[test]
    fn what_took_less_can_be_read_too() {
        let svg = |blue: u8, red: u8| {
            format!(r#"<rect fill="rgb({blue},{blue},255)"/><rect fill="rgb(255,{red},{red})"/>"#)
        };
        for shade in 0..=u8::MAX {
            let text = readable(&svg(shade, shade));
            let (_, after) = text.split_once("rgb(").unwrap();
            let lighter: u8 = after.split(',').next().unwrap().parse().unwrap();
            assert_eq!(text, svg(lighter, shade));
            let blue = Color {
                r: lighter,
                g: lighter,
                b: 255,
            };
            assert!(contrast(blue) >= 4.5, "{shade}");
            let red = Color {
                r: 255,
                g: shade,
                b: shade,
            };
            assert!(contrast(red) >= 4.5, "{shade}");
        }
        let other = r#"rgb(0,0,255) fill="rgb(1,2,255)" fill="black""#;
        assert_eq!(readable(other), other);
    }

    #[test]
    fn every_colour_can_be_read_on_and_names_of_one_kind_share_one() {
        let names: Vec<String> = (0..5000).map(|number| format!("f{number}x")).collect();
        assert!(names.iter().all(|name| contrast(colour(name)) >= 4.5));
        let folded = b"vfs_read;__vfs_open;ext4_iget 7\nvfs_read 9\n";
        let palette = palette(folded);
        assert_eq!(palette.get("vfs_read"), palette.get("__vfs_open"));
        assert_ne!(palette.get("vfs_read"), palette.get("ext4_iget"));
        assert_eq!(palette.iter().count(), 4);
        assert!(contrast(palette.get(EVERYTHING).unwrap()) >= 4.5);
    }
}
