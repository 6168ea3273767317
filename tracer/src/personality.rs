//! What is asked of a kind of guest that no image says in the same way for all: where it can be traced from, what its
//! processors are known by, where a window may be in its address space, how far its text can reach, what it can be asked
//! while it runs, and how it dies.

use std::fmt::Debug;

use image::{Image, StaticCall, TextRange};
use terms::addr::Gva;

use crate::current_task::CurrentTask;
use crate::introspection::Introspection;
use crate::target::{MemoryError, TargetMemory};

/// No kernel is built for more processors.
pub(crate) const PROCESSORS_MAX: u32 = 8192;

/// Ranges of an address space that a guest never uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spare {
    /// For entries of 2 MiB near the text, the best first.
    pub pages: Vec<TextRange>,
    /// For entries of 1 GiB.
    pub giants: Vec<TextRange>,
    /// Where the topmost table lies that all others are made from; none where its image does not say.
    pub tables: Option<Gva>,
}

/// Functions that must never be patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverTraced {
    /// Their names, as globs.
    pub globs: &'static [&'static str],
    /// Why not.
    pub why: &'static str,
}

/// Functions whose returns must not be hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverHooked {
    /// Their whole names.
    pub names: &'static [&'static str],
    /// Why not.
    pub why: &'static str,
}

/// Text of which nothing may be patched but at patch sites, whatever the functions in it are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverChanged {
    /// Where it lies.
    pub text: TextRange,
    /// The functions that bound it.
    pub between: &'static str,
    /// Why not.
    pub why: &'static str,
}

/// How a guest says that it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanicMarks {
    /// The symbol of 32 bits that hold the number of the vCPU that panics; any other number says that none does.
    pub vcpu: &'static str,
    /// The functions that every fatal path ends in.
    pub functions: &'static [&'static str],
}

/// A border between two phases of a guest's start: a function in which it changes what tracing rests on. Nothing of ours
/// may be where it does that, from its first instruction on until it has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Border {
    /// The function. It runs once, on the first processor, when no other has started.
    pub function: &'static str,
    /// What it does.
    pub crossing: Crossing,
}

/// What a guest changes at a [`Border`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// It clears the entries of its page tables that the window is in. They are put back when it has.
    ClearsTables,
    /// It makes its sites nops, and insists on finding them as they were linked. From then on all its processors are
    /// known by what its list says of them.
    MakesNops,
}

/// A kind of guest.
pub trait Personality: Debug + Sync {
    /// Where it can be traced from: the first of these functions that its image has. All its vCPUs run there, its text
    /// has become what it stays, and no program has started.
    fn attach_points(&self) -> &'static [&'static str];

    /// Functions that run once, before everything else that can be traced: where tracing begins at one of these, its own
    /// call is in the trace.
    fn first_functions(&self) -> &'static [&'static str];

    /// The borders that it crosses while its sites are as they were linked, in their order.
    fn borders(&self) -> &'static [Border];

    /// What 64-bit system calls enter, where its image is linked; none where a kernel does not move itself, or nobody knows.
    fn system_call_entry(&self) -> Option<&'static str>;

    /// What of it must never be patched, whatever the user asks for.
    fn never_traced(&self) -> &'static [NeverTraced];

    /// What of it must not be patched besides, where it has no patch site (`--any`).
    fn never_displaced(&self) -> &'static [NeverTraced] {
        &[]
    }

    /// What of it runs before a processor has the GS base that rings are found by, or a stack: nothing is patched there
    /// outside of patch sites, neither for `--any` nor for a probe.
    fn before_gs(&self) -> &'static [NeverTraced] {
        &[]
    }

    /// The same by where it lies in an image.
    fn text_before_gs(&self, _: &Image) -> Option<NeverChanged> {
        None
    }

    /// Functions of it that go by their own return address, or by that of who has called them: they are traced, and their returns are
    /// left alone.
    fn never_hooked(&self) -> &'static [NeverHooked] {
        &[]
    }

    /// Whether all of its text runs in one ring. Else only the page tables of a vCPU say in which a function does.
    fn has_one_ring(&self) -> bool;

    /// Bytes of the stack that each of its threads has in the kernel.
    fn stack_bytes(&self, image: &Image) -> u64;

    /// Whether the text at an address of its image stays for as long as it runs, also when it has started.
    fn lasts(&self, image: &Image, at: Gva) -> bool;

    /// What can be asked of it while it runs, if it keeps lists of itself and its image tells where.
    fn introspection(&self, image: &Image) -> Option<Box<dyn Introspection>>;

    /// Where a call of its image leads now whose target the guest itself changes; none when it returns at once.
    ///
    /// # Errors
    /// [`MemoryError`] when its trampoline cannot be read.
    fn leads_to(
        &self,
        image: &Image,
        call: &StaticCall,
        memory: &dyn TargetMemory,
    ) -> Result<Option<Gva>, MemoryError>;

    /// How it says that it dies.
    fn panic_marks(&self) -> Option<PanicMarks>;

    /// The symbol of the list that it has of the GS bases of its processors: 64 bits for each, in the order of their
    /// numbers.
    fn gs_bases(&self) -> &'static str;

    /// The symbol of how many entries it has at most, in 32 bits, where there can be more processors than run.
    fn processors(&self) -> Option<&'static str> {
        None
    }

    /// Whether an entry of that list has been filled in.
    fn is_gs_base(&self, base: Gva) -> bool;

    /// What it never uses of its address space, whatever it loads or maps later; `None` where no more is known than what
    /// its image takes up.
    fn spare(&self, image: &Image) -> Option<Spare>;

    /// The first address after text that it can load later; `None` where all its text is in its image.
    fn text_limit(&self) -> Option<Gva>;

    /// The function that it calls for each module, when all of it is in its place and nothing of it has run.
    fn called_for_modules(&self) -> Option<&'static str>;

    /// How its code finds the task that a vCPU runs, if the image tells.
    fn current_task(&self, image: &Image) -> Option<CurrentTask>;

    /// The function that it calls for each new task before that runs, on behalf of the task that makes it; its argument is
    /// the new one.
    fn called_for_tasks(&self) -> Option<&'static str>;
}

/// A guest that announces what there is to know, as the bundled one does; so may any other.
#[derive(Debug, Clone, Copy)]
pub struct Announcing;

/// The bundled guest is ready to be traced here.
const READY: &str = "workloads_ready";
/// The symbol whose value is the distance from the GS base of the number of the thread that runs.
const CURRENT: &str = "vcpu_current_thread";
/// Bytes of a stack of the bundled guest.
const BUNDLED_STACK: u64 = 64 << 10;
/// Bytes of a stack of kernels of which nothing is known.
const USUAL_STACK: u64 = 16 << 10;

/// What compilers have sites call, in any kernel.
const MCOUNT: &[NeverTraced] = &[NeverTraced {
    globs: &["__fentry__", "mcount", "_mcount", "__mcount"],
    why: "the profiling function that sites call, from gcc's -pg",
}];

impl Personality for Announcing {
    fn attach_points(&self) -> &'static [&'static str] {
        &[READY]
    }

    fn first_functions(&self) -> &'static [&'static str] {
        &[]
    }

    /// What its sites are, its loader has made them.
    fn borders(&self) -> &'static [Border] {
        &[]
    }

    fn system_call_entry(&self) -> Option<&'static str> {
        None
    }

    fn never_traced(&self) -> &'static [NeverTraced] {
        MCOUNT
    }

    fn has_one_ring(&self) -> bool {
        false
    }

    fn stack_bytes(&self, image: &Image) -> u64 {
        match image.symbols.address_of(READY) {
            Some(_) => BUNDLED_STACK,
            None => USUAL_STACK,
        }
    }

    fn lasts(&self, _: &Image, _: Gva) -> bool {
        true
    }

    fn introspection(&self, _: &Image) -> Option<Box<dyn Introspection>> {
        None
    }

    /// It changes none.
    fn leads_to(
        &self,
        _: &Image,
        call: &StaticCall,
        _: &dyn TargetMemory,
    ) -> Result<Option<Gva>, MemoryError> {
        Ok(call.default)
    }

    fn panic_marks(&self) -> Option<PanicMarks> {
        None
    }

    fn gs_bases(&self) -> &'static str {
        "vcpu_gs_bases"
    }

    fn is_gs_base(&self, _: Gva) -> bool {
        true
    }

    fn spare(&self, _: &Image) -> Option<Spare> {
        None
    }

    fn text_limit(&self) -> Option<Gva> {
        None
    }

    fn called_for_modules(&self) -> Option<&'static str> {
        None
    }

    /// Each vCPU has the number of its thread at its GS base, as far as a symbol says.
    fn current_task(&self, image: &Image) -> Option<CurrentTask> {
        let at = image.symbols.address_of(CURRENT)?;
        Some(CurrentTask {
            at: i32::try_from(at.0).ok()?,
            task: None,
        })
    }

    fn called_for_tasks(&self) -> Option<&'static str> {
        None
    }
}
