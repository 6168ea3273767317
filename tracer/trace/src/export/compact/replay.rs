//! Putting a compact trace together: what its file holds goes through the same stream as it would have when it was recorded,
//! into a trace directory. So nothing is a way of its own of reading calls.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::Function;
use terms::printable::cut;

use super::STORE_FILE;
use super::blocks::{Block, Blocks, Kind, Stop};
use super::bytes::Malformed;
use super::error::CompactError;
use super::notes::{
    BeginNote, DeathNote, EndNote, FunctionsNote, PointNote, TOO_MUCH, ThreadsNote, UNSAID,
    ValuesNote,
};
use super::{json, looks};
use super::{part, weight};
use crate::as_found::AsFound;
use crate::columns::Columns;
use crate::crew::Alone;
use crate::export::call_formats::CallFormats;
use crate::export::probes::ProbeNote;
use crate::export::store::{Ending, News, Store};
use crate::export::uftrace::layout::Text;
use crate::export::uftrace::{AnomalyNote, Metadata, Tally, UftraceWriter};
use crate::stream::{Origin, Pass, Stream, WAITING_MAX};
use crate::watch::Watch;

/// Records of one round, at most: what all rings of a guest together hold. More continue as they are, so that a file that
/// has no rounds takes no more memory.
const ROUND_MAX: usize = 1 << 26;
/// Bytes that values of records may take while these wait, beside the records: what full rings of points of a dozen vCPUs hold. As
/// much may come before it is looked at what of it waits still.
const VALUES_MAX: usize = 256 << 20;
/// Stacks of which names are kept, and ends of threads whose stacks were not seen yet: as many as the rings of 64 vCPUs tell of.
const STACKS_MAX: usize = 1 << 18;
/// Bytes of a name that are kept: a guest's have some dozen.
const NAME_MAX: usize = 256;
/// Functions of a guest, at most: as many as records can name.
const FUNCTIONS_MAX: usize = 1 << 18;
/// Bytes of their names, with what each takes beside itself: several times what as many functions of a kernel have.
const FUNCTION_NAMES_MAX: usize = 256 << 20;

/// What was put together.
#[derive(Debug, Default)]
pub struct Replayed {
    /// What is in the directory now.
    pub tally: Tally,
    /// Records of the guest that the file has, as who wrote it counts them.
    pub records: u64,
    /// What is to be said of the file: that it was cut, or is damaged.
    pub remark: Option<String>,
    /// Whether it is damaged, and no run was just killed.
    pub is_damaged: bool,
    /// Whether it was ended in order.
    pub is_finished: bool,
}

/// Puts the compact trace in `directory` together as a trace directory at `to`; with `force` an older one there is replaced.
///
/// # Errors
/// [`CompactError`] about the file, or about what is written.
pub fn convert(
    directory: &Path,
    to: &Path,
    force: bool,
    watch: &Watch,
) -> Result<Replayed, CompactError> {
    let path = directory.join(STORE_FILE);
    let mut blocks = Blocks::open(&path)?;
    let (begin, functions) = beginning(&mut blocks, &path)?;
    let mut replay = Replay::begin(path, begin, functions, to, force)?;
    let stop = replay.all(&mut blocks, watch)?;
    replay.finish(stop)
}

/// The functions that a compact trace knows, without its records.
///
/// # Errors
/// [`CompactError`] about the file.
pub fn functions(directory: &Path) -> Result<Vec<Function>, CompactError> {
    let path = directory.join(STORE_FILE);
    let mut blocks = Blocks::open(&path)?;
    Ok(beginning(&mut blocks, &path)?.1.functions)
}

/// The functions of a guest, and where later ones end.
#[derive(Debug, Default)]
struct Known {
    functions: Vec<Function>,
    limit: Option<Gva>,
    /// How many of them are called so. A file may say often what is captured, and this is not counted anew each time.
    names: HashMap<Arc<str>, u32>,
    /// What their names take.
    bytes: usize,
}

impl Known {
    /// Whether more are known then; none if those are too many, or their names too much.
    fn add(&mut self, note: FunctionsNote) -> Option<bool> {
        self.add_within(note, FUNCTION_NAMES_MAX)
    }

    fn add_within(&mut self, note: FunctionsNote, bytes_max: usize) -> Option<bool> {
        let is_more = !note.functions.is_empty() || note.limit.map(Gva) != self.limit;
        let room = FUNCTIONS_MAX.checked_sub(self.functions.len())?;
        if note.functions.len() > room {
            return None;
        }
        self.limit = note.limit.map(Gva);
        for function in note.functions {
            let function = Function::from(function);
            self.bytes = self.bytes.saturating_add(names_weight(&function));
            if self.bytes > bytes_max {
                return None;
            }
            *self.names.entry(Arc::clone(&function.display)).or_default() += 1;
            self.functions.push(function);
        }
        Some(is_more)
    }

    fn text(&self) -> Text<'_> {
        Text {
            functions: &self.functions,
            limit: self.limit,
        }
    }
}

/// What the names of a function take, each with the counts of who has it.
fn names_weight(function: &Function) -> usize {
    const BESIDE: usize = size_of::<Arc<str>>() + 2 * size_of::<usize>();
    let own = [&function.name, &function.display].into_iter();
    let names = own.chain(&function.aliases).chain(&function.module);
    names.map(|name| BESIDE + name.len()).sum()
}

/// The first two blocks.
fn beginning(
    blocks: &mut Blocks<AsFound>,
    path: &Path,
) -> Result<(BeginNote, Known), CompactError> {
    let mut first = |kind| -> Result<Vec<u8>, CompactError> {
        match blocks.next().map_err(CompactError::io(path))? {
            Ok(block) if block.kind == kind => Ok(block.contents),
            _ => Err(damaged(path)),
        }
    };
    let begin = first(Kind::Begin)?;
    if json::has_more_than(Kind::Begin.most_values(), &begin) {
        return Err(not_one(path, TOO_MUCH));
    }
    let begin: BeginNote =
        json::read(&begin, Kind::Begin.most_values()).ok_or_else(|| damaged(path))?;
    let functions = first(Kind::Functions)?;
    let functions = json::read(&functions, Kind::Functions.most_values());
    let functions = functions.ok_or_else(|| damaged(path))?;
    let mut known = Known::default();
    known.add(functions).ok_or_else(|| damaged(path))?;
    Ok((begin, known))
}

/// Nothing can be read of it.
fn damaged(path: &Path) -> CompactError {
    not_one(path, UNSAID)
}

fn not_one(path: &Path, Malformed(problem): Malformed) -> CompactError {
    let path = path.to_owned();
    CompactError::NotOne { path, problem }
}

/// On its way.
struct Replay {
    path: PathBuf,
    stream: Stream,
    to: UftraceWriter,
    known: Known,
    /// The directory is to learn of more of them, before anything goes there.
    has_more: bool,
    /// It is to have another file of symbols at the end.
    has_news: bool,
    /// What threads are called, by their stacks, and their numbers.
    names: BTreeMap<u64, String>,
    threads: HashMap<u64, u32>,
    /// Of threads whose records may be still to come, by their stacks.
    deaths: HashMap<u64, Vec<DeathNote>>,
    /// How many of them there are, and of these and of names may be.
    dying: usize,
    stacks_max: usize,
    /// Records of this round.
    waiting: usize,
    /// Bytes of values that have come since it was looked at what waits, and how many may.
    values: usize,
    values_max: usize,
    /// Those of all rounds so far, without losses and what the clock page told.
    records: u64,
    end: Option<EndNote>,
}

impl Replay {
    fn begin(
        path: PathBuf,
        begin: BeginNote,
        known: Known,
        to: &Path,
        force: bool,
    ) -> Result<Self, CompactError> {
        let options = begin.options().map_err(|bad| not_one(&path, bad))?;
        let stream = Stream::of(&options, &known.functions, WAITING_MAX);
        let stream = stream.map_err(|_| damaged(&path))?;
        let is_same = begin.metadata.is_graph() == stream.stack_bytes().is_some()
            && begin.metadata.vcpus == options.rings;
        if !is_same {
            return Err(damaged(&path));
        }
        let mut to = UftraceWriter::create(to, known.text(), begin.metadata, force)?;
        // Nobody reads it before it is whole.
        to.describe_later();
        Ok(Self {
            stream,
            to,
            path,
            known,
            has_more: false,
            has_news: false,
            names: BTreeMap::new(),
            threads: HashMap::new(),
            deaths: HashMap::new(),
            dying: 0,
            stacks_max: STACKS_MAX,
            waiting: 0,
            values: 0,
            values_max: VALUES_MAX,
            records: 0,
            end: None,
        })
    }

    /// Every block, up to where there is no other.
    fn all(&mut self, blocks: &mut Blocks<AsFound>, watch: &Watch) -> Result<Stop, CompactError> {
        loop {
            let block = match blocks.next().map_err(CompactError::io(&self.path))? {
                Ok(block) => block,
                Err(stop) => return Ok(stop),
            };
            if self.block(&block).is_none() {
                return Ok(blocks.damaged(&block));
            }
            // A block is as much as other walks take between two questions.
            let calls = || self.to.totals().map(|totals| totals.entries).sum();
            if !watch.goes_on(0, calls) {
                return Err(CompactError::Interrupted);
            }
            if self.to.error().is_some() {
                // It is full: more of the same would not come in either.
                return Ok(Stop::End);
            }
        }
    }

    /// One block; none for one that says nothing that can be.
    fn block(&mut self, block: &Block) -> Option<()> {
        let (text, most) = (&*block.contents, block.kind.most_values());
        match block.kind {
            Kind::Begin => return None,
            Kind::Functions => {
                let before = self.known.functions.len();
                self.has_news |= self.known.add(json::read(text, most)?)?;
                self.has_more |= self.known.functions.len() > before;
                self.stream.extend(&self.known.functions);
            }
            Kind::Metadata => {
                let metadata: Metadata = json::read(text, most)?;
                self.to.learn(News::Metadata(Box::new(metadata)));
            }
            Kind::Points => {
                let notes: Vec<PointNote> = json::read(text, most)?;
                let formats: Option<Vec<Arc<EventFormat>>> =
                    notes.iter().map(PointNote::format).collect();
                self.stream.rings().expect_points();
                self.to.learn(News::Points(&formats?));
            }
            Kind::Probes => {
                let probes: Vec<ProbeNote> = json::read(text, most)?;
                self.to.learn(News::Probes(&probes));
            }
            Kind::Values => self.values(&json::read::<Vec<ValuesNote>>(text, most)?)?,
            Kind::Threads => self.note_threads(json::read(text, most)?)?,
            Kind::Records => self.records(text)?,
            Kind::Looks => {
                let looks = looks::decode(text).ok()?.into_iter();
                looks.for_each(|(origin, time_ns)| self.stream.rings().looked(origin, time_ns));
            }
            Kind::Round => self.round(),
            Kind::End => self.end = Some(json::read(text, most)?),
        }
        Some(())
    }

    /// Not for each block of a file that has many.
    fn tell_functions(&mut self) {
        if std::mem::take(&mut self.has_more) {
            self.to.learn(News::Functions(self.known.text()));
        }
    }

    fn values(&mut self, notes: &[ValuesNote]) -> Option<()> {
        self.tell_functions();
        let captured: Option<Vec<_>> = notes.iter().map(ValuesNote::fields).collect();
        let captured = captured?;
        for (function, moment, _) in &captured {
            self.stream.expect_values(*function, *moment);
        }
        let captured = captured.iter();
        let captured = captured.map(|(function, moment, fields)| (*function, *moment, &**fields));
        let Known {
            functions, names, ..
        } = &self.known;
        let is_alone = |name: &str| names.get(name) == Some(&1);
        let formats = CallFormats::of_named(functions, is_alone, captured);
        self.to.learn(News::Values(formats));
        Some(())
    }

    fn records(&mut self, block: &[u8]) -> Option<()> {
        let mut records = Columns::new(self.stream.stack_bytes().unwrap_or(1));
        let of = part::read(block, &mut records).ok()?;
        if !matches!(of.origin, Origin::Clock) {
            self.records = self.records.saturating_add(part::count(block).into());
        }
        self.waiting += records.records();
        self.values = self.values.saturating_add(weight::of(records.parts()));
        self.stream.rings().push(of.origin, records, of.until_ns);
        if let Some(time_ns) = of.looked_ns {
            self.stream.rings().looked(of.origin, time_ns);
        }
        if !self.stream.is_ordered(&self.to) {
            self.pass_on(Pass::Round);
        } else if self.waiting > ROUND_MAX {
            // As if two were over: what has come waits no longer.
            (0..2).for_each(|_| self.pass_on(Pass::Round));
        } else if self.values > self.values_max {
            self.values = 0;
            self.leave_few_values();
        }
        Some(())
    }

    /// What has come waits no longer, nor for a ring that lags, if its values take too much: few records can have many.
    fn leave_few_values(&mut self) {
        if weight::of(self.stream.rings().waiting()) > self.values_max {
            self.stream.rings().set_waiting(0);
            (0..2).for_each(|_| self.pass_on(Pass::Round));
            self.stream.rings().set_waiting(WAITING_MAX);
        }
    }

    fn pass_on(&mut self, pass: Pass) {
        self.tell_functions();
        self.waiting = 0;
        self.to.take(&mut self.stream, pass, &Alone);
        while self.stream.rings().take_room().is_some() {}
    }

    fn round(&mut self) {
        self.pass_on(Pass::Round);
        self.know_threads();
    }

    /// Threads that were seen since may have names already, or have ended.
    fn know_threads(&mut self) {
        for (thread, stack) in self.stream.take_fresh() {
            self.threads.insert(stack.0, thread);
            if let Some(name) = self.names.get(&stack.0) {
                self.to.learn(News::Thread(thread, name.clone()));
            }
            let deaths = self.deaths.remove(&stack.0).unwrap_or_default();
            self.dying -= deaths.len();
            for death in deaths {
                self.stream.died(death.death(thread));
            }
        }
    }

    /// None where there are more of them than a guest can have.
    fn note_threads(&mut self, note: ThreadsNote) -> Option<()> {
        for (stack, name) in note.names {
            let name = cut(&name, NAME_MAX).into_owned();
            if let Some(thread) = self.threads.get(&stack) {
                self.to.learn(News::Thread(*thread, name.clone()));
            }
            self.names.insert(stack, name);
        }
        self.know_threads();
        for death in note.deaths {
            match self.threads.get(&death.stack) {
                Some(thread) => self.stream.died(death.death(*thread)),
                None => {
                    self.dying += 1;
                    self.deaths.entry(death.stack).or_default().push(death);
                }
            }
        }
        (self.names.len().max(self.dying) <= self.stacks_max).then_some(())
    }

    fn finish(mut self, stop: Stop) -> Result<Replayed, CompactError> {
        let until_ns = self.end.as_ref().and_then(|end| end.until_ns);
        if let Some(until_ns) = until_ns {
            self.stream.lasts_until(until_ns);
        }
        self.pass_on(Pass::All);
        self.know_threads();
        let text = self.has_news.then(|| self.known.text());
        self.to.describe_all(text);
        let anomalies = self.stream.anomalies();
        let anomalies = anomalies.map_or_else(Vec::new, |anomalies| {
            AnomalyNote::list(&anomalies, &self.known.functions)
        });
        let is_finished = self.end.as_ref().is_some_and(|end| end.is_whole) && stop == Stop::End;
        let ending = Ending {
            doubts: self.end.unwrap_or_default().doubts,
            anomalies,
            strays: self.stream.rings().strays(),
            is_cut: !is_finished,
            until_ns: until_ns.unwrap_or_default(),
        };
        let remark = (stop != Stop::End).then(|| format!("{}: {stop}", self.path.display()));
        self.to.note_cut(remark.clone());
        let tally = Store::finish(&mut self.to, ending)?;
        Ok(Replayed {
            // A wait is no record of the guest.
            records: self.records.saturating_sub(tally.waits),
            tally,
            remark,
            is_damaged: matches!(stop, Stop::Damaged { .. }),
            is_finished,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use terms::event_format::EventId;
    use terms::field::FieldValue;
    use terms::function::FunctionId;

    use super::*;
    use crate::event::{CallValues, Moment, Passed, Record, RecordKind, Step};
    use crate::export::call_formats::VALUES_FILE;
    use crate::export::compact::blocks::FRAME;
    use crate::export::compact::coder::Coder;
    use crate::export::compact::part::Of;
    use crate::export::probes::PROBES_FILE;
    use crate::export::uftrace::layout::SIDE_FILE;
    use crate::export::uftrace::{GRAPH, SideFile};
    use crate::form::Form;
    use crate::graph::rules::{Rules, Threshold};
    use crate::stream::StreamOptions;
    use crate::testing::functions as made;

    /// Of a graph of one vCPU, in the directory `to` that there is not.
    fn replay(to: &Path, functions: u64) -> Replay {
        let options = StreamOptions {
            rings: 1,
            stack_bytes: Some(1 << 14),
            ..StreamOptions::default()
        };
        replay_of(&options, to, functions)
    }

    fn replay_of(options: &StreamOptions, to: &Path, functions: u64) -> Replay {
        let metadata = Metadata {
            image: "guest.elf".into(),
            vcpus: 1,
            tracer: GRAPH.into(),
            ..Metadata::default()
        };
        let begin = BeginNote::of(options, metadata);
        let known = Known {
            functions: made(functions),
            ..Known::default()
        };
        Replay::begin(to.join("store"), begin, known, to, false).unwrap()
    }

    fn block(kind: Kind, contents: impl Into<Vec<u8>>) -> Block {
        let contents = contents.into();
        Block { kind, contents }
    }

    /// The files that there are, each with its number: one that replaces it has another.
    fn files(of: &Path) -> BTreeMap<PathBuf, u64> {
        let files = fs::read_dir(of).unwrap().map(|file| file.unwrap());
        files
            .map(|file| (file.path(), file.metadata().unwrap().ino()))
            .collect()
    }

    /// A block of some bytes is not a file of all symbols each time: a hundred thousand of them would be hours.
    #[test]
    fn what_describes_a_trace_is_written_once_however_often_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        let mut replay = replay(&to, 3);
        let begun = files(&to);
        let metadata = |name: &str| Metadata {
            image: "guest.elf".into(),
            notrace: vec![name.to_owned()],
            ..Metadata::default()
        };
        let limit = |limit: u64| format!("{{\"limit\":{limit},\"functions\":[]}}");
        let value = r#"{"name":"size","type":"u32","bytes":4}"#;
        let function = r#"{"at":18446744071596081152,"size":16,"name":"late"}"#;
        let said = [
            (Kind::Functions, limit(1 << 40)),
            (
                Kind::Functions,
                format!("{{\"limit\":1,\"functions\":[{function}]}}"),
            ),
            (Kind::Functions, limit(1 << 41)),
            (
                Kind::Metadata,
                serde_json::to_string(&metadata("first")).unwrap(),
            ),
            (
                Kind::Metadata,
                serde_json::to_string(&metadata("last")).unwrap(),
            ),
            (Kind::Values, "[]".to_owned()),
            (
                Kind::Values,
                format!("[{{\"function\":3,\"is_exit\":false,\"fields\":[{value}]}}]"),
            ),
            (Kind::Probes, "[]".to_owned()),
        ];
        for (kind, text) in said {
            replay.block(&block(kind, text)).unwrap();
            replay.block(&block(Kind::Round, [])).unwrap();
            assert_eq!(files(&to), begun, "{kind:?}");
        }
        replay.finish(Stop::End).unwrap();
        let read = |name: &str| fs::read_to_string(to.join(name)).unwrap();
        assert!(read("guest.elf.sym").contains(" T late\n"));
        assert!(read(SIDE_FILE).contains("\"last\"") && !read(SIDE_FILE).contains("\"first\""));
        assert!(read(VALUES_FILE).contains("\"late\""));
        assert_eq!(read(PROBES_FILE), "[]");
    }

    /// A name of no letters is three bytes in a file, and some dozen here.
    #[test]
    fn names_of_functions_take_no_more_than_they_may() {
        let note = |aliases: usize| {
            let aliases = vec!["\"\""; aliases].join(",");
            let function =
                format!("{{\"at\":1,\"size\":1,\"name\":\"f\",\"aliases\":[{aliases}]}}");
            let text = format!("{{\"limit\":null,\"functions\":[{function}]}}");
            serde_json::from_str::<FunctionsNote>(&text).unwrap()
        };
        let mut known = Known::default();
        known.add(note(100)).unwrap();
        let one = known.bytes;
        assert!(one > 100 * size_of::<Arc<str>>());
        let mut known = Known::default();
        for _ in 0..3 {
            assert_eq!(known.add_within(note(100), 3 * one), Some(true));
        }
        assert_eq!(known.add_within(note(0), 3 * one), None);
        assert_eq!(known.functions.len(), 3);
    }

    /// Of threads that nobody has seen, again and again: each is kept until it is.
    #[test]
    fn names_and_ends_of_more_threads_than_a_guest_can_have_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let said = |name: &str, many: fn(u64) -> String| {
            let mut replay = replay(&folder.path().join(name), 1);
            replay.stacks_max = 10;
            let blocks = (1..=20).map(|stack| block(Kind::Threads, many(stack << 14)));
            blocks
                .take_while(|block| replay.block(block).is_some())
                .count()
        };
        let name = |stack: u64| format!("{{\"names\":[[{stack},\"a\"]],\"deaths\":[]}}");
        assert_eq!(said("names", name), 10);
        let death = |stack: u64| format!("{{\"names\":[],\"deaths\":[[{stack},5,6]]}}");
        assert_eq!(said("deaths", death), 10);
        let again = |_: u64| format!("{{\"names\":[[0,{:?}]],\"deaths\":[]}}", "a".repeat(1_000));
        assert_eq!(
            said("again", again),
            20,
            "of one thread the last name counts"
        );
        let mut long = replay(&folder.path().join("long"), 1);
        long.block(&block(Kind::Threads, again(0))).unwrap();
        assert_eq!(long.names[&0].len(), NAME_MAX + "...".len());
    }

    /// A record of a ring, as a block.
    fn records(origin: Origin, time_ns: u64, kind: RecordKind) -> Block {
        let mut coder = Coder::new(1 << 14);
        coder.record(&Record { time_ns, kind });
        let mut coded = coder.take();
        let part = coded.parts.first_mut().unwrap();
        let bytes = part.describe(Of {
            origin,
            looked_ns: Some(time_ns),
            until_ns: time_ns,
        });
        block(Kind::Records, &bytes[FRAME..])
    }

    /// A point with values of one byte each, as a block.
    fn points(time_ns: u64, values: usize) -> Block {
        let passed = Passed {
            event: EventId(0),
            values: vec![FieldValue::Fault; values].into(),
        };
        let kind = RecordKind::Point(Box::new(passed));
        records(Origin::Points(0), time_ns, kind)
    }

    /// Bytes of values, not records alone: else a file of some megabytes takes all memory there is. The ring of calls is never looked at,
    /// so that all points wait for it.
    #[test]
    fn values_that_wait_take_no_more_than_they_may() {
        const VALUES: usize = 4096;
        let folder = tempfile::tempdir().unwrap();
        for has_rounds in [false, true] {
            let mut replay = replay(&folder.path().join(has_rounds.to_string()), 1);
            replay.values_max = 1 << 20;
            let mut most = 0;
            for time_ns in 1..100 {
                replay.block(&points(time_ns, VALUES)).unwrap();
                if has_rounds {
                    replay.block(&block(Kind::Round, [])).unwrap();
                }
                most = most.max(weight::of(replay.stream.rings().waiting()));
            }
            let one = VALUES * size_of::<FieldValue>();
            assert!(most > replay.values_max / 2, "they wait: {most}");
            assert!(most < 2 * replay.values_max + 2 * one, "{most}");
            let replayed = replay.finish(Stop::End).unwrap();
            assert_eq!(replayed.tally.lost, 99);
        }
    }

    /// What is captured of calls that never return, of a function that is shown if they take long, and of calls that never come. Each
    /// capture was a hundred thousand bytes, for four thousand in the file, and all of them were kept.
    #[test]
    fn values_of_calls_that_wait_take_no_more_than_they_may_and_it_is_said_which_are_missing() {
        const VALUES: usize = 1000;
        const CALLS: u64 = 100;
        let options = StreamOptions {
            rings: 1,
            stack_bytes: Some(1 << 14),
            has_values: true,
            rules: Rules {
                threshold: Some(Threshold { nanoseconds: 1 }),
                ..Rules::default()
            },
        };
        let folder = tempfile::tempdir().unwrap();
        let missing = |calls_come: bool, most: usize| {
            let to = folder.path().join(format!("{calls_come}-{most}"));
            let mut replay = replay_of(&options, &to, 1);
            replay.stream.keep_values_within(most);
            let slot = |call: u64| (1 << 20) - 8 * call;
            for call in 1..=CALLS {
                let captured = CallValues {
                    function: FunctionId(0),
                    moment: Moment::Entry,
                    slot: slot(call),
                    values: vec![FieldValue::Fault; VALUES].into(),
                };
                let captured = RecordKind::Captured(Box::new(captured));
                let entry = RecordKind::Graph {
                    function: FunctionId(0),
                    step: Step::Entry,
                    slot: slot(call),
                };
                let points = records(Origin::Points(0), 2 * call, captured);
                replay.block(&points).unwrap();
                replay.stream.rings().looked(Origin::Calls(0), 2 * call + 1);
                if calls_come {
                    let calls = records(Origin::Calls(0), 2 * call + 1, entry);
                    replay.block(&calls).unwrap();
                }
                replay.block(&block(Kind::Round, [])).unwrap();
            }
            let joined = replay.stream.joined();
            replay.finish(Stop::End).unwrap();
            let side = fs::read_to_string(to.join(SIDE_FILE)).unwrap();
            let side: SideFile = serde_json::from_str(&side).unwrap();
            let missing = side.anomalies.iter().map(|note| note.count);
            (missing.sum::<u64>(), joined.unclaimed)
        };
        let one = VALUES * size_of::<FieldValue>() + 2 * size_of::<usize>();
        assert_eq!(missing(true, usize::MAX), (0, 0));
        assert_eq!(missing(true, 10 * one), (CALLS - 10, 0));
        let (_, unclaimed) = missing(false, 10 * one);
        assert_eq!(
            unclaimed,
            CALLS - 10,
            "those that wait still are not counted yet"
        );
    }
}
