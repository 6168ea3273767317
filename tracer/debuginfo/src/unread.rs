//! Why debug information that a file has is not read.

/// What is in the way. How much is made of a file is limited in proportion to what it has, with room for every kernel that
/// there is: what exceeds it was made to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// Compressed in a way that is not known here.
    #[error(
        "{section} is compressed with {}, which is not supported: objcopy (binutils), told to decompress debug sections, writes a file \
         that can be read",
        say_compression(*.kind)
    )]
    Compression {
        /// The section.
        section: &'static str,
        /// The number that ELF has for it.
        kind: u32,
    },
    /// Compressed, but not in such a way that it can be unpacked.
    #[error("{section} is damaged: it is compressed, and cannot be unpacked")]
    Packed {
        /// The section.
        section: &'static str,
    },
    /// Sections that unpack to far more than the file has.
    #[error(
        "its sections together unpack to more than {limit} bytes, the most that is believed of a file of this size"
    )]
    Unpacked {
        /// The most that is believed.
        limit: u64,
    },
    /// More code than there can be.
    #[error(
        "it lists more than {limit} ranges of code, the most that is believed of so much debug information"
    )]
    Ranges {
        /// The most that is believed.
        limit: u64,
    },
    /// Tables that lie over each other.
    #[error(
        "the abbreviations of its units together are longer than {limit} bytes, the most that is believed of so much debug information"
    )]
    Abbreviations {
        /// The most that is believed.
        limit: u64,
    },
    /// Names without an end.
    #[error(
        "the names in it together are longer than {limit} bytes, the most that is believed of so much debug information"
    )]
    Names {
        /// The most that is believed.
        limit: u64,
    },
}

fn say_compression(kind: u32) -> String {
    match kind {
        2 => "zstd".to_owned(),
        kind => format!("an unknown method ({kind})"),
    }
}
