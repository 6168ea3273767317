//! What libraries would ask the system for in the middle of a thread's work, asked for before there are threads.

/// Arenas of the allocator, at most: threads wait for each other rarely enough with so many.
const ARENAS_MAX: libc::c_int = 16;

/// Bytes of a piece that the allocator has in an arena, and that is more than it keeps of three.
const FREED: usize = 64 << 10;

/// What is known of that: three files that otherwise any thread reads, whichever needs them first.
pub(super) fn ask_now() {
    // The allocator reads a file of /sys to know how many arenas there may be, unless it is told (mallopt(3), `M_ARENA_MAX`).
    // SAFETY: the call sets a number; no thread is made yet that could read it.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) };
    // Whether it may give memory back it reads from a file of /proc, when a thread frees the first large piece of its own arena.
    let frees = || drop(std::hint::black_box([(); 3].map(|()| vec![1_u8; FREED])));
    // Where there can be no thread, none can be held to a list either.
    let _ = std::thread::Builder::new()
        .spawn(frees)
        .map(std::thread::JoinHandle::join);
    // To know how it is called without the system, /proc/self/auxv is read where the kernel has no call for that.
    let _ = rustix::thread::sched_getcpu();
}
