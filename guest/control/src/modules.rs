//! `modules`: a module is loaded, called and unloaded, again and again. Its place is full of breakpoint
//! instructions while it is not there: whoever writes into text that is gone is found out.

use crate::console::print;
use crate::kernel_call::{self, Text};
use crate::options::Options;
use crate::workload::{first_value, print_calls, print_checksum};

/// Room for a module's file: segments, symbols, call-site list.
const ROOM: usize = 64 << 10;
/// The file that is linked in. Before the guest starts another one can be put in its place, with zeros after
/// it up to the end.
#[used]
#[unsafe(link_section = ".module.linked_in")]
static MODULE: [u8; ROOM] = linked_in();
/// The last byte of the room, while nobody has put another file there.
const OWN: u8 = 1;

const fn linked_in() -> [u8; ROOM] {
    let file = include_bytes!(concat!(env!("OUT_DIR"), "/module.elf"));
    let mut room = [0; ROOM];
    let (place, rest) = room.split_at_mut(file.len());
    place.copy_from_slice(file);
    if let [.., last] = rest {
        *last = OWN;
    }
    room
}

/// What is in the room now: not what the compiler knows of it.
fn module() -> &'static [u8] {
    core::hint::black_box(&MODULE)
}

/// What is in its place when it is not there.
const POISON: u8 = 0xcc;
/// Calls between a load and an unload.
const CALLS: u64 = 100;

/// The functions of the module, and their calls for each call of its entry.
pub static FUNCTIONS: [(&str, u64); 3] =
    [("module_run", 1), ("module_step", 2), ("module_leaf", 4)];

/// Loads, calls, unloads `iterations` times.
pub fn run(options: &Options) {
    let Some(segment) = Segment::executable() else {
        crate::fail(format_args!(
            "guest: the module is no program that could be loaded"
        ));
    };
    let mut value = first_value(options.seed, 0);
    let mut spoilt = 0;
    segment.poison();
    for _ in 0..options.iterations {
        spoilt += segment.count_spoilt();
        segment.load();
        kernel_call::announce(segment.start, Text::IsThere);
        for _ in 0..CALLS {
            value = segment.call(value);
        }
        kernel_call::announce(segment.start, Text::Goes);
        segment.poison();
    }
    spoilt += segment.count_spoilt();
    let entered = CALLS * options.iterations;
    if module().last() == Some(&OWN) {
        for (function, times) in FUNCTIONS {
            print_calls(function, times * entered);
        }
    } else {
        // What it calls is its own affair.
        print(format_args!("counter entered {entered}"));
    }
    print(format_args!("counter spoilt {spoilt}"));
    print_checksum("modules", value);
}

/// The part of the module that is loaded.
struct Segment {
    start: u64,
    bytes: &'static [u8],
}

impl Segment {
    /// The load segment that is executed, by the headers of the file.
    fn executable() -> Option<Self> {
        let number = |at: usize, length: usize| -> Option<u64> {
            let bytes = module().get(at..at.checked_add(length)?)?;
            Some(
                bytes
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u64::from(*byte)),
            )
        };
        let index = |value: u64| usize::try_from(value).ok();
        let table = index(number(32, 8)?)?;
        for entry in 0..index(number(56, 2)?)? {
            let header = table + 56 * entry;
            let (kind, flags) = (number(header, 4)?, number(header + 4, 4)?);
            if kind == 1 && flags & 1 != 0 {
                let offset = index(number(header + 8, 8)?)?;
                let length = index(number(header + 32, 8)?)?;
                return Some(Self {
                    start: number(header + 16, 8)?,
                    bytes: module().get(offset..offset + length)?,
                });
            }
        }
        None
    }

    fn place(&self) -> impl Iterator<Item = *mut u8> {
        (self.start..)
            .take(self.bytes.len())
            .map(|at| at as *mut u8)
    }

    fn load(&self) {
        for (at, byte) in self.place().zip(self.bytes) {
            // SAFETY: the module was linked to a page that ring 3 may write and nothing else uses.
            unsafe { at.write_volatile(*byte) };
        }
    }

    fn poison(&self) {
        for at in self.place() {
            // SAFETY: as in `load`; no thread is in the module.
            unsafe { at.write_volatile(POISON) };
        }
    }

    fn count_spoilt(&self) -> u64 {
        // SAFETY: as in `load`.
        let spoilt = |at: *mut u8| u64::from(unsafe { at.read_volatile() } != POISON);
        self.place().map(spoilt).sum()
    }

    /// Calls the module's entry, which is its first byte.
    fn call(&self, value: u64) -> u64 {
        let entry = self.start as *const ();
        // SAFETY: the module is loaded, and this is what it begins with.
        let entry: extern "C" fn(u64) -> u64 = unsafe { core::mem::transmute(entry) };
        entry(value)
    }
}
