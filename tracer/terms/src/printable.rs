//! Text of a guest or a file that may go to a terminal, or into a file that tools show on one.
//!
//! A terminal acts on control characters: the C0 set with ESC, and the C1 set, of which U+009B alone begins a
//! command. Characters that change the direction of text or are invisible make a name look like another. All of
//! these are *unprintable* here; everything else is left as it is.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;

/// Whether a character shows as itself and moves nothing but the cursor by its width.
#[must_use]
pub fn is_printable(char: char) -> bool {
    // Formatting characters: soft hyphen, direction marks, embeddings, overrides and isolates, zero widths, separators
    // of lines, byte order mark, annotations, tags.
    let is_format = matches!(char,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !char.is_control() && !is_format
}

/// The text with what is unprintable as Rust writes it: `\u{9b}`, `\n`.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |char, into| into.extend(char.escape_default()))
}

/// The text with a question mark for each unprintable character.
#[must_use]
pub fn masked(text: &str) -> Cow<'_, str> {
    replaced(text, |_, into| into.push('?'))
}

/// The same for text of several lines, which stay apart.
#[must_use]
pub fn masked_lines(text: &str) -> String {
    let lines = text.split('\n').map(masked);
    lines.collect::<Vec<_>>().join("\n")
}

/// The text as far as so many bytes; one that goes on says so.
#[must_use]
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let kept = text.get(..text.floor_char_boundary(most));
    format!("{}...", kept.unwrap_or_default()).into()
}

/// Text in which what is unprintable is escaped, and a backslash too, so that the way back is certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reversible<'a>(pub Cow<'a, str>);

impl<'a> From<Cow<'a, str>> for Reversible<'a> {
    /// Text that was made so before.
    fn from(text: Cow<'a, str>) -> Self {
        Self(text)
    }
}

impl<'a> Reversible<'a> {
    /// Escapes `text`.
    #[must_use]
    pub fn of(text: &'a str) -> Self {
        if !text.contains(|char| char == '\\' || !is_printable(char)) {
            return Self(Cow::Borrowed(text));
        }
        let mut clean = String::with_capacity(text.len() + 16);
        for char in text.chars() {
            if char == '\\' || !is_printable(char) {
                clean.extend(char.escape_default());
            } else {
                clean.push(char);
            }
        }
        Self(Cow::Owned(clean))
    }

    /// The text that it was made of. An escape that [`Self::of`] does not make stays as it is.
    #[must_use]
    pub fn reversed(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        let mut rest = &*self.0;
        while let Some((before, escape)) = rest.split_once('\\') {
            text.push_str(before);
            let (char, left) = unescape(escape).unwrap_or(('\\', escape));
            text.push(char);
            rest = left;
        }
        text.push_str(rest);
        text
    }
}

/// What stands after a backslash, and what after that.
fn unescape(escape: &str) -> Option<(char, &str)> {
    let mut chars = escape.chars();
    let char = match chars.next()? {
        '\\' => '\\',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let (digits, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
            let char = u32::from_str_radix(digits, 16)
                .ok()
                .and_then(char::from_u32)?;
            return Some((char, rest));
        }
        _ => return None,
    };
    Some((char, chars.as_str()))
}

/// A value as JSON on one line. What is unprintable is there as `\u009b`, so that nothing is lost.
///
/// # Errors
/// What serde says.
pub fn json(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escaped_json)
}

/// The same on several lines.
///
/// # Errors
/// What serde says.
pub fn json_pretty(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escaped_json)
}

/// serde escapes the C0 set; what is left stands inside of strings, for there is no other place for it.
fn escaped_json(text: String) -> String {
    let is_left = |char: char| !is_printable(char) && char != '\n';
    if !text.contains(is_left) {
        return text;
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_left(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(clean, "\\u{unit:04x}");
            }
        } else {
            clean.push(char);
        }
    }
    clean
}

fn replaced(text: &str, by: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_printable(char) {
            clean.push(char);
        } else {
            by(char, &mut clean);
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BAD: [char; 10] = [
        '\0', '\u{1b}', '\n', '\u{7f}', '\u{85}', '\u{9b}', '\u{202a}', '\u{202e}', '\u{2066}',
        '\u{feff}',
    ];

    #[test]
    fn what_a_terminal_acts_on_is_escaped_and_the_rest_is_left() {
        for char in BAD {
            let text = format!("a{char}b");
            let shown = escaped(&text).into_owned();
            assert!(shown.is_ascii() && !shown.contains(char), "{shown:?}");
            assert_eq!(masked(&text), "a?b");
        }
        for plain in ["leaf", "größe", "<T as f*[?]>::g", "λ::日本", "\u{10ffff}"] {
            assert!(matches!(escaped(plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(escaped("a\u{9b}31m"), "a\\u{9b}31m");
    }

    #[test]
    fn an_escape_that_is_none_stays() {
        for text in ["\\x", "\\u{110000}", "\\u{", "a\\", "\\u41}"] {
            assert_eq!(Reversible::from(Cow::Borrowed(text)).reversed(), text);
        }
        assert_eq!(masked_lines("a\u{1b}\nb\u{9b}\n"), "a?\nb?\n");
    }

    proptest! {
        #[test]
        fn the_way_back_is_certain(text in any::<String>(), bad in prop::sample::select(&BAD[..])) {
            let text = format!("{text}{bad}\\u{{1b}}\\");
            let made = Reversible::of(&text);
            prop_assert!(made.0.chars().all(is_printable));
            prop_assert_eq!(made.reversed(), text);
        }

        #[test]
        fn json_has_nothing_unprintable_and_loses_nothing(text in any::<String>(), bad in prop::sample::select(&BAD[..])) {
            let text = format!("{text}{bad}\u{e0041}\"");
            for json in [json(&text).unwrap(), json_pretty(&[&text]).unwrap()] {
                prop_assert!(json.chars().all(|char| is_printable(char) || char == '\n'), "{json:?}");
            }
            prop_assert_eq!(serde_json::from_str::<String>(&json(&text).unwrap()).unwrap(), text);
        }
    }
}
