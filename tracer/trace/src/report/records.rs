//! The records of all vCPUs, merged by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use super::directory::Task;
use super::error::ReportError;
use crate::event::{Moment, Values};
use crate::export::call_formats::CallFormats;
use crate::export::uftrace::record::{Kind, RECORD_LENGTH, Record};

/// Bytes read at a time from each file.
const BUFFER: usize = 64 << 10;

/// One data file.
#[derive(Debug)]
pub(super) struct DataFile {
    path: PathBuf,
    file: BufReader<File>,
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
        let file = File::open(&task.data).map_err(ReportError::io("open", &task.data))?;
        let file = BufReader::with_capacity(BUFFER, file);
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

/// The entries and losses of all vCPUs, in the order of time; at the same time, in the order of
/// the vCPUs.
#[derive(Debug)]
pub struct Records {
    files: Vec<(usize, DataFile)>,
    /// The next record of each file that has one, by time and place in `files`.
    heads: BinaryHeap<Reverse<(u64, usize, Head)>>,
    /// What was met after the last record, to be told after it.
    failure: Option<ReportError>,
    /// Remarks on what was met.
    pub notes: Vec<String>,
    /// Entries that were read.
    pub entries: u64,
}

/// An entry's address, or a count of lost records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Head {
    /// A function was entered; the low 48 bits of its address.
    Entry(u64),
    /// That many records were lost.
    Lost(u64),
}

impl Records {
    /// Opens the data files of these tasks.
    ///
    /// # Errors
    /// A [`ReportError`] that names the file.
    pub fn open(tasks: &[Task], values: &Arc<CallFormats>) -> Result<Self, ReportError> {
        let mut files = Vec::with_capacity(tasks.len());
        for task in tasks {
            files.push((task.vcpu, DataFile::open(task, values)?));
        }
        let mut records = Self {
            files,
            heads: BinaryHeap::new(),
            failure: None,
            notes: Vec::new(),
            entries: 0,
        };
        for index in 0..records.files.len() {
            records.advance(index)?;
        }
        Ok(records)
    }

    /// The next one: its vCPU, its time, what it says.
    ///
    /// # Errors
    /// [`ReportError::BadRecord`], and others that name the file.
    pub fn pop(&mut self) -> Result<Option<(usize, u64, Head)>, ReportError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Some(Reverse((time, index, head))) = self.heads.pop() else {
            return Ok(None);
        };
        let vcpu = self.files.get(index).map_or(0, |(vcpu, _)| *vcpu);
        self.failure = self.advance(index).err();
        Ok(Some((vcpu, time, head)))
    }

    /// Takes the next record of a file that is worth showing.
    fn advance(&mut self, index: usize) -> Result<(), ReportError> {
        let Some((_, file)) = self.files.get_mut(index) else {
            return Ok(());
        };
        loop {
            let record = match file.next()? {
                Next::Record(record, _) => record,
                Next::End => return Ok(()),
                Next::Torn(part) => {
                    let path = file.path.display();
                    self.notes
                        .push(format!("{path}: {part} bytes of a torn record at its end"));
                    return Ok(());
                }
            };
            let head = match record.kind {
                Kind::Entry => {
                    self.entries += 1;
                    Head::Entry(record.value)
                }
                Kind::Lost => Head::Lost(record.value),
                Kind::Exit | Kind::Event => continue,
            };
            self.heads.push(Reverse((record.time, index, head)));
            return Ok(());
        }
    }
}
