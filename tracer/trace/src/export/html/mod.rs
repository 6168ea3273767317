//! One page of HTML with all that a report finds: it needs no network and no other file, and its own rules for browsers forbid
//! it to ask for any. What the trace says is data in it, and is shown as text.

use std::fmt::Write as _;
use std::io::{self, Write};

use terms::printable::masked;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What is on the page.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What it is called.
    pub title: &'a str,
    /// What was found, as the JSON object of a report.
    pub data: &'a str,
    /// A flame graph as SVG, where there is one.
    pub flamegraph: Option<&'a str>,
}

impl Page<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let title = escaped(&masked(self.title));
        // Nothing that is data can end the element that it is in.
        let data = self.data.replace('<', "\\u003c");
        let flamegraph = self.flamegraph.map(frame).unwrap_or_default();
        let mut rest = PAGE;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").unwrap_or((after, ""));
            out.write_all(before.as_bytes())?;
            let part = match name {
                "title" => &title,
                "style" => STYLE,
                "script" => SCRIPT,
                "data" => &data,
                _ => &flamegraph,
            };
            out.write_all(part.as_bytes())?;
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

/// A flame graph in a frame: it has scripts of its own, which reach nothing else.
fn frame(svg: &str) -> String {
    let height = svg_height(svg).unwrap_or(600) + 16;
    let svg = in_address(svg);
    format!(
        "<section id=\"flamegraph\"><h2>Flame graph</h2><iframe title=\"Flame graph\" sandbox=\"allow-scripts\" height=\"{height}\" src=\"data:image/svg+xml,{svg}\"></iframe></section>"
    )
}

/// How high a picture says that it is.
fn svg_height(svg: &str) -> Option<u32> {
    let (_, rest) = svg.split_once("<svg")?;
    let (_, rest) = rest.split_once(" height=\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// As a part of an address in an attribute's quotes (RFC 3986, section 2.1).
fn in_address(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b" ()*,-./:;=_".contains(&byte);
    let mut encoded = String::with_capacity(text.len() + text.len() / 4);
    for byte in text.bytes() {
        if is_plain(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// As text of an element or in an attribute's quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(page: &Page<'_>) -> String {
        let mut out = Vec::new();
        page.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_a_trace_says_stays_in_its_place() {
        let page = Page {
            title: "a<b>\"\u{1b}",
            data: r#"{"counts":[{"function":"</script><script>alert(1)</script>{{style}}"}]}"#,
            flamegraph: Some("<?xml?><svg version=\"1\" height=\"120\"><g title='x\"'></g></svg>"),
        };
        let text = written(&page);
        assert!(text.contains("<title>a&lt;b&gt;&quot;?</title>"));
        assert_eq!(text.matches("</script>").count(), 2, "{text}");
        assert!(text.contains(r"\u003c/script>\u003cscript>alert(1)\u003c/script>{{style}}"));
        let frame =
            "height=\"136\" src=\"data:image/svg+xml,%3C%3Fxml%3F%3E%3Csvg version=%221%22 height";
        assert!(text.contains(frame), "{text}");
    }

    #[test]
    fn nothing_is_asked_of_the_network() {
        let page = Page {
            title: "t",
            data: "{}",
            flamegraph: None,
        };
        let text = written(&page);
        assert!(text.contains("default-src 'none'"));
        assert!(
            !text.contains("http:") && !text.contains("https:") && !text.contains("iframe title")
        );
        assert!(!text.contains("{{"));
    }
}
