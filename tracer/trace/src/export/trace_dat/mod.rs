//! trace.dat, version 6: what trace-cmd and KernelShark read (trace-cmd.dat.v6(5)). The events of each vCPU are pages of a
//! ring buffer, one vCPU after the other; until all are known they wait in files without names.

mod file;
mod format;
mod host;
pub mod page;
mod pair;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

pub use self::file::Failed;
use self::file::{Buffers, Head};
use self::format::{ENTRY, EXIT, FUNCTION, Format, OWN_MAX, PRINT};
pub use self::host::HostDat;
use self::page::EVENT_MAX;
pub use self::pair::Pair;
use crate::event::{Event, EventKind};
use crate::export::events::EventLine;
use crate::export::remark::Remark;

/// What is said where nothing came after a loss.
const NO_MORE: &str = "no more of this CPU was kept";
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

/// Writes one trace.
#[derive(Debug)]
pub struct TraceDat {
    vcpus: Buffers,
    /// Who was seen last on each vCPU of which anything is known.
    pids: BTreeMap<u16, u32>,
    /// When the calls of each thread that are open were entered.
    open: BTreeMap<u32, Vec<u64>>,
    /// The guest's own events, by number.
    events: BTreeMap<String, u16>,
}

impl TraceDat {
    /// Events wait in files in this folder, one for each vCPU.
    #[must_use]
    pub fn new(room: &Path) -> Self {
        Self {
            vcpus: Buffers::new(room),
            pids: BTreeMap::new(),
            open: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    /// Who was seen last on a vCPU.
    fn pid(&self, vcpu: u16) -> u32 {
        self.pids.get(&vcpu).copied().unwrap_or_default()
    }

    /// The next step of a thread that has this pid, of a function that `name` names; `has_ends` where returns are traced. An
    /// end has a duration there, so one of which that is not known is said in words.
    ///
    /// # Errors
    /// What the system says.
    pub fn step(
        &mut self,
        step: &Event,
        (places, name): (Places, impl FnOnce() -> String),
        pid: u32,
        has_ends: bool,
    ) -> io::Result<()> {
        let Places {
            function: address,
            caller,
        } = places;
        self.pids.insert(step.vcpu, pid);
        let depth = i32::try_from(step.depth).unwrap_or(i32::MAX);
        let open = self.open.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(_) if !has_ends => {
                let mut event = FUNCTION.begin(pid);
                event.extend(address.to_le_bytes());
                event.extend(caller.to_le_bytes());
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
                if let Some(remark) = end.remark() {
                    let text = format!("}} /* {}: {remark} */", name());
                    return self.print(step.vcpu, step.time_ns, &text);
                }
                let mut event = EXIT.begin(pid);
                event.extend(address.to_le_bytes());
                event.extend(depth.to_le_bytes());
                event.extend(0u32.to_le_bytes());
                event.extend(entered_ns.to_le_bytes());
                event.extend(step.time_ns.to_le_bytes());
                self.put(step.vcpu, step.time_ns, &event)
            }
            EventKind::Lost(count) => self.vcpus.of(step.vcpu)?.lost(count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// An event of the guest's own, with its values as text, or a loss of some: of whoever was seen last on its vCPU, or of
    /// `nobody` if none was.
    ///
    /// # Errors
    /// What the system says.
    pub fn point(&mut self, event: &EventLine, nobody: u32) -> io::Result<()> {
        self.pids.entry(event.vcpu).or_insert(nobody);
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

    /// What is to be said of a vCPU, there; of all, on every one of which anything is known.
    ///
    /// # Errors
    /// What the system says.
    pub fn remark(&mut self, remark: &Remark) -> io::Result<()> {
        let (time_ns, text) = (remark.time_ns(), remark.to_string());
        let only = remark.vcpu().filter(|vcpu| self.pids.contains_key(vcpu));
        if let Some(vcpu) = only {
            return self.print(vcpu, time_ns, &text);
        }
        let mut vcpus: Vec<u16> = self.pids.keys().copied().collect();
        if vcpus.is_empty() {
            // It was before all records.
            vcpus.push(0);
        }
        vcpus
            .iter()
            .try_for_each(|vcpu| self.print(*vcpu, time_ns, &text))
    }

    fn print(&mut self, vcpu: u16, time_ns: u64, text: &str) -> io::Result<()> {
        let event = printed(self.pid(vcpu), text);
        self.put(vcpu, time_ns, &event)
    }

    fn put(&mut self, vcpu: u16, time_ns: u64, event: &[u8]) -> io::Result<()> {
        self.vcpus.of(vcpu)?.add(time_ns, event)
    }

    /// Writes the whole file, one of a pair where there is its host's.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn finish(
        mut self,
        names: &Names<'_>,
        pair: Option<Pair>,
        out: &mut impl Write,
    ) -> Result<(), Failed> {
        for (vcpu, last_ns) in self.vcpus.without_end() {
            let printed = self.print(vcpu, last_ns, NO_MORE);
            printed.map_err(Failed::Waiting)?;
        }
        let cpus = self.vcpus.count(names.vcpus);
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
        file::write(&head, self.vcpus, out)
    }
}

/// Where a call is, in the guest.
#[derive(Debug, Clone, Copy, Default)]
pub struct Places {
    /// Where its function begins.
    pub function: u64,
    /// Where it returns to; 0 where that is not known, and of a graph.
    pub caller: u64,
}

/// Text, as an event of a thread.
fn printed(pid: u32, text: &str) -> Vec<u8> {
    let mut event = PRINT.begin(pid);
    // Where it was printed.
    event.extend(0u64.to_le_bytes());
    event.extend(cut(text));
    event.push(0);
    event
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
