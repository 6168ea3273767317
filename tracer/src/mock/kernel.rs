//! A kernel that can be asked about itself, and knows next to nothing.

use std::sync::Arc;

use terms::addr::{Gpa, Gva};
use terms::region::Region;

use crate::current_task::Cgroup;
use crate::introspection::{
    CgroupError, Contents, Introspection, KprobesError, Loaded, ModuleError, Returns, TaskList,
};
use crate::module::Module;
use crate::stack::{OwnReturn, Unwind, UnwindError};
use crate::target::{MemoryError, PhysicalMemory, VcpuRegisters};

/// A kernel of which nothing is known but what it returns by, and what it does not return by when it is asked once more.
#[derive(Debug)]
pub struct MockKernel(pub Returns, pub Vec<Region>);

impl Introspection for MockKernel {
    fn init_is_gone(&self, _: &dyn PhysicalMemory) -> bool {
        true
    }

    fn has_modules(&self) -> bool {
        false
    }

    fn modules(
        &self,
        _: &dyn PhysicalMemory,
        _: &[image::TextRange],
    ) -> Result<Vec<Loaded>, ModuleError> {
        Ok(Vec::new())
    }

    fn symbols(&self, _: &dyn PhysicalMemory, _: &Module) -> Result<usize, ModuleError> {
        Ok(0)
    }

    fn contents(&self, _: &dyn PhysicalMemory, _: &Module) -> Result<Contents, ModuleError> {
        Ok(Contents::default())
    }

    fn read(&self, _: &dyn PhysicalMemory, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        let length = into.len();
        Err(MemoryError::NotMapped {
            address: at,
            length,
        })
    }

    fn kprobes(&self, _: &dyn PhysicalMemory) -> Result<Vec<Gva>, KprobesError> {
        Ok(Vec::new())
    }

    fn hides_kprobes(&self) -> bool {
        false
    }

    fn changes_text(&self, _: &dyn PhysicalMemory) -> Option<bool> {
        None
    }

    fn kprobe_in_the_way(&self, _: &[Gva], _: Gva, _: Gva) -> Option<Gva> {
        None
    }

    fn cgroup(&self, _: &dyn PhysicalMemory, _: &str) -> Result<Cgroup, CgroupError> {
        Err(CgroupError::Unknown)
    }

    fn returns(&self, _: &dyn PhysicalMemory, _: &[VcpuRegisters]) -> Returns {
        self.0.clone()
    }

    fn beside_returns(
        &self,
        _: &dyn PhysicalMemory,
        _: &[VcpuRegisters],
        _: &[Gpa],
        _: &OwnReturn<'_>,
    ) -> Vec<Region> {
        self.1.clone()
    }

    fn can_unwind(&self) -> bool {
        false
    }

    fn unwind(&self, _: &dyn PhysicalMemory) -> Result<Arc<dyn Unwind>, UnwindError> {
        Err(UnwindError::None)
    }

    fn tasks(&self) -> Option<Box<dyn TaskList>> {
        None
    }
}
