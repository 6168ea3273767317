//! Where tracing begins.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::TracingError;
use super::phases::check_borders;
use crate::guest_kind;

/// Whether tracing can begin there, as far as the image says.
///
/// # Errors
/// As of [`attach_point`], and [`TracingError::NoBorder`].
pub(super) fn check_attach_point(image: &Image, symbol: Option<&str>) -> Result<(), TracingError> {
    attach_point(image, symbol)?;
    match symbol.is_some_and(|symbol| is_first(image, symbol)) {
        true => check_borders(image),
        false => Ok(()),
    }
}

fn is_first(image: &Image, symbol: &str) -> bool {
    let first = guest_kind::of(image).first_functions();
    first.contains(&symbol)
}

/// The place in the function at `address` where a breakpoint disturbs nobody: where the guest itself writes
/// to sites, that is after the site, and so after a landing pad before it, which Linux may take out.
fn after_site(image: &Image, address: Gva) -> Gva {
    let begins = |id: &FunctionId| image.function(*id).is_some_and(|f| f.address == address);
    let site = image.function_at(address).filter(begins);
    match site.and_then(|id| image.site_of(id)) {
        Some(site) if image.normalises_itself() => site.address.wrapping_add(SITE_LENGTH as u64),
        _ => address,
    }
}

/// Where to attach: at `symbol`, or where a kernel of a known kind is ready.
pub(super) fn attach_point(image: &Image, symbol: Option<&str>) -> Result<Gva, TracingError> {
    let mut known = guest_kind::attach_points();
    let found = match symbol {
        Some(symbol) => image.symbols.address_of(symbol),
        None => known.find_map(|symbol| image.symbols.address_of(symbol)),
    };
    match (found, symbol) {
        // Its own call is recorded, and it is too early for the guest to write to its site.
        (Some(address), Some(symbol)) if is_first(image, symbol) => Ok(address),
        (Some(address), _) => Ok(after_site(image, address)),
        (None, None) => Err(TracingError::NoDefaultAttach {
            known: guest_kind::attach_points().collect(),
        }),
        (None, Some(symbol)) => {
            let near = image.symbols.near_misses(symbol, 3).join(", ");
            Err(TracingError::NoAttachSymbol {
                symbol: symbol.to_owned(),
                near,
            })
        }
    }
}
