//! The events of a trace: a file beside the calls for each vCPU, of one JSON object per line, in the order of
//! time. What the host did with a vCPU ([`host`](crate::host)) has a file of its own.
//!
//! ```text
//! {"time_ns":1200,"vcpu":0,"event":"message_sent","fields":{"from":1,"to":2,"size":512}}
//! {"time_ns":1900,"vcpu":0,"lost":3}
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use terms::event_format::EventFormat;
use terms::field::FieldValue;
use terms::printable;
use terms::printable::masked;

use super::budget::{Budget, Stepping};
use super::lines::Lines;
use crate::as_found::{self, AsFound};
use crate::event::Event;
use crate::host::HostStep;

/// Whose events a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Guest,
    Host,
}

impl Side {
    const ALL: [Self; 2] = [Self::Guest, Self::Host];

    /// The start of the files' names; the vCPU's number follows.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Guest => "events-",
            Self::Host => "host-",
        }
    }

    fn path(self, directory: &Path, vcpu: u16) -> PathBuf {
        directory.join(format!("{}{vcpu}{SUFFIX}", self.prefix()))
    }
}

/// The end of the files' names.
const SUFFIX: &str = ".jsonl";
/// The longest line that is written, and that is believed: more than any record makes (32 values of 16 texts of 4 KiB, each byte of
/// which may take six).
pub(super) const LINE_MAX: u64 = 16 << 20;
/// More vCPUs than any trace has: the tracer has ten bits for the number of a ring, and what stands beside the records of a thread
/// twelve for that of a vCPU.
pub(super) const VCPUS_MAX: u16 = 4096;

/// Whether a file has the name of one of these.
#[must_use]
pub fn is_event_file(name: &str) -> bool {
    named(name).is_some()
}

/// Whose events a file of this name has, and of which vCPU.
fn named(name: &str) -> Option<(u16, Side)> {
    let named = Side::ALL.into_iter().find_map(|side| {
        let number = name.strip_prefix(side.prefix())?.strip_suffix(SUFFIX)?;
        Some((number, side))
    });
    let (number, side) = named?;
    let vcpu: u16 = number.parse().ok()?;
    (number == vcpu.to_string()).then_some((vcpu, side))
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTotals {
    /// How often each event is in the trace.
    pub events: BTreeMap<String, u64>,
    /// Events that were lost.
    pub lost: u64,
}

impl EventTotals {
    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lost == 0
    }
}

/// Writes the events of one trace. There is no file for a vCPU without events.
#[derive(Debug)]
pub struct EventWriter {
    directory: PathBuf,
    files: BTreeMap<(Side, u16), Lines<Stepping<File>>>,
    /// Events that came as lost, or were not taken.
    lost: u64,
    line: String,
    budget: Budget,
}

impl EventWriter {
    /// A writer for the trace in `directory`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            files: BTreeMap::new(),
            lost: 0,
            line: String::new(),
            budget: Budget::default(),
        }
    }

    /// Events that come from now on take from a budget.
    pub fn set_budget(&mut self, budget: &Budget) {
        self.budget = budget.clone();
    }

    /// Adds an event; those of one vCPU come in the order of time. `format` says what it is.
    ///
    /// # Errors
    /// The file and what the system says of it; the event is counted as lost then.
    pub fn append(
        &mut self,
        event: &Event,
        format: &EventFormat,
    ) -> Result<(), (PathBuf, io::Error)> {
        self.line.clear();
        // Writing to a string cannot fail.
        let _ = passed(&mut self.line, event, format);
        self.put(Side::Guest, event.vcpu, &format.name)
    }

    /// Adds what the host did with a vCPU, in the order of time.
    ///
    /// # Errors
    /// As of [`Self::append`].
    pub fn host(&mut self, event: &Event, step: HostStep) -> Result<(), (PathBuf, io::Error)> {
        let vcpu = event.vcpu;
        if let HostStep::Lost(count) = step {
            return self.put_loss(Side::Host, event, count.into());
        }
        let name = step.name().unwrap_or_default();
        let line = EventLine {
            time_ns: event.time_ns,
            vcpu,
            event: Some(name.to_owned()),
            fields: step.into(),
            lost: 0,
            is_of_host: true,
        };
        // Names are text, and values numbers: this cannot fail.
        self.line = printable::json(&line).unwrap_or_default() + "\n";
        self.put(Side::Host, vcpu, name)
    }

    /// Writes the line, and counts it.
    fn put(&mut self, side: Side, vcpu: u16, name: &str) -> Result<(), (PathBuf, io::Error)> {
        let written = self.write(side, vcpu, Some(name));
        written.map_err(|error| {
            self.lost = self.lost.saturating_add(1);
            (side.path(&self.directory, vcpu), error)
        })
    }

    /// So many events were lost.
    ///
    /// # Errors
    /// The file and what the system says of it; they are counted all the same.
    pub fn lost(&mut self, event: &Event, count: u64) -> Result<(), (PathBuf, io::Error)> {
        self.put_loss(Side::Guest, event, count)
    }

    fn put_loss(
        &mut self,
        side: Side,
        event: &Event,
        count: u64,
    ) -> Result<(), (PathBuf, io::Error)> {
        self.lost = self.lost.saturating_add(count);
        let (time_ns, vcpu) = (event.time_ns, event.vcpu);
        self.line.clear();
        // As above.
        let _ = writeln!(
            self.line,
            "{{\"time_ns\":{time_ns},\"vcpu\":{vcpu},\"lost\":{count}}}"
        );
        let written = self.write(side, vcpu, None);
        written.map_err(|error| (side.path(&self.directory, vcpu), error))
    }

    /// Adds the line to a file; `name` is that of the event in it.
    fn write(&mut self, side: Side, vcpu: u16, name: Option<&str>) -> io::Result<()> {
        let bytes = self.line.len() as u64;
        if bytes > LINE_MAX {
            let text = "an event with more text than a trace has room for";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        // Those of the guest a trace has once more at its end, shorter, for uftrace.
        let times = match side {
            Side::Guest => 2,
            Side::Host => 1,
        };
        self.budget.take(times * bytes)?;
        let file = Self::file(&mut self.files, (side, vcpu), &self.directory, &self.budget);
        let added = file.and_then(|file| file.add(&self.line, name));
        added.inspect_err(|_| self.budget.give_back(times * bytes))
    }

    /// The file of a vCPU, which is made for its first event.
    fn file<'a>(
        files: &'a mut BTreeMap<(Side, u16), Lines<Stepping<File>>>,
        (side, vcpu): (Side, u16),
        directory: &Path,
        budget: &Budget,
    ) -> io::Result<&'a mut Lines<Stepping<File>>> {
        match files.entry((side, vcpu)) {
            Entry::Occupied(file) => Ok(file.into_mut()),
            Entry::Vacant(place) => {
                let file = File::create(side.path(directory, vcpu))?;
                Ok(place.insert(Lines::new(budget.steps().of(file))))
            }
        }
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// The first file with which that fails, and what the system says of it. What waits for it still does; the others are written
    /// all the same.
    pub fn flush(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let mut result = Ok(());
        for ((side, vcpu), file) in &mut self.files {
            let flushed = file.flush();
            result =
                result.and(flushed.map_err(|error| (side.path(&self.directory, *vcpu), error)));
        }
        result
    }

    /// What is in the files. What waits for them counts as lost, until it is [written](Self::flush).
    #[must_use]
    pub fn totals(&self) -> EventTotals {
        let mut totals = EventTotals {
            lost: self.lost,
            ..EventTotals::default()
        };
        for file in self.files.values() {
            totals.lost = totals.lost.saturating_add(file.waiting());
            for (name, count) in file.written() {
                *totals.events.entry(name.clone()).or_default() += count;
            }
        }
        totals
    }
}

/// The names of events are plain in an image, which is checked for that; those of a compact trace are what its file says, and those
/// of fields what a user wrote.
fn passed(line: &mut String, event: &Event, format: &EventFormat) -> fmt::Result {
    let Event { time_ns, vcpu, .. } = event;
    let values = event.values.as_deref().unwrap_or_default();
    write!(line, "{{\"time_ns\":{time_ns},\"vcpu\":{vcpu},\"event\":")?;
    quoted(line, &format.name)?;
    line.push_str(",\"fields\":{");
    for (index, (field, value)) in format.fields.iter().zip(values).enumerate() {
        let comma = if index > 0 { "," } else { "" };
        line.push_str(comma);
        quoted(line, &field.name)?;
        line.push(':');
        match value {
            FieldValue::Bool(_) | FieldValue::Unsigned(_) | FieldValue::Signed(_) => {
                write!(line, "{value}")?;
            }
            FieldValue::Pointer(_) => write!(line, "\"{value}\"")?,
            other => line.push_str(&printable::json(other).map_err(|_| fmt::Error)?),
        }
    }
    line.push_str("}}\n");
    Ok(())
}

/// A name in quotes. Nearly all have nothing in them that has to be escaped: this is the drain's time.
fn quoted(line: &mut String, name: &str) -> fmt::Result {
    let needs_escape = |byte: u8| !(b' '..0x7f).contains(&byte) || byte == b'"' || byte == b'\\';
    if name.bytes().any(needs_escape) {
        line.push_str(&printable::json(name).map_err(|_| fmt::Error)?);
        return Ok(());
    }
    write!(line, "\"{name}\"")
}

/// One line of a file, as it was read: nothing in it is trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// The event; none for a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Its fields, in order.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub fields: Fields,
    /// Events that were lost here.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost: u64,
    /// Whether it is something that the host did with the vCPU: by the file that it is in.
    #[serde(skip)]
    pub is_of_host: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_none(lost: &u64) -> bool {
    *lost == 0
}

/// Names and values, in the order of the event's declaration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields(pub Vec<(String, FieldValue)>);

impl Fields {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<HostStep> for Fields {
    fn from(step: HostStep) -> Self {
        let named = |(name, value): (&str, FieldValue)| (name.to_owned(), value);
        Self(step.fields().into_iter().map(named).collect())
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers, truth values and addresses")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Ordered)
    }
}

impl fmt::Display for EventLine {
    /// As ftrace prints an event: `message_sent: from=1 to=2`. Goes to terminals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(event) = &self.event else {
            return write!(f, "[LOST {} EVENTS]", self.lost);
        };
        f.write_str(&masked(event))?;
        match self.fields.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.fields),
        }
    }
}

impl fmt::Display for Fields {
    /// As `from=1 to=2`. Goes to terminals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}={value}", masked(name))?;
        }
        Ok(())
    }
}

/// Why an event file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EventFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is no event.
    #[error("{}: line {line} is no event: {problem}: the file is damaged", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1 on.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads the events of a trace, all vCPUs merged by time.
#[derive(Debug)]
pub struct EventReader {
    files: Vec<EventFile>,
    /// The time of the next event of each file that has one, and its place in `files`.
    heads: BTreeSet<(u64, usize)>,
    /// The files of each vCPU.
    of_vcpu: BTreeMap<u16, Vec<usize>>,
}

#[derive(Debug)]
struct EventFile {
    side: Side,
    path: PathBuf,
    file: AsFound,
    line: u64,
    next: Option<EventLine>,
}

impl EventReader {
    /// Opens the event files of the trace in `directory`.
    ///
    /// # Errors
    /// An [`EventFileError`] that names the file.
    pub fn open(directory: &Path) -> Result<Self, EventFileError> {
        Self::of(directory, &Side::ALL)
    }

    /// Those of the guest alone.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn of_guest(directory: &Path) -> Result<Self, EventFileError> {
        Self::of(directory, &[Side::Guest])
    }

    /// What the host did alone.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn of_host(directory: &Path) -> Result<Self, EventFileError> {
        Self::of(directory, &[Side::Host])
    }

    fn of(directory: &Path, sides: &[Side]) -> Result<Self, EventFileError> {
        let mut reader = Self {
            files: Vec::new(),
            heads: BTreeSet::new(),
            of_vcpu: BTreeMap::new(),
        };
        for (vcpu, side) in found(directory, sides)? {
            let path = side.path(directory, vcpu);
            let file = match as_found::open(&path) {
                Ok(file) => file,
                Err(source) => return Err(EventFileError::Io { path, source }),
            };
            reader.files.push(EventFile {
                side,
                path,
                file,
                line: 0,
                next: None,
            });
            let index = reader.files.len() - 1;
            reader.of_vcpu.entry(vcpu).or_default().push(index);
            reader.advance(index)?;
        }
        Ok(reader)
    }

    /// The next event.
    #[must_use]
    pub fn peek(&self) -> Option<&EventLine> {
        let (_, index) = self.heads.first()?;
        self.files.get(*index)?.next.as_ref()
    }

    /// The next event of this vCPU.
    #[must_use]
    pub fn peek_of(&self, vcpu: u16) -> Option<&EventLine> {
        let (_, index) = self.head_of(vcpu)?;
        self.files.get(index)?.next.as_ref()
    }

    fn head_of(&self, vcpu: u16) -> Option<(u64, usize)> {
        let files = self.of_vcpu.get(&vcpu)?.iter();
        let head = |index: &usize| Some((self.files.get(*index)?.next.as_ref()?.time_ns, *index));
        files.filter_map(head).min()
    }

    /// The next event, if it was at `time_ns` or before.
    ///
    /// # Errors
    /// An [`EventFileError`] about the one after it; the event itself is lost then.
    pub fn pop_until(&mut self, time_ns: u64) -> Result<Option<EventLine>, EventFileError> {
        let head = self.heads.first().copied();
        self.take(head.filter(|(time, _)| *time <= time_ns))
    }

    /// The next event of this vCPU, if it was at `time_ns` or before.
    ///
    /// # Errors
    /// As of [`Self::pop_until`].
    pub fn pop_of(&mut self, vcpu: u16, time_ns: u64) -> Result<Option<EventLine>, EventFileError> {
        let head = self.head_of(vcpu);
        self.take(head.filter(|(time, _)| *time <= time_ns))
    }

    fn take(&mut self, head: Option<(u64, usize)>) -> Result<Option<EventLine>, EventFileError> {
        let Some(head) = head else { return Ok(None) };
        self.heads.remove(&head);
        let event = self.files.get_mut(head.1).and_then(|file| file.next.take());
        self.advance(head.1)?;
        Ok(event)
    }

    fn advance(&mut self, index: usize) -> Result<(), EventFileError> {
        if let Some(file) = self.files.get_mut(index) {
            file.next = file.read()?;
            if let Some(event) = &file.next {
                self.heads.insert((event.time_ns, index));
            }
        }
        Ok(())
    }
}

/// The files that a directory has.
pub(super) fn paths(directory: &Path) -> Result<Vec<PathBuf>, EventFileError> {
    let found = found(directory, &Side::ALL)?.into_iter();
    Ok(found
        .map(|(vcpu, side)| side.path(directory, vcpu))
        .collect())
}

/// The files of these sides that a directory has, in the order of vCPUs.
fn found(directory: &Path, sides: &[Side]) -> Result<BTreeSet<(u16, Side)>, EventFileError> {
    let failed = |source| EventFileError::Io {
        path: directory.to_owned(),
        source,
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(named));
    }
    found.retain(|(vcpu, side)| *vcpu < VCPUS_MAX && sides.contains(side));
    Ok(found)
}

impl EventFile {
    fn read(&mut self) -> Result<Option<EventLine>, EventFileError> {
        let mut text = Vec::new();
        let read = self
            .file
            .by_ref()
            .take(LINE_MAX)
            .read_until(b'\n', &mut text);
        read.map_err(|source| EventFileError::Io {
            path: self.path.clone(),
            source,
        })?;
        // A trace that is still written to can end in half a line.
        if text.last() != Some(&b'\n') && (text.len() as u64) < LINE_MAX {
            return Ok(None);
        }
        self.line += 1;
        serde_json::from_slice(&text)
            .map(|line| {
                Some(EventLine {
                    is_of_host: self.side == Side::Host,
                    ..line
                })
            })
            .map_err(|error| EventFileError::Line {
                path: self.path.clone(),
                line: self.line,
                problem: error.to_string(),
            })
    }
}

#[cfg(test)]
mod tests {
    use terms::event_format::EventId;
    use terms::field::{Field, FieldType};

    use super::*;
    use crate::event::EventKind;

    fn format() -> EventFormat {
        let field = |name: &str, kind| Field {
            name: name.into(),
            kind: FieldType::named(kind).unwrap(),
        };
        let fields = vec![
            field("size", "u64"),
            field("by", "i8"),
            field("more", "bool"),
        ];
        EventFormat::new("sent".into(), fields)
    }

    fn event(time_ns: u64, vcpu: u16, by: i64) -> Event {
        let values = [
            FieldValue::Unsigned(u64::MAX),
            FieldValue::Signed(by),
            FieldValue::Bool(true),
        ];
        Event {
            time_ns,
            vcpu,
            thread: 0,
            depth: 0,
            kind: EventKind::Point(EventId(0)),
            values: Some(values.into()),
        }
    }

    #[test]
    fn a_file_that_takes_nothing_holds_up_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let full = Side::Guest.path(folder.path(), 0);
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        let mut writer = EventWriter::new(folder.path());
        for vcpu in 0..2 {
            writer.append(&event(10, vcpu, 1), &format()).unwrap();
        }
        assert_eq!(writer.flush().unwrap_err().0, full);
        let other = fs::read_to_string(Side::Guest.path(folder.path(), 1)).unwrap();
        assert_eq!(other.lines().count(), 1);
        let totals = writer.totals();
        assert_eq!((totals.events["sent"], totals.lost), (1, 1), "in no file");
    }

    /// A line of many bytes waits for no others: a part of it would be the beginning of the next one.
    #[test]
    fn what_comes_after_a_line_that_found_no_room_is_read() {
        use crate::export::whole::tests::Disk;
        let line = |event: &Event, format: &EventFormat| {
            let mut line = String::new();
            passed(&mut line, event, format).unwrap();
            line
        };
        let text = FieldValue::of_text(&vec![1; 20 << 10], false);
        let large = Event {
            values: Some([text].into()),
            ..event(10, 0, 1)
        };
        let large = line(&large, &format());
        let small = |time_ns| line(&event(time_ns, 0, 1), &format());
        for uncut in [0, 1] {
            let mut lines = Lines::new(Disk {
                room: 5 << 10,
                uncut,
                ..Disk::default()
            });
            lines.add(&small(5), Some("sent")).unwrap();
            lines.add(&large, Some("sent")).unwrap_err();
            lines.file().room = 100 << 10;
            lines.add(&small(20), Some("sent")).unwrap();
            lines.flush().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = Side::Guest.path(folder.path(), 0);
            fs::write(path, &lines.file().bytes).unwrap();
            let mut reader = EventReader::open(folder.path()).unwrap();
            let mut times = Vec::new();
            while let Some(event) = reader.pop_until(u64::MAX).unwrap() {
                times.push(event.time_ns);
            }
            assert_eq!(times, [5, 20], "{uncut}");
            assert_eq!((lines.written().next().unwrap().1, lines.waiting()), (2, 0));
        }
    }

    #[test]
    fn what_is_written_is_read_in_the_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::new(folder.path());
        for event in [event(10, 0, -3), event(20, 0, 1)] {
            writer.append(&event, &format()).unwrap();
        }
        writer.lost(&event(15, 1, 0), 7).unwrap();
        writer.append(&event(16, 1, 2), &format()).unwrap();
        writer.flush().unwrap();
        assert_eq!(writer.totals().events["sent"], 3);
        assert_eq!(writer.totals().lost, 7);
        let mut reader = EventReader::open(folder.path()).unwrap();
        let mut said = Vec::new();
        while let Some(event) = reader.pop_until(16).unwrap() {
            said.push(format!("{} {event}", event.time_ns));
        }
        let max = u64::MAX;
        let expected = [
            format!("10 sent: size={max} by=-3 more=true"),
            "15 [LOST 7 EVENTS]".to_owned(),
            format!("16 sent: size={max} by=2 more=true"),
        ];
        assert_eq!(said, expected);
        assert_eq!(reader.peek().map(|event| event.time_ns), Some(20));
        assert!(is_event_file("events-0.jsonl") && !is_event_file("events-00.jsonl"));
    }

    /// A guest chooses what stands in its memory: control characters take six bytes each. A line of more than 64 KiB once made all
    /// of a trace unreadable.
    #[test]
    fn what_is_written_of_much_text_is_read_and_what_is_too_much_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::new(folder.path());
        let text = |bytes: usize| {
            let text = FieldValue::of_text(&vec![1; bytes], false);
            Event {
                values: Some([text].into()),
                ..event(10, 0, 1)
            }
        };
        let field = Field {
            name: "text".into(),
            kind: FieldType::named("u8").unwrap(),
        };
        let format = EventFormat::new("sent".into(), vec![field]);
        writer.append(&text(100 << 10), &format).unwrap();
        let most = usize::try_from(LINE_MAX).unwrap();
        writer.append(&text(most / 6), &format).unwrap_err();
        writer.append(&event(20, 0, 1), &self::format()).unwrap();
        writer.flush().unwrap();
        assert_eq!(
            (writer.totals().events["sent"], writer.totals().lost),
            (2, 1)
        );
        let mut reader = EventReader::open(folder.path()).unwrap();
        let mut times = Vec::new();
        while let Some(event) = reader.pop_until(u64::MAX).unwrap() {
            times.push(event.time_ns);
        }
        assert_eq!(times, [10, 20]);
    }

    /// It would be lines of its own, or what a terminal acts on.
    #[test]
    fn the_name_of_an_event_ends_no_line_and_no_text() {
        for name in [
            "a\",\"fields\":{}}\n{\"time_ns\":1,\"vcpu\":0}",
            "a\\",
            "a\u{1b}]0;x\u{7}",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut writer = EventWriter::new(folder.path());
            let format = EventFormat::new(name.into(), Vec::new());
            writer.append(&event(10, 0, 1), &format).unwrap();
            writer.flush().unwrap();
            let text = std::fs::read_to_string(folder.path().join("events-0.jsonl")).unwrap();
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
            let mut reader = EventReader::open(folder.path()).unwrap();
            let read = reader.pop_until(10).unwrap().unwrap();
            assert_eq!(read.event.as_deref(), Some(name));
        }
    }

    #[test]
    fn what_the_host_did_has_files_of_its_own() {
        use crate::host::{ExitReason, HostThread};
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::new(folder.path());
        let thread = HostThread {
            tid: 7,
            cpu: 3,
            rip: terms::addr::Gva(0x10),
        };
        let steps = [
            HostStep::Entry(thread),
            HostStep::Exit(thread, ExitReason::PortWrite),
            HostStep::Lost(5),
        ];
        writer.append(&event(15, 0, -3), &format()).unwrap();
        for (time_ns, step) in (10..).step_by(10).zip(steps) {
            writer.host(&event(time_ns, 0, 0), step).unwrap();
        }
        writer.flush().unwrap();
        let totals = writer.totals();
        assert_eq!((totals.events["host:kvm_entry"], totals.lost), (1, 5));
        let read = |mut reader: EventReader| {
            let mut said = Vec::new();
            while let Some(event) = reader.pop_until(u64::MAX).unwrap() {
                said.push(format!("{} {} {event}", event.time_ns, event.is_of_host));
            }
            said
        };
        let guest = format!("15 false sent: size={} by=-3 more=true", u64::MAX);
        let all = read(EventReader::open(folder.path()).unwrap());
        let expected = [
            "10 true host:kvm_entry: rip=0x10 tid=7 cpu=3",
            &guest,
            "20 true host:kvm_exit: reason=port_write rip=0x10 tid=7 cpu=3",
            "30 true [LOST 5 EVENTS]",
        ];
        assert_eq!(all, expected);
        let of_guest = read(EventReader::of_guest(folder.path()).unwrap());
        assert_eq!(of_guest, [&*guest]);
        let of_host = read(EventReader::of_host(folder.path()).unwrap());
        assert_eq!(of_host, [expected[0], expected[2], expected[3]]);
    }

    #[test]
    fn damaged_lines_are_named_and_half_ones_are_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events-3.jsonl");
        std::fs::write(
            &path,
            "{\"time_ns\":1,\"vcpu\":3,\"lost\":1}\n{\"time_ns\":2",
        )
        .unwrap();
        let mut reader = EventReader::open(folder.path()).unwrap();
        assert_eq!(reader.pop_until(9).unwrap().map(|line| line.lost), Some(1));
        assert_eq!(reader.pop_until(9).unwrap(), None);
        for bad in [
            "{}\n",
            "7\n",
            "{\"time_ns\":-1,\"vcpu\":0}\n",
            &"x".repeat(usize::try_from(LINE_MAX).unwrap()),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = EventReader::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains("events-3.jsonl: line 1"), "{error}");
        }
    }
}
