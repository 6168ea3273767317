//! Where tracing begins.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::TracingError;

/// The functions at which known kernels can be traced: all their vCPUs run, their text has become what it
/// stays, and no program has started.
///
/// `rcu_end_inkernel_boot` is the last function that Linux calls before it looks for its init, in every
/// version from 4.5 to 6.12 and with every configuration: after it has made its function sites nops, brought up
/// all processors, applied its alternatives, freed its init text and made its text read-only.
pub const DEFAULT_ATTACH: [&str; 2] = [BUNDLED_ATTACH, "rcu_end_inkernel_boot"];
/// The one of the bundled guest.
pub(super) const BUNDLED_ATTACH: &str = "workloads_ready";

/// The place in the function at `address` where a breakpoint disturbs nobody: where the guest itself writes
/// to sites, that is after the site, and so after a landing pad before it, which Linux may take out.
fn behind_site(image: &Image, address: Gva) -> Gva {
    let begins = |id: &FunctionId| image.function(*id).is_some_and(|f| f.address == address);
    let site = image.function_at(address).filter(begins);
    match site.and_then(|id| image.site_of(id)) {
        Some(site) if image.normalises_itself() => site.address.wrapping_add(SITE_LENGTH as u64),
        _ => address,
    }
}

/// Where to attach: at `symbol`, or where this kind of kernel is ready.
pub(super) fn attach_point(image: &Image, symbol: Option<&str>) -> Result<Gva, TracingError> {
    let defaults = || DEFAULT_ATTACH.iter();
    let found = match symbol {
        Some(symbol) => image.symbols.address_of(symbol),
        None => defaults().find_map(|symbol| image.symbols.address_of(symbol)),
    };
    match (found, symbol) {
        (Some(address), _) => Ok(behind_site(image, address)),
        (None, None) => Err(TracingError::NoDefaultAttach {
            known: &DEFAULT_ATTACH,
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
