//! Memory of the test process that plays the guest: functions with patch sites, stubs, cells, rings.

use std::sync::atomic::{AtomicU64, Ordering};

use insn::jump::jump;
use terms::addr::Gva;
use terms::function::FunctionId;
use tracer::clock::layout::COUNTER;
use tracer::current_task::{CurrentTask, TaskFields};
use tracer::ring::geometry::Geometry;
use tracer::stub::cell::{CELL_BYTES, CellPlace, CpuStrategy, FORESEEN, HEAD, LIMIT, TracedCode};
use tracer::stub::halt::{Halt, HaltRoutine, Halts, When};
use tracer::stub::mirror::Mirror;
use tracer::stub::profile::{CLAMPED, HITS, OWN, Profile, TOTAL, TableLayout};
use tracer::stub::recorder::{Clock, Recorder};
use tracer::stub::spec::{Hook, ReturnHook, SiteShape, StubSpec};
use tracer::stub::task::routine::TaskRoutine;
use tracer::stub::task::{IS_NOT, NAME_LIST, NAMES, NameWords, TABLE, TABLE_AT, TaskCheck};
use tracer::stub::template::{Captures, TEMPLATE_MAX, Template};

use crate::bodies;
use crate::cpu::return_address;
use crate::mapping::{BYTES, map, unmap};
use crate::notes::{NOTE_BYTES, Note, noting};
use crate::session_rings::SessionRings;
use crate::setup::{Asked, HaltWhen, MadeAt, Place, Records, Setup};

const STUBS: u64 = 0x1_0000;
/// The room of each stub; what lies between is not used.
const STUB_ROOM: u64 = 0x1000;
const CLAIM: u64 = STUBS + FUNCTIONS as u64 * STUB_ROOM;
const IDLE: u64 = CLAIM + STUB_ROOM;
const BODIES: u64 = 0x2_0000;
const BODY_ROOM: u64 = 0x200;
const COUNTERS: u64 = BODIES + 0x1400;
const SEEN: u64 = BODIES + 0x2000;
const RESULTS: u64 = BODIES + 0x3000;
const CELLS: u64 = 0x4_0000;
const CLOCK: u64 = 0x8_0000;
const SPARE: u64 = 0x9_0000;
/// The routines that capture, two for each function, and what they have noted: a count of bytes, then notes.
const CAPTURES: u64 = 0xa_0000;
const CAPTURE_ROOM: u64 = 0x80;
const NOTES: u64 = 0xb_0000;
const NOTES_ROOM: u64 = 0x1_0000;
/// The routines that end recording, and how often they still do.
const HALTS: u64 = 0xc_0000;
/// The tasks, each of so many bytes, and for each vCPU a word that says which runs, at the distance of cells.
const TASKS: u64 = 0x9_e000;
const TASK_BYTES: u64 = 0x40;
const RUNNING: u64 = 0x9_8000;
/// Where a task has its number, that of its process, and its name.
const TASK: TaskFields = TaskFields {
    pid: 0,
    process: 4,
    name: 8,
    cgroup: None,
};
/// The routine that looks at names, and what stubs read to know whom they record.
const TASK_ROUTINE: u64 = 0xd_0000;
const TASK_BLOCK: u64 = 0x180_0000;
const STACK_TOP: u64 = 0x10_0000;
const RINGS: u64 = 0x20_0000;
const RINGS_OF_SESSION: u64 = 0x20_0000;
const DETAILS: u64 = 0xa0_0000;
const DETAILS_OF_SESSION: u64 = 0x10_0000;
const MIRROR: u64 = 0xe0_0000;
const DIRECTORY: u64 = 0xf0_0000;
const TABLES: u64 = 0xf8_0000;
const TABLE_BYTES: u64 = 0x1_0000;
/// Entry times and saved times of profile sessions.
const BESIDE: u64 = 0x100_0000;
/// Entry times of calls that are waited for to be long.
const ENTERED: u64 = BESIDE + 4 * MIRROR_BYTES;
/// Who has the beginning of a call.
const HEARD: u64 = 0x1d0_0000;
const MIRROR_BYTES: u64 = 0x10_0000;
/// Places in the mirror, as an exponent, where nothing else is asked for.
pub const MIRROR_LOG2: u32 = 8;
/// The clock page of a ground, wherever it lies.
pub const PAGE: Clock = Clock::Page(Gva(0));
/// Distance of the cells of two vCPUs.
pub const CELL_DISTANCE: u64 = 4096;
/// How many functions there are.
pub const FUNCTIONS: u32 = 9;
/// How many rings a session can have here.
pub const RINGS_MAX: u16 = 4;

/// One anonymous mapping, readable, writable and executable; in the low 2 GiB, or for [`Place::GsElsewhere`]
/// above them.
#[derive(Debug)]
pub struct Ground {
    base: u64,
    /// The sessions that the stubs of all functions record for.
    pub recorders: Vec<Recorder>,
    /// The profile sessions that they count for.
    pub profiles: Vec<Profile>,
    place: Place,
    pub setup: Setup,
    /// The code of each stub with its address.
    pub stubs: Vec<(u64, Vec<u8>)>,
}

impl Ground {
    /// With so many function sessions.
    pub fn new(place: Place, sessions: u64, ring_bytes: u64, clock: Clock) -> Self {
        Self::with(Setup {
            place,
            sessions: (0..sessions).map(|_| Records::Calls).collect(),
            profiles: 0,
            ring_bytes,
            clock,
            variant: ReturnHook::Balanced,
            mirror_log2: MIRROR_LOG2,
            captures: false,
            has_all_shapes: false,
            halt: None,
            tasks: None,
        })
    }

    pub fn with(setup: Setup) -> Self {
        let mut ground = Self {
            base: map(setup.place),
            recorders: Vec::new(),
            profiles: Vec::new(),
            place: setup.place,
            setup,
            stubs: Vec::new(),
        };
        let geometry = Geometry::with_bytes(ground.setup.ring_bytes).unwrap();
        let clock = match ground.setup.clock {
            Clock::Page(_) => Clock::Page(Gva(ground.base + CLOCK)),
            clock => clock,
        };
        ground.recorders = (0u64..)
            .zip(&ground.setup.sessions)
            .map(|(session, records)| Recorder {
                cell: ground.cell_place(session),
                rings: Gva(ground.rings(session)),
                format: records.format(clock),
                details: records
                    .format(clock)
                    .has_details()
                    .then(|| Gva(ground.details(session))),
                geometry,
                clock,
                halts: ground.halts(session),
                waits: None,
                tasks: ground.task_check(),
            })
            .collect();
        let first = ground.setup.sessions.len() as u64;
        ground.profiles = (0..ground.setup.profiles)
            .map(|number| Profile {
                cell: ground.cell_place(first + number),
                table: (ground.table(number) - ground.cell(first + number, 0)) as i32,
                layout: ground.table_layout(),
                entered: (BESIDE + 2 * number * MIRROR_BYTES - MIRROR) as i32,
                saved: (BESIDE + (2 * number + 1) * MIRROR_BYTES - MIRROR) as i32,
                clock,
                tasks: ground.task_check(),
            })
            .collect();
        ground.write_code();
        ground
    }

    /// As many vCPUs as there are rings, with counters at the distance of cells.
    fn table_layout(&self) -> TableLayout {
        let strategy = match self.place {
            Place::Shared => CpuStrategy::Shared,
            _ => CpuStrategy::Gs {
                bases: (0..RINGS_MAX).map(|vcpu| Gva(self.gs_base(vcpu))).collect(),
                vcpus: RINGS_MAX.into(),
                code: TracedCode::User,
            },
        };
        TableLayout::new(FUNCTIONS, &strategy).unwrap()
    }

    /// What stubs ask of the task that runs, with the routine for it.
    fn task_check(&self) -> Option<TaskCheck> {
        let asked = self.setup.tasks?;
        let running = match asked {
            Asked::Calls(function) => self.body_counter(function),
            _ => self.base + RUNNING,
        };
        let at = running.wrapping_sub(self.gs_base(0)).cast_signed();
        let block = Gva(self.base + TASK_BLOCK);
        let current = CurrentTask {
            at: at.try_into().unwrap(),
            task: matches!(asked, Asked::Task | Asked::Name).then_some(TASK),
        };
        let table = block.wrapping_add(TABLE);
        self.write(block.wrapping_add(TABLE_AT).0, &table.0.to_le_bytes());
        let routine = Gva(self.base + TASK_ROUTINE);
        let code = TaskRoutine {
            current: current.at,
            task: TASK,
            block,
        };
        self.write(routine.0, &code.code(routine).unwrap());
        Some(TaskCheck {
            current,
            block,
            routine: (asked == Asked::Name).then_some(routine),
            heard: Some((HEARD - MIRROR) as i32),
        })
    }

    /// Names these, which alone are recorded, or all but these; a number, or a name.
    pub fn name_tasks(&self, is_not: bool, numbers: &[u32], names: &[NameWords]) {
        let block = self.base + TASK_BLOCK;
        let usual = u8::from(is_not);
        self.write(block + TABLE, &[usual; 1024]);
        for number in numbers {
            self.write(block + TABLE + u64::from(*number), &[usual ^ 1]);
        }
        self.write(block + IS_NOT, &u64::from(is_not).to_le_bytes());
        self.write(block + NAMES, &(names.len() as u64).to_le_bytes());
        let names: Vec<u8> = names.iter().flat_map(|name| name.bytes()).collect();
        self.write(block + NAME_LIST, &names);
    }

    /// A vCPU runs a task of this number and name from now on.
    pub fn run_task(&self, vcpu: u16, number: u32, name: &[u8; 16]) {
        let task = self.base + TASKS + TASK_BYTES * u64::from(vcpu);
        self.write(task, &number.to_le_bytes());
        self.write(task + 4, &number.to_le_bytes());
        self.write(task + 8, name);
        let word = match self.setup.tasks {
            Some(Asked::Number) => number.into(),
            _ => task,
        };
        let running = self.base + RUNNING + CELL_DISTANCE * u64::from(vcpu);
        self.write(running, &word.to_le_bytes());
    }

    /// What ends the recording of a session, with its routine.
    fn halts(&self, session: u64) -> Halts {
        let Some(when) = self.setup.halt else {
            return Halts::default();
        };
        let routine = HaltRoutine {
            left: Gva(self.halts_left(session)),
            cells: (0..RINGS_MAX)
                .map(|ring| Gva(self.cell(session, ring)))
                .collect(),
            limit: 1,
        };
        let at = Gva(self.base + HALTS + 0x100 * session);
        let code = routine.code(at).unwrap();
        assert!(code.len() <= 0x100);
        self.write(at.0, &code);
        let when = match when {
            HaltWhen::Entered => When::Passed,
            HaltWhen::Longer(ticks) => When::Longer {
                entered: (ENTERED - MIRROR) as i32,
                ticks,
            },
        };
        Halts::of(&[Halt { routine: at, when }], 1)
    }

    fn halts_left(&self, session: u64) -> u64 {
        self.base + HALTS + 0x800 + 8 * session
    }

    /// How often recording of a session still ends.
    pub fn halt_left(&self, session: u64) -> &AtomicU64 {
        self.word(self.halts_left(session))
    }

    fn table(&self, profile: u64) -> u64 {
        self.base + TABLES + profile * TABLE_BYTES
    }

    /// Lets the stubs of a profile session count, on every vCPU, or stops them.
    pub fn switch_profile(&self, profile: u64, on: bool) {
        let session = self.setup.sessions.len() as u64 + profile;
        for vcpu in 0..RINGS_MAX {
            let limit = self.word(self.cell(session, vcpu) + LIMIT as u64);
            limit.store(if on { u64::MAX } else { 0 }, Ordering::SeqCst);
        }
    }

    /// What a profile session has counted of a function: hits, total, self, times below zero; over all vCPUs.
    pub fn counted(&self, profile: u64, function: u32) -> [u64; 4] {
        let vcpus = if self.place == Place::Shared {
            1
        } else {
            RINGS_MAX
        };
        let place = self.table_layout().displacement(FunctionId(function));
        let of = |vcpu: u16, counter: i32| {
            let entry = self.table(profile) + u64::from(vcpu) * CELL_DISTANCE + place;
            self.word(entry.wrapping_add_signed(counter.into()))
                .load(Ordering::SeqCst)
        };
        [HITS, TOTAL, OWN, CLAMPED].map(|counter| (0..vcpus).map(|vcpu| of(vcpu, counter)).sum())
    }

    fn cell_place(&self, session: u64) -> CellPlace {
        let cell = self.cell(session, 0);
        match self.place {
            Place::Shared => CellPlace::Fixed(Gva(cell)),
            _ => CellPlace::FromGs(cell.wrapping_sub(self.gs_base(0)).cast_signed()),
        }
    }

    /// The GS base of a vCPU. Nothing need be mapped there.
    pub fn gs_base(&self, vcpu: u16) -> u64 {
        let offset = CELL_DISTANCE * u64::from(vcpu);
        match self.place {
            Place::GsBelow | Place::GsElsewhere => self.base + offset,
            Place::GsAbove | Place::Shared => self.base + 0x80_0000 + offset,
            Place::GsFar => 0x7abc_0000_0000 + offset,
        }
    }

    /// Sets the GS base of this thread to that of a vCPU.
    pub fn enter_vcpu(&self, vcpu: u16) {
        set_gs(self.gs_base(vcpu));
    }

    fn hook(&self) -> Option<Hook> {
        self.setup.has_hooks().then(|| Hook {
            variant: self.setup.variant,
            mirror: self.mirror(),
            stubs: Gva(self.base + STUBS),
            stub_bytes: (BODIES - STUBS) as u32,
        })
    }

    pub fn mirror(&self) -> Mirror {
        Mirror {
            directory: Gva(self.base + DIRECTORY),
            pages: Gva(self.base + MIRROR),
            pages_log2: self.setup.mirror_log2,
            claim: Gva(self.base + CLAIM),
        }
    }

    /// The words of the mirror's directory.
    pub fn directory(&self) -> impl Iterator<Item = &AtomicU64> {
        (0..1u64 << self.setup.mirror_log2).map(|n| self.word(self.base + DIRECTORY + 8 * n))
    }

    /// A mirror that no page has a place in.
    pub fn clear_mirror(&self) {
        for (word, number) in self.directory().zip(0..) {
            let tag = if number == 0 { Mirror::NOBODY } else { 0 };
            word.store(tag, Ordering::SeqCst);
        }
        let pages = vec![0; 4096 << self.setup.mirror_log2];
        self.write(self.base + MIRROR, &pages);
    }

    /// Stubs, the claim routine and bodies: what a thread can be interrupted in.
    pub fn code_range(&self) -> std::ops::Range<u64> {
        self.base + STUBS..self.base + COUNTERS
    }

    /// Room for code that is none of the functions' stubs; nothing that stubs refer to lies in the pages
    /// after it.
    pub fn spare(&self) -> u64 {
        self.base + SPARE
    }

    /// A jump to itself.
    pub fn idle(&self) -> u64 {
        self.base + IDLE
    }

    /// Writes the routines that capture at a function: at its return only where that is hooked.
    fn write_captures(&self, number: u32, is_hooked: bool) -> Captures {
        let routine = |is_exit: bool| {
            let which = 2 * number + u32::from(is_exit);
            let at = self.base + CAPTURES + u64::from(which) * CAPTURE_ROOM;
            let code = noting(at, self.base + NOTES, which);
            assert!(code.len() as u64 <= CAPTURE_ROOM);
            self.write(at, &code);
            Gva(at)
        };
        Captures {
            entry: self.setup.captures.then(|| routine(false)),
            exit: (self.setup.captures && is_hooked).then(|| routine(true)),
        }
    }

    /// What the routines have noted since this was asked last.
    pub fn captured(&self) -> Vec<Note> {
        let used = self.word(self.base + NOTES).swap(0, Ordering::SeqCst);
        assert!(used <= NOTES_ROOM - NOTE_BYTES, "too many notes");
        let notes = (0..used).step_by(NOTE_BYTES as usize);
        let word = |note: u64, word: u64| {
            let at = self.base + NOTES + NOTE_BYTES + note + 8 * word;
            self.word(at).load(Ordering::SeqCst)
        };
        notes
            .map(|note| Note {
                function: (word(note, 0) / 2) as u32,
                is_exit: word(note, 0) % 2 == 1,
                rsp: word(note, 1),
                rax: word(note, 2),
                rdx: word(note, 3),
            })
            .collect()
    }

    fn write_code(&mut self) {
        self.write(self.idle(), &[0xeb, 0xfe]);
        // Not where a stub will lie, and nothing that stubs refer to lies there.
        let near = Gva(self.base + STUBS - TEMPLATE_MAX);
        let hook = self.hook();
        if let Some(hook) = &hook {
            let routine = hook.mirror.claim_routine().unwrap();
            self.write(hook.mirror.claim.0, &routine.bytes);
            self.clear_mirror();
        }
        for number in 0..FUNCTIONS {
            let shape = match (hook.is_some(), self.setup.has_all_shapes) {
                (true, _) => bodies::shape(number),
                (false, true) => bodies::shape_without_hooks(number),
                (false, false) => SiteShape::Entry,
            };
            let captures =
                self.write_captures(number, hook.is_some() && shape != SiteShape::EntryOnly);
            let spec = StubSpec {
                profiles: self.profiles.clone(),
                recorders: self.recorders.clone(),
                shape,
                hook,
                captures_entry: captures.entry.is_some(),
                captures_exit: captures.exit.is_some(),
            };
            let template = Template::new(&spec, near).unwrap();
            let at = self.base + STUBS + u64::from(number) * STUB_ROOM;
            let function = self.function(number);
            let prologue = bodies::prologue(shape);
            let site = function + prologue.len() as u64;
            let go_on = site + 5;
            let code = template
                .stamp_capturing(Gva(at), FunctionId(number), Gva(go_on), captures)
                .unwrap();
            assert!(code.len() as u64 <= STUB_ROOM);
            let body = if hook.is_some() {
                bodies::graph(number, go_on, self)
            } else {
                bodies::leaf(go_on, self.body_counter(number), shape)
            };
            assert!(go_on + body.len() as u64 <= function + BODY_ROOM);
            self.write(function, prologue);
            self.write(site, &jump(Gva(site), Gva(at)).unwrap());
            self.write(go_on, &body);
            self.write(at, &code);
            self.stubs.push((at, code));
        }
    }

    pub fn function(&self, number: u32) -> u64 {
        self.base + BODIES + u64::from(number) * BODY_ROOM
    }

    pub fn body_counter(&self, number: u32) -> u64 {
        self.base + COUNTERS + u64::from(number) * 64
    }

    /// Where bodies store what they found: 15 general registers in the order of [`crate::cpu`], rsp,
    /// the argument on the stack.
    pub fn seen(&self) -> u64 {
        self.base + SEEN
    }

    /// What bodies return: rax, rdx, xmm0, xmm1.
    pub fn results(&self) -> u64 {
        self.base + RESULTS
    }

    /// The word that records take their time from, with [`PAGE`].
    pub fn clock(&self) -> &AtomicU64 {
        self.word(self.base + CLOCK)
    }

    /// The word that profiles take theirs from.
    pub fn counter(&self) -> &AtomicU64 {
        self.word(self.base + CLOCK + COUNTER)
    }

    /// How often the body of a function was run.
    pub fn body_calls(&self, number: u32) -> u64 {
        self.word(self.body_counter(number)).load(Ordering::SeqCst)
    }

    /// Calls a function as any C code would.
    pub fn call(&self, number: u32) {
        let address = self.function(number) as *const ();
        // SAFETY: `write_code` has put a function without arguments and result there.
        let function = unsafe { std::mem::transmute::<*const (), extern "C" fn()>(address) };
        function();
    }

    pub fn stack_top(&self) -> u64 {
        self.base + STACK_TOP
    }

    pub fn cell(&self, session: u64, ring: u16) -> u64 {
        self.base + CELLS + session * CELL_BYTES + u64::from(ring) * CELL_DISTANCE
    }

    pub fn rings(&self, session: u64) -> u64 {
        self.base + RINGS + session * RINGS_OF_SESSION
    }

    pub fn details(&self, session: u64) -> u64 {
        self.base + DETAILS + session * DETAILS_OF_SESSION
    }

    fn holds(&self, address: u64, length: usize) -> bool {
        address >= self.base && address + length as u64 <= self.base + BYTES as u64
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        assert!(self.holds(address, bytes.len()));
        // SAFETY: the range lies in the mapping, which no Rust reference points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        assert!(self.holds(address, length));
        let mut bytes = vec![0; length];
        // SAFETY: the range lies in the mapping, which no Rust reference points into.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length) };
        bytes
    }

    pub fn word(&self, address: u64) -> &AtomicU64 {
        assert!(self.holds(address, 8) && address.is_multiple_of(8));
        // SAFETY: the word lies in the mapping, which lives as long as `self`, is aligned, and is
        // accessed by whole-word instructions only.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }

    /// Has the stubs foresee every head word, or none.
    pub fn foresee(&self, is_right: bool) {
        let sessions = 0..self.setup.sessions.len() as u64;
        for cell in sessions.flat_map(|one| (0..RINGS_MAX).map(move |ring| self.cell(one, ring))) {
            let head = self.word(cell + HEAD as u64).load(Ordering::SeqCst);
            let foreseen = if is_right { head } else { !head };
            let word = self.word(cell + FORESEEN as u64);
            word.store(foreseen, Ordering::SeqCst);
        }
    }

    /// Where a call was made that returns to this address.
    pub fn made_at(&self, address: u64) -> MadeAt {
        let body = |number: &u32| {
            let body = self.function(*number);
            (body..body + BODY_ROOM).contains(&address)
        };
        if address == return_address() {
            return MadeAt::Outside;
        }
        if (self.base + STUBS..self.base + BODIES).contains(&address) {
            return MadeAt::Stub;
        }
        match (address, (0..FUNCTIONS).find(body)) {
            (0, _) => MadeAt::Unknown,
            (_, Some(number)) => MadeAt::In(number),
            (_, None) => MadeAt::Elsewhere(address),
        }
    }

    /// The rings of one session, for a reader.
    pub fn session(&self, session: u64) -> SessionRings<'_> {
        SessionRings::new(self, session)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no thread runs in it any more.
        unsafe { unmap(self.base) };
    }
}

/// Sets the GS base of this thread, which nothing else in a Linux process uses.
pub fn set_gs(base: u64) {
    const ARCH_SET_GS: u64 = 0x1001;
    // SAFETY: neither Rust nor the C library uses GS on x86-64.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(result, 0, "arch_prctl(ARCH_SET_GS, {base:#x})");
}
