//! All changes in one copy: each place becomes a question which of them is asked for.
//!
//! ```text
//! elapsed >= threshold    becomes    (match crate::mutant() { 7 => { elapsed > threshold } _ => { elapsed >= threshold } })
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::list::Entry;

/// What is added to each crate that is changed.
const QUESTION: &str = "
#[doc(hidden)]
pub fn mutant() -> u32 {
    static CHOSEN: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var(\"MUTANT\").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    });
    *CHOSEN
}
";

/// The number of an entry in the copy: those of a name with and without what stands after a `+` go together.
pub fn number(name: &str) -> u32 {
    let name = name.split('+').next().unwrap_or(name);
    // FNV: it stays when the list grows.
    let hash = name.bytes().fold(0x811c_9dc5u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

/// Puts the changes into the sources, by path; returns those that do not fit, and why.
pub fn weave(
    sources: &mut BTreeMap<String, String>,
    entries: &[&Entry],
) -> BTreeMap<String, String> {
    let mut stale = BTreeMap::new();
    // By file and place, those at the same place together.
    let mut places: BTreeMap<&str, BTreeMap<(usize, usize), Vec<&Entry>>> = BTreeMap::new();
    for entry in entries {
        let text = sources.get(&entry.file).map_or("", String::as_str);
        match find(text, entry) {
            Ok(place) => {
                let of_file = places.entry(&entry.file).or_default();
                let is_across = |other: &(usize, usize)| {
                    *other != place && other.0 < place.1 && place.0 < other.1
                };
                if of_file.keys().any(is_across) {
                    stale.insert(
                        entry.name.clone(),
                        "overlaps another one's place".to_owned(),
                    );
                } else {
                    of_file.entry(place).or_default().push(entry);
                }
            }
            Err(why) => drop(stale.insert(entry.name.clone(), why)),
        }
    }
    for (file, places) in places {
        if let Some(text) = sources.get_mut(file) {
            for ((start, end), entries) in places.iter().rev() {
                text.replace_range(start..end, &choice(&text[*start..*end], entries));
                unconst(text, *start);
            }
        }
    }
    for (file, text) in sources.iter_mut() {
        if file.ends_with("/src/lib.rs") {
            text.push_str(QUESTION);
        }
    }
    stale
}

fn choice(was: &str, entries: &[&Entry]) -> String {
    let mut arms = String::new();
    for entry in entries {
        let _ = write!(arms, "{} => {{ {} }} ", number(&entry.name), entry.now);
    }
    let is_statement = was.ends_with(';');
    let chosen = format!("match crate::mutant() {{ {arms}_ => {{ {was} }} }}");
    if is_statement {
        chosen
    } else {
        format!("({chosen})")
    }
}

/// A function that asks cannot be const. Nothing moves, so that other places stay where they are.
fn unconst(text: &mut String, place: usize) {
    let before = text.get(..place).unwrap_or_default();
    let Some(start) = before.rfind("fn ") else {
        return;
    };
    if let Some(cut) = before
        .get(..start)
        .and_then(|before| before.strip_suffix("const "))
    {
        let from = cut.len();
        text.replace_range(from..start, &" ".repeat(start - from));
    }
}

/// Where the text stands in the part of the file before its tests; where those are in a file of their own, in all of it.
fn find(text: &str, entry: &Entry) -> Result<(usize, usize), String> {
    let wanted: Vec<u8> = entry
        .was
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let bytes = text.as_bytes().get(..end).unwrap_or_default();
    let found: Vec<(usize, usize)> = (0..bytes.len())
        .filter_map(|start| Some((start, matches(bytes, start, &wanted)?)))
        .collect();
    let chosen = match (found.as_slice(), entry.nth) {
        ([only], None) => Some(*only),
        (all, Some(nth)) => nth.checked_sub(1).and_then(|at| all.get(at)).copied(),
        _ => None,
    };
    let count = found.len();
    chosen.ok_or_else(|| format!("{:?} is {count} times in {}", entry.was, entry.file))
}

/// Where `wanted` ends if it begins at `start`; spaces and line ends do not count.
fn matches(bytes: &[u8], start: usize, wanted: &[u8]) -> Option<usize> {
    if bytes.get(start)?.is_ascii_whitespace() {
        return None;
    }
    let mut left = wanted.iter();
    let mut next = left.next();
    for (at, byte) in bytes.iter().enumerate().skip(start) {
        if byte.is_ascii_whitespace() {
            continue;
        }
        if next != Some(byte) {
            return None;
        }
        next = left.next();
        if next.is_none() {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::list;

    fn entry(name: &str, was: &str, now: &str) -> Entry {
        let [name, was, now] = [name, was, now].map(str::to_owned);
        Entry {
            name,
            was,
            now,
            file: "a/src/b.rs".to_owned(),
            ..Entry::default()
        }
    }

    #[test]
    fn places_become_choices_wherever_lines_end() {
        let text = "pub const fn f(a: u8) -> bool {\n    g(\n        a,\n    );\n    a < 3\n}\n";
        let mut sources = BTreeMap::from([("a/src/b.rs".to_owned(), text.to_owned())]);
        let [one, two, call] = [
            entry("one", "a < 3", "a <= 3"),
            entry("two", "a < 3", "a > 3"),
            entry("call", "g(a,);", ""),
        ];
        let gone = entry("gone", "a < 4", "");
        let stale = weave(&mut sources, &[&one, &two, &call, &gone]);
        assert_eq!(stale.keys().collect::<Vec<_>>(), ["gone"]);
        let [one, two, call] = [number("one"), number("two"), number("call")];
        let woven = format!(
            "pub       fn f(a: u8) -> bool {{\n    match crate::mutant() {{ {call} => {{  }} _ => {{ g(\n        a,\n    ); }} }}\n    \
             (match crate::mutant() {{ {one} => {{ a <= 3 }} {two} => {{ a > 3 }} _ => {{ a < 3 }} }})\n}}\n"
        );
        assert_eq!(sources["a/src/b.rs"], woven);
    }

    /// An entry that is half an expression was once found when all of them were to be run.
    #[test]
    fn all_of_the_list_is_woven_in_and_can_be_read() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let all = list::read(include_str!("../../../mutants.txt")).unwrap();
        let all: Vec<_> = all.iter().collect();
        let files: BTreeSet<_> = all.iter().map(|entry| &entry.file).collect();
        let source = |file: &String| {
            let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
            (file.clone(), text)
        };
        let mut sources = files.into_iter().map(source).collect();
        assert_eq!(weave(&mut sources, &all), BTreeMap::new());
        for (file, text) in sources.iter().filter(|(file, _)| file.ends_with(".rs")) {
            syn::parse_file(text).unwrap_or_else(|error| {
                let at = error.span().start();
                panic!("{file}, line {}: {error}", at.line);
            });
        }
    }
}
