//! Where a stub finds the words of its ring: the *cell* of a ring is three words that stubs and host
//! share, and one of the stubs' own.

use terms::addr::Gva;

use crate::ring::geometry::RINGS_MAX;
use crate::target::VcpuRegisters;

/// Bytes of one cell: a cache line, so that no two vCPUs write to the same one.
pub const CELL_BYTES: u64 = 64;
/// Offset of the head word in a cell.
pub const HEAD: i32 = 0;
/// Offset of the limit word in a cell.
pub const LIMIT: i32 = 8;
/// Offset of the lost word in a cell.
pub const LOST: i32 = 16;
/// Offset of a word in the cell of a ring that stubs alone use: what they foresee the head word to be.
pub const FORESEEN: i32 = 24;
/// Offset in a cell of a profile session: ticks of the profiled calls inside the present one.
pub const CHILD: i32 = 24;

/// Offset in the cells of a session of the cell of its event ring: the words as above.
pub const EVENT_CELL: u64 = 32;

/// How a stub knows on which vCPU it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuStrategy {
    /// The GS base of each vCPU is its own and stays so while traced code runs: cells lie at the
    /// same distance from it on each vCPU. One unlocked instruction reserves a slot.
    Gs {
        /// The GS base of each vCPU, by number, and after them those of processors that can still come: these have cells
        /// as well, of which nobody reads the rings.
        bases: Vec<Gva>,
        /// How many vCPUs there are.
        vcpus: usize,
        /// Where the traced code runs.
        code: TracedCode,
    },
    /// Only the first vCPU executes anything that is traced, and the bases are not there yet: it writes to its own ring,
    /// the others have theirs already.
    First {
        /// How many vCPUs there are.
        vcpus: usize,
        /// Where the traced code runs.
        code: TracedCode,
    },
    /// Nothing tells the vCPUs apart: all write to one ring, with a lock prefix.
    Shared,
}

/// Where traced code runs, and so which of a vCPU's GS bases its stubs see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedCode {
    /// Ring 3 may execute it: it runs with the GS base in force, whatever the ring.
    User,
    /// Ring 0 only: it runs with the kernel's GS base, which `swapgs` hides while ring 3 runs.
    Supervisor,
}

impl TracedCode {
    /// The GS base that traced code sees on a vCPU, if the registers tell.
    fn gs_base(self, registers: &VcpuRegisters) -> Option<Gva> {
        match self {
            Self::User => Some(Gva(registers.gs_base)),
            Self::Supervisor => registers.supervisor_gs_base().map(Gva),
        }
    }

    /// Whether a vCPU is still where it was started, so that its GS base says nothing yet: neither of the
    /// two registers has a base of the kernel's. What can be traced does not run in that state.
    fn is_starting(self, registers: &VcpuRegisters) -> bool {
        let is_kernel = |base: u64| base >> 63 != 0;
        let other = registers.kernel_gs_base.is_some_and(is_kernel);
        registers.cpl == 0 && registers.gs_base == 0 && (self == Self::User || !other)
    }
}

/// Why the GS base cannot tell the vCPUs apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoGsBase {
    /// A vCPU has not been started yet, so its GS base is not known.
    #[error("vCPU {vcpu} has not been started, and the kernel lists no GS base for it")]
    Offline {
        /// Its number.
        vcpu: usize,
    },
    /// The kernel has a list of bases, and that of a vCPU is missing.
    #[error(
        "the kernel has not set up the per-CPU area of vCPU {vcpu} (its base is listed as {base})"
    )]
    NotSetUp {
        /// Its number.
        vcpu: usize,
        /// What the list says.
        base: Gva,
    },
    /// A vCPU has another base than the kernel's list has for its number.
    #[error("the GS base of vCPU {vcpu} is {base}, the kernel lists {listed}")]
    NotListed {
        /// Its number.
        vcpu: usize,
        /// Its GS base.
        base: Gva,
        /// What the list says.
        listed: Gva,
    },
    /// The vCPU is in ring 3, and the kernel's GS base was not read.
    #[error("vCPU {vcpu} is in ring 3 and its kernel's GS base was not read")]
    SwappedOut {
        /// Its number.
        vcpu: usize,
    },
    /// The GS base of a vCPU is not an address of kernel space.
    #[error("the GS base of vCPU {vcpu} is {base}, not a kernel address")]
    NotKernel {
        /// Its number.
        vcpu: usize,
        /// Its GS base.
        base: Gva,
    },
    /// A GS base is not the start of a cache line.
    #[error("the GS base of vCPU {vcpu} is {base}, not a multiple of {CELL_BYTES}")]
    Unaligned {
        /// Its number.
        vcpu: usize,
        /// Its GS base.
        base: Gva,
    },
    /// The cells would span more memory than they are worth.
    #[error("the GS bases of the vCPUs are {distance} bytes apart, {GS_SPAN_MAX} are possible")]
    TooFar {
        /// From the lowest base to the highest.
        distance: u64,
    },
    /// A head word cannot number so many rings.
    #[error("{vcpus} vCPUs are more than {RINGS_MAX} rings")]
    TooMany {
        /// How many there are.
        vcpus: usize,
    },
    /// Two GS bases are the same or so close that their cells would overlap.
    #[error("the GS bases of two vCPUs are {distance} bytes apart; {needed} are needed")]
    TooClose {
        /// The smallest distance found.
        distance: u64,
        /// The distance at which cells do not overlap.
        needed: u64,
    },
}

/// The farthest that GS bases may lie from each other: the cells lie as far, and what is between them
/// is wasted.
pub const GS_SPAN_MAX: u64 = 32 << 20;

/// A GS base is not what it was when the cells were placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the GS base of vCPU {vcpu} is {found}, it was {expected} when tracing was attached first")]
pub struct GsMoved {
    /// Its number.
    pub vcpu: usize,
    /// What it was.
    pub expected: Gva,
    /// What it is.
    pub found: Gva,
}

/// The cells of all sessions of one vCPU lie together.
pub const SESSIONS_MAX: u64 = 16;
/// What they take up.
const BLOCK: u64 = SESSIONS_MAX * CELL_BYTES;

impl CpuStrategy {
    /// The best strategy that these registers allow, with the reason when it is not *gs*. `listed` has the bases
    /// that the kernel lists for all processors that it can ever have, if it does: then those need not have been started.
    ///
    /// *Gs* is chosen only where the base of *every* vCPU is known: a stub that runs with a base of which nothing is
    /// known would write to memory of which nothing is known.
    #[must_use]
    pub fn choose(
        vcpus: &[VcpuRegisters],
        code: TracedCode,
        listed: &[Gva],
    ) -> (Self, Option<NoGsBase>) {
        match gs_bases(vcpus, code, listed) {
            Ok(bases) => {
                let vcpus = vcpus.len();
                (Self::Gs { bases, vcpus, code }, None)
            }
            Err(reason) => (Self::Shared, Some(reason)),
        }
    }

    /// Checks that each vCPU that runs still has the GS base that its cells were placed by. One that is offline has
    /// none, and gets it back before it executes anything that is traced.
    ///
    /// # Errors
    /// [`GsMoved`] for the first that has another.
    pub fn verify(&self, vcpus: &[VcpuRegisters]) -> Result<(), GsMoved> {
        let Self::Gs {
            bases,
            vcpus: known,
            code,
        } = self
        else {
            return Ok(());
        };
        for (vcpu, (expected, registers)) in bases.iter().zip(vcpus).take(*known).enumerate() {
            if !registers.online || code.is_starting(registers) {
                continue;
            }
            let seen = code.gs_base(registers);
            let found = seen.unwrap_or(Gva(registers.gs_base));
            if found != *expected {
                return Err(GsMoved {
                    vcpu,
                    expected: *expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// Rings that a session needs.
    #[must_use]
    pub fn rings(&self) -> usize {
        match self {
            Self::Gs { vcpus, .. } | Self::First { vcpus, .. } => *vcpus,
            Self::Shared => 1,
        }
    }

    /// The smallest distance of two vCPUs' cells; none when there are no two.
    #[must_use]
    pub fn closest(&self) -> Option<u64> {
        let mut offsets = self.offsets();
        offsets.sort_unstable();
        let pairs = offsets.iter().zip(offsets.iter().skip(1));
        pairs.map(|(low, high)| high - low).min()
    }

    /// The distance of the first vCPU's cells from the last one's.
    #[must_use]
    pub fn farthest(&self) -> u64 {
        self.offsets().into_iter().max().unwrap_or(0)
    }

    /// The distance of the lowest vCPU's cells from the first ones, which can be those of a processor that has not come.
    #[must_use]
    pub fn lowest(&self) -> u64 {
        let rings = self.offsets().into_iter().take(self.rings());
        rings.min().unwrap_or(0)
    }

    /// Bytes that the cells of all sessions span.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.offsets().into_iter().max().unwrap_or(0) + BLOCK
    }

    /// Where in that span the cells begin: those of each ring, then those that nobody reads.
    fn offsets(&self) -> Vec<u64> {
        match self {
            Self::Gs { bases, .. } => {
                let lowest = bases.iter().min().copied().unwrap_or_default();
                let bases = bases.iter();
                bases.map(|base| base.0.wrapping_sub(lowest.0)).collect()
            }
            Self::First { vcpus, .. } => (0..*vcpus as u64).map(|vcpu| vcpu * BLOCK).collect(),
            Self::Shared => vec![0],
        }
    }

    /// The cells of session number `session`, when the span of all cells starts at `start`.
    #[must_use]
    pub fn cells(&self, start: Gva, session: u8) -> Cells {
        let of_session = u64::from(session) * CELL_BYTES;
        let offsets = self.offsets().into_iter().take(self.rings());
        let offsets = offsets.map(|offset| offset + of_session).collect();
        let place = match self {
            Self::First { .. } | Self::Shared => CellPlace::Fixed(start.wrapping_add(of_session)),
            Self::Gs { bases, .. } => {
                let lowest = bases.iter().min().copied().unwrap_or_default();
                let distance = start.wrapping_add(of_session).0.wrapping_sub(lowest.0);
                CellPlace::FromGs(distance.cast_signed())
            }
        };
        Cells { place, offsets }
    }

    /// The name that `status` shows.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gs { .. } => "gs",
            Self::First { .. } => "first",
            Self::Shared => "shared",
        }
    }
}

fn gs_bases(
    vcpus: &[VcpuRegisters],
    code: TracedCode,
    listed: &[Gva],
) -> Result<Vec<Gva>, NoGsBase> {
    if vcpus.len() > usize::from(RINGS_MAX) {
        let vcpus = vcpus.len();
        return Err(NoGsBase::TooMany { vcpus });
    }
    let mut bases = Vec::new();
    for (vcpu, registers) in vcpus.iter().enumerate() {
        let base = gs_base(vcpu, registers, code, listed.get(vcpu).copied())?;
        bases.push(checked(vcpu, base)?);
    }
    for (number, base) in listed.iter().copied().enumerate().skip(vcpus.len()) {
        bases.push(checked(number, base)?);
    }
    check_distances(&bases)?;
    Ok(bases)
}

/// A base that cells can lie at a distance from.
const fn checked(vcpu: usize, base: Gva) -> Result<Gva, NoGsBase> {
    // One that ring 3 has set is none to rely on; kernels keep theirs in the upper half.
    if base.0 >> 63 == 0 {
        return Err(NoGsBase::NotKernel { vcpu, base });
    }
    if !base.0.is_multiple_of(CELL_BYTES) {
        return Err(NoGsBase::Unaligned { vcpu, base });
    }
    Ok(base)
}

/// The base of one vCPU: the one that it has, or the one that it will have.
fn gs_base(
    vcpu: usize,
    registers: &VcpuRegisters,
    code: TracedCode,
    listed: Option<Gva>,
) -> Result<Gva, NoGsBase> {
    if !registers.online {
        return listed.ok_or(NoGsBase::Offline { vcpu });
    }
    if let Some(listed) = listed.filter(|_| code.is_starting(registers)) {
        return Ok(listed);
    }
    let base = code
        .gs_base(registers)
        .ok_or(NoGsBase::SwappedOut { vcpu })?;
    match listed {
        Some(listed) if listed != base => Err(NoGsBase::NotListed { vcpu, base, listed }),
        _ => Ok(base),
    }
}

/// Checks that cells at one distance from all of these overlap nowhere, and span no more than is affordable.
fn check_distances(bases: &[Gva]) -> Result<(), NoGsBase> {
    let needed = BLOCK;
    let mut sorted = bases.to_vec();
    sorted.sort_unstable();
    if let Some((lowest, highest)) = sorted.first().zip(sorted.last()) {
        let distance = highest.0 - lowest.0;
        if distance > GS_SPAN_MAX {
            return Err(NoGsBase::TooFar { distance });
        }
    }
    let closest = sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .map(|(low, high)| high.0 - low.0)
        .min();
    match closest {
        Some(distance) if distance < needed => Err(NoGsBase::TooClose { distance, needed }),
        _ => Ok(()),
    }
}

/// Where the code of a recorder finds the cell of the ring to write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CellPlace {
    /// At this distance from the GS base.
    FromGs(i64),
    /// At this address, for every vCPU.
    Fixed(Gva),
}

impl CellPlace {
    /// Where the cell of the event ring is, for the cell of the same vCPU that is here.
    #[must_use]
    pub const fn events(self) -> Self {
        match self {
            Self::FromGs(distance) => Self::FromGs(distance.wrapping_add(EVENT_CELL.cast_signed())),
            Self::Fixed(at) => Self::Fixed(at.wrapping_add(EVENT_CELL)),
        }
    }
}

/// The cells of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cells {
    /// What stubs need to know.
    pub place: CellPlace,
    /// What the host needs to know: the offset of each ring's cell in the span.
    pub offsets: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KERNEL_BASE: u64 = 0xffff_8880_1f80_0000;

    fn vcpu(cpl: u8, gs_base: u64, kernel_gs_base: Option<u64>) -> VcpuRegisters {
        VcpuRegisters {
            online: true,
            cpl,
            gs_base,
            kernel_gs_base,
            ..VcpuRegisters::default()
        }
    }

    #[test]
    fn a_kernel_s_gs_base_is_found_wherever_the_vcpu_was_stopped() {
        let other = KERNEL_BASE + 0x1_0000;
        let stops = [
            vcpu(0, KERNEL_BASE, None),
            vcpu(0, KERNEL_BASE, Some(0x7f00_0000)),
            // Ring 3, which may have any base, then its first instructions in ring 0.
            vcpu(3, 0x7f00_0000, Some(KERNEL_BASE)),
            vcpu(3, other + 64, Some(KERNEL_BASE)),
            vcpu(0, 0x7f00_0000, Some(KERNEL_BASE)),
        ];
        for first in stops {
            let vcpus = [first, vcpu(0, other, None)];
            let (strategy, reason) = CpuStrategy::choose(&vcpus, TracedCode::Supervisor, &[]);
            let bases = vec![Gva(KERNEL_BASE), Gva(other)];
            let code = TracedCode::Supervisor;
            assert_eq!(
                (&strategy, reason),
                (
                    &CpuStrategy::Gs {
                        bases,
                        vcpus: 2,
                        code
                    },
                    None
                )
            );
            for later in stops {
                strategy.verify(&[later, vcpus[1]]).unwrap();
            }
            let moved = vcpu(3, KERNEL_BASE, Some(KERNEL_BASE + 64));
            let moved = strategy.verify(&[moved, vcpus[1]]).unwrap_err();
            assert_eq!((moved.vcpu, moved.found), (0, Gva(KERNEL_BASE + 64)));
        }
        let unread = vcpu(3, KERNEL_BASE, None);
        let (strategy, reason) = CpuStrategy::choose(&[unread], TracedCode::Supervisor, &[]);
        assert_eq!(strategy, CpuStrategy::Shared);
        assert_eq!(reason, Some(NoGsBase::SwappedOut { vcpu: 0 }));
    }

    /// Before the bases are there, one vCPU has a cell at an address that all would use, and every vCPU has one of its own.
    #[test]
    fn the_first_vcpu_has_its_cell_at_an_address_and_the_others_have_theirs() {
        let code = TracedCode::Supervisor;
        let strategy = CpuStrategy::First { vcpus: 3, code };
        assert_eq!((strategy.rings(), strategy.name()), (3, "first"));
        let start = Gva(0xffff_ffff_9000_0000);
        let cells = strategy.cells(start, 2);
        assert_eq!(cells.place, CellPlace::Fixed(Gva(start.0 + 2 * CELL_BYTES)));
        let block = SESSIONS_MAX * CELL_BYTES;
        let expected: Vec<u64> = (0..3).map(|ring| ring * block + 2 * CELL_BYTES).collect();
        assert_eq!(cells.offsets, expected);
        assert_eq!(strategy.span(), 3 * block);
        strategy.verify(&[vcpu(0, 0, None); 3]).unwrap();
    }

    #[test]
    fn code_of_ring_3_runs_with_the_gs_base_in_force() {
        let vcpus = [
            vcpu(3, KERNEL_BASE, Some(7)),
            vcpu(0, KERNEL_BASE + 4096, Some(8)),
        ];
        let (strategy, reason) = CpuStrategy::choose(&vcpus, TracedCode::User, &[]);
        assert_eq!((strategy.rings(), reason), (2, None));
    }

    fn offline() -> VcpuRegisters {
        VcpuRegisters::default()
    }

    /// As it comes out of real mode: no GS base yet, and in the other register what was there before.
    fn starting() -> VcpuRegisters {
        vcpu(0, 0, Some(0x7f00_0000))
    }

    #[test]
    fn a_vcpu_that_is_offline_decides_nothing_for_the_others() {
        let listed = [Gva(KERNEL_BASE), Gva(KERNEL_BASE + 0x1_0000)];
        let up = |number: usize| vcpu(0, listed[number].0, None);
        for code in [TracedCode::User, TracedCode::Supervisor] {
            for vcpus in [
                [up(0), offline()],
                [up(0), starting()],
                [starting(), offline()],
                [up(0), up(1)],
            ] {
                let (strategy, reason) = CpuStrategy::choose(&vcpus, code, &listed);
                assert_eq!((strategy.rings(), reason), (2, None), "{vcpus:?}");
                // It comes and goes.
                for later in [offline(), starting(), up(1)] {
                    strategy.verify(&[up(0), later]).unwrap();
                }
                let moved = vcpu(0, KERNEL_BASE + 0x2_0000, None);
                assert_eq!(strategy.verify(&[up(0), moved]).unwrap_err().vcpu, 1);
            }
            let (strategy, reason) = CpuStrategy::choose(&[up(0), offline()], code, &[]);
            let expected = Some(NoGsBase::Offline { vcpu: 1 });
            assert_eq!((strategy, reason), (CpuStrategy::Shared, expected));
        }
    }

    #[test]
    fn a_list_that_a_running_vcpu_contradicts_is_not_believed() {
        let listed = [Gva(KERNEL_BASE + 0x1_0000), Gva(KERNEL_BASE)];
        let vcpus = [vcpu(0, KERNEL_BASE, None), offline()];
        let (strategy, reason) = CpuStrategy::choose(&vcpus, TracedCode::Supervisor, &listed);
        assert_eq!(strategy, CpuStrategy::Shared);
        assert!(matches!(reason, Some(NoGsBase::NotListed { vcpu: 0, .. })));
        // Ring 3 with a base of its own is not starting.
        let vcpus = [vcpu(3, 0, None), vcpu(0, KERNEL_BASE, None)];
        let (strategy, _) = CpuStrategy::choose(&vcpus, TracedCode::User, &listed);
        assert_eq!(strategy, CpuStrategy::Shared);
    }

    /// One that is plugged in while tracing is attached finds a cell of its own at the same distance, within what is ours: it is all
    /// zeros, so nothing is recorded there.
    #[test]
    fn a_processor_that_can_still_come_has_cells_that_nobody_reads() {
        let base = |number: u64| KERNEL_BASE + number * 0x1_0000;
        let code = TracedCode::Supervisor;
        let vcpus = [vcpu(0, base(1), None), vcpu(0, base(2), None)];
        let listed = [base(1), base(2), base(0), base(5)].map(Gva);
        let (strategy, reason) = CpuStrategy::choose(&vcpus, code, &listed);
        assert_eq!((strategy.rings(), reason), (2, None));
        let start = Gva(0xffff_ffff_9000_0000);
        let Cells { place, offsets } = strategy.cells(start, 3);
        let CellPlace::FromGs(distance) = place else {
            panic!("{place:?}");
        };
        let places = listed.map(|base| base.0.wrapping_add_signed(distance));
        assert_eq!(
            places[..2],
            *offsets.iter().map(|at| start.0 + at).collect::<Vec<_>>()
        );
        for at in places {
            assert!(
                (start.0..start.0 + strategy.span()).contains(&at),
                "{at:#x}"
            );
        }
        assert_eq!(
            (strategy.closest(), strategy.farthest()),
            (Some(0x1_0000), 5 * 0x1_0000)
        );
        // It is held like the others, after them, and has whatever base it has.
        strategy
            .verify(&[vcpus[0], vcpus[1], vcpu(0, base(5), None)])
            .unwrap();
        let far = Gva(KERNEL_BASE + GS_SPAN_MAX + 0x1_0000 + CELL_BYTES);
        let (strategy, reason) = CpuStrategy::choose(&vcpus, code, &[listed[0], listed[1], far]);
        assert_eq!(strategy, CpuStrategy::Shared);
        assert!(
            matches!(reason, Some(NoGsBase::TooFar { .. })),
            "{reason:?}"
        );
    }

    /// Each thing that a GS base must be, at its limit and just past it.
    #[test]
    fn bases_are_refused_for_the_reason_given() {
        let at = |base: u64| vcpu(0, base, None);
        let why = |vcpus: &[VcpuRegisters]| CpuStrategy::choose(vcpus, TracedCode::User, &[]).1;
        let two = |distance: u64| why(&[at(KERNEL_BASE), at(KERNEL_BASE + distance)]);
        let offline = VcpuRegisters {
            online: false,
            ..at(KERNEL_BASE + 4096)
        };
        let reason = why(&[at(KERNEL_BASE), offline]);
        assert_eq!(reason, Some(NoGsBase::Offline { vcpu: 1 }));
        let base = Gva(0x7fff_ffff_ffff_ffc0);
        let reason = why(&[at(base.0)]);
        assert_eq!(reason, Some(NoGsBase::NotKernel { vcpu: 0, base }));
        let base = Gva(KERNEL_BASE + 4096 + 8);
        assert_eq!(two(4096 + 8), Some(NoGsBase::Unaligned { vcpu: 1, base }));
        let distance = GS_SPAN_MAX + CELL_BYTES;
        assert_eq!(two(GS_SPAN_MAX), None);
        assert_eq!(two(distance), Some(NoGsBase::TooFar { distance }));
        let needed = SESSIONS_MAX * CELL_BYTES;
        let distance = needed - CELL_BYTES;
        assert_eq!(two(needed), None);
        assert_eq!(two(distance), Some(NoGsBase::TooClose { distance, needed }));
        let many = |count: u64| {
            let vcpus: Vec<_> = (0..count).map(|n| at(KERNEL_BASE + n * needed)).collect();
            why(&vcpus)
        };
        assert_eq!(many(RINGS_MAX.into()), None);
        let vcpus = usize::from(RINGS_MAX) + 1;
        assert_eq!(many(vcpus as u64), Some(NoGsBase::TooMany { vcpus }));
    }

    proptest! {
        /// Whatever is online and whatever is listed: rings of their own only where each base is known.
        #[test]
        fn no_stub_runs_with_a_base_that_is_not_known(
            seen in prop::collection::vec((any::<bool>(), 0..4u8, 0..3usize, any::<bool>()), 1..5),
            known in 0..6usize,
        ) {
            let base = |number: usize| KERNEL_BASE + number as u64 * 0x1_0000;
            let vcpus: Vec<_> = seen.iter().enumerate().map(|(number, (online, cpl, kind, other))| {
                let gs = [0, 0x7f00_0000, base(number)][*kind];
                let kernel = other.then(|| base(number));
                VcpuRegisters { online: *online, ..vcpu(*cpl, gs, kernel) }
            }).collect();
            let listed: Vec<_> = (0..known).map(|number| Gva(base(number))).collect();
            for code in [TracedCode::User, TracedCode::Supervisor] {
                let (strategy, reason) = CpuStrategy::choose(&vcpus, code, &listed);
                prop_assert_eq!(reason.is_some(), strategy == CpuStrategy::Shared);
                if let CpuStrategy::Gs { bases, .. } = &strategy {
                    let expected: Vec<_> = (0..vcpus.len().max(known)).map(|number| Gva(base(number))).collect();
                    prop_assert_eq!(bases, &expected);
                    prop_assert_eq!(strategy.rings(), vcpus.len());
                }
            }
        }

        /// Whatever the GS bases are, every session's cell on every vCPU is memory of its own within
        /// the span, and stubs and host mean the same words.
        #[test]
        fn cells_never_overlap_and_stay_in_their_span(
            bases in prop::collection::vec(
                prop_oneof![(0..64u64).prop_map(|n| n * 512), any::<u64>()], 1..6),
            start in (0..1u64 << 20).prop_map(|page| Gva(page << 21)),
        ) {
            let vcpus: Vec<VcpuRegisters> = bases.iter().map(|base| VcpuRegisters {
                online: true,
                gs_base: 0xffff_ffff_8000_0000u64.wrapping_add(*base),
                ..VcpuRegisters::default()
            }).collect();
            let (strategy, reason) = CpuStrategy::choose(&vcpus, TracedCode::User, &[]);
            prop_assert_eq!(reason.is_some(), strategy == CpuStrategy::Shared);
            prop_assert!(strategy.span() <= GS_SPAN_MAX + SESSIONS_MAX * CELL_BYTES);
            let mut offsets = Vec::new();
            for session in 0..16u8 {
                let cells = strategy.cells(start, session);
                prop_assert_eq!(cells.offsets.len(), strategy.rings());
                for (offset, vcpu) in cells.offsets.iter().zip(&vcpus) {
                    let seen_by_stub = match cells.place {
                        CellPlace::Fixed(at) => at.0,
                        CellPlace::FromGs(by) => vcpu.gs_base.wrapping_add_signed(by),
                    };
                    prop_assert_eq!(seen_by_stub, start.0 + offset);
                }
                offsets.extend(cells.offsets);
            }
            offsets.sort_unstable();
            prop_assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] >= CELL_BYTES));
            prop_assert!(offsets.last().unwrap() + CELL_BYTES <= strategy.span());
            prop_assert!(offsets.iter().all(|offset| offset.is_multiple_of(CELL_BYTES)));
        }
    }
}
