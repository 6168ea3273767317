//! What this host's processor promises, by who has made it.

use std::arch::x86_64::__cpuid;

/// The processor promises less than is needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the maker of this processor ({vendor}) does not promise that an instruction which is changed while others execute it is \
     executed as it was or as it is (AMD does)"
)]
pub(crate) struct NoPromise {
    vendor: String,
}

/// Whether an instruction in one aligned word may be changed while others execute it: AMD promises that they execute the old
/// one or the new one (AMD64 Architecture Programmer's Manual, volume 2, 7.6.1, asynchronous modification). Intel's manual (volume
/// 3, 8.1.3, cross-modifying code) wants every other processor to pass a serialising instruction first.
///
/// # Errors
/// [`NoPromise`] names who has made it.
pub(crate) fn promises_atomic() -> Result<(), NoPromise> {
    promised_by(vendor())
}

fn promised_by(vendor: String) -> Result<(), NoPromise> {
    match vendor.as_str() {
        "AuthenticAMD" => Ok(()),
        _ => Err(NoPromise { vendor }),
    }
}

/// Who has made this processor, as it says (CPUID 0).
pub(crate) fn vendor() -> String {
    let leaf = __cpuid(0);
    let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    String::from_utf8_lossy(name.as_flattened()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_processor_whose_maker_promises_it_is_believed() {
        promised_by("AuthenticAMD".to_owned()).unwrap();
        for other in ["GenuineIntel", "HygonGenuine", "CentaurHauls", ""] {
            let refused = promised_by(other.to_owned()).unwrap_err().to_string();
            assert!(refused.contains(&format!("({other})")), "{refused}");
        }
        assert_eq!(vendor().len(), 12);
    }
}
