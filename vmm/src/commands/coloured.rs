//! Colours in the text of a report: what is lost in red, long calls too, what is remarked pale, headings bold.
//!
//! A report knows nothing of terminals. A line says by its form what it is, and is coloured as a whole, or at a mark.

use std::borrow::Cow;
use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};

const LOST: Style = AnsiColor::Red.on_default().bold();
const LONG: Style = AnsiColor::Red.on_default();
const NOT_SHORT: Style = AnsiColor::Yellow.on_default();
const REMARK: Style = Style::new().dimmed();
const HEADING: Style = Style::new().bold();

/// Colours the lines that are written into it.
#[derive(Debug)]
pub struct Coloured<W: Write> {
    out: W,
    has_colours: bool,
    line: Vec<u8>,
}

impl<W: Write> Coloured<W> {
    /// Into `out`, or passes everything on as it is.
    pub const fn new(out: W, has_colours: bool) -> Self {
        Self {
            out,
            has_colours,
            line: Vec::new(),
        }
    }

    /// The lines that are complete.
    fn put(&mut self) -> io::Result<()> {
        let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(());
        };
        let rest = self.line.split_off(end + 1);
        let lines = std::mem::replace(&mut self.line, rest);
        let text = String::from_utf8_lossy(&lines);
        let coloured: String = text.split_inclusive('\n').map(coloured).collect();
        self.out.write_all(coloured.as_bytes())
    }
}

impl<W: Write> Write for Coloured<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_colours {
            return self.out.write(bytes);
        }
        self.line.extend_from_slice(bytes);
        self.put().map(|()| bytes.len())
    }

    /// A line that has not ended is written, too.
    fn flush(&mut self) -> io::Result<()> {
        self.put()?;
        let rest = std::mem::take(&mut self.line);
        let rest = String::from_utf8_lossy(&rest);
        self.out.write_all(coloured(&rest).as_bytes())?;
        self.out.flush()
    }
}

/// A line with its end.
fn coloured(line: &str) -> Cow<'_, str> {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    let Some((style, from, to)) = styled(text) else {
        return line.into();
    };
    let parts = [text.get(..from), text.get(from..to), text.get(to..)];
    let [Some(before), Some(part), Some(after)] = parts else {
        return line.into();
    };
    format!("{before}{style}{part}{style:#}{after}{end}").into()
}

/// The part of a line that has a colour.
fn styled(line: &str) -> Option<(Style, usize, usize)> {
    let whole = |style| Some((style, 0, line.len()));
    let is_loss = line.contains("[LOST ") && line.contains(" EVENTS]");
    let is_sum = line.starts_with("lost  ") && !line.ends_with(" nothing");
    if is_loss || is_sum {
        return whole(LOST);
    }
    if line.starts_with('#') {
        return whole(REMARK);
    }
    if is_heading(line) {
        return whole(HEADING);
    }
    // ` 0) ! 100.500 us  |  f();`: the mark that ftrace gives to a long call, and how long it was.
    let (before, rest) = line.split_once(") ")?;
    let is_vcpu = before
        .trim_start()
        .bytes()
        .all(|byte| byte.is_ascii_digit());
    let (duration, _) = rest.split_once("us ").filter(|_| is_vcpu)?;
    let style = match duration.get(..1)? {
        "!" => NOT_SHORT,
        "#" | "*" | "@" | "$" => LONG,
        _ => return None,
    };
    let from = before.len() + 2;
    Some((style, from, from + duration.len() + 2))
}

/// Whether these are the headings of a table: capitals, units aside.
fn is_heading(line: &str) -> bool {
    let is_unit = |word: &str| matches!(word, "us" | "s" | "%");
    let is_capital = |byte: u8| byte.is_ascii_uppercase() || b"<-+%".contains(&byte);
    let mut words = line
        .split_whitespace()
        .filter(|word| !is_unit(word))
        .peekable();
    line.starts_with(' ')
        && words.peek().is_some()
        && words.all(|word| word.bytes().all(is_capital))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIM: &str = "\u{1b}[2m";
    const BOLD: &str = "\u{1b}[1m";
    const RED: &str = "\u{1b}[31m";
    const END: &str = "\u{1b}[0m";

    fn written(text: &str, has_colours: bool) -> String {
        let mut out = Coloured::new(Vec::new(), has_colours);
        // In any pieces.
        for piece in text.as_bytes().chunks(7) {
            out.write_all(piece).unwrap();
        }
        out.flush().unwrap();
        String::from_utf8(out.out).unwrap()
    }

    #[test]
    fn lines_have_the_colours_of_what_they_are() {
        for (line, expected) in [
            ("# 6 calls\n", format!("{DIM}# 6 calls{END}\n")),
            (
                "     CALLS   TOTAL us  FUNCTION <-CALLER\n",
                format!("{BOLD}     CALLS   TOTAL us  FUNCTION <-CALLER{END}\n"),
            ),
            (
                "         2    200.750  f1\n",
                "         2    200.750  f1\n".into(),
            ),
            ("lost      nothing\n", "lost      nothing\n".into()),
            (
                " 0)   1.000 us    |  f();\n",
                " 0)   1.000 us    |  f();\n".into(),
            ),
            (
                " 0) # 1234.567 us |  f() {\n",
                format!(" 0) {RED}# 1234.567 us{END} |  f() {{\n"),
            ),
            (
                "lost      7 records\n",
                format!("{BOLD}{RED}lost      7 records{END}\n"),
            ),
            (
                "CPU:1 [LOST 7 EVENTS]\n",
                format!("{BOLD}{RED}CPU:1 [LOST 7 EVENTS]{END}\n"),
            ),
        ] {
            assert_eq!(written(line, true), expected);
            assert_eq!(written(line, false), line);
        }
    }

    #[test]
    fn what_looks_odd_is_passed_on() {
        for line in ["\n", ") us \n", "x) ! é us |\n", " 0) é us \n", "   \n"] {
            assert_eq!(written(line, true), line);
        }
    }

    #[test]
    fn a_line_without_its_end_is_not_lost() {
        let mut out = Coloured::new(Vec::new(), true);
        out.write_all(b"# half").unwrap();
        out.flush().unwrap();
        assert_eq!(out.out, format!("{DIM}# half{END}").as_bytes());
    }
}
