//! `current`: where a Linux has the task that a processor runs, and what that says of itself.
//!
//! Facts: `arch/x86/include/asm/current.h` of Linux 5.10 to 6.15. The word is a per-CPU variable, in a struct of hot ones from
//! 6.2 to 6.14; on x86-64 the GS base is the offset that is added to the address of such a variable. `struct cgroup` lists the
//! cgroups above it as pointers from 6.1 on, as numbers before.

use debuginfo::btf::Btf;
use image::Image;

use super::kernel::types;
use crate::current_task::{CgroupFields, CurrentTask, NAME_BYTES, TaskFields};

/// What the kernel's symbols and types say.
pub(super) fn find(image: &Image) -> Option<CurrentTask> {
    let btf = types(image)?.ok()?;
    let hot = || {
        let variable = image.symbols.address_of("pcpu_hot")?;
        Some(variable.wrapping_add(btf.field("pcpu_hot", "current_task")?.offset))
    };
    let word = image.symbols.address_of("current_task").or_else(hot)?;
    Some(CurrentTask {
        at: i32::try_from(word.0.cast_signed()).ok()?,
        task: Some(task_fields(&btf)?),
    })
}

fn task_fields(btf: &Btf<'_>) -> Option<TaskFields> {
    let name = btf.field("task_struct", "comm")?;
    let is_usual = name.size == NAME_BYTES as u64;
    Some(TaskFields {
        pid: offset(btf, "task_struct", "pid")?,
        process: offset(btf, "task_struct", "tgid")?,
        name: i32::try_from(name.offset).ok().filter(|_| is_usual)?,
        cgroup: cgroup_fields(btf),
    })
}

fn cgroup_fields(btf: &Btf<'_>) -> Option<CgroupFields> {
    let number = || {
        let node = offset(btf, "cgroup", "kn")?;
        Some([node, offset(btf, "kernfs_node", "id")?])
    };
    let (ancestors, number) = match offset(btf, "cgroup", "ancestors") {
        Some(pointers) => (pointers, Some(number()?)),
        None => (offset(btf, "cgroup", "ancestor_ids")?, None),
    };
    Some(CgroupFields {
        set: offset(btf, "task_struct", "cgroups")?,
        cgroup: offset(btf, "css_set", "dfl_cgrp")?,
        level: offset(btf, "cgroup", "level")?,
        ancestors,
        number,
    })
}

fn offset(btf: &Btf<'_>, of: &str, path: &str) -> Option<i32> {
    i32::try_from(btf.field(of, path)?.offset).ok()
}
