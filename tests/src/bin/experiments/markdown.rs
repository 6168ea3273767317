//! The report: a section for each experiment.

use std::fmt::{self, Display, Formatter};

use crate::experiment::{Experiment, Row};

/// All experiments of a run.
#[derive(Debug)]
pub struct Report {
    /// The CPU, as it names itself.
    pub host: String,
    /// Load averages before and after: what else ran.
    pub load: [String; 2],
    /// How long all of it took.
    pub seconds: u64,
    /// The sections.
    pub experiments: Vec<Experiment>,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [before, after] = &self.load;
        writeln!(f, "# The seeds' experiments, on this CPU\n")?;
        writeln!(
            f,
            "{}; load before {before}, after {after}; {} s in all. Guests on `/dev/kvm`, workloads in ring 3, each \
             vCPU on a CPU of its own, variants in turn. A row is the median of all rounds with their range.\n",
            self.host, self.seconds
        )?;
        writeln!(f, "| | experiment | the seed's finding |\n|--:|---|---|")?;
        for one in &self.experiments {
            writeln!(
                f,
                "| {} | {} | {} |",
                one.number,
                one.title,
                one.finding.word()
            )?;
        }
        self.experiments.iter().try_for_each(|one| section(f, one))
    }
}

fn section(f: &mut Formatter<'_>, one: &Experiment) -> fmt::Result {
    writeln!(f, "\n## {}. {}\n", one.number, one.title)?;
    writeln!(f, "{}\n\nPublished: {}\n", one.method, one.seed)?;
    writeln!(f, "**It {}.** {}\n", one.finding.word(), one.finding.text)?;
    writeln!(f, "![{}]({})\n", one.title, one.plot_file())?;
    let year = one.year;
    writeln!(
        f,
        "| what | median | min..max | n | unit | published in {year} |"
    )?;
    writeln!(f, "|---|--:|--:|--:|---|---|")?;
    one.rows.iter().try_for_each(|row| line(f, row))
}

fn line(f: &mut Formatter<'_>, row: &Row) -> fmt::Result {
    let Row {
        what, unit, seed, ..
    } = row;
    let seed = if seed.is_empty() { "no figure" } else { seed };
    match &row.value {
        Ok(samples) => writeln!(
            f,
            "| {what} | {:.2} | {:.2}..{:.2} | {} | {unit} | {seed} |",
            samples.median(),
            samples.min(),
            samples.max(),
            samples.count()
        ),
        Err(why) => writeln!(f, "| {what} | not run: {why} | | | {unit} | {seed} |"),
    }
}
