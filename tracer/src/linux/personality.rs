//! What is asked of a Linux kernel as of any kind of guest.

use image::{Image, StaticCall};
use terms::addr::Gva;

use super::kernel_view::ENTRY;
use super::module::AREA;
use super::{Kernel, address_space, current, deny, per_cpu, static_call};
use crate::current_task::CurrentTask;
use crate::introspection::Introspection;
use crate::personality::{
    Border, Crossing, NeverChanged, NeverHooked, NeverTraced, PanicMarks, Personality, Spare,
};
use crate::target::{MemoryError, TargetMemory};

/// The last function that it calls before it looks for its init, in every version from 4.5 to 6.12 and with every
/// configuration: after it has made its function sites nops, brought up all processors, applied its alternatives,
/// freed its init text and made its text read-only.
const ATTACH: &str = "rcu_end_inkernel_boot";
/// `THREAD_SIZE` (arch/x86/include/asm/page_64_types.h).
const STACK: u64 = 16 << 10;
/// Every fatal path ends in one of these; `vpanic` is in it from 6.14 on. `panic_cpu` is -1 while none panics.
const PANIC: PanicMarks = PanicMarks {
    vcpu: "panic_cpu",
    functions: &["panic", "vpanic"],
};

/// Its first two functions in C: one of the processor's, one of all.
const FIRST: &[&str] = &["x86_64_start_kernel", "start_kernel"];
/// `cleanup_highmap` clears the map of the image beside the image. `ftrace_init` compares each site with the call that was
/// linked there; the bases of all processors are listed by then, though only the first one runs.
const BORDERS: &[Border] = &[
    Border {
        function: "cleanup_highmap",
        crossing: Crossing::ClearsTables,
    },
    Border {
        function: "ftrace_init",
        crossing: Crossing::MakesNops,
    },
];

/// A Linux kernel on x86-64.
#[derive(Debug, Clone, Copy)]
pub struct Linux;

impl Personality for Linux {
    fn attach_points(&self) -> &'static [&'static str] {
        &[ATTACH]
    }

    fn first_functions(&self) -> &'static [&'static str] {
        FIRST
    }

    fn borders(&self) -> &'static [Border] {
        BORDERS
    }

    fn system_call_entry(&self) -> Option<&'static str> {
        Some(ENTRY)
    }

    fn never_traced(&self) -> &'static [NeverTraced] {
        deny::GROUPS
    }

    fn never_displaced(&self) -> &'static [NeverTraced] {
        deny::WITHOUT_SITES
    }

    fn never_hooked(&self) -> &'static [NeverHooked] {
        deny::UNWOUND
    }

    fn before_gs(&self) -> &'static [NeverTraced] {
        deny::BEFORE_GS
    }

    fn text_before_gs(&self, image: &Image) -> Option<NeverChanged> {
        deny::before_gs(image)
    }

    fn has_one_ring(&self) -> bool {
        true
    }

    fn stack_bytes(&self, _: &Image) -> u64 {
        STACK
    }

    fn lasts(&self, image: &Image, at: Gva) -> bool {
        image.linux.as_ref().is_none_or(|linux| linux.lasts(at))
    }

    fn introspection(&self, image: &Image) -> Option<Box<dyn Introspection>> {
        Some(Box::new(Kernel::of(image)?))
    }

    fn leads_to(
        &self,
        image: &Image,
        call: &StaticCall,
        memory: &dyn TargetMemory,
    ) -> Result<Option<Gva>, MemoryError> {
        static_call::target(image, call, memory)
    }

    fn panic_marks(&self) -> Option<PanicMarks> {
        Some(PANIC)
    }

    fn gs_bases(&self) -> &'static str {
        per_cpu::OFFSETS
    }

    fn processors(&self) -> Option<&'static str> {
        Some(per_cpu::COUNT)
    }

    /// One that is not has not been filled in yet, and is also the base with which the
    /// first processor starts: it gets another one a moment later, so tracing that goes by it would write to memory of
    /// the kernel's.
    fn is_gs_base(&self, base: Gva) -> bool {
        per_cpu::is_offset(base)
    }

    fn spare(&self, image: &Image) -> Option<Spare> {
        Some(Spare {
            pages: address_space::near_text(image),
            giants: address_space::giants(),
            tables: address_space::tables(image),
        })
    }

    fn text_limit(&self) -> Option<Gva> {
        Some(AREA.end)
    }

    /// After the module's notifiers and before its init function. Its argument is the module.
    fn called_for_modules(&self) -> Option<&'static str> {
        Some("do_init_module")
    }

    fn current_task(&self, image: &Image) -> Option<CurrentTask> {
        current::find(image)
    }

    /// Every task begins there but the idle ones, kernel threads and those of io_uring among them.
    fn called_for_tasks(&self) -> Option<&'static str> {
        Some("wake_up_new_task")
    }
}
