//! What this host's processor promises, by who has made it, and whether a trial shows the same.

use std::arch::x86_64::__cpuid;
use std::sync::OnceLock;

use crate::trial::TrialError;
use crate::trial::switching::{self, Switching};

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

/// Why words of text are not exchanged while others execute them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoExchange {
    /// Nobody promises it.
    #[error(transparent)]
    NoPromise(#[from] NoPromise),
    /// It is not so here.
    #[error(
        "in a trial on this host a vCPU executed neither what was there nor what is, where text was changed while it was \
         executed ({switches} changes; see vmm doctor)"
    )]
    Wrong { switches: u64 },
    /// Nobody knows.
    #[error(
        "whether text may change here while it is executed cannot be tried on this host: {why}"
    )]
    Untried { why: String },
}

/// Whose word is enough for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// The maker's and the trial's.
    Both,
    /// The trial's alone, whoever has made the processor.
    Trial,
}

/// Whether words of text may be exchanged here while vCPUs execute them: the processor's maker has to promise it, if that is
/// wanted, and a trial of some milliseconds, or of a second where those show nothing, has to show it. It is made once in a
/// process, if anything is promised that has to be.
///
/// # Errors
/// [`NoExchange`].
pub(crate) fn exchanges_words(word: Word) -> Result<(), NoExchange> {
    static TRIED: OnceLock<Result<(), NoExchange>> = OnceLock::new();
    if word == Word::Both {
        promises_atomic()?;
    }
    let tried = TRIED.get_or_init(|| judged(switching::shown()));
    tried.clone()
}

fn judged(tried: Result<Switching, TrialError>) -> Result<(), NoExchange> {
    match tried {
        Ok(tried) if !tried.is_telling() => Err(NoExchange::Untried {
            why: "no vCPU passed what was changed both before and after".to_owned(),
        }),
        Ok(Switching { is_right: true, .. }) => Ok(()),
        Ok(Switching { switches, .. }) => Err(NoExchange::Wrong { switches }),
        Err(error) => Err(NoExchange::Untried {
            why: error.to_string(),
        }),
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

    #[test]
    fn what_is_promised_has_to_be_shown_too() {
        let tried = |is_right| Switching {
            switches: 7,
            passes: [3, 4],
            is_right,
        };
        judged(Ok(tried(true))).unwrap();
        let wrong = judged(Ok(tried(false))).unwrap_err();
        assert_eq!(wrong, NoExchange::Wrong { switches: 7 });
        let untried = judged(Err(TrialError::Hung)).unwrap_err();
        assert!(untried.to_string().contains("did not leave"), "{untried}");
        let one_way = Switching {
            passes: [7, 0],
            ..tried(true)
        };
        let untried = judged(Ok(one_way)).unwrap_err();
        assert!(untried.to_string().contains("both"), "{untried}");
    }
}
