//! What the filter of tasks of a session says in the guest: what it asks of the guest is asked once, and put into words that
//! stubs read.

use std::collections::BTreeMap;

use terms::addr::Gva;

use super::AttachError;
use crate::current_task::Cgroup;
use crate::introspection::{CgroupError, Introspection};
use crate::stub::task::{
    CGROUP_LIST, CGROUPS, IS_NOT, LIST_MAX, NAME_LIST, NAMES, NUMBERS, NameWords, PROCESS,
    RECORDED, TABLE, TABLE_AT, WAITS,
};
use crate::target::{MemoryError, PhysicalMemory, StoppedTarget, WindowMemory};
use crate::tasks::{TaskTerm, WantedTasks};
use crate::window::Extent;

/// Why a session cannot record only some tasks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskFilterError {
    /// Nobody knows which task runs.
    #[error(
        "nothing says which task this guest runs, so all of them are recorded: it is read from a kernel's types (BTF), or from its symbol vcpu_current_thread"
    )]
    Unknown,
    /// There is nothing but a number.
    #[error("tasks of this guest are known by number only: '{0}' names none")]
    NumbersOnly(String),
    /// The kernel has a hierarchy of its own for each controller, or says nothing of it.
    #[error("'{term}': {why}")]
    Cgroup {
        /// As it was written.
        term: String,
        /// Why not.
        why: CgroupError,
    },
    /// A list is full.
    #[error("there is room for {LIST_MAX} {what}, {count} are named")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// Nothing tells of new tasks.
    #[error("forks of this guest cannot be followed: {0}")]
    NoForks(&'static str),
    /// The window.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// What a filter says, in the words of stubs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TaskLists {
    /// Numbers, and how each is meant.
    numbers: Vec<(u32, Meant)>,
    names: Vec<NameWords>,
    cgroups: Vec<Cgroup>,
}

/// How a number is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Meant {
    /// All tasks of the process.
    is_process: bool,
    /// No task has it yet.
    waits: bool,
}

/// The memory of what the stubs of a session read, which is never given back.
#[derive(Debug)]
pub(super) struct TaskBlock {
    extent: Extent,
    /// What every byte of the table is that is not in `named`.
    usual: u8,
    /// Bytes that say something else.
    named: Vec<u32>,
    /// Whether the guest writes to it: then nobody knows what the bytes are.
    is_followed: bool,
}

impl TaskLists {
    /// What is asked of the guest is asked now, while it stands still.
    pub(super) fn new(
        wanted: &WantedTasks,
        inside: Option<&dyn Introspection>,
        memory: &(impl StoppedTarget + ?Sized),
    ) -> Result<Self, TaskFilterError> {
        let mut lists = Self::default();
        let memory: &dyn PhysicalMemory = &memory;
        let there = match wanted.follows {
            true => inside.and_then(|inside| Some(inside.tasks()?.look(memory))),
            false => None,
        };
        // Who is not found in a list that was not read to its end may be there.
        let waits = |number: u32| {
            there.as_ref().is_some_and(|there| {
                let has = |pid: i32| u32::try_from(pid) == Ok(number);
                there.is_whole && !there.found.iter().any(|task| has(task.pid))
            })
        };
        for term in &wanted.terms {
            match term {
                TaskTerm::Number(number) | TaskTerm::Process(number) => {
                    let meant = Meant {
                        is_process: matches!(term, TaskTerm::Process(_)),
                        waits: waits(*number),
                    };
                    lists.numbers.push((*number, meant));
                }
                TaskTerm::Name(name) => lists.names.extend(NameWords::new(name, true)),
                TaskTerm::NameBegins(name) => lists.names.extend(NameWords::new(name, false)),
                TaskTerm::Cgroup(path) => {
                    let found = inside.ok_or(CgroupError::Unknown);
                    let found = found.and_then(|inside| inside.cgroup(memory, path));
                    let term = term.to_string();
                    lists
                        .cgroups
                        .push(found.map_err(|why| TaskFilterError::Cgroup { term, why })?);
                }
            }
        }
        let counts = [
            ("names", lists.names.len()),
            ("cgroups", lists.cgroups.len()),
        ];
        match counts.into_iter().find(|(_, count)| *count > LIST_MAX) {
            Some((what, count)) => Err(TaskFilterError::TooMany { what, count }),
            None => Ok(lists),
        }
    }

    /// Whether a number alone decides.
    pub(super) fn is_of_numbers(&self) -> bool {
        let is_process = |(_, meant): &(u32, Meant)| meant.is_process;
        self.names.is_empty() && self.cgroups.is_empty() && !self.numbers.iter().any(is_process)
    }

    /// The bytes of the table that are not as usual.
    fn bytes(&self, usual: u8) -> BTreeMap<u32, u8> {
        let mut bytes = BTreeMap::new();
        for (number, meant) in &self.numbers {
            let byte = bytes.entry(*number).or_insert(usual);
            match meant.is_process {
                true => *byte |= PROCESS,
                false => *byte = *byte & !RECORDED | !usual & RECORDED,
            }
            *byte |= if meant.waits { WAITS } else { 0 };
        }
        bytes
    }

    /// What lies before the table, which is at `table`.
    fn words(&self, is_not: bool, table: Gva) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(TABLE).unwrap_or_default()];
        let mut put = |at: u64, what: &[u8]| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            if let Some(place) = bytes.get_mut(at..at.saturating_add(what.len())) {
                place.copy_from_slice(what);
            }
        };
        let counts = [
            (TABLE_AT, table.0),
            (IS_NOT, u64::from(is_not)),
            (NAMES, self.names.len() as u64),
            (CGROUPS, self.cgroups.len() as u64),
        ];
        for (at, word) in counts {
            put(at, &word.to_le_bytes());
        }
        let names: Vec<u8> = self.names.iter().flat_map(|name| name.bytes()).collect();
        put(NAME_LIST, &names);
        let cgroups = self.cgroups.iter();
        let cgroups = cgroups.flat_map(|one| [u64::from(one.level), one.number]);
        let cgroups: Vec<u8> = cgroups.flat_map(u64::to_le_bytes).collect();
        put(CGROUP_LIST, &cgroups);
        bytes
    }
}

impl TaskBlock {
    /// One that nobody has written to.
    pub(super) const fn new(extent: Extent) -> Self {
        Self {
            extent,
            usual: 0,
            named: Vec::new(),
            is_followed: false,
        }
    }

    /// Where stubs find it.
    pub(super) const fn at(&self) -> Gva {
        self.extent.at
    }

    /// Writes all that the stubs read.
    pub(super) fn write(
        &mut self,
        target: &mut (impl WindowMemory + ?Sized),
        wanted: &WantedTasks,
        lists: &TaskLists,
    ) -> Result<(), MemoryError> {
        let Extent { at, physical, .. } = self.extent;
        let table = physical.wrapping_add(TABLE);
        let place = |number: u32| table.wrapping_add(number.into());
        let usual = if wanted.is_not { RECORDED } else { 0 };
        if self.usual != usual || self.is_followed {
            target.write_window(table, &vec![usual; NUMBERS as usize])?;
        } else {
            for number in self.named.drain(..) {
                target.write_window(place(number), &[usual])?;
            }
        }
        (self.usual, self.is_followed) = (usual, wanted.follows);
        let bytes = lists.bytes(usual);
        self.named = bytes.keys().copied().collect();
        for (number, byte) in bytes {
            target.write_window(place(number), &[byte])?;
        }
        let words = lists.words(wanted.is_not, at.wrapping_add(TABLE));
        target.write_window(physical, &words)
    }
}

#[cfg(test)]
mod tests {
    use terms::addr::Gpa;

    use super::*;
    use crate::mock::{MockTarget, REGION_START};
    use crate::stub::task::BLOCK_BYTES;

    const AT: Gva = Gva(0xffff_ffff_9000_0000);
    const PHYSICAL: Gpa = REGION_START;

    fn lists(numbers: &[(u32, bool, bool)]) -> TaskLists {
        let numbers = numbers.iter();
        let numbers = numbers.map(|(number, is_process, waits)| {
            let (is_process, waits) = (*is_process, *waits);
            (*number, Meant { is_process, waits })
        });
        TaskLists {
            numbers: numbers.collect(),
            ..TaskLists::default()
        }
    }

    #[test]
    fn each_number_has_a_byte_that_says_how_it_is_meant() {
        let lists = lists(&[
            (1, false, false),
            (2, true, false),
            (3, false, true),
            (4, true, true),
            (5, false, false),
            (5, true, false),
        ]);
        let only: Vec<u8> = lists.bytes(0).into_values().collect();
        let process = PROCESS;
        let expected = [1, process, 1 | WAITS, process | WAITS, 1 | process];
        assert_eq!(only, expected);
        let not: Vec<u8> = lists.bytes(RECORDED).into_values().collect();
        assert_eq!(not, expected.map(|byte| byte ^ RECORDED));
        assert!(!lists.is_of_numbers());
    }

    #[test]
    fn what_was_named_before_is_named_no_more() {
        let mut target = MockTarget::new(1, 8 << 20);
        let extent = Extent {
            at: AT,
            physical: PHYSICAL,
            bytes: BLOCK_BYTES,
        };
        let mut block = TaskBlock::new(extent);
        let last = NUMBERS - 1;
        let mut write = |numbers: &[u32], is_not, follows, by_guest: Option<u32>| {
            let terms = numbers.iter().map(|number| TaskTerm::Number(*number));
            let terms = terms.collect();
            let wanted = WantedTasks {
                is_not,
                terms,
                follows,
            };
            let numbers: Vec<_> = numbers.iter().map(|one| (*one, false, false)).collect();
            block.write(&mut target, &wanted, &lists(&numbers)).unwrap();
            let table = PHYSICAL.wrapping_add(TABLE);
            if let Some(number) = by_guest {
                let at = table.wrapping_add(number.into());
                target.write_window(at, &[RECORDED]).unwrap();
            }
            let mut bytes = vec![0; NUMBERS as usize];
            target.read_physical(table, &mut bytes).unwrap();
            let all = (0..).zip(bytes).filter(|(_, byte)| *byte & RECORDED != 0);
            all.map(|(number, _): (u32, u8)| number).collect::<Vec<_>>()
        };
        assert_eq!(write(&[7, last], false, false, None), [7, last]);
        assert_eq!(write(&[8, last], false, true, Some(9)), [8, 9, last]);
        // The child of one that was named is not, once its parent is not.
        assert_eq!(write(&[0], false, false, None), [0]);
        let not = write(&[0, last], true, false, None);
        assert_eq!(not.len(), NUMBERS as usize - 2);
        assert_eq!(write(&[1], true, false, None)[..2], [0, 2]);
        assert_eq!(write(&[5], false, false, None), [5]);
    }
}
