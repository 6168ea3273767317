//! One data file of a trace, read record by record. Nothing in it is trusted.

use std::io::{self, Read};
use std::path::PathBuf;
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
