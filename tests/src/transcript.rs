//! Command blocks of Markdown: what a reader types, and what he is told that comes of it.
//!
//! ````text
//! ```console                     a block; `console linux` needs a Linux guest, `console norun REASON` is not run
//! $ vmm report calls             a command, longer ones with a backslash at the end
//!  0)               |  f() {     what it prints, every line of it
//! ...                            any number of lines; within a line, any text
//!  0)   0.020 us    |    g();    times are never compared
//! ```
//! ````
//!
//! A command with nothing after it only has to end with 0. One that is refused shows why, as its last line.

/// A block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where it begins in its document, from 1.
    pub line: usize,
    /// The words after `console`: none, `linux`, or `norun` and the reason.
    pub class: String,
    /// What is typed.
    pub commands: Vec<Typed>,
}

/// A command, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// Where it stands, from 1.
    pub line: usize,
    /// What is typed, of one line or more.
    pub command: String,
    /// What it prints.
    pub shown: Vec<String>,
}

/// The blocks of a document, in order.
///
/// # Errors
/// A line that looks like a command and is in no block of commands, or output without a command.
pub fn blocks(document: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut fence: Option<(usize, &str, Vec<&str>)> = None;
    for (number, line) in (1..).zip(document.lines()) {
        match (&mut fence, line.strip_prefix("```")) {
            (None, Some(language)) => fence = Some((number, language, Vec::new())),
            (Some(_), Some(_)) => blocks.extend(block(fence.take().unwrap_or_default())?),
            (Some((_, _, lines)), None) => lines.push(line),
            (None, None) => {}
        }
    }
    Ok(blocks)
}

/// The block in a fence, if it has commands.
fn block((line, language, lines): (usize, &str, Vec<&str>)) -> Result<Option<Block>, String> {
    let (language, class) = language.split_once(' ').unwrap_or((language, ""));
    let has_commands = lines.iter().any(|line| line.starts_with("$ "));
    if language != "console" {
        let is_fine = !has_commands && !["sh", "bash", "shell"].contains(&language);
        return is_fine
            .then_some(None)
            .ok_or(format!("line {line}: commands stand in a block ```console"));
    }
    Ok(Some(Block {
        line,
        class: class.to_owned(),
        commands: commands(line + 1, &lines)?,
    }))
}

fn commands(first: usize, lines: &[&str]) -> Result<Vec<Typed>, String> {
    let mut commands: Vec<Typed> = Vec::new();
    let mut is_continued = false;
    for (number, line) in (first..).zip(lines) {
        let start = line.strip_prefix("$ ");
        match commands.last_mut() {
            Some(typed) if is_continued => {
                typed.command.push('\n');
                typed.command.push_str(line);
            }
            last => match (start, last) {
                (Some(command), _) => commands.push(Typed {
                    line: number,
                    command: command.to_owned(),
                    shown: Vec::new(),
                }),
                (None, Some(typed)) => typed.shown.push((*line).to_owned()),
                (None, None) => return Err(format!("line {number}: no command before it")),
            },
        }
        is_continued = (is_continued || start.is_some()) && line.ends_with('\\');
    }
    Ok(commands)
}

impl Typed {
    /// What is wrong with what was printed, if anything is.
    #[must_use]
    pub fn objection(&self, printed: &str, status: &str) -> Option<String> {
        let printed: Vec<String> = printed.lines().map(plain).collect();
        if let Some(missing) = self.missing(&printed) {
            return Some(format!("`{missing}` is not what it printed"));
        }
        let told = self
            .shown
            .last()
            .is_some_and(|line| line.starts_with("vmm: "));
        (status != "0" && !told).then(|| format!("it ended with {status}"))
    }

    /// The first line that is shown and was not printed; what was printed after the last one.
    fn missing(&self, printed: &[String]) -> Option<String> {
        let mut rest = printed;
        let mut is_open = self.shown.is_empty();
        for line in &self.shown {
            if line == "..." {
                is_open = true;
                continue;
            }
            let pattern = plain(line);
            let tries = if is_open {
                rest.len()
            } else {
                1.min(rest.len())
            };
            let found = rest
                .iter()
                .take(tries)
                .position(|line| fits(&pattern, line));
            let Some(found) = found else {
                return Some(pattern);
            };
            rest = rest.get(found + 1..).unwrap_or_default();
            is_open = false;
        }
        if is_open { None } else { rest.first().cloned() }
    }
}

/// Whether a line is as the pattern has it, in which `...` stands for any text.
fn fits(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once("...") else {
        return pattern == line;
    };
    line.strip_prefix(start).is_some_and(|line| {
        let mut ends = (0..=line.len()).filter(|at| line.is_char_boundary(*at));
        ends.any(|at| fits(rest, &line[at..]))
    })
}

/// A line without what differs from run to run: times, their marks, how wide columns are.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_time = |at: usize| {
        let unit = words
            .get(at + 1)
            .map_or("", |word| word.trim_end_matches([',', ')', ';']));
        let number = words
            .get(at)
            .map_or("", |word| word.trim_start_matches('('));
        ["ns", "us", "ms", "s"].contains(&unit)
            && number.starts_with(|char: char| char.is_ascii_digit())
    };
    let is_stamp = |word: &str| {
        let number = word.strip_suffix(':').and_then(|word| word.split_once('.'));
        number.is_some_and(|(_, rest)| {
            rest.len() == 6 && rest.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let mut kept = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_mark = ["+", "!", "#", "*", "@", "$"].contains(word) && is_time(at + 1);
        if !is_mark {
            let differs = is_time(at) || is_stamp(word);
            kept.push(if differs { "TIME" } else { word });
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(document: &str) -> Typed {
        blocks(document).unwrap().remove(0).commands.remove(0)
    }

    #[test]
    fn blocks_have_commands_and_what_they_print() {
        let document = "text\n```console\n$ a \\\n  --b\n\nsaid\n$ c\n```\n```\n$HOME\n```\n\
                        ```console norun takes long\n$ d\n```\n";
        let found = blocks(document).unwrap();
        assert_eq!(found.len(), 2);
        let typed = &found[0].commands;
        assert_eq!(typed[0].command, "a \\\n  --b");
        assert_eq!(typed[0].shown, ["", "said"]);
        assert_eq!((typed[1].line, &*typed[1].command), (7, "c"));
        assert_eq!(found[1].class, "norun takes long");
        let _ = blocks("```\n$ a\n```\n").unwrap_err();
        let _ = blocks("```sh\na\n```\n").unwrap_err();
        let _ = blocks("```console\na\n```\n").unwrap_err();
    }

    #[test]
    fn every_line_is_compared_but_times_and_dots() {
        let typed = only("```console\n$ a\n 0) + 17.797 us   |  }\nx ... z\n...\nlast\n```\n");
        let objection = |printed| typed.objection(printed, "0");
        assert_eq!(objection("0)  1.2 us |  }\nx y z\n1\n2\nlast\n"), None);
        assert_eq!(objection(" 0) ! 170.1 us |  }\nx y z\nlast"), None);
        for wrong in [
            "",
            "0) 1.2 us | }\nx y\nlast\n",
            "0) 1.2 us | }\n\nx y z\nlast\n",
            "0) 1.2 us | }\nx y z\nlast\nmore\n",
            "0) 1.2 us | {\nx y z\nlast\n",
            "0) 1.2 ms\nx y z\nlast\n",
        ] {
            assert!(objection(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn what_shows_nothing_has_to_end_well_and_a_refusal_is_shown() {
        let silent = only("```console\n$ a\n```\n");
        assert_eq!(silent.objection("anything\n", "0"), None);
        assert!(silent.objection("", "100").is_some());
        let refused = only("```console\n$ a\nvmm: no\n```\n");
        assert_eq!(refused.objection("vmm: no\n", "100"), None);
        assert!(refused.objection("vmm: yes\n", "100").is_some());
        let said = only("```console\n$ a\nno\n```\n");
        assert!(said.objection("no\n", "100").is_some());
    }
}
