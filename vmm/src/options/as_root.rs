//! Whether root may work on a guest.

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args};

/// `--allow-root`.
#[derive(Debug, Clone, Copy, Args)]
pub struct AsRoot {
    /// Let root do this: a guest that breaks out is root of this machine then, as far as nothing else holds it
    /// (docs/security.md). Without it root is refused. In an image for CI the variable says it for all runs
    #[arg(
        long,
        env = "EXOTRACE_ALLOW_ROOT",
        hide_env_values = true,
        action = ArgAction::SetTrue,
        value_parser = FalseyValueParser::new()
    )]
    pub allow_root: bool,
}
