//! The Common Trace Format, version 1.8: what babeltrace2 and Trace Compass read. A directory with a file for each vCPU, and
//! one that describes them, which is written last: functions and threads are enumerations of those that were met, so an
//! event has a number where it has a name.

mod description;
mod packet;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use terms::field::FieldValue;
use terms::function::FunctionId;

pub use self::description::About;
use self::description::{Call, Class, Kind, OWN, REMARK};
use self::packet::{Payload, Stream};
use crate::event::{Event, EventKind};
use crate::export::alone;
use crate::export::events::EventLine;
use crate::export::remark::Remark;
use crate::export::tids::Thread;

/// The file that describes the others.
const DESCRIPTION: &str = "metadata";
/// Events of the guest's own that are told apart; what there is more is a remark.
const CLASSES_MAX: usize = 4096;

/// What a description of ours has near its beginning.
const OURS: &str = "tracer_name = \"exotrace\"";
/// Where that is.
const NEAR: u64 = 4096;

/// Whether a directory is such an export and nothing else: described as one of ours, and beside that streams of vCPUs.
///
/// # Errors
/// What the system says.
pub fn is_alone_in(directory: &Path) -> io::Result<bool> {
    let is_stream = |name: &str| {
        let vcpu = name.strip_prefix("vcpu");
        vcpu.is_some_and(|vcpu| vcpu.parse::<u16>().is_ok())
    };
    if alone::files(directory, |name| name == DESCRIPTION || is_stream(name))?.is_none() {
        return Ok(false);
    }
    let mut begin = Vec::new();
    match File::open(directory.join(DESCRIPTION)) {
        Ok(description) => description.take(NEAR).read_to_end(&mut begin)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&begin).contains(OURS))
}

/// Writes one trace.
#[derive(Debug)]
pub struct Ctf {
    directory: PathBuf,
    streams: BTreeMap<u16, Stream<BufWriter<File>>>,
    /// Threads by number.
    threads: BTreeMap<u32, Thread>,
    /// The functions that were met.
    functions: BTreeMap<u32, String>,
    classes: Vec<Class>,
    numbers: HashMap<Class, u16>,
    has_ends: bool,
}

impl Ctf {
    /// Into a directory that is there and empty, of these threads by number; where returns are not traced (`has_ends`), calls
    /// are moments.
    #[must_use]
    pub fn new(directory: &Path, threads: BTreeMap<u32, Thread>, has_ends: bool) -> Self {
        Self {
            directory: directory.to_owned(),
            streams: BTreeMap::new(),
            threads,
            functions: BTreeMap::new(),
            classes: Vec::new(),
            numbers: HashMap::new(),
            has_ends,
        }
    }

    fn stream(&mut self, vcpu: u16) -> io::Result<&mut Stream<BufWriter<File>>> {
        Ok(match self.streams.entry(vcpu) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = File::create(self.directory.join(format!("vcpu{vcpu}")))?;
                new.insert(Stream::new(BufWriter::new(file), vcpu))
            }
        })
    }

    /// The next step of a thread, in the order of time: of a function that `name` names, with the values that were captured,
    /// as text.
    ///
    /// # Errors
    /// What the system says.
    pub fn step(
        &mut self,
        step: &Event,
        name: impl FnOnce(FunctionId) -> String,
        values: &str,
    ) -> io::Result<()> {
        let thread = self.threads.get(&step.thread);
        let tid = thread.map_or(step.thread, |thread| thread.tid);
        match step.kind {
            EventKind::Entry(function) | EventKind::Exit { function, .. } => {
                let number = function.0;
                self.functions
                    .entry(number)
                    .or_insert_with(|| name(function));
                // What is not known has no field: of an empty one babeltrace2 shows what an event before had there.
                let known = Some(values).filter(|values| !values.is_empty());
                let is_known = known.is_some();
                let (call, end) = match step.kind {
                    EventKind::Exit { end, .. } => {
                        let end = end.remark();
                        (Call::exit(is_known, end.is_some()), end)
                    }
                    _ => (Call::Entry { args: is_known }, None),
                };
                let payload = Payload::default().u32(tid).u32(number);
                let payload = known.into_iter().chain(end).fold(payload, Payload::text);
                self.stream(step.vcpu)?
                    .add(step.time_ns, call.number(), &payload)
            }
            EventKind::Lost(count) => self.stream(step.vcpu)?.lost(step.time_ns, count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// An event of the guest's own, or a loss of some.
    ///
    /// # Errors
    /// What the system says.
    pub fn point(&mut self, event: &EventLine) -> io::Result<()> {
        let Some(name) = &event.event else {
            return self.stream(event.vcpu)?.lost(event.time_ns, event.lost);
        };
        let mut payload = Payload::default();
        let mut fields = Vec::with_capacity(event.fields.0.len());
        for (field, value) in &event.fields.0 {
            let (kind, with) = carried(payload, value);
            payload = with;
            fields.push((field.clone(), kind));
        }
        let name = name.clone();
        let (number, payload) = match self.number(Class { name, fields }) {
            Some(number) => (number, payload),
            None => (REMARK, Payload::default().text(&event.to_string())),
        };
        self.stream(event.vcpu)?
            .add(event.time_ns, number, &payload)
    }

    /// The number of events of this class; none when there are too many.
    fn number(&mut self, class: Class) -> Option<u16> {
        if let Some(number) = self.numbers.get(&class) {
            return Some(*number);
        }
        let next = Some(self.classes.len()).filter(|count| *count < CLASSES_MAX);
        let number = OWN + u16::try_from(next?).ok()?;
        self.classes.push(class.clone());
        self.numbers.insert(class, number);
        Some(number)
    }

    /// What concerns all vCPUs: said on every one of which anything is known.
    ///
    /// # Errors
    /// What the system says.
    pub fn remark(&mut self, remark: &Remark) -> io::Result<()> {
        let text = Payload::default().text(&remark.to_string());
        if self.streams.is_empty() {
            // What is to be said is said also where nothing has happened by then.
            self.stream(remark.vcpu().unwrap_or_default())?;
        }
        let only = remark.vcpu().filter(|vcpu| self.streams.contains_key(vcpu));
        let is_of = |vcpu: u16| only.is_none_or(|one| one == vcpu);
        let streams = self.streams.iter_mut();
        let mut streams = streams.filter(|(vcpu, _)| is_of(**vcpu));
        streams.try_for_each(|(_, stream)| stream.add(remark.time_ns(), REMARK, &text))
    }

    /// Writes the rest, and the description.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(self, about: &About) -> io::Result<()> {
        for stream in self.streams.into_values() {
            stream.finish()?;
        }
        let functions = self.functions.iter();
        let functions = functions.map(|(number, name)| (*number, &**name));
        let threads = self.threads.into_values();
        let names = threads.map(|thread| (thread.tid, thread.name)).collect();
        let classes = &self.classes;
        let text = description::text(about, functions, &names, classes, self.has_ends);
        let mut file = File::create(self.directory.join(DESCRIPTION))?;
        file.write_all(text.as_bytes())?;
        file.flush()
    }
}

/// A value, after those before it.
fn carried(payload: Payload, value: &FieldValue) -> (Kind, Payload) {
    match value {
        FieldValue::Bool(value) => (Kind::Unsigned, payload.u64(u64::from(*value))),
        FieldValue::Signed(value) => (Kind::Signed, payload.u64(value.cast_unsigned())),
        // One that a number with a sign can be is one: it may have been.
        FieldValue::Unsigned(value) => match i64::try_from(*value) {
            Ok(_) => (Kind::Signed, payload.u64(*value)),
            Err(_) => (Kind::Unsigned, payload.u64(*value)),
        },
        FieldValue::Pointer(value) => (Kind::Address, payload.u64(value.0)),
        other => {
            let text = other.to_string();
            let is_empty = text.is_empty() || text.starts_with('\0');
            let kind = if is_empty { Kind::Empty } else { Kind::Text };
            (kind, payload.text(&text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::event::End;
    use crate::export::uftrace::Pause;

    /// The numbers and what is told of them, from the first event of the stream on.
    fn events(directory: &Path) -> Vec<u8> {
        fs::read(directory.join("vcpu0")).unwrap().split_off(48)
    }

    fn step(kind: EventKind) -> Event {
        Event {
            time_ns: 5,
            vcpu: 0,
            thread: 1,
            depth: 0,
            kind,
            values: None,
        }
    }

    /// What came before all events was once left out.
    #[test]
    fn remarks_come_before_the_first_event_too() {
        let folder = tempfile::tempdir().unwrap();
        let mut ctf = Ctf::new(folder.path(), BTreeMap::new(), true);
        let pause = Remark::Pause(Pause {
            begin_ns: 2,
            length_ns: 1,
        });
        ctf.remark(&pause).unwrap();
        let function = FunctionId(2);
        ctf.step(&step(EventKind::Entry(function)), |_| "f".into(), "")
            .unwrap();
        ctf.finish(&About::default()).unwrap();
        let mut expected = REMARK.to_le_bytes().to_vec();
        expected.extend(2u32.to_le_bytes());
        expected.extend(pause.to_string().bytes().chain([0]));
        expected.extend([0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(events(folder.path()), expected);
    }

    /// An empty text is what babeltrace2 2.0 shows the one before for.
    #[test]
    fn no_text_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let mut ctf = Ctf::new(folder.path(), BTreeMap::new(), true);
        let function = FunctionId(2);
        let exit = |end| EventKind::Exit {
            function,
            end,
            duration: None,
        };
        let mut expected = Vec::new();
        for (kind, values, number, texts) in [
            (EventKind::Entry(function), "x=1", 1, "x=1\0"),
            (EventKind::Entry(function), "", 0, ""),
            (exit(End::Returned), "7", 3, "7\0"),
            (exit(End::Returned), "", 2, ""),
            (exit(End::Unsure), "7", 5, "7\0records lost meanwhile\0"),
            (exit(End::NotSeen), "", 4, "no return seen\0"),
        ] {
            ctf.step(&step(kind), |_| "f".into(), values).unwrap();
            expected.extend([number, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
            expected.extend(texts.as_bytes());
        }
        ctf.finish(&About::default()).unwrap();
        assert_eq!(events(folder.path()), expected);
    }

    /// The guest names what its enumerators are called, and has other text that is empty.
    #[test]
    fn a_value_that_is_empty_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let mut ctf = Ctf::new(folder.path(), BTreeMap::new(), true);
        let mut expected = Vec::new();
        for (name, number) in [("RED", 7), ("", 8), ("BLUE", 7)] {
            let value = FieldValue::Enumerator { name: name.into() };
            let line = r#"{"time_ns":5,"vcpu":0,"event":"painted"}"#;
            let mut event: EventLine = serde_json::from_str(line).unwrap();
            event.fields.0.push(("color".into(), value));
            ctf.point(&event).unwrap();
            expected.extend([number, 0, 5, 0, 0, 0]);
            expected.extend(name.bytes().chain([0]));
        }
        ctf.finish(&About::default()).unwrap();
        assert_eq!(events(folder.path()), expected);
        let text = fs::read_to_string(folder.path().join(DESCRIPTION)).unwrap();
        for (number, kind) in [(7, "string"), (8, "empty_t")] {
            let class = format!(
                "\tid = {number};\n\tname = \"painted\";\n\tfields := struct {{\n\t\t{kind} _color;\n"
            );
            assert!(text.contains(&class), "{class} in {text}");
        }
    }
}
