//! Where a Linux kernel keeps what tracing asks it for while it runs: its modules, its own probes, its tasks, and how far
//! it has started. All of it comes from the kernel's own types (BTF) and symbols, so nothing depends on its version.

use debuginfo::btf::{Btf, BtfError};
use image::Image;
use terms::addr::Gpa;

use crate::introspection::KprobesError;
use crate::linux::cgroup::CgroupLayout;
use crate::linux::kernel_view::KernelTables;
use crate::linux::kprobes::{self, KprobeLayout};
use crate::linux::module::ModuleLayout;
use crate::linux::mutex::{self, KernelMutex};
use crate::linux::orc::OrcLayout;
use crate::linux::stacks::Stacks;
use crate::linux::task::TaskLayout;

/// What can be asked of a kernel. What its types do not tell, cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// How its memory tells whether init text is still there; without this it is taken to be gone.
    pub init: Option<InitState>,
    /// Where to find its modules, if it has any and they can be traced.
    pub modules: Option<ModuleLayout>,
    /// Where to find its own probes, if it can have any and has types; or why that is not known.
    pub kprobes: Result<Option<KprobeLayout>, KprobesError>,
    /// Whether it can have some, and has no types.
    pub hides_kprobes: bool,
    /// Held by who changes its text, if its types and symbols say where it is.
    pub text_mutex: Option<KernelMutex>,
    /// Where to find its tasks.
    pub tasks: Option<TaskLayout>,
    /// Where to find its cgroups.
    pub cgroups: Option<CgroupLayout>,
    /// What tells which of their stacks are in use.
    pub stacks: Option<Stacks>,
    /// Where to find how its functions keep their callers.
    pub orc: Option<OrcLayout>,
}

impl Kernel {
    /// What the image tells, if it is a Linux.
    #[must_use]
    pub fn of(image: &Image) -> Option<Self> {
        image.linux.as_ref()?;
        let symbols = &image.symbols;
        let btf = types(image).and_then(Result::ok);
        let tables = KernelTables::find(symbols, |address| image.physical(address));
        let typed = || btf.as_ref().zip(tables);
        Some(Self {
            init: btf.as_ref().and_then(|btf| InitState::find(image, btf)),
            modules: typed().and_then(|(btf, tables)| ModuleLayout::find(btf, symbols, tables)),
            kprobes: typed().map_or(Ok(None), |(btf, tables)| {
                KprobeLayout::find(btf, symbols, tables)
            }),
            hides_kprobes: typed().is_none() && kprobes::can_have_any(symbols),
            text_mutex: typed().and_then(|(btf, tables)| {
                let found = KernelMutex::find(mutex::OF_TEXT, btf, symbols, tables);
                found.ok().flatten()
            }),
            cgroups: typed().and_then(|(btf, tables)| CgroupLayout::find(btf, symbols, tables)),
            orc: typed().and_then(|(btf, tables)| OrcLayout::find(btf, symbols, tables)),
            stacks: btf.as_ref().and_then(|btf| Stacks::find(btf, symbols)),
            tasks: typed().and_then(|(btf, tables)| TaskLayout::find(btf, symbols, tables)),
        })
    }
}

/// `system_state`, which the kernel raises before it frees init text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitState {
    /// Where it lies.
    pub at: Gpa,
    /// Its first value with which init text may be gone.
    pub gone_from: u32,
}

impl InitState {
    fn find(image: &Image, btf: &Btf<'_>) -> Option<Self> {
        let value = |name| btf.enumerator("system_states", name);
        // Before 5.15 nothing is raised between the last init function and the freeing, so there init
        // text has to count as gone from the value on with which initcalls run.
        let gone_from = value("SYSTEM_FREEING_INITMEM").or_else(|| value("SYSTEM_SCHEDULING"))?;
        let at = image.physical(image.symbols.address_of("system_state")?)?;
        Some(Self { at, gone_from })
    }
}

/// What a Linux kernel's own types are, in one line.
#[must_use]
pub fn remark(image: &Image) -> Option<String> {
    image.linux.as_ref()?;
    Some(match types(image)? {
        Ok(btf) => format!("BTF: {} types", btf.len()),
        Err(error) => error.to_string(),
    })
}

pub(super) fn types(image: &Image) -> Option<Result<Btf<'_>, BtfError>> {
    image.btf.as_deref().map(Btf::parse)
}
