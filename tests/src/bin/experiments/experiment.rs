//! What an experiment comes to: rows with a median and a spread, what the seed published, whether its finding
//! holds on this CPU, and a plot.

use serde_json::{Value, json};
use tests::measure::sample::Samples;

/// One of the suite.
#[derive(Debug)]
pub struct Experiment {
    /// Its number in the suite, which names its files.
    pub number: u8,
    /// What is compared.
    pub title: &'static str,
    /// How it was measured, in a sentence or two.
    pub method: &'static str,
    /// When the figures beside the rows were published.
    pub year: u16,
    /// What was published, with its year.
    pub seed: &'static str,
    /// The numbers.
    pub rows: Vec<Row>,
    /// Whether that holds here.
    pub finding: Finding,
    /// What is drawn.
    pub plot: Plot,
}

/// One number.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// What came out, or why nothing did.
    pub value: Result<Samples, String>,
    /// The figure that the seed has for it.
    pub seed: &'static str,
}

impl Row {
    /// What was measured.
    pub fn of(what: impl Into<String>, unit: &'static str, value: Samples) -> Self {
        Self {
            what: what.into(),
            unit,
            value: Ok(value),
            seed: "",
        }
    }

    /// What could not be measured here.
    pub fn not_run(what: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            unit,
            value: Err(why.into()),
            seed: "",
        }
    }

    /// With the figure that the seed has for it.
    pub fn beside(self, seed: &'static str) -> Self {
        Self { seed, ..self }
    }

    fn json(&self) -> Value {
        let mut row = json!({"what": self.what, "unit": self.unit, "seed": self.seed});
        let more = match &self.value {
            Ok(samples) => json!({
                "median": samples.median(),
                "min": samples.min(),
                "max": samples.max(),
                "count": samples.count(),
            }),
            Err(why) => json!({ "not_run": why }),
        };
        if let (Some(row), Some(more)) = (row.as_object_mut(), more.as_object()) {
            row.extend(more.clone());
        }
        row
    }
}

/// What becomes of a published finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of it.
    Holds,
    /// Some of it.
    InPart,
    /// None of it.
    DoesNotHold,
    /// The numbers do not say.
    Undecided,
}

impl Verdict {
    /// Of several claims.
    pub fn of(claims: &[bool]) -> Self {
        match claims.iter().filter(|claim| **claim).count() {
            0 if claims.is_empty() => Self::Undecided,
            0 => Self::DoesNotHold,
            count if count == claims.len() => Self::Holds,
            _ => Self::InPart,
        }
    }
}

/// Whether what was published holds on this CPU.
#[derive(Debug)]
pub struct Finding {
    /// In a word.
    pub verdict: Verdict,
    /// With the numbers that it is based on.
    pub text: String,
}

impl Finding {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Holds => "holds",
            Verdict::InPart => "holds in part",
            Verdict::DoesNotHold => "does not hold",
            Verdict::Undecided => "is undecided",
        }
    }
}

/// What is drawn.
#[derive(Debug)]
pub enum Plot {
    /// A bar for each row of this unit.
    Bars {
        /// The unit.
        unit: &'static str,
    },
    /// A line for each series, over a logarithmic axis.
    Lines {
        /// What the horizontal axis counts.
        over: &'static str,
        /// What the vertical axis shows.
        unit: &'static str,
        /// Name and points of each.
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
}

impl Experiment {
    /// The name of its plot's file.
    pub fn plot_file(&self) -> String {
        format!("experiment-{}.svg", self.number)
    }

    /// Everything as JSON.
    pub fn json(&self) -> Value {
        json!({
            "number": self.number,
            "title": self.title,
            "method": self.method,
            "seed": self.seed,
            "seed_year": self.year,
            "finding": {"verdict": self.finding.word(), "text": self.finding.text},
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}
