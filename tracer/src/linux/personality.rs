//! What is asked of a Linux kernel as of any kind of guest.

use image::Image;
use terms::addr::Gva;

use super::address_space;
use super::module::AREA;
use crate::personality::{Personality, Spare};

/// Its list of the offsets at which the data of each processor lies, which are their GS bases: it has an entry for every
/// processor that there can ever be, made once, before any code that can be traced runs with these bases.
const GS_BASES: &str = "__per_cpu_offset";
/// Where the kernel's image begins, and everything after it: nothing that is allocated lies here.
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// A Linux kernel on x86-64.
#[derive(Debug, Clone, Copy)]
pub struct Linux;

impl Personality for Linux {
    fn gs_bases(&self) -> &'static str {
        GS_BASES
    }

    /// An entry that nobody has filled in yet is an address of the kernel's own image, which is also the base with which the
    /// first processor starts: it gets another one a moment later, so tracing that goes by it would write to memory of
    /// the kernel's.
    fn is_gs_base(&self, base: Gva) -> bool {
        base.0 < IMAGE && base.0 >> 63 == 1
    }

    fn spare(&self, image: &Image) -> Option<Spare> {
        Some(Spare {
            pages: address_space::near_text(image),
            giants: address_space::giants(),
        })
    }

    fn text_limit(&self) -> Option<Gva> {
        Some(AREA.end)
    }

    /// After the module's notifiers and before its init function. Its argument is the module.
    fn called_for_modules(&self) -> Option<&'static str> {
        Some("do_init_module")
    }
}
