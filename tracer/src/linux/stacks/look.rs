//! One look at the stacks of a guest that is stopped.

use std::collections::BTreeSet;

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::{Region, joined};

use super::{Processors, Stacks};
use crate::introspection::Untold;
use crate::linux::kernel_view::KernelView;
use crate::linux::orc::{Orc, Unwinding};
use crate::linux::task::{TaskLayout, tasks};
use crate::module::Module;
use crate::paging::elsewhere::writable_outside;
use crate::paging::{PageTableRoot, translate};
use crate::stack::{CopiedStack, OwnReturn};
use crate::target::{PhysicalMemory, TargetMemory, VcpuRegisters};

/// No stack of a 64-bit kernel is smaller, neither a task's nor that of interrupts (`THREAD_SIZE`, `IRQ_STACK_SIZE`,
/// arch/x86/include/asm/page_64_types.h).
pub(super) const STACK_MIN: u64 = 16 << 10;
/// And none is larger, with whatever is built in to find faults.
const STACK_MAX: u64 = 64 << 10;
/// `CPU_ENTRY_AREA_BASE`: what comes after the descriptors of pages, with four levels of page tables and with five.
const ENTRIES: Gva = Gva(0xffff_fe00_0000_0000);
/// No kernel's `entry_SYSCALL_64` has more bytes; nobody is long in what comes after it either.
const ENTRY_BYTES: u64 = 0x400;
/// A large page (`PMD_SIZE`).
const LARGE_PAGE: u64 = 2 << 20;
/// Protected mode.
const CR0_PE: u64 = 1;
/// Where a processor begins, in its code segment.
const RESET_VECTOR: u64 = 0xfff0;
/// `struct inactive_task_frame` (arch/x86/include/asm/switch_to.h): what a task that gives up its processor leaves at its stack
/// pointer. Here its frame pointer, and where it goes on.
const SWITCHED_FRAME: u64 = 40;
const SWITCHED_TO: u64 = 48;
/// `NR_CACHED_STACKS` (kernel/fork.c).
const CACHED: u64 = 2;

type View<'a> = KernelView<'a, dyn PhysicalMemory + 'a>;

/// A task, and its stack's lowest address.
#[derive(Debug, Clone, Copy)]
struct Task {
    at: Gva,
    stack: Gva,
}

impl Task {
    /// Whether an address is one of its stack, or of the lower part of a larger one.
    const fn has(self, pointer: Gva) -> bool {
        pointer.0.wrapping_sub(self.stack.0) < STACK_MIN
    }
}

/// Where a vCPU executes this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Executing {
    pointer: Gva,
    at: Gva,
    frame: u64,
}

/// What was found.
pub(in crate::linux) struct Look<'a> {
    layout: &'a Stacks,
    memory: &'a dyn PhysicalMemory,
    view: View<'a>,
    /// The first of the list has its stack in the kernel's image.
    tasks: Vec<Task>,
    /// Whether these are all that are in the list.
    is_whole: bool,
    /// The vCPUs that execute this kernel on stacks of its.
    executing: Vec<Executing>,
    /// How many execute in its ring 3.
    users: usize,
    /// Every processor of the kernel's is one or the other, and those pointers are all of stacks of `tasks`; or why not.
    quiet: Result<(), Untold>,
}

impl<'a> Look<'a> {
    pub fn new(
        layout: &'a Stacks,
        memory: &'a dyn PhysicalMemory,
        list: &TaskLayout,
        vcpus: &[VcpuRegisters],
    ) -> Self {
        let view = View::new(memory, list.tables);
        let listed = tasks(&view, list);
        let found = listed.found.iter();
        let mut all: Vec<Task> = found
            .map(|task| Task {
                at: task.at,
                stack: task.stack,
            })
            .collect();
        all.extend(idle(&view, layout.processors.as_ref(), list));
        // One that is in system management, or executes a guest of this guest, has other page tables or none: what its registers
        // say is not about this kernel, to which it returns all the same.
        let is_ours = |vcpu: &VcpuRegisters| executes(memory, &view, layout.entry, vcpu);
        let of_all = || vcpus.iter().enumerate();
        let ours: Vec<(usize, &VcpuRegisters)> = of_all().filter(|(_, one)| is_ours(one)).collect();
        let other = of_all().find(|(_, one)| !waits(one) && !is_ours(one));
        let elsewhere = other.filter(|_| !are_all(&ours, &view, layout.processors.as_ref()));
        let in_kernel = || ours.iter().filter(|(_, vcpu)| vcpu.cpl == 0);
        // Where system calls enter and leave, the pointer is still, or again, whatever a program has made it.
        let has_its_own =
            |vcpu: &VcpuRegisters| vcpu.rip.wrapping_sub(layout.entry.0) >= ENTRY_BYTES;
        let believed = in_kernel().filter(|(_, vcpu)| has_its_own(vcpu));
        let executing = believed.map(|(_, vcpu)| Executing {
            pointer: Gva(vcpu.rsp),
            at: Gva(vcpu.rip),
            frame: vcpu.rbp,
        });
        let executing = executing.collect();
        let is_on_none = |(_, vcpu): &&(usize, &VcpuRegisters)| {
            !has_its_own(vcpu) || !all.iter().any(|task| task.has(Gva(vcpu.rsp)))
        };
        let on_none = in_kernel().find(is_on_none);
        let elsewhere = elsewhere.map(|(vcpu, one)| Untold::Elsewhere {
            vcpu,
            rip: Gva(one.rip),
        });
        let on_none = on_none.map(|(vcpu, one)| Untold::OnNoStack {
            vcpu: *vcpu,
            rsp: Gva(one.rsp),
        });
        Self {
            layout,
            memory,
            is_whole: listed.is_whole,
            users: ours.len() - in_kernel().count(),
            quiet: elsewhere.or(on_none).map_or(Ok(()), Err),
            view,
            tasks: all,
            executing,
        }
    }

    /// The parts of stacks that nobody reads before they are written again.
    pub fn unused(&self) -> Vec<Region> {
        let mut parts = Vec::new();
        // Tasks that have a processor and no vCPU's pointer: those in ring 3, and such as are just given one or losing it.
        let mut executing = BTreeSet::new();
        for task in &self.tasks {
            match self.state(*task) {
                State::Runs(Executing { pointer, .. }) | State::Waits(pointer) => {
                    self.add(task.stack, pointer, &mut parts);
                }
                State::Executes => drop(executing.insert(task.stack)),
                State::Unknown => {}
            }
        }
        if self.quiet.is_err() {
            return parts;
        }
        // As many as there are in ring 3, each of which has one: so it is these.
        let are_users = self.is_whole && executing.len() == self.users;
        let of_users = executing.into_iter().filter(|_| are_users);
        let others = self.layout.processors.iter();
        let of_nobody = others.flat_map(|processors| of_no_task(&self.view, processors));
        for stack in of_users.chain(of_nobody) {
            self.add(stack, stack.wrapping_add(STACK_MIN), &mut parts);
        }
        parts
    }

    /// What lies on the stacks of tasks beside the words by which they return, sorted and without overlap: a frame keeps room
    /// for what it does not write in the end (`do_sys_poll` for hundreds of bytes; that in which a processor was started, under its
    /// idle task, for good), and there stays what was there before. Of stacks on which some of `places` lie, and that lead through
    /// the kernel's text and that of `modules` only, as `by` walks them.
    pub fn beside_returns(
        &self,
        by: (&Orc, &OwnReturn<'_>),
        modules: &[Module],
        places: &[Gpa],
    ) -> Vec<Region> {
        let of_modules = modules.iter().map(|module| module.text);
        let text: Vec<TextRange> = of_modules.chain([self.layout.image]).collect();
        // A guest can have as many of them as it likes, and tasks too.
        let mut places = places.to_vec();
        places.sort_unstable();
        let mut parts = Vec::new();
        for task in self.tasks.iter().filter(|task| !self.keeps(**task)) {
            let (pointer, executing) = match self.state(*task) {
                State::Waits(pointer) => (pointer, None),
                State::Runs(executing) if self.is_alone(*task) => {
                    (executing.pointer, Some(executing))
                }
                _ => continue,
            };
            let end = task.stack.wrapping_add(STACK_MIN);
            let mut all = Vec::new();
            self.add(pointer, end, &mut all);
            let is_on = |part: &Region| {
                let first = places.partition_point(|at| *at < part.start);
                places.get(first).is_some_and(|at| part.holds(*at, 8))
            };
            if all.iter().any(is_on)
                && let Some(slots) = match executing {
                    None => self.slots(pointer, end, by, &text),
                    Some(executing) => self.slots_of(executing, end, by, &text),
                }
            {
                let mut start = pointer;
                for slot in slots {
                    self.add(start, slot, &mut parts);
                    start = slot.wrapping_add(8);
                }
                self.add(start, end, &mut parts);
            }
        }
        joined(parts)
    }

    /// Where on the stack of a task that waits lies what it returns by, ascending.
    pub(super) fn slots(
        &self,
        pointer: Gva,
        end: Gva,
        by: (&Orc, &OwnReturn<'_>),
        text: &[TextRange],
    ) -> Option<Vec<Gva>> {
        let mut stack = self.copied(pointer, end)?;
        let to = pointer.wrapping_add(SWITCHED_TO);
        stack.at = Gva(stack.word(to.0)?);
        stack.frame = stack.word(pointer.0.wrapping_add(SWITCHED_FRAME))?;
        let above = usize::try_from(SWITCHED_TO + 8).ok()?;
        stack.bytes = stack.bytes.split_off(above);
        stack.pointer = to.wrapping_add(8);
        let mut slots = ascending(&stack, Unwinding::Returns, by, text)?;
        slots.insert(0, to);
        Some(slots)
    }

    /// The same of one that a vCPU executes.
    fn slots_of(
        &self,
        executing: Executing,
        end: Gva,
        by: (&Orc, &OwnReturn<'_>),
        text: &[TextRange],
    ) -> Option<Vec<Gva>> {
        let mut stack = self.copied(executing.pointer, end)?;
        stack.at = executing.at;
        stack.frame = executing.frame;
        ascending(&stack, Unwinding::Executes, by, text)
    }

    /// What lies on a stack from `pointer` on.
    fn copied(&self, pointer: Gva, end: Gva) -> Option<CopiedStack> {
        // What ends where addresses do is no stack.
        let length = end.0.checked_sub(pointer.0)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.view.read(pointer, &mut bytes).ok()?;
        Some(CopiedStack {
            at: Gva(0),
            pointer,
            frame: 0,
            bytes,
        })
    }

    /// Whether no more than one vCPU is on the stack of a task.
    fn is_alone(&self, task: Task) -> bool {
        let on_it = self.executing.iter().filter(|one| task.has(one.pointer));
        on_it.count() == 1
    }

    /// Where stacks can be: what the kernel can write outside of the direct map and its image, and those of `tasks`. If no stack
    /// is in the direct map and return addresses are on stacks only: else why it cannot be told.
    pub fn stacks(&self) -> Result<Vec<Region>, Untold> {
        self.quiet?;
        if !self.is_whole {
            return Err(Untold::Tasks);
        }
        let direct_map = self.direct_map().ok_or(Untold::Unknown)?;
        let is_mixed = |task: &&Task| direct_map.holds(task.stack, 1);
        if let Some(Task { at: task, .. }) = self.tasks.iter().find(is_mixed).copied() {
            return Err(Untold::Mixed { task });
        }
        let keeps = |task: &&Task| self.keeps(**task);
        if let Some(Task { at: task, .. }) = self.tasks.iter().find(keeps).copied() {
            return Err(Untold::Kept { task });
        }
        let except = [direct_map, self.image_pages(), self.descriptors()];
        let parts = writable_outside(self.memory, self.view.root(), &except);
        let mut parts = parts.map_err(|_| Untold::Tables)?;
        for task in &self.tasks {
            self.add(task.stack, task.stack.wrapping_add(STACK_MAX), &mut parts);
        }
        Ok(joined(parts))
    }

    /// The image and what else lies in its large pages: what comes after its end there is memory like any other, and nobody uses
    /// it at this address (`cleanup_highmap`, arch/x86/mm/init_64.c).
    fn image_pages(&self) -> TextRange {
        let TextRange { start, end } = self.layout.image;
        TextRange {
            start: Gva(start.0 & !(LARGE_PAGE - 1)),
            end: Gva(end.0.checked_next_multiple_of(LARGE_PAGE).unwrap_or(end.0)),
        }
    }

    /// Where the descriptors of pages are, and what says of each piece of memory whether it may be used (KASAN): no stacks.
    fn descriptors(&self) -> TextRange {
        let start = self.layout.descriptors;
        let start = start.and_then(|start| self.view.read_address(start).ok());
        TextRange {
            start: start.filter(|at| at.0 >> 63 == 1).unwrap_or(ENTRIES),
            end: ENTRIES,
        }
    }

    fn direct_map(&self) -> Option<TextRange> {
        let (start, end) = self.layout.direct_map?;
        let range = TextRange {
            start: self.view.read_address(start).ok()?,
            end: self.view.read_address(end).ok()?,
        };
        (range.start.0 >> 63 == 1 && range.start < range.end).then_some(range)
    }

    /// Whether return addresses of it are kept elsewhere than on its stack.
    fn keeps(&self, task: Task) -> bool {
        let kept = self.layout.kept.iter();
        let mut words = kept.map(|offset| self.view.read_address(task.at.wrapping_add(*offset)));
        !words.all(|word| word == Ok(Gva(0)))
    }

    /// Its own word says whether it executes: a pointer to its stack may be another task's mistake, or malice.
    fn state(&self, task: Task) -> State {
        let on_it = self.executing.iter().filter(|one| task.has(one.pointer));
        let executing = on_it.min().copied();
        let mut on_cpu = [0; 4];
        let layout = self.layout;
        let read = self
            .view
            .read(task.at.wrapping_add(layout.on_cpu), &mut on_cpu);
        let has_processor = on_cpu != [0; 4];
        let own = self.view.read_address(task.at.wrapping_add(layout.pointer));
        match (read, executing, own) {
            (Ok(()), Some(executing), _) if has_processor => State::Runs(executing),
            (Ok(()), None, _) if has_processor => State::Executes,
            (Ok(()), None, Ok(own)) if task.has(own) => State::Waits(own),
            _ => State::Unknown,
        }
    }

    /// Adds where the bytes from `start` to `end` lie.
    fn add(&self, start: Gva, end: Gva, parts: &mut Vec<Region>) {
        let mut at = start;
        while at < end
            && let Some((physical, left)) = self.view.physical(at)
        {
            let bytes = left.min(end.0 - at.0);
            parts.push(Region {
                start: physical,
                bytes,
            });
            at = at.wrapping_add(bytes);
        }
    }
}

/// Where a task is.
enum State {
    /// A vCPU is on its stack: below its pointer nothing is in use.
    Runs(Executing),
    /// It has given up its processor, and so has said from which address of its stack on it is in use.
    Waits(Gva),
    /// It has a processor, and no vCPU is on its stack.
    Executes,
    /// Its memory does not say.
    Unknown,
}

/// The words by which a thread returns whose stack was copied, ascending, if it is whole and leads through `text` alone.
fn ascending(
    stack: &CopiedStack,
    unwinding: Unwinding,
    (orc, own): (&Orc, &OwnReturn<'_>),
    text: &[TextRange],
) -> Option<Vec<Gva>> {
    let leads = |to: Gva| text.iter().any(|range| range.holds(to, 1));
    let returns = orc.returns(stack, unwinding, own)?;
    let leads_on = leads(stack.at) && returns.iter().all(|(_, to)| leads(*to));
    let mut slots: Vec<Gva> = returns.into_iter().map(|(slot, _)| slot).collect();
    slots.sort_unstable();
    leads_on.then_some(slots)
}

/// Whether a vCPU has not been started, or not again: it is as it was reset, in real mode at the reset vector (Intel SDM vol. 3,
/// table 11-1).
const fn waits(vcpu: &VcpuRegisters) -> bool {
    vcpu.cr0 & CR0_PE == 0 && vcpu.rip == RESET_VECTOR
}

/// Whether a vCPU executes this kernel or a program of its: its page tables lead from `entry` to where the kernel's do.
fn executes(
    memory: &dyn PhysicalMemory,
    view: &View<'_>,
    entry: Gva,
    vcpu: &VcpuRegisters,
) -> bool {
    let root = PageTableRoot::of(vcpu).ok().filter(|_| vcpu.online);
    let its = root.and_then(|root| translate(memory, root, entry).ok());
    let own = view.physical(entry);
    its.is_some_and(|its| own.is_some_and(|(own, _)| its.physical == own))
}

/// Whether these vCPUs are all that the kernel has started: whatever others execute, they do not return to it. One in ring 3 has been
/// started. One that is just being started does not count, as the kernel's list has it a moment later only; nor is it missed, should
/// it be in system management just then.
fn are_all(
    vcpus: &[(usize, &VcpuRegisters)],
    view: &View<'_>,
    processors: Option<&Processors>,
) -> bool {
    let bases = processors.and_then(|processors| processors.started(view));
    bases.is_some_and(|bases| {
        let is_one_of_them = |base: u64| bases.contains(&Gva(base));
        let found = vcpus.iter().filter(|(_, vcpu)| {
            vcpu.cpl == 3 || vcpu.supervisor_gs_base().is_some_and(is_one_of_them)
        });
        found.count() >= bases.len()
    })
}

/// The idle tasks of all processors that were started, of which only the first is in the list. Those of others are said to execute before
/// they ever have (`init_idle`, kernel/sched/core.c).
fn idle(view: &View<'_>, processors: Option<&Processors>, list: &TaskLayout) -> Vec<Task> {
    let Some(processors) = processors else {
        return Vec::new();
    };
    let all = || processors.per_cpu.bases(view).unwrap_or_default();
    let bases = processors.started(view).unwrap_or_else(all).into_iter();
    let found = bases.filter_map(|base| {
        let at = view
            .read_address(base.wrapping_add(processors.idle.0))
            .ok()?;
        let stack = view.read_address(at.wrapping_add(list.stack)).ok()?;
        Some(Task { at, stack })
    });
    found.collect()
}

/// The stacks of interrupts, and those of tasks that have ended which are kept for new ones.
fn of_no_task(view: &View<'_>, processors: &Processors) -> Vec<Gva> {
    let each = |variable| {
        let places = processors.per_cpu.each(view, variable);
        places.unwrap_or_default().into_iter()
    };
    let highest = processors.interrupts.into_iter().flat_map(each);
    let highest = highest.filter_map(|place| view.read_address(place).ok());
    let interrupts = highest.map(|at| Gva(at.0.wrapping_add(8).wrapping_sub(STACK_MIN)));
    let cached = processors.cached.into_iter().flat_map(|(at, address)| {
        let numbered = (0..CACHED).map(move |number| at.wrapping_add(8 * number));
        let areas = numbered
            .flat_map(each)
            .filter_map(|at| view.read_address(at).ok());
        areas.filter_map(move |area| view.read_address(area.wrapping_add(address)).ok())
    });
    interrupts
        .chain(cached)
        .filter(|at| at.0 >> 63 == 1)
        .collect()
}
