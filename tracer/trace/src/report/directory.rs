//! The describing files of a trace directory, read back. Nothing in them is trusted: they may
//! come from anywhere.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use terms::field::FieldValue;
use terms::nearest::{did_you_mean, nearest};
use terms::printable::{cut, masked};

use super::Watch;
use super::error::ReportError;
use super::rows::NEAR_MISSES;
use super::scratch::Scratch;
use super::unlisted::{DataFiles, Unlisted};
use crate::as_found::open_file;
use crate::event::Event;
use crate::event::Moment;
use crate::export::call_formats::{CallFormats, VALUES_FILE};
use crate::export::compact;
use crate::export::events::{EventLine, EventReader};
use crate::export::probes::{PROBES_FILE, ProbeNote};
use crate::export::uftrace::layout::{FIRST_TID, SIDE_FILE};
use crate::export::uftrace::record::canonical;
use crate::export::uftrace::{NO_CALLS, NO_CLOCK, SideFile, VERSION, has_lock, writer_of};
use crate::glob::Pattern;

/// The most that is read of a describing file.
const MAX_TEXT: u64 = 256 << 20;
/// The most tasks that a trace can have: one per vCPU.
const MAX_TASKS: usize = 4096;
/// The most that is read of a function's name.
const NAME_MAX: usize = 4096;
/// The `info` header: mark, version, header size, byte order, word size.
const INFO_START: [u8; 16] = *b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02";

/// One task: a vCPU, or in a graph trace a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The number of the vCPU as `report` shows it.
    pub vcpu: usize,
    /// The number of the thread.
    pub thread: u32,
    /// Its data file.
    pub data: PathBuf,
    /// The file beside it (graph).
    pub side: PathBuf,
}

/// What a trace directory says about itself.
#[derive(Debug)]
pub struct TraceDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// The vCPUs.
    pub tasks: Vec<Task>,
    /// The functions' names.
    pub names: Names,
    /// The side file, where there is one.
    pub side: Option<SideFile>,
    /// What the values of calls are.
    pub values: Arc<CallFormats>,
    /// What is to be said of one that is not whole, as far as that is known.
    pub remark: Option<String>,
    /// Whether that is because it is damaged, or was cut where no run leaves it that is killed.
    pub is_damaged: bool,
    /// Data files that are not among its tasks.
    pub unlisted: Option<Unlisted>,
    /// Records of the guest that the file has which it was put together from.
    pub records: Option<u64>,
    /// Where that was done, until this is gone.
    _scratch: Option<Arc<Scratch>>,
}

impl TraceDirectory {
    /// Reads everything but the events. A compact trace is put together first, in the directory for temporary files.
    ///
    /// # Errors
    /// A [`ReportError`] that names the file.
    pub fn open(directory: &Path) -> Result<Self, ReportError> {
        Self::open_within(directory, None)
    }

    /// The same; a compact trace is put together in a directory below `room`, if that is given.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(directory: &Path, room: Option<&Path>) -> Result<Self, ReportError> {
        std::fs::read_dir(directory)
            .map_err(ReportError::io("open the trace directory", directory))?;
        // Asked first: a trace that is completed meanwhile is read as a whole.
        let writer = writer_of(directory);
        let mut trace = match compact::is_compact(directory) {
            true => Self::of_compact(directory, room)?,
            false => Self::of_uftrace(directory)?,
        };
        if !trace.is_damaged {
            trace.remark = trace.unfinished(writer);
            trace.miss_unlisted();
        }
        Ok(trace)
    }

    /// A compact one, put together.
    fn of_compact(directory: &Path, room: Option<&Path>) -> Result<Self, ReportError> {
        let scratch = Scratch::make(room)?;
        let path = scratch.trace();
        let replayed = compact::convert(directory, &path, false, &Watch::default());
        let replayed = replayed.map_err(|error| scratch.failed(error))?;
        let trace = Self::of_uftrace(&path)?;
        Ok(Self {
            is_damaged: replayed.is_damaged,
            records: Some(replayed.records),
            remark: replayed.remark.filter(|_| replayed.is_damaged),
            _scratch: Some(Arc::new(scratch)),
            ..trace
        })
    }

    /// Of one that was completed it is known how much is missing for that, and somebody else's may have such files.
    fn miss_unlisted(&mut self) {
        if let Some((remark, unlisted)) = self.remark.as_mut().zip(self.unlisted.as_ref()) {
            *remark = format!("{remark}; {unlisted}: their calls are not shown");
            self.is_damaged = true;
        }
    }

    /// What is to be said of a trace that was not completed; its `writer` was asked for before the trace was opened.
    fn unfinished(&self, writer: Option<String>) -> Option<String> {
        let cut = match &self.side {
            Some(side) if side.finished => return None,
            Some(side) => side.cut.as_deref(),
            // Who wrote it has told more of each record than anybody else does.
            None if self.tasks.iter().any(|task| task.side.exists()) => {
                return Some(format!(
                    "{SIDE_FILE} is missing, which says what the trace is: all threads are shown as vCPUs, without returns, and what was lost is not known"
                ));
            }
            // It is not of ours, or whoever began it was killed at once.
            None => has_lock(&self.path).then_some(None)?,
        };
        // What is in a file may be anything.
        let cut = cut.map_or("its end may be missing".into(), masked);
        Some(match writer {
            Some(writer) => format!(
                "the trace is being written by {writer}: what has not been written yet is not shown"
            ),
            None => format!("the trace was not ended in order: {cut}"),
        })
    }

    fn of_uftrace(directory: &Path) -> Result<Self, ReportError> {
        check_info(&directory.join("info"))?;
        let side = read_side(&directory.join(SIDE_FILE))?;
        let files = DataFiles::of(directory);
        let (tasks, session) = read_tasks(directory, side.is_some())?;
        let unlisted = files.without(tasks.iter().map(|task| &*task.data));
        let names = match session {
            Some(session) => read_names(directory, &session)?,
            None => Names::default(),
        };
        let values = match side.as_ref().is_some_and(|side| side.metadata.callers) {
            true => CallFormats::callers(),
            false => read_values(&directory.join(VALUES_FILE))?,
        };
        Ok(Self {
            path: directory.to_owned(),
            tasks,
            names,
            side,
            values: Arc::new(values),
            remark: None,
            is_damaged: false,
            unlisted,
            records: None,
            _scratch: None,
        })
    }

    /// The probes that the trace has hits of.
    ///
    /// # Errors
    /// A [`ReportError`] that names their file.
    pub fn probes(&self) -> Result<Vec<ProbeNote>, ReportError> {
        let path = self.path.join(PROBES_FILE);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let probes = serde_json::from_str(&read_text(&path)?);
        probes.map_err(|error| ReportError::damaged(&path, error.to_string()))
    }

    /// The arguments of a call of the function at `address`, where they were captured: each with its name.
    pub fn arguments<'a>(
        &'a self,
        address: u64,
        entry: &'a Event,
    ) -> impl Iterator<Item = (&'a str, &'a FieldValue)> {
        let fields = self.values.fields(address, Moment::Entry);
        let names = fields.unwrap_or_default().iter().map(|field| &*field.name);
        names.zip(entry.values.as_deref().unwrap_or_default())
    }

    /// The same as `a=1, b=2`.
    #[must_use]
    pub fn args(&self, address: u64, entry: &Event) -> String {
        let shown = self.arguments(address, entry);
        // What is in a file may be anything.
        let shown = shown.map(|(name, value)| format!("{}={value}", masked(name)));
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// Function names by address (the low 48 bits).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Names(HashMap<u64, String>);

impl TraceDirectory {
    /// Whether the trace holds entries and exits of threads.
    #[must_use]
    pub fn is_graph(&self) -> bool {
        self.side
            .as_ref()
            .is_some_and(|side| side.metadata.is_graph())
    }

    /// Why it cannot be asked for this, which needs calls with their ends.
    #[must_use]
    pub fn is_no_graph(&self, what: &'static str) -> ReportError {
        ReportError::no_graph(what, &self.path, self.side.is_some())
    }

    /// Whether it says of each call where it was made, and is no graph.
    #[must_use]
    pub fn has_callers(&self) -> bool {
        let side = self.side.as_ref();
        side.is_some_and(|side| side.metadata.callers)
    }

    /// Whether it says of each call who made it.
    #[must_use]
    pub fn knows_callers(&self) -> bool {
        self.is_graph() || self.has_callers()
    }

    /// Whether it is known that no record of a call is missing, before any is read.
    #[must_use]
    pub fn has_lost_nothing(&self) -> bool {
        let side = self.side.as_ref().filter(|side| side.finished);
        side.is_some_and(|side| {
            let mut missing = side.totals.iter().map(|vcpu| vcpu.lost.max(vcpu.dropped));
            side.dropped == 0 && missing.all(|count| count == 0)
        })
    }

    /// Records that are missing and of which no record says so.
    #[must_use]
    pub fn unsaid(&self) -> u64 {
        self.side.as_ref().map_or(0, |side| side.unsaid)
    }

    /// The period of the clock that the times are from, where it does not tell every nanosecond.
    #[must_use]
    pub fn clock_period_ns(&self) -> Option<u64> {
        self.side.as_ref()?.metadata.clock_period_ns
    }

    /// Whether records have times. Without them order is all that is known.
    #[must_use]
    pub fn has_times(&self) -> bool {
        let clock = self.side.as_ref().map(|side| &side.metadata.clock);
        clock.is_none_or(|clock| clock.as_str() != NO_CLOCK)
    }

    /// When something was that a record of the guest's tells; nothing where records have no times: what stands in their
    /// place is when a thread or a ring began, of all alike.
    #[must_use]
    pub fn time_of_record(&self, time_ns: u64) -> Option<u64> {
        self.has_times().then_some(time_ns)
    }

    /// When an event was: what the host did has times always.
    #[must_use]
    pub fn time_of_event(&self, event: &EventLine) -> Option<u64> {
        match event.is_of_host {
            true => Some(event.time_ns),
            false => self.time_of_record(event.time_ns),
        }
    }

    /// Whether it has anything that the host did.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn has_host_events(&self) -> Result<bool, ReportError> {
        Ok(EventReader::of_host(&self.path)?.peek().is_some())
    }
}

impl Names {
    /// Addresses and names, in the order of addresses.
    #[must_use]
    pub fn sorted(&self) -> Vec<(u64, &str)> {
        let names = self.0.iter().map(|(address, name)| (*address, &**name));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    }

    /// The names alone, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.values().map(String::as_str)
    }

    /// What is to be said of each of these globs that no name matches: with others beside it, it would be missed by nobody.
    pub(super) fn unmatched<'a>(&self, globs: impl Iterator<Item = &'a Pattern>) -> Vec<String> {
        let is_there = |glob: &&Pattern| self.all().any(|name| glob.matches_name(name));
        let unmatched = globs.filter(|glob| !is_there(glob));
        let said = unmatched.map(|glob| {
            let near = did_you_mean(&nearest(glob.text(), self.all(), NEAR_MISSES));
            format!("no function of the guest matches '{}'{near}", glob.text())
        });
        said.collect()
    }

    /// The name of the function at this address, or the address.
    #[must_use]
    pub fn name(&self, address: u64) -> Cow<'_, str> {
        match self.0.get(&address) {
            Some(name) => name.as_str().into(),
            None => format!("{:#x}", canonical(address)).into(),
        }
    }
}

fn read_text(path: &Path) -> Result<String, ReportError> {
    let failed = || ReportError::io("read", path);
    let mut bytes = Vec::new();
    open_file(path)
        .map_err(failed())?
        .take(MAX_TEXT)
        .read_to_end(&mut bytes)
        .map_err(failed())?;
    if bytes.len() as u64 == MAX_TEXT {
        return Err(ReportError::damaged(
            path,
            format!("more than {MAX_TEXT} bytes"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| ReportError::damaged(path, "not text"))
}

fn check_info(path: &Path) -> Result<(), ReportError> {
    if !path.exists() {
        return Err(ReportError::damaged(path, "no such file"));
    }
    let mut start = [0; INFO_START.len()];
    let mut file = open_file(path).map_err(ReportError::io("open", path))?;
    if file.read_exact(&mut start).is_err() {
        return Err(ReportError::damaged(path, "shorter than its header"));
    }
    if start != INFO_START {
        let problem = "not the header of a 64-bit uftrace trace, version 4";
        return Err(ReportError::damaged(path, problem));
    }
    Ok(())
}

/// The tasks, and the session of the first. Where the trace `is_ours`, tasks are vCPUs or threads; one before them there is
/// for uftrace alone.
fn read_tasks(directory: &Path, is_ours: bool) -> Result<(Vec<Task>, Option<String>), ReportError> {
    let path = directory.join("task.txt");
    let text = read_text(&path)?;
    // Of a trace that is being written the last line may be there in part.
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let text = text.get(..whole).unwrap_or_default();
    let mut tasks = Vec::new();
    let mut known = BTreeSet::new();
    let mut session = None;
    for line in text.lines() {
        if line.starts_with("SESS ") && session.is_none() {
            session = field(line, "sid").map(str::to_owned);
        }
        let key = match line.split_once(' ') {
            Some(("TASK", _)) => Some("tid"),
            Some(("FORK", _)) => Some("pid"),
            _ => None,
        };
        if let Some(key) = key {
            let tid = field(line, key).and_then(|tid| tid.parse::<u32>().ok());
            let tid = tid.ok_or_else(|| ReportError::damaged(&path, "a task without tid"))?;
            // One that is listed twice has one file.
            if (is_ours && tid < FIRST_TID) || !known.insert(tid) {
                continue;
            }
            if tasks.len() == MAX_TASKS {
                let most = format!("more than {MAX_TASKS} tasks");
                return Err(ReportError::damaged(&path, most));
            }
            tasks.push(Task {
                vcpu: tasks.len(),
                thread: tid.saturating_sub(FIRST_TID),
                data: directory.join(format!("{tid}.dat")),
                side: directory.join(format!("{tid}.side")),
            });
        }
    }
    Ok((tasks, session))
}

/// The value of `key=value` in a line of words.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Names through the map of a session: where the image lies, and what it is called.
fn read_names(directory: &Path, session: &str) -> Result<Names, ReportError> {
    if !session.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ReportError::damaged(
            &directory.join("task.txt"),
            "a session without number",
        ));
    }
    let path = directory.join(format!("sid-{session}.map"));
    let text = read_text(&path)?;
    let first = text.lines().next().and_then(parse_map);
    let (base, module) = first.ok_or_else(|| ReportError::damaged(&path, "no image in it"))?;
    read_symbols(&directory.join(format!("{module}.sym")), base)
}

/// The start address and the name in a line of a map.
fn parse_map(line: &str) -> Option<(u64, &str)> {
    let (start, _) = line.split_once('-')?;
    let module = line.split_ascii_whitespace().nth(5)?;
    // A name, not a way out of the directory.
    let is_plain = !module.contains(|char: char| char == '/' || char.is_control());
    let is_name = !module.starts_with(['.', '[']) && is_plain;
    is_name.then_some((u64::from_str_radix(start, 16).ok()?, module))
}

fn read_symbols(path: &Path, base: u64) -> Result<Names, ReportError> {
    let text = read_text(path)?;
    let mut names = HashMap::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.starts_with('#'))
    {
        let (address, name) = parse_symbol(line).ok_or_else(|| {
            ReportError::damaged(path, format!("line {} is no symbol", number + 1))
        })?;
        if name == NO_CALLS {
            continue;
        }
        // Of several names for one address, the first: the list is sorted.
        names
            .entry(base.wrapping_add(address))
            .or_insert_with(|| masked(&cut(name, NAME_MAX)).into_owned());
    }
    Ok(Names(names))
}

fn parse_symbol(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let (_, name) = rest.split_once(' ')?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// What the values of calls are; nothing where there are none.
fn read_values(path: &Path) -> Result<CallFormats, ReportError> {
    if !path.exists() {
        return Ok(CallFormats::default());
    }
    CallFormats::parse(&read_text(path)?).map_err(|why| ReportError::damaged(path, why))
}

/// What every version of the side file has.
#[derive(Deserialize)]
struct OfVersion {
    version: u32,
}

fn read_side(path: &Path) -> Result<Option<SideFile>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = read_text(path)?;
    // First: what else is in another version may be of another form.
    let version = serde_json::from_str::<OfVersion>(&text);
    if let Some(found) = version
        .ok()
        .map(|side| side.version)
        .filter(|one| *one != VERSION)
    {
        let path = path.to_owned();
        return Err(ReportError::Version { path, found });
    }
    let side = serde_json::from_str(&text);
    side.map(Some)
        .map_err(|error| ReportError::damaged(path, error.to_string()))
}
