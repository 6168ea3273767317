//! `vmm sites`: what can be traced in an image, and why the rest cannot. Needs no KVM.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::listing::Listing;
use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::loader::KernelFile;

/// Lists the image at `path` on stdout.
///
/// # Errors
/// When the file is no image, when nothing in it can be traced (after listing why), or when stdout
/// does not take the listing.
pub fn sites(
    path: &Path,
    symbols: Option<&Path>,
    any: bool,
    json: bool,
) -> Result<ExitStatus, Failure> {
    let file = KernelFile::read(path)
        .and_then(|kernel| kernel.with_symbols(symbols))
        .map_err(Failure::bad_input)?;
    let named = |error| Failure::bad_input(file.refused(&error));
    let image = file.image().map_err(named)?;
    let mut listing = Listing::of(&image, &path.display().to_string());
    if any {
        listing = listing.with_any(&image);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let listed = if json {
        listing.json(&mut out)
    } else {
        listing.table(&mut out)
    };
    listed.and_then(|()| out.flush()).or_else(stdout::taken)?;
    image.check_traceable().map_err(named)?;
    Ok(ExitStatus::Success)
}
