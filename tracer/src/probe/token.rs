//! The words of an expression: names, numbers, text, registers, signs.

use insn::operand::register_named;

use super::BadProbe;
use super::misfit::Misfit;

/// A word of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// A number, and whether it was written in a base other than ten.
    Number(u64, bool),
    /// Text in quotes.
    Text(Vec<u8>),
    /// A name; Rust's paths are one.
    Name(String),
    /// A register, by its number and how many bytes of it.
    Register(u8, u8),
    /// `$name`.
    Special(String),
    /// An operator or a parenthesis.
    Sign(&'static str),
    /// After the last word.
    End,
}

/// A word, and where it stands in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub word: Word,
    pub start: usize,
    pub end: usize,
}

/// Longer ones first, where one begins as another.
const SIGNS: [&str; 29] = [
    "->", "&&", "||", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "+", "-", "*", "/", "%", "&",
    "|", "^", "~", "!", "(", ")", "[", "]", ".", ":", "=", ",",
];

/// The words of `text`; the last is [`Word::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Misfit> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..)
        && let Some(first) = rest.chars().next()
    {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let here = |why| Misfit { at, why };
        let after_value = tokens.last().is_some_and(|last| ends_value(&last.word));
        let after_dot = matches!(tokens.last(), Some(last) if last.word == Word::Sign("."));
        let (word, length) = if first.is_ascii_digit() {
            number(rest, after_dot).map_err(here)?
        } else if first == '"' || first == '\'' {
            quoted(rest, first).map_err(here)?
        } else if is_name(first) {
            let length = name_length(rest);
            (Word::Name(piece(rest, length).to_owned()), length)
        } else if first == '$' {
            let length = 1 + name_length(piece_from(rest, 1));
            (
                Word::Special(piece_from(piece(rest, length), 1).to_owned()),
                length,
            )
        } else if first == '%' && (!after_value || is_cast(&tokens, rest)) {
            register(rest).map_err(here)?
        } else {
            let found = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = found.ok_or_else(|| {
                here(BadProbe::Syntax {
                    text: text.to_owned(),
                    what: format!("`{first}` means nothing here"),
                })
            })?;
            (Word::Sign(sign), sign.len())
        };
        tokens.push(Token {
            word,
            start: at,
            end: at + length,
        });
        at += length;
    }
    tokens.push(Token {
        word: Word::End,
        start: text.len(),
        end: text.len(),
    });
    Ok(tokens)
}

/// Whether what ends so is a value: `%` after it is an operator, not a register.
const fn ends_value(word: &Word) -> bool {
    match word {
        Word::Sign(sign) => matches!(sign.as_bytes(), b")" | b"]"),
        Word::End => false,
        _ => true,
    }
}

/// Whether what is read is a cast, as far as it goes, and a register follows: names alone in parentheses.
fn is_cast(tokens: &[Token], rest: &str) -> bool {
    let mut before = tokens.iter().rev().skip(1).map(|token| &token.word);
    let inside = before.find(|word| !matches!(word, Word::Name(_) | Word::Sign("," | "." | "*")));
    let is_last = matches!(tokens.last(), Some(last) if last.word == Word::Sign(")"));
    is_last && inside == Some(&Word::Sign("(")) && register(rest).is_ok()
}

fn is_name(char: char) -> bool {
    char.is_alphabetic() || char == '_'
}

/// Bytes of the name that `text` begins with. `a::b` is one, as Rust's paths are.
fn name_length(text: &str) -> usize {
    let mut length = 0;
    while let Some(rest) = text.get(length..) {
        let word: usize = rest
            .chars()
            .take_while(|char| is_name(*char) || char.is_ascii_digit())
            .map(char::len_utf8)
            .sum();
        length += word;
        let after = text.get(length..).and_then(|rest| rest.strip_prefix("::"));
        if word == 0 || !after.is_some_and(|rest| rest.starts_with(is_name)) {
            break;
        }
        length += 2;
    }
    length
}

fn piece(text: &str, length: usize) -> &str {
    text.get(..length).unwrap_or_default()
}

fn piece_from(text: &str, start: usize) -> &str {
    text.get(start..).unwrap_or_default()
}

/// A number in the bases of C and Rust; after a dot, the number of a field.
fn number(text: &str, field: bool) -> Result<(Word, usize), BadProbe> {
    let length = text
        .find(|char: char| !char.is_ascii_alphanumeric() && char != '_')
        .unwrap_or(text.len());
    let length = if field {
        text.find(|char: char| !char.is_ascii_digit())
            .unwrap_or(text.len())
    } else {
        length
    };
    let written = piece(text, length);
    let (value, other) = value_of(written).ok_or_else(|| BadProbe::Syntax {
        text: written.to_owned(),
        what: "is no number of 64 bits".to_owned(),
    })?;
    Ok((Word::Number(value, other), length))
}

/// What a number is worth, and whether it is in another base than ten.
pub(super) fn value_of(written: &str) -> Option<(u64, bool)> {
    let digits = written.trim_end_matches(['u', 'U', 'l', 'L']);
    let digits = digits.replace('_', "");
    for (start, base) in [("0x", 16), ("0X", 16), ("0b", 2), ("0o", 8)] {
        if let Some(digits) = digits.strip_prefix(start) {
            return Some((u64::from_str_radix(digits, base).ok()?, true));
        }
    }
    Some((digits.parse().ok()?, false))
}

/// Text in double quotes, or one character in single ones, with C's escapes.
fn quoted(text: &str, quote: char) -> Result<(Word, usize), BadProbe> {
    let wrong = |what: &str| BadProbe::Syntax {
        text: text.to_owned(),
        what: what.to_owned(),
    };
    let mut bytes = Vec::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            _ if char == quote => {
                let length = at + 1;
                if quote == '"' {
                    return Ok((Word::Text(bytes), length));
                }
                let &[byte] = bytes.as_slice() else {
                    return Err(wrong("a character is one byte"));
                };
                return Ok((Word::Number(u64::from(byte), false), length));
            }
            '\\' => {
                let (_, escaped) = chars.next().ok_or_else(|| wrong("has no closing quote"))?;
                bytes.push(match escaped {
                    'n' => b'\n',
                    't' => b'\t',
                    'r' => b'\r',
                    '0' => 0,
                    '\\' | '"' | '\'' => u8::try_from(escaped).unwrap_or_default(),
                    _ => return Err(wrong(r#"knows the escapes \n \t \r \0 \\ \" \'"#)),
                });
            }
            _ => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Err(wrong("has no closing quote"))
}

fn register(text: &str) -> Result<(Word, usize), BadProbe> {
    let rest = piece_from(text, 1);
    let length = 1 + rest
        .find(|char: char| !char.is_ascii_alphanumeric())
        .unwrap_or(rest.len());
    let name = piece(text, length);
    let found = register_named(name).ok_or_else(|| BadProbe::Register {
        name: name.to_owned(),
    })?;
    Ok((Word::Register(found.0, found.1), length))
}
