//! A trace.dat as a whole: what it says of its events, and then these, the ring buffers of one CPU after the other.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use terms::printable::masked;

use super::format::{CLOCK, Format, HEADER_EVENT, HEADER_PAGE};
use super::page::{PAGE, Pages};

/// The start of each such file: a mark, the version, little endian, words of 64 bits, the size of a page.
const MAGIC: &[u8] = b"\x17\x08\x44tracing6\0\x00\x08";
/// The option that says which clock the times are from.
const OPTION_CLOCK: u16 = 4;

/// What could not be done.
#[derive(Debug)]
pub enum Failed {
    /// To keep what waits.
    Waiting(io::Error),
    /// To write the file.
    Writing(io::Error),
}

/// The ring buffers of each CPU, waiting in files.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Where these are, without names: they are gone when nobody has them any more.
    room: PathBuf,
    cpus: BTreeMap<u16, Pages<BufWriter<File>>>,
}

impl Buffers {
    pub fn new(room: &Path) -> Self {
        Self {
            room: room.to_owned(),
            cpus: BTreeMap::new(),
        }
    }

    /// That of one CPU.
    pub fn of(&mut self, cpu: u16) -> io::Result<&mut Pages<BufWriter<File>>> {
        Ok(match self.cpus.entry(cpu) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = tempfile::tempfile_in(&self.room)?;
                new.insert(Pages::new(BufWriter::new(file)))
            }
        })
    }

    /// The CPUs that have lost something after their last event, and when that was. It is said before an event, so there
    /// has to be one.
    pub fn without_end(&self) -> Vec<(u16, u64)> {
        let lost = |(cpu, pages): (&u16, &Pages<_>)| match pages.lost_at_end() {
            (0, _) => None,
            (_, last_ns) => Some((*cpu, last_ns)),
        };
        self.cpus.iter().filter_map(lost).collect()
    }

    /// How many CPUs there are, of which `least` are known otherwise.
    pub fn count(&self, least: u16) -> u16 {
        let last = self.cpus.keys().last();
        let last = last.map_or(0, |cpu| cpu.saturating_add(1));
        last.max(least).max(1)
    }
}

/// What stands before the events.
#[derive(Debug)]
pub(super) struct Head<'a> {
    /// The kinds of ftrace's own events.
    pub ftrace: &'a [Format],
    /// Those of one more system.
    pub system: &'static str,
    pub events: Vec<Format>,
    /// Functions by address.
    pub functions: &'a [(u64, &'a str)],
    /// Threads by pid.
    pub threads: &'a BTreeMap<u32, String>,
    /// CPUs, also such as nothing is known of ([`Buffers::count`]).
    pub cpus: u16,
    /// By number.
    pub options: Vec<(u16, Vec<u8>)>,
}

/// Writes the whole file.
pub(super) fn write(
    head: &Head<'_>,
    mut buffers: Buffers,
    out: &mut impl Write,
) -> Result<(), Failed> {
    let mut bytes = described(head);
    bytes.extend(u32::from(head.cpus).to_le_bytes());
    bytes.extend(b"options  \0");
    option(&mut bytes, OPTION_CLOCK, CLOCK.as_bytes());
    for (id, value) in &head.options {
        option(&mut bytes, *id, value);
    }
    bytes.extend(0u16.to_le_bytes());
    bytes.extend(b"flyrecord\0");
    let start = (bytes.len() + 16 * usize::from(head.cpus)).next_multiple_of(PAGE);
    let (mut offset, mut files) = (start as u64, Vec::new());
    for cpu in 0..head.cpus {
        let mut length = 0;
        if let Some(pages) = buffers.cpus.remove(&cpu) {
            let (file, bytes) = pages.finish().map_err(Failed::Waiting)?;
            files.push(file);
            length = bytes;
        }
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        offset += length;
    }
    bytes.resize(start, 0);
    out.write_all(&bytes).map_err(Failed::Writing)?;
    for file in files {
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        let file = file.and_then(|mut file| file.rewind().map(|()| file));
        let mut file = file.map_err(Failed::Waiting)?;
        io::copy(&mut file, out).map_err(Failed::Writing)?;
    }
    out.flush().map_err(Failed::Writing)
}

fn described(head: &Head<'_>) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let page = u32::try_from(PAGE).unwrap_or(u32::MAX);
    bytes.extend(page.to_le_bytes());
    for (name, text) in [
        ("header_page\0", HEADER_PAGE),
        ("header_event\0", HEADER_EVENT),
    ] {
        bytes.extend(name.as_bytes());
        long_text(&mut bytes, text);
    }
    kinds(&mut bytes, head.ftrace);
    let systems = u32::from(!head.events.is_empty());
    bytes.extend(systems.to_le_bytes());
    if !head.events.is_empty() {
        bytes.extend(head.system.as_bytes());
        bytes.push(0);
        kinds(&mut bytes, &head.events);
    }
    let mut symbols = String::new();
    for (address, name) in head.functions {
        // Names end at blanks there.
        let name = masked(name).replace(' ', "");
        // Writing to a string cannot fail.
        let _ = writeln!(symbols, "{address:016x} T {name}");
    }
    text(&mut bytes, &symbols);
    text(&mut bytes, "");
    let mut threads = String::new();
    for (pid, name) in head.threads {
        let _ = writeln!(threads, "{pid} {}", masked(name));
    }
    long_text(&mut bytes, &threads);
    bytes
}

/// How many kinds of events there are, and each.
fn kinds(into: &mut Vec<u8>, formats: &[Format]) {
    let count = u32::try_from(formats.len()).unwrap_or(u32::MAX);
    into.extend(count.to_le_bytes());
    formats
        .iter()
        .for_each(|format| long_text(into, &format.text()));
}

/// Its length in 64 bits, and it.
fn long_text(into: &mut Vec<u8>, text: &str) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

/// Its length in 32 bits, and it; of more than these can say as much as there is room for.
fn text(into: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    into.extend(length.to_le_bytes());
    into.extend(text.as_bytes().iter().take(length as usize));
}

fn option(into: &mut Vec<u8>, id: u16, bytes: &[u8]) {
    into.extend(id.to_le_bytes());
    into.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    into.extend(bytes);
}
