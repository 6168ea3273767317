//! `hostile`: attacks whoever watches from outside, until a `q` is typed. On each vCPU one thread rings the doorbell
//! without end, with notices that lie, and two call traced functions, write over the window's rings, cells and heads,
//! aiming (`aim.rs`) and at random, and make its page table entries wrong. Who comes to harm is replaced. What they do follows from the seed and from
//! how they are interleaved.

mod aim;

use aim::Aim;
use locked::Locked;
use workloads::calls::spin_root;
use workloads::events::events_pass;

use crate::console::print;
use crate::kernel_call::{self, WindowPage};
use crate::options::Options;
use crate::workload::first_value;

/// Threads on each vCPU where `threads=` says nothing; the first of them rings.
const PER_VCPU: u64 = 3;
/// Pages of the window that a thread knows at a time, and deeds after which it looks again.
const PAGES: usize = 16;
const LOOK_EVERY: u64 = 4096;
/// Deeds after which one that does not know where the cells are looks again.
const AIM_EVERY: u64 = 64;
/// So often in a row: entering ring 0 takes long on hosts that emulate it, an access to a port does not.
const RINGS: u64 = 64;
const PAGE_BYTES: u64 = 2 << 20;
const WORD: u64 = 8;
/// Words that are looked at for one that is in use.
const NEAR: u64 = 64;
/// Where the module of the image has its place, and the image its text.
const PLACES: [u64; 3] = [0xffff_ffff_8280_0000, 0xffff_ffff_8100_0000, 0];

static SEED: Locked = Locked::new(0);
static THREADS: Locked = Locked::new(PER_VCPU);
static DEEDS: Locked = Locked::new(0);

/// Starts the threads, and those that replace them.
pub fn run(options: &Options) {
    print(format_args!("hostile seed {}", options.seed));
    SEED.store(options.seed);
    DEEDS.store(0);
    let per_vcpu = options.threads.unwrap_or(PER_VCPU).max(1);
    THREADS.store(per_vcpu);
    let wanted = 1 + per_vcpu * options.vcpus;
    let (mut started, mut round) = (0u64, 0);
    loop {
        if kernel_call::read_byte() == Some(b'q') {
            kernel_call::end(crate::status::GOOD);
        }
        let mut live = kernel_call::survive();
        while live < wanted {
            let vcpu = started / per_vcpu % options.vcpus;
            if kernel_call::spawn(thread, started, Some(vcpu)).is_none() {
                break;
            }
            started = started.wrapping_add(1);
            live += 1;
        }
        let now = DEEDS.load() / options.iterations.max(1);
        if now > round {
            round = now;
            let pages = pages().count();
            print(format_args!(
                "hostile round {round}: {pages} pages of a window"
            ));
        }
        kernel_call::give_way();
    }
}

extern "C" fn thread(number: u64) -> ! {
    let mut chance = Chance(first_value(SEED.load(), number) | 1);
    if number.is_multiple_of(THREADS.load()) {
        ring(&mut chance);
    }
    attack(number, &mut chance)
}

/// All pages of the window.
fn pages() -> impl Iterator<Item = WindowPage> {
    let next = |page: &WindowPage| kernel_call::window(page.entry + 1);
    core::iter::successors(kernel_call::window(0), next)
}

/// Notices about text that is there, is not there, or never was.
fn ring(chance: &mut Chance) -> ! {
    loop {
        let place = PLACES.get(chance.index(4)).copied();
        let start = place.unwrap_or_else(|| chance.next());
        kernel_call::ring(start, chance.below(3), RINGS);
        DEEDS.fetch_add(1);
    }
}

fn attack(number: u64, chance: &mut Chance) -> ! {
    let mut pages = [None; PAGES];
    let mut aim = None;
    let mut value = chance.next();
    for deed in 0u64.. {
        if deed.is_multiple_of(LOOK_EVERY) {
            // Those that matter most first: the first pages of a window are code, more than there is room for.
            let writable = self::pages().filter(|page| page.may_write);
            let mut found = writable.chain(self::pages().filter(|page| !page.may_write));
            pages.fill_with(|| found.next());
        }
        if aim.is_none() && deed.is_multiple_of(AIM_EVERY) {
            aim = Aim::by(spin_root as *const () as u64, &pages);
        }
        let page = pages.get(chance.index(PAGES));
        match (chance.below(64), page.copied().flatten(), aim) {
            (0, Some(page), _) => kernel_call::twist(page.entry, chance.next()),
            (1..4, _, Some(aim)) => aim.spoil_cell(chance),
            (4..8, _, Some(aim)) => aim.spoil_records(&pages, chance),
            (8..32, Some(page), _) if page.may_write => scribble(page, chance),
            (32..48, ..) => value = events_pass(number, value),
            _ => value = spin_root(value),
        }
        DEEDS.fetch_add(1);
    }
    kernel_call::exit()
}

/// Writes a word somewhere in the page, mostly over one that is in use.
fn scribble(page: WindowPage, chance: &mut Chance) {
    let first = page.start + chance.below(PAGE_BYTES / WORD) * WORD;
    let end = page.start + PAGE_BYTES;
    let near = (0..NEAR).map(|number| first + number * WORD);
    // SAFETY: the page is mapped, or it was: then this thread ends here.
    let read = |at: u64| unsafe { (at as *const u64).read_volatile() };
    let used = near.take_while(|at| *at < end).find(|at| read(*at) != 0);
    let at = used.unwrap_or(first);
    let old = read(at);
    let word = match chance.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => old ^ 1 << chance.below(64),
        3 => old.wrapping_add(chance.below(1 << 16) * WORD),
        4 => old.wrapping_sub(chance.below(1 << 16) * WORD),
        5 => read(page.start + chance.below(PAGE_BYTES / WORD) * WORD),
        6 => chance.next() >> chance.below(64),
        _ => chance.next(),
    };
    // SAFETY: nothing of ours is in the window.
    unsafe { (at as *mut u64).write_volatile(word) };
}

/// Numbers that follow from the seed: xorshift64*.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit.max(1)
    }

    /// An index below `length`.
    fn index(&mut self, length: usize) -> usize {
        let index = self.below(u64::try_from(length).unwrap_or(u64::MAX));
        usize::try_from(index).unwrap_or_default()
    }
}
