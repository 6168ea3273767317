//! A kernel's file, and the kernel that runs: the image of the file is moved by the slide when it is that kernel.
//!
//! Every build has a banner of its own, with the time of its build. Where the memory has the file's, that is the
//! file's kernel, and the distance of the two is the slide. The build id is compared, too, where the file has one: it
//! is what tells two builds of one minute apart.

use std::fmt::Write;
use std::sync::Arc;

use image::{Identity, Image, Running, Segment, linux};
use terms::addr::{Gva, Slide};

use super::{KernelMap, NoKernel, READ_MAX, SYSTEM_CALLS, check};
use crate::target::{MemoryError, PhysicalMemory};

/// The image of a kernel's file, where the kernel runs.
#[derive(Debug, Clone)]
pub struct MovedKernel {
    /// Its segments are where they are now, and its bytes are what the guest's memory has.
    pub image: Image,
    /// How far it was moved: debug information is to be moved, too.
    pub slide: Slide,
}

/// Why a kernel's file is of no use for the kernel that runs. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherKernel {
    /// The memory.
    #[error(transparent)]
    Memory(#[from] NoKernel),
    /// The file says nothing to compare.
    #[error(
        "the file does not say which Linux it is, so it cannot be compared with the one that runs ({runs})"
    )]
    NotLinux {
        /// What runs.
        runs: Arc<str>,
    },
    /// It is of another kernel.
    #[error("another kernel runs than that of the file: '{runs}' runs, the file has '{file}'")]
    Banner {
        /// What the file says.
        file: Arc<str>,
        /// What the memory says.
        runs: Arc<str>,
    },
    /// It is of another build.
    #[error(
        "another build runs than that of the file, though both say '{banner}': the build id {runs} runs, the file has {file}"
    )]
    BuildId {
        /// What both say.
        banner: Arc<str>,
        /// The file's, in hexadecimal.
        file: String,
        /// What lies in its place, in hexadecimal.
        runs: String,
    },
    /// It is not where its banner is.
    #[error(
        "the kernel that runs has the banner of the file, moved by {:#x}, but its system calls enter at {runs}, and {entry} of the file would be at {expected}", .slide.0
    )]
    Entry {
        /// What system calls enter.
        entry: &'static str,
        /// By the banner.
        slide: Slide,
        /// Where it would be.
        expected: Gva,
        /// Where they enter.
        runs: Gva,
    },
    /// The addresses of the file make no sense there.
    #[error("the file's addresses cannot be moved by {:#x}, as its banner in memory says", .0.0)]
    Slide(Slide),
    /// The build id cannot be read.
    #[error("the build id of the kernel that runs cannot be read: {0}")]
    Unreadable(#[source] MemoryError),
}

impl KernelMap {
    /// The image of the file of the kernel that runs, moved to where it runs.
    ///
    /// # Errors
    /// [`OtherKernel`], which names both.
    pub fn moved(
        &self,
        memory: &dyn PhysicalMemory,
        file: Image,
    ) -> Result<MovedKernel, OtherKernel> {
        let identity = file.linux.as_ref().map(|linux| linux.identity.clone());
        let identity = identity.unwrap_or_default();
        let slide = self.slide(memory, &identity)?;
        self.check_build(memory, &identity, slide)?;
        let image = file.moved_by(slide).ok_or(OtherKernel::Slide(slide))?;
        if let Some(expected) = image.symbols.address_of(SYSTEM_CALLS)
            && expected != self.entry
        {
            let runs = self.entry;
            return Err(OtherKernel::Entry {
                entry: SYSTEM_CALLS,
                slide,
                expected,
                runs,
            });
        }
        let image = self.with_contents(memory, image)?;
        Ok(MovedKernel { image, slide })
    }

    /// How far the kernel with this identity was moved, if it is the one that runs.
    fn slide(
        &self,
        memory: &dyn PhysicalMemory,
        identity: &Identity,
    ) -> Result<Slide, OtherKernel> {
        let banners = self.banners(memory)?;
        let of_memory = || banners.first().map(|(_, text)| Arc::clone(text));
        let runs = || of_memory().unwrap_or_else(|| "a kernel that says nothing".into());
        let Some((linked, file)) = &identity.banner else {
            return Err(OtherKernel::NotLinux { runs: runs() });
        };
        let found = banners.iter().find(|(_, text)| text == file);
        match found {
            Some((at, _)) => Ok(Slide(at.0.wrapping_sub(linked.0))),
            None => Err(OtherKernel::Banner {
                file: Arc::clone(file),
                runs: runs(),
            }),
        }
    }

    /// The first banner of each run of the kernel that is never written.
    fn banners(&self, memory: &dyn PhysicalMemory) -> Result<Vec<(Gva, Arc<str>)>, NoKernel> {
        let constant = || self.runs.iter().filter(|run| !run.write);
        check(self.entry, constant(), READ_MAX)?;
        let read = |run: &Segment| {
            let mut bytes = vec![0; usize::try_from(run.memsz).ok()?];
            memory.read_physical(run.paddr, &mut bytes).ok()?;
            linux::banner(run.vaddr, &bytes)
        };
        Ok(constant().filter_map(read).collect())
    }

    /// Whether the build id lies where the file has it.
    fn check_build(
        &self,
        memory: &dyn PhysicalMemory,
        identity: &Identity,
        slide: Slide,
    ) -> Result<(), OtherKernel> {
        let Identity {
            banner: Some((_, banner)),
            build_id: Some((at, file)),
        } = identity
        else {
            return Ok(());
        };
        let at = slide.runs(*at);
        let mut runs = vec![0; file.len()];
        let length = runs.len();
        let found = self.runs.iter().find_map(|run| run.locate(at));
        let read = match found {
            Some((physical, _)) => memory.read_physical(physical, &mut runs),
            None => Err(MemoryError::NotMapped {
                address: at,
                length,
            }),
        };
        read.map_err(OtherKernel::Unreadable)?;
        if **file == *runs {
            return Ok(());
        }
        Err(OtherKernel::BuildId {
            banner: Arc::clone(banner),
            file: hexadecimal(file),
            runs: hexadecimal(&runs),
        })
    }

    /// The image with what its kernel has in memory.
    fn with_contents(&self, memory: &dyn PhysicalMemory, image: Image) -> Result<Image, NoKernel> {
        let mut running = Running::new(&self.runs);
        running.keep_lasting(&image.symbols);
        check(self.entry, running.unread(), READ_MAX)?;
        let read = |run: &Segment, into: &mut [u8]| memory.read_physical(run.paddr, into);
        for (run, why) in running.read(|_| true, read) {
            if run.locate(self.entry).is_some() {
                let at = run.vaddr;
                return Err(NoKernel::Unreadable { at, why });
            }
        }
        Ok(image.held_in(&running))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
