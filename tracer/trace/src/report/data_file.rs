//! One data file of a trace, read record by record. Nothing in it is trusted.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::Task;
use super::error::ReportError;
use crate::as_found::{self, AsFound};
use crate::event::{Moment, Values};
use crate::export::call_formats::CallFormats;
use crate::export::uftrace::record::{Kind, RECORD_LENGTH, Record};

/// One data file.
#[derive(Debug)]
pub(super) struct DataFile {
    path: PathBuf,
    file: AsFound,
    offset: u64,
    /// What stands after records.
    values: Arc<CallFormats>,
}

/// What comes next in a file.
pub(super) enum Next {
    Record(Record, Option<Values>),
    End,
    /// The file ends in the middle of a record, with that many bytes of it.
    Torn(usize),
}

impl DataFile {
    pub fn open(task: &Task, values: &Arc<CallFormats>) -> Result<Self, ReportError> {
        let file = as_found::open(&task.data).map_err(ReportError::io("open", &task.data))?;
        Ok(Self {
            path: task.data.clone(),
            file,
            offset: 0,
            values: Arc::clone(values),
        })
    }

    pub fn next(&mut self) -> Result<Next, ReportError> {
        let mut bytes = [0; RECORD_LENGTH];
        let length =
            read_up_to(&mut self.file, &mut bytes).map_err(ReportError::io("read", &self.path))?;
        match length {
            0 => return Ok(Next::End),
            RECORD_LENGTH => {}
            part => return Ok(Next::Torn(part)),
        }
        let offset = self.offset;
        self.offset += RECORD_LENGTH as u64;
        let bad = || ReportError::BadRecord {
            path: self.path.clone(),
            offset,
            bytes,
        };
        let record = Record::unpack(bytes).ok_or_else(bad)?;
        if !record.has_values {
            return Ok(Next::Record(record, None));
        }
        let moment = match record.kind {
            Kind::Entry => Moment::Entry,
            Kind::Exit => Moment::Exit,
            Kind::Lost | Kind::Event => return Err(bad()),
        };
        let read = self.values.decode(record.value, moment, &mut self.file);
        match read {
            Ok(Some((values, length))) => {
                self.offset += length as u64;
                Ok(Next::Record(record, Some(values)))
            }
            Ok(None) => Err(bad()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Ok(Next::Torn(RECORD_LENGTH))
            }
            Err(error) => Err(ReportError::io("read", &self.path)(error)),
        }
    }
}

/// When the last record of a task was, as far as its file can be read, without those before it where each has the same length.
/// Of a pipe, which can be read once, nobody knows that.
pub(super) fn last_ns(task: &Task, values: &Arc<CallFormats>) -> Option<u64> {
    let told = fs::metadata(&task.data).ok()?;
    if !told.is_file() {
        return None;
    }
    let last = values.is_empty().then(|| last_record(&task.data, &told));
    if let Some(last) = last.and_then(|last| last.ok().flatten()) {
        return Some(last.time);
    }
    let mut file = DataFile::open(task, values).ok()?;
    let mut last_ns = None;
    while let Ok(Next::Record(record, _)) = file.next() {
        last_ns = last_ns.max(Some(record.time));
    }
    last_ns
}

/// The last record that is whole of a file of nothing but records.
fn last_record(path: &Path, told: &Metadata) -> io::Result<Option<Record>> {
    let records = told.len() / RECORD_LENGTH as u64;
    let Some(before) = records.checked_sub(1) else {
        return Ok(None);
    };
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(before * RECORD_LENGTH as u64))?;
    let mut bytes = [0; RECORD_LENGTH];
    file.read_exact(&mut bytes)?;
    Ok(Record::unpack(bytes))
}

/// Reads until `into` is full or the file ends.
fn read_up_to(file: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = into.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
