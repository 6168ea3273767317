//! A probe's text, taken apart.

use super::BadProbe;
use super::expression::{Fetch, Node, condition, fetch};
use super::misfit::Misfit;
use super::token::value_of;

/// Bytes of a probe's text, at most.
const TEXT_MAX: usize = 4096;

/// What a user asks for: a place, values, and a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// All of it.
    pub(super) text: String,
    pub(super) spec: Spec,
    /// The module that the function is of, if it says so.
    pub(super) module: Option<String>,
    /// The place as it was written.
    pub(super) place: String,
    /// Where it begins.
    pub(super) place_at: usize,
    /// Each with the byte where it begins.
    pub(super) fetches: Vec<(usize, Wanted)>,
    pub(super) condition: Option<(usize, Node)>,
}

/// A place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spec {
    /// `FUNCTION` or `FUNCTION+OFFSET`.
    Function { name: String, offset: u64 },
    /// `FUNCTION%return`.
    Return { name: String },
    /// `FILE:LINE`.
    Line { file: String, line: u64 },
    /// `ADDRESS`.
    Address(u64),
}

/// A value, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// `$args`.
    Arguments,
    /// A value by itself.
    One(Fetch),
}

impl Request {
    /// The module that the function is of, if it says so.
    #[must_use]
    pub fn module(&self) -> Option<&str> {
        self.module.as_deref()
    }

    /// What a probe of it is called: the place, without the module.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.module {
            Some(_) => self.place.rsplit(':').next().unwrap_or_default(),
            None => &self.place,
        }
    }
}

/// Reads `SPEC [FETCH...] [if CONDITION]`, see the module.
///
/// # Errors
/// A [`BadProbe`] that says what makes no sense. Whether the things that are named exist is the
/// concern of [`resolve`](super::resolve).
pub fn parse(text: &str) -> Result<Request, BadProbe> {
    if text.len() > TEXT_MAX {
        return Err(BadProbe::TooLong {
            length: text.len(),
            max: TEXT_MAX,
        });
    }
    let place_at = text.len() - text.trim_start().len();
    let trimmed = text.trim();
    let at_place = |why: BadProbe| why.at(text, place_at);
    let (place, rest) = first_word(trimmed).map_err(at_place)?;
    let rest_at = place_at + trimmed.len() - rest.len();
    let words = words(rest);
    let condition_at = words.iter().position(|(_, word)| *word == "if");
    let fetches = words.iter().take(condition_at.unwrap_or(words.len()));
    let fetches = fetches.map(|(at, word)| {
        let at = rest_at + at;
        let wanted = wanted(word).map_err(|misfit| misfit.within(text, at))?;
        Ok((at, wanted))
    });
    let fetches = fetches.collect::<Result<_, BadProbe>>()?;
    let condition = match condition_at.and_then(|index| words.get(index)) {
        None => None,
        Some((at, _)) => Some(conditional(text, rest_at + at)?),
    };
    let (module, in_module) = module(&place).map_err(at_place)?;
    let spec = spec(in_module).map_err(at_place)?;
    if let (Some(_), Spec::Line { .. } | Spec::Address(_)) = (module, &spec) {
        let what = "expected FUNCTION, FUNCTION+OFFSET or FUNCTION%return after the module";
        let why = BadProbe::Syntax {
            text: place.clone(),
            what: what.to_owned(),
        };
        return Err(at_place(why));
    }
    Ok(Request {
        text: text.to_owned(),
        spec,
        module: module.map(str::to_owned),
        fetches,
        condition,
        place,
        place_at,
    })
}

fn wanted(word: &str) -> Result<Wanted, Misfit> {
    if word == "$args" {
        return Ok(Wanted::Arguments);
    }
    fetch(word).map(Wanted::One)
}

/// The condition after the `if` at this byte of the text.
fn conditional(text: &str, at: usize) -> Result<(usize, Node), BadProbe> {
    let after = text.get(at + 2..).unwrap_or_default();
    let written = after.trim();
    if written.is_empty() {
        let why = BadProbe::Syntax {
            text: "if".to_owned(),
            what: "has no condition after it".to_owned(),
        };
        return Err(why.at(text, at));
    }
    let start = text.len() - after.trim_start().len();
    let node = condition(written).map_err(|misfit| misfit.within(text, start))?;
    Ok((start, node))
}

/// The place and what is after it. Names with blanks in them (Rust's `<T as Trait>::f`) stand between
/// angle brackets, or in quotes.
fn first_word(text: &str) -> Result<(String, &str), BadProbe> {
    if let Some(rest) = text.strip_prefix(['\'', '"']) {
        let quote = text.chars().next().unwrap_or('"');
        let (place, rest) = rest.split_once(quote).ok_or_else(|| BadProbe::Syntax {
            text: text.to_owned(),
            what: "has no closing quote".to_owned(),
        })?;
        // What follows at once belongs to it: 'a b'+4.
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (more, rest) = rest.split_at_checked(end).unwrap_or((rest, ""));
        return Ok((format!("{place}{more}"), rest));
    }
    let mut depth = 0_u32;
    for (at, char) in text.char_indices() {
        match char {
            '<' | '(' | '{' => depth += 1,
            '>' | ')' | '}' => depth = depth.saturating_sub(1),
            _ if char.is_whitespace() && depth == 0 => {
                let (place, rest) = text.split_at_checked(at).unwrap_or((text, ""));
                return Ok((place.to_owned(), rest));
            }
            _ => {}
        }
    }
    match text {
        "" => Err(BadProbe::Empty),
        _ => Ok((text.to_owned(), "")),
    }
}

/// The words of a text, and where each begins. Blanks in brackets and quotes divide nothing.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut start = None;
    let mut depth = 0_u32;
    let mut quote = None;
    let mut escaped = false;
    for (at, char) in text.char_indices() {
        if let Some(closing) = quote {
            match char {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if char == closing => quote = None,
                _ => {}
            }
            continue;
        }
        match char {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '"' | '\'' => quote = Some(char),
            _ => {}
        }
        match (char.is_whitespace() && depth == 0, start) {
            (true, Some(from)) => {
                words.push((from, text.get(from..at).unwrap_or_default()));
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    if let Some(from) = start {
        words.push((from, text.get(from..).unwrap_or_default()));
    }
    words
}

/// What of a place names a module, and what is left: `mod:MODULE:PLACE`, as in filters, or `MODULE:PLACE`, as the kernel has it.
fn module(place: &str) -> Result<(Option<&str>, &str), BadProbe> {
    let wrong = || BadProbe::Syntax {
        text: place.to_owned(),
        what: "expected mod:MODULE:FUNCTION".to_owned(),
    };
    let is_name = |name: &str| {
        let mut chars = name.chars();
        !name.is_empty() && chars.all(|char| char.is_ascii_alphanumeric() || "_-".contains(char))
    };
    if let Some(rest) = place
        .strip_prefix("mod:")
        .filter(|rest| !rest.starts_with(':'))
    {
        let named = rest.split_once(':');
        let named = named.filter(|(name, function)| is_name(name) && !function.is_empty());
        let (name, function) = named.ok_or_else(wrong)?;
        return Ok((Some(name), function));
    }
    // A path has two colons, and a line is a number.
    let named = place.split_once(':').filter(|(name, function)| {
        let is_function = function.starts_with(|char: char| char.is_alphabetic() || char == '_');
        is_name(name) && is_function
    });
    Ok(named.map_or((None, place), |(name, function)| (Some(name), function)))
}

fn spec(place: &str) -> Result<Spec, BadProbe> {
    let wrong = |what: &str| BadProbe::Syntax {
        text: place.to_owned(),
        what: what.to_owned(),
    };
    if place.is_empty() {
        return Err(BadProbe::Empty);
    }
    if place.starts_with(|char: char| char.is_ascii_digit()) {
        let (address, _) = value_of(place).ok_or_else(|| wrong("is no address of 64 bits"))?;
        return Ok(Spec::Address(address));
    }
    if let Some((name, part)) = place.rsplit_once('%') {
        return match (name, part) {
            ("", _) => Err(wrong("has no function before `%return`")),
            (name, "return") => Ok(Spec::Return {
                name: name.to_owned(),
            }),
            _ => Err(wrong("expected `%return` after a function")),
        };
    }
    if let Some((file, line)) = place.rsplit_once(':')
        && !file.ends_with(':')
        && line.starts_with(|char: char| char.is_ascii_digit())
    {
        let (line, _) = value_of(line).ok_or_else(|| wrong("has no number for a line"))?;
        return Ok(Spec::Line {
            file: file.to_owned(),
            line,
        });
    }
    if let Some((name, offset)) = place.rsplit_once('+')
        && !name.is_empty()
        && offset.starts_with(|char: char| char.is_ascii_digit())
    {
        let (offset, _) = value_of(offset).ok_or_else(|| wrong("has no number as an offset"))?;
        return Ok(Spec::Function {
            name: name.to_owned(),
            offset,
        });
    }
    Ok(Spec::Function {
        name: place.to_owned(),
        offset: 0,
    })
}
