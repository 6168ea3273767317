//! A running Linux, out of the guest's memory alone: no file of it, and wherever it has been put (KASLR).
//!
//! The processor was told where system calls enter, and the page tables map what is there: text, what is read-only, data.
//! The kernel carries its names (kallsyms) and its types (BTF); its own tracer keeps a list of all function sites. Two
//! steps, as the first needs page tables that can be gone as soon as their process ends:
//!
//! * [`KernelMap::of`] reads page tables only, a fraction of a millisecond: while the guest is stopped.
//! * [`KernelMap::read`] reads the kernel and makes an image of it, about a second: while the guest runs. From there on
//!   page tables are the kernel's own, which stay.
//!
//! All that is read may be a lie, and what runs may change while it is read: every number is bounded, and text is
//! compared once more when it is changed.

pub mod error;
pub mod moved;
pub mod sites;
#[cfg(test)]
mod tests;

use debuginfo::btf::Btf;
use image::{Image, ImageError, Names, Running, Segment, TextRange};
use terms::addr::{Gpa, Gva, Slide};

use self::error::{NoKernel, NoSites};
use self::sites::{SitesLayout, listed};
use super::kernel_view::ENTRY as SYSTEM_CALLS;
use super::kernel_view::{KernelTables, KernelView};
use crate::paging::PageTableRoot;
use crate::paging::runs::{around, mapped_in_gigabyte};
use crate::target::{PhysicalMemory, TargetMemory, VcpuRegisters};

/// Where Linux has its image, whatever it is moved by (`__START_KERNEL_map`), and its modules from there on.
const MAP: TextRange = TextRange {
    start: Gva(0xffff_ffff_8000_0000),
    end: Gva(0xffff_ffff_c000_0000),
};
/// No kernel has a larger hole in its image: what it freed after it had started, where page-table isolation takes that
/// out of its tables. Modules are further away.
const HOLE_MAX: u64 = 32 << 20;
/// What is mapped of a kernel, and what of it is read.
const MAPPED_MAX: u64 = 512 << 20;
const READ_MAX: u64 = 128 << 20;
/// `system_state` from which on a kernel has started (`SYSTEM_RUNNING`), where its types do not tell.
const RUNNING: u32 = 2;

/// The names to go by, of those that it carries itself, and how far they were moved.
type NamesBy<'n> = &'n dyn Fn(&Running, Names) -> Result<(Names, Slide), ImageError>;

/// Where a running kernel is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMap {
    root: PageTableRoot,
    entry: Gva,
    /// By address.
    runs: Vec<Segment>,
}

/// A running kernel.
#[derive(Debug, Clone)]
pub struct FoundKernel {
    /// What it says of itself, as if it had been read from its file. Its segments are where it is now.
    pub image: Image,
    /// Why its function sites are not known, if they are not.
    pub no_sites: Option<NoSites>,
}

impl FoundKernel {
    /// Where an address of the kernel lies, and how many bytes follow it there in the same run.
    #[must_use]
    pub fn locate(&self, at: Gva) -> Option<(Gpa, u64)> {
        self.image.locate(at)
    }
}

/// Reads the kernel that runs on a vCPU with these registers, whose system calls enter at `entry` (`IA32_LSTAR`).
///
/// # Errors
/// A [`NoKernel`] that says what was tried.
pub fn kernel_in_memory(
    memory: &dyn PhysicalMemory,
    registers: &VcpuRegisters,
    entry: Gva,
) -> Result<FoundKernel, NoKernel> {
    KernelMap::of(memory, registers, entry)?.read(memory)
}

impl KernelMap {
    /// Finds the kernel that a stopped vCPU with these registers runs, whose system calls enter at `entry`.
    ///
    /// # Errors
    /// A [`NoKernel`] that says what was tried.
    pub fn of(
        memory: &dyn PhysicalMemory,
        registers: &VcpuRegisters,
        entry: Gva,
    ) -> Result<Self, NoKernel> {
        let root = PageTableRoot::of_text(memory, registers, entry)?;
        if entry.0 == 0 {
            return Err(NoKernel::NotTold);
        }
        if !MAP.holds(entry, 1) {
            let TextRange { start, end } = MAP;
            return Err(NoKernel::Elsewhere { entry, start, end });
        }
        let mapped = mapped_in_gigabyte(memory, root, entry)?;
        let runs = around(&mapped, entry, HOLE_MAX);
        let is_text = |run: &Segment| run.execute && run.locate(entry).is_some();
        if !runs.iter().any(is_text) {
            let runs = mapped.len();
            return Err(NoKernel::NotExecuted { entry, runs });
        }
        check(entry, runs.iter(), MAPPED_MAX)?;
        Ok(Self { root, entry, runs })
    }

    /// The runs of memory that are the kernel's, by address.
    #[must_use]
    pub fn runs(&self) -> &[Segment] {
        &self.runs
    }

    /// Reads it.
    ///
    /// # Errors
    /// A [`NoKernel`] that says what was tried.
    pub fn read(&self, memory: &dyn PhysicalMemory) -> Result<FoundKernel, NoKernel> {
        self.read_by(memory, &|_, own| Ok((own, Slide::default())))
            .map(|(found, _)| found)
    }

    /// Reads it with the names of a file of symbols (System.map, or an ELF file), and how far it was moved from where that
    /// file has it: for a kernel that carries none, or fewer.
    ///
    /// # Errors
    /// A [`NoKernel`] that says what was tried; [`NoKernel::Image`] when the file is of another kernel.
    pub fn read_with_symbols(
        &self,
        memory: &dyn PhysicalMemory,
        file: &[u8],
    ) -> Result<(FoundKernel, Slide), NoKernel> {
        let entry = (SYSTEM_CALLS, self.entry);
        self.read_by(memory, &|running, own| running.names_of(file, &own, entry))
    }

    fn read_by(
        &self,
        memory: &dyn PhysicalMemory,
        names: NamesBy<'_>,
    ) -> Result<(FoundKernel, Slide), NoKernel> {
        let (running, names, slide) = self.contents(memory, names)?;
        let version = self.version_of(&running)?;
        check_names(&names, &version)?;
        let reader = Reader {
            memory,
            tables: KernelTables::find(&names.symbols, |at| running.physical(at)),
            root: self.root,
            version: &version,
        };
        let btf = running.types(&names.symbols).map(Btf::parse);
        let btf = btf.and_then(Result::ok);
        reader.check_started(&running, &names, btf.as_ref())?;
        let (sites, no_sites) = match reader.sites(&names, btf.as_ref()) {
            Ok(sites) => (sites, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        drop(btf);
        let image = running.image(names, &sites)?;
        Ok((FoundKernel { image, no_sites }, slide))
    }

    /// Which Linux it says that it is.
    ///
    /// # Errors
    /// A [`NoKernel`] that says what was tried.
    pub fn version(&self, memory: &dyn PhysicalMemory) -> Result<String, NoKernel> {
        self.version_of(&self.constants(memory)?)
    }

    fn version_of(&self, running: &Running) -> Result<String, NoKernel> {
        running.version().ok_or(NoKernel::NotLinux {
            entry: self.entry,
            bytes: running.held(),
        })
    }

    /// What of the kernel is there for as long as it runs, and its names.
    fn contents(
        &self,
        memory: &dyn PhysicalMemory,
        names: NamesBy<'_>,
    ) -> Result<(Running, Names, Slide), NoKernel> {
        let mut running = self.constants(memory)?;
        let (names, slide) = names(&running, running.names()?)?;
        if running.keep_lasting(&names.symbols) {
            check(self.entry, running.unread(), READ_MAX)?;
            // What cannot be read is left out: no table that must be there is in the data.
            let _ = running.read(|_| true, |run, into| memory.read_physical(run.paddr, into));
        }
        Ok((running, names, slide))
    }

    /// What it does not write itself: its text, and what is read-only.
    fn constants(&self, memory: &dyn PhysicalMemory) -> Result<Running, NoKernel> {
        let mut running = Running::new(&self.runs);
        let is_constant = |run: &Segment| run.execute || !run.write;
        let read = |run: &Segment, into: &mut [u8]| memory.read_physical(run.paddr, into);
        check(
            self.entry,
            self.runs.iter().filter(|run| is_constant(run)),
            READ_MAX,
        )?;
        for (run, why) in running.read(is_constant, read) {
            if run.locate(self.entry).is_some() {
                let at = run.vaddr;
                return Err(NoKernel::Unreadable { at, why });
            }
        }
        Ok(running)
    }
}

/// Whether these runs are no more than a kernel has.
fn check<'r>(
    entry: Gva,
    runs: impl Iterator<Item = &'r Segment>,
    limit: u64,
) -> Result<(), NoKernel> {
    let bytes = runs.fold(0_u64, |sum, run| sum.saturating_add(run.memsz));
    if bytes > limit {
        return Err(NoKernel::TooLarge {
            entry,
            bytes,
            limit,
        });
    }
    Ok(())
}

fn check_names(names: &Names, version: &str) -> Result<(), NoKernel> {
    let version = version.to_owned();
    match names.unread {
        _ if !names.symbols.is_empty() => Ok(()),
        Some(why) => Err(NoKernel::Unread { version, why }),
        None => Err(NoKernel::NoNames { version }),
    }
}

/// Reads what a kernel has made since it started.
struct Reader<'a> {
    memory: &'a dyn PhysicalMemory,
    tables: Option<KernelTables>,
    root: PageTableRoot,
    version: &'a str,
}

impl Reader<'_> {
    fn check_started(
        &self,
        running: &Running,
        names: &Names,
        btf: Option<&Btf<'_>>,
    ) -> Result<(), NoKernel> {
        let at = names.symbols.address_of("system_state");
        let Some(at) = at.and_then(|at| running.physical(at)) else {
            return Ok(());
        };
        let mut word = [0; 4];
        if self.memory.read_physical(at, &mut word).is_err() {
            return Ok(());
        }
        let state = u32::from_le_bytes(word);
        let started = btf.and_then(|btf| btf.enumerator("system_states", "SYSTEM_RUNNING"));
        if state >= started.unwrap_or(RUNNING) {
            return Ok(());
        }
        let version = self.version.to_owned();
        Err(NoKernel::Starting { version, state })
    }

    /// The sites in the text that stays.
    fn sites(&self, names: &Names, btf: Option<&Btf<'_>>) -> Result<Vec<Gva>, NoSites> {
        let version = || self.version.to_owned();
        let address = |name| names.symbols.address_of(name);
        let start = address("ftrace_pages_start");
        let text = address("_stext").zip(address("_etext"));
        let Some((start, (first, end))) = start.zip(text) else {
            return Err(NoSites::NotNamed { version: version() });
        };
        let text = TextRange { start: first, end };
        let layout = btf.and_then(SitesLayout::find);
        let layout = layout.unwrap_or(SitesLayout::USUAL);
        let found = listed(&*self.view(), layout, start, &[text]);
        let found = found.map_err(|why| NoSites::Broken {
            version: version(),
            why,
        })?;
        if found.sites.is_empty() {
            return Err(NoSites::Empty {
                version: version(),
                listed: found.entries,
            });
        }
        Ok(found.sites)
    }

    /// By the kernel's own tables: those of a process may be gone by now.
    fn view(&self) -> Box<dyn TargetMemory + '_> {
        Box::new(match self.tables {
            Some(tables) => KernelView::new(self.memory, tables),
            None => KernelView::with_root(self.memory, self.root),
        })
    }
}
