//! One table: rows are gathered, and written a group at a time, column by column.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::ColumnPath;

/// Rows of a group: what is held in memory.
const GROUP: usize = 1 << 16;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers that grow: the difference to the one before is kept.
    Rising,
    /// Numbers.
    Number,
    /// Text, of which there are few different ones.
    Text,
}

/// A column: its name, what it holds, and whether a row can have nothing there.
pub(super) type Column = (&'static str, Kind, Presence);

/// Whether each row has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    Sometimes,
}

/// A value of a row, in the order of the columns.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    Nothing,
    Number(u64),
    Text(ByteArray),
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<u64>> for Cell {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Nothing, Self::Number)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Option<ByteArray>> for Cell {
    fn from(text: Option<ByteArray>) -> Self {
        text.map_or(Self::Nothing, Self::Text)
    }
}

/// The values of a column that wait.
#[derive(Debug, Default)]
struct Waiting {
    numbers: Vec<i64>,
    texts: Vec<ByteArray>,
    /// 1 where a row has a value, 0 where it has none.
    levels: Vec<i16>,
}

/// Writes one table.
#[derive(Debug)]
pub(super) struct Table {
    writer: SerializedFileWriter<File>,
    columns: &'static [Column],
    waiting: Vec<Waiting>,
    rows: usize,
}

impl Table {
    /// A file that is made at `path`.
    pub fn create(path: &Path, name: &str, columns: &'static [Column]) -> io::Result<Self> {
        let field = |(name, kind, presence): &Column| {
            let presence = match presence {
                Presence::Always => "REQUIRED",
                Presence::Sometimes => "OPTIONAL",
            };
            match kind {
                Kind::Rising | Kind::Number => format!("{presence} INT64 {name};"),
                Kind::Text => format!("{presence} BYTE_ARRAY {name} (STRING);"),
            }
        };
        let fields: String = columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message {name} {{ {fields} }}"));
        let rising = columns.iter().filter(|(_, kind, _)| *kind == Kind::Rising);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let properties = rising.fold(properties, |properties, (name, ..)| {
            properties
                .set_column_dictionary_enabled(ColumnPath::from(*name), false)
                .set_column_encoding(ColumnPath::from(*name), Encoding::DELTA_BINARY_PACKED)
        });
        let writer = SerializedFileWriter::new(
            File::create_new(path)?,
            Arc::new(schema.map_err(said)?),
            Arc::new(properties.build()),
        );
        Ok(Self {
            writer: writer.map_err(said)?,
            columns,
            waiting: columns.iter().map(|_| Waiting::default()).collect(),
            rows: 0,
        })
    }

    /// One more row.
    pub fn push<const N: usize>(&mut self, row: [Cell; N]) -> io::Result<()> {
        for (waiting, cell) in self.waiting.iter_mut().zip(row) {
            waiting.levels.push(match cell {
                Cell::Nothing => 0,
                Cell::Number(number) => {
                    // More than any time or count has.
                    waiting
                        .numbers
                        .push(i64::try_from(number).unwrap_or(i64::MAX));
                    1
                }
                Cell::Text(text) => {
                    waiting.texts.push(text);
                    1
                }
            });
        }
        self.rows += 1;
        if self.rows == GROUP {
            return self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group().map_err(said)?;
        for ((_, kind, presence), waiting) in self.columns.iter().zip(&mut self.waiting) {
            let Some(mut column) = group.next_column().map_err(said)? else {
                break;
            };
            let levels = (*presence == Presence::Sometimes).then_some(&*waiting.levels);
            match kind {
                Kind::Rising | Kind::Number => {
                    let to = column.typed::<Int64Type>();
                    to.write_batch(&waiting.numbers, levels, None)
                }
                Kind::Text => {
                    let to = column.typed::<ByteArrayType>();
                    to.write_batch(&waiting.texts, levels, None)
                }
            }
            .map_err(said)?;
            column.close().map_err(said)?;
            waiting.numbers.clear();
            waiting.texts.clear();
            waiting.levels.clear();
        }
        group.close().map_err(said)?;
        self.rows = 0;
        Ok(())
    }

    /// Writes the rest.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.writer.close().map(drop).map_err(said)
    }
}

/// What the system has said, if it was that.
fn said(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
