//! Names that look like one that was written: what was meant, perhaps.

/// How alike a name must be to be offered, see [`likeness`].
const NEAR: f64 = 0.8;
/// Names longer than this are like no other: comparing takes the product of both lengths.
const NEAR_MAX: usize = 128;

/// Up to `count` of `names` that look most like `wanted`, best first.
#[must_use]
pub fn nearest<'a>(
    wanted: &str,
    names: impl Iterator<Item = &'a str>,
    count: usize,
) -> Vec<String> {
    if wanted.len() > NEAR_MAX {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = names
        .filter(|name| name.len() <= NEAR_MAX)
        .map(|name| (likeness(wanted, name), name))
        .filter(|(score, _)| *score >= NEAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored.truncate(count);
    scored
        .into_iter()
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// How alike two names are, 0 to 1: as a whole, or one word of `name` on its own (`leaf` is near
/// `calls_leaf`).
fn likeness(wanted: &str, name: &str) -> f64 {
    const PART: f64 = 0.95;
    let words = name
        .split(|char: char| !char.is_alphanumeric())
        .filter(|word| word.len() > 2);
    words
        .map(|word| PART * strsim::jaro_winkler(wanted, word))
        .fold(strsim::jaro_winkler(wanted, name), f64::max)
}

/// `; did you mean a, b?`, or nothing where there are no names.
#[must_use]
pub fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("; did you mean `{}`?", names.join("`, `")),
    }
}
