//! The lists that a Linux kernel keeps of itself, asked as those of any guest.

use std::sync::Arc;

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use super::kernel::{InitState, Kernel};
use super::kernel_view::KernelView;
use super::kprobes::in_the_way;
use super::module;
use super::module::ModuleLayout;
use super::stacks::Look;
use crate::current_task::Cgroup;
use crate::introspection::{
    CgroupError, Contents, Introspection, KprobesError, Loaded, ModuleError, Returns, TaskList,
    Untold,
};
use crate::module::Module;
use crate::stack::{OwnReturn, Unwind, UnwindError};
use crate::target::{MemoryError, PhysicalMemory, TargetMemory, VcpuRegisters};

type View<'a> = KernelView<'a, dyn PhysicalMemory + 'a>;

impl Kernel {
    /// Where its modules are, and its memory to read them in, if it has modules.
    fn module_view<'a>(
        &'a self,
        memory: &'a dyn PhysicalMemory,
    ) -> Option<(View<'a>, &'a ModuleLayout)> {
        let layout = self.modules.as_ref()?;
        Some((KernelView::new(memory, layout.tables), layout))
    }
}

impl Introspection for Kernel {
    fn init_is_gone(&self, memory: &dyn PhysicalMemory) -> bool {
        let mut word = [0; 4];
        match self.init {
            Some(InitState { at, gone_from }) => {
                memory.read_physical(at, &mut word).is_err()
                    || u32::from_le_bytes(word) >= gone_from
            }
            None => true,
        }
    }

    fn has_modules(&self) -> bool {
        self.modules.is_some()
    }

    fn modules(
        &self,
        memory: &dyn PhysicalMemory,
        kernel: &[TextRange],
    ) -> Result<Vec<Loaded>, ModuleError> {
        match self.module_view(memory) {
            Some((view, layout)) => module::loaded(&view, layout, kernel),
            None => Ok(Vec::new()),
        }
    }

    fn symbols(&self, memory: &dyn PhysicalMemory, module: &Module) -> Result<usize, ModuleError> {
        match self.module_view(memory) {
            Some((view, layout)) => module::symbols(&view, layout, module),
            None => Ok(0),
        }
    }

    fn contents(
        &self,
        memory: &dyn PhysicalMemory,
        module: &Module,
    ) -> Result<Contents, ModuleError> {
        match self.module_view(memory) {
            Some((view, layout)) => module::contents(&view, layout, module),
            None => Ok(Contents::default()),
        }
    }

    fn read(
        &self,
        memory: &dyn PhysicalMemory,
        at: Gva,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        match self.module_view(memory) {
            Some((view, _)) => view.read(at, into),
            None => Err(MemoryError::NotMapped {
                address: at,
                length: into.len(),
            }),
        }
    }

    fn kprobes(&self, memory: &dyn PhysicalMemory) -> Result<Vec<Gva>, KprobesError> {
        match &self.kprobes {
            Ok(Some(layout)) => layout.read(memory),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error.clone()),
        }
    }

    fn hides_kprobes(&self) -> bool {
        self.hides_kprobes
    }

    fn changes_text(&self, memory: &dyn PhysicalMemory) -> Option<bool> {
        self.text_mutex.as_ref()?.is_held(memory).ok()
    }

    fn kprobe_in_the_way(&self, kprobes: &[Gva], at: Gva, end: Gva) -> Option<Gva> {
        in_the_way(kprobes, at, end)
    }

    fn returns(&self, memory: &dyn PhysicalMemory, vcpus: &[VcpuRegisters]) -> Returns {
        let Some((stacks, tasks)) = self.stacks.as_ref().zip(self.tasks.as_ref()) else {
            return Returns::anywhere(Untold::Unknown);
        };
        let has_kprobes = self.kprobes(memory).map_or(true, |found| !found.is_empty());
        stacks.returns(memory, tasks, has_kprobes, vcpus)
    }

    fn beside_returns(
        &self,
        memory: &dyn PhysicalMemory,
        vcpus: &[VcpuRegisters],
        places: &[Gpa],
        own: &OwnReturn<'_>,
    ) -> Vec<Region> {
        let known = self.stacks.as_ref().zip(self.tasks.as_ref());
        let orc = self.orc.as_ref().and_then(|orc| orc.read(memory).ok());
        let Some(((stacks, tasks), orc)) = known.zip(orc) else {
            return Vec::new();
        };
        let modules = self.modules(memory, &[stacks.image]).unwrap_or_default();
        let modules: Vec<Module> = modules.into_iter().map(|one| one.module).collect();
        let orc = orc.and(memory, &modules);
        let look = Look::new(stacks, memory, tasks, vcpus);
        look.beside_returns((&orc, own), &modules, places)
    }

    fn cgroup(&self, memory: &dyn PhysicalMemory, path: &str) -> Result<Cgroup, CgroupError> {
        let layout = self.cgroups.as_ref().ok_or(CgroupError::Unknown)?;
        layout.find_path(memory, path)
    }

    fn can_unwind(&self) -> bool {
        self.orc.is_some()
    }

    fn unwind(&self, memory: &dyn PhysicalMemory) -> Result<Arc<dyn Unwind>, UnwindError> {
        let layout = self.orc.as_ref().ok_or(UnwindError::None)?;
        Ok(Arc::new(layout.read(memory)?))
    }

    fn tasks(&self) -> Option<Box<dyn TaskList>> {
        let layout = self.tasks.clone()?;
        Some(Box::new(layout))
    }
}
