//! How code in a guest finds the task that its vCPU runs, and what that task says of itself: places that a kind of guest
//! knows, for code that reads them.

/// Bytes of a task's name, the last of which is 0.
pub const NAME_BYTES: usize = 16;

/// Where the task is that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CurrentTask {
    /// The distance from the GS base of the word that says which.
    pub at: i32,
    /// What lies where that word leads; without it the word itself is the number of the task.
    pub task: Option<TaskFields>,
}

/// Where a task has what it says of itself, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskFields {
    /// Its number, of 32 bits.
    pub pid: i32,
    /// That of its process.
    pub process: i32,
    /// Its name, of [`NAME_BYTES`].
    pub name: i32,
    /// Its cgroup, where that is known.
    pub cgroup: Option<CgroupFields>,
}

/// The way from a task to the numbers of its cgroup and of those above it, each an offset in what the one before leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CgroupFields {
    /// Of the task: its set of cgroups.
    pub set: i32,
    /// Of the set: the cgroup in the one hierarchy of all (version 2).
    pub cgroup: i32,
    /// Of the cgroup: how many are above it, of 32 bits.
    pub level: i32,
    /// Of the cgroup: the list of those above it, from the root down, and itself.
    pub ancestors: i32,
    /// From an entry of that list to its number, where it is not the number itself: of the cgroup, its node; of the node,
    /// its number.
    pub number: Option<[i32; 2]>,
}

/// A cgroup: how many are above it, and its number, which no other one ever gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cgroup {
    /// How many are above it.
    pub level: u32,
    /// Its number.
    pub number: u64,
}
