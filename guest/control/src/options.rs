//! The command line, as ring 3 reads it.

/// What the user asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// `workload=NAME[,NAME…]`.
    pub workloads: &'static str,
    /// `iterations=N`.
    pub iterations: u64,
    /// `threads=T`, where it is given.
    pub threads: Option<u64>,
    /// `seed=S`.
    pub seed: u64,
    /// `rounds=R` of `bench`.
    pub rounds: u64,
    /// `many_calls=1`: `many` prints a line per function.
    pub many_calls: bool,
    /// `many_functions=N`: how many functions `many` calls, and `functions` lists.
    pub many_functions: usize,
    /// vCPUs that are online.
    pub vcpus: u64,
}

impl Options {
    /// Reads the command line. `Err`: the word that makes no sense.
    ///
    /// Keys that nobody here knows are for the kernel, or for another kind of guest.
    pub fn parse(line: &'static str, vcpus: u64) -> Result<Self, &'static str> {
        let mut options = Self {
            workloads: "calls",
            iterations: 1000,
            threads: None,
            seed: 1,
            rounds: 7,
            many_calls: false,
            many_functions: usize::MAX,
            vcpus,
        };
        for word in line.split(' ') {
            let Some((key, value)) = word.split_once('=') else {
                continue;
            };
            let number = || value.parse::<u64>().map_err(|_| word);
            match key {
                "workload" => options.workloads = value,
                "iterations" => options.iterations = number()?,
                "threads" => options.threads = Some(number()?),
                "seed" => options.seed = number()?,
                "rounds" => options.rounds = number()?,
                "many_calls" => options.many_calls = number()? != 0,
                "many_functions" => {
                    options.many_functions = usize::try_from(number()?).unwrap_or(usize::MAX);
                }
                _ => {}
            }
        }
        Ok(options)
    }
}
