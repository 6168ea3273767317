//! trace.dat, version 6: what trace-cmd and KernelShark read (trace-cmd.dat.v6(5)). The events of each vCPU are pages of a
//! ring buffer, one vCPU after the other; until all are known they wait in files without names.

mod file;
mod format;
mod host;
mod page;
mod pair;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use self::file::{Buffers, Head};
use self::format::{ENTRY, EXIT, FUNCTION, Format, OWN_MAX, PRINT};
pub use self::host::HostDat;
use self::page::{EVENT_MAX, Pages};
pub use self::pair::Pair;
use crate::event::{End, Event, EventKind};
use crate::export::events::EventLine;

/// Bytes of text that are kept of an event.
const TEXT_MAX: usize = EVENT_MAX - 64;

/// What stands before the events.
#[derive(Debug, Clone, Default)]
pub struct Names<'a> {
    /// Functions by address.
    pub functions: Vec<(u64, &'a str)>,
    /// Threads by pid.
    pub threads: BTreeMap<u32, String>,
    /// vCPUs of the guest, also such as nothing is known of.
    pub vcpus: u16,
}

/// A new file in which something can wait, and which is gone when nobody has it any more.
pub type Scratch = fn() -> io::Result<File>;

/// Writes one trace.
#[derive(Debug)]
pub struct TraceDat {
    scratch: Scratch,
    /// Of which anything is known.
    vcpus: BTreeMap<u16, Vcpu>,
    /// When the calls of each thread that are open were entered.
    open: BTreeMap<u32, Vec<u64>>,
    /// The guest's own events, by number.
    events: BTreeMap<String, u16>,
}

#[derive(Debug)]
struct Vcpu {
    pages: Pages<BufWriter<File>>,
    /// Who was seen last on it.
    pid: Option<u32>,
}

impl TraceDat {
    /// Events wait in files of this kind, one for each vCPU.
    #[must_use]
    pub const fn new(scratch: Scratch) -> Self {
        Self {
            scratch,
            vcpus: BTreeMap::new(),
            open: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    /// What is known of a vCPU so far.
    fn vcpu(&mut self, vcpu: u16) -> io::Result<&mut Vcpu> {
        let scratch = self.scratch;
        Ok(match self.vcpus.entry(vcpu) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Vcpu {
                pages: Pages::new(BufWriter::new(scratch()?)),
                pid: None,
            }),
        })
    }

    /// Who was seen last on a vCPU.
    fn pid(&self, vcpu: u16) -> u32 {
        let known = self.vcpus.get(&vcpu).and_then(|known| known.pid);
        known.unwrap_or_default()
    }

    /// The next step of a thread that has this pid; `address` is its function's, `has_ends` where returns are traced.
    ///
    /// # Errors
    /// What the system says.
    pub fn step(&mut self, step: &Event, address: u64, pid: u32, has_ends: bool) -> io::Result<()> {
        self.vcpu(step.vcpu)?.pid = Some(pid);
        let depth = i32::try_from(step.depth).unwrap_or(i32::MAX);
        let open = self.open.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(_) if !has_ends => {
                let mut event = FUNCTION.begin(pid);
                event.extend(address.to_le_bytes());
                // Who called it nobody knows.
                event.extend(0u64.to_le_bytes());
                self.put(step.vcpu, step.time_ns, &event)
            }
            EventKind::Entry(_) => {
                open.truncate(step.depth as usize);
                open.push(step.time_ns);
                let mut event = ENTRY.begin(pid);
                event.extend(address.to_le_bytes());
                event.extend(depth.to_le_bytes());
                self.put(step.vcpu, step.time_ns, &event)
            }
            EventKind::Exit { end, .. } => {
                let entered_ns = open.pop().unwrap_or(step.time_ns);
                if !matches!(end, End::Returned | End::Unsure) {
                    // When it ended nobody knows.
                    return Ok(());
                }
                let mut event = EXIT.begin(pid);
                event.extend(address.to_le_bytes());
                event.extend(depth.to_le_bytes());
                event.extend(0u32.to_le_bytes());
                event.extend(entered_ns.to_le_bytes());
                event.extend(step.time_ns.to_le_bytes());
                self.put(step.vcpu, step.time_ns, &event)
            }
            EventKind::Lost(count) => self.vcpu(step.vcpu)?.pages.lost(count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// An event of the guest's own, with its values as text, or a loss of some: of whoever was seen last on its vCPU, or of
    /// `nobody` if none was.
    ///
    /// # Errors
    /// What the system says.
    pub fn point(&mut self, event: &EventLine, nobody: u32) -> io::Result<()> {
        let vcpu = self.vcpu(event.vcpu)?;
        vcpu.pid = vcpu.pid.or(Some(nobody));
        let next = u16::try_from(self.events.len()).ok();
        let next = next.filter(|next| *next < OWN_MAX);
        let name = event.event.as_deref();
        let known = name.and_then(|name| self.events.get(name).copied());
        let (Some(name), Some(number)) = (name, known.or(next)) else {
            return self.print(event.vcpu, event.time_ns, &event.to_string());
        };
        if known.is_none() {
            self.events.insert(name.to_owned(), number);
        }
        let mut bytes = Format::own(number, name).begin(self.pid(event.vcpu));
        bytes = with_text(bytes, &event.fields.to_string());
        self.put(event.vcpu, event.time_ns, &bytes)
    }

    /// What is to be said, on every vCPU of which anything is known.
    ///
    /// # Errors
    /// What the system says.
    pub fn remark(&mut self, time_ns: u64, text: &str) -> io::Result<()> {
        let vcpus: Vec<u16> = self.vcpus.keys().copied().collect();
        vcpus
            .iter()
            .try_for_each(|vcpu| self.print(*vcpu, time_ns, text))
    }

    fn print(&mut self, vcpu: u16, time_ns: u64, text: &str) -> io::Result<()> {
        let mut event = PRINT.begin(self.pid(vcpu));
        event.extend(0u64.to_le_bytes());
        event.extend(cut(text));
        event.push(0);
        self.put(vcpu, time_ns, &event)
    }

    fn put(&mut self, vcpu: u16, time_ns: u64, event: &[u8]) -> io::Result<()> {
        self.vcpu(vcpu)?.pages.add(time_ns, event)
    }

    /// Writes the whole file, one of a pair where there is its host's.
    ///
    /// # Errors
    /// What `out` says, or the system.
    pub fn finish(
        mut self,
        names: &Names<'_>,
        pair: Option<Pair>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let lost = |(vcpu, known): (&u16, &Vcpu)| (*vcpu, known.pages.lost_at_end());
        let lost: Vec<_> = self.vcpus.iter().map(lost).collect();
        for (vcpu, (count, last_ns)) in lost {
            // It is said before an event, so there has to be one.
            if count > 0 {
                self.print(vcpu, last_ns, "no more of this CPU was kept")?;
            }
        }
        let vcpus = self.vcpus.into_iter();
        let buffers: Buffers = vcpus.map(|(vcpu, known)| (vcpu, known.pages)).collect();
        let last = buffers
            .keys()
            .last()
            .map_or(0, |vcpu| vcpu.saturating_add(1));
        let cpus = last.max(names.vcpus).max(1);
        let own = self.events.iter();
        let own = own.map(|(name, number)| Format::own(*number, name));
        let head = Head {
            ftrace: &[FUNCTION, EXIT, ENTRY, PRINT],
            system: "guest",
            events: own.collect(),
            functions: &names.functions,
            threads: &names.threads,
            cpus,
            options: pair.map_or_else(Vec::new, |pair| pair.of_guest(cpus)),
        };
        file::write(&head, buffers, out)
    }
}

/// The pages of one CPU, which wait in a file of this kind.
fn pages(
    buffers: &mut Buffers,
    cpu: u16,
    scratch: Scratch,
) -> io::Result<&mut Pages<BufWriter<File>>> {
    Ok(match buffers.entry(cpu) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Pages::new(BufWriter::new(scratch()?))),
    })
}

/// An event whose last field is text, of which it says where it is.
fn with_text(mut event: Vec<u8>, text: &str) -> Vec<u8> {
    let text = cut(text);
    // Where the text begins, and how long it is with the zero at its end.
    let place = u32::try_from(event.len() + 4).unwrap_or(u32::MAX);
    let length = u32::try_from(text.len() + 1).unwrap_or(u32::MAX);
    event.extend((length << 16 | place).to_le_bytes());
    event.extend(text);
    event.push(0);
    event
}

/// As much of a text as is kept.
fn cut(text: &str) -> &[u8] {
    let kept = text.floor_char_boundary(TEXT_MAX);
    text.as_bytes().get(..kept).unwrap_or_default()
}
