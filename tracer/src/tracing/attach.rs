//! Where tracing begins.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::TracingError;
use crate::guest_kind;

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
