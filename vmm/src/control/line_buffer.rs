//! Lines out of a byte stream, with a limit.

/// Longest line, its newline not included.
pub const LINE_MAX: usize = 64 << 10;

/// Bytes received that are no whole line yet.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Bytes in which no newline was found.
    searched: usize,
}

/// What the buffer has to give.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// A line without its newline.
    Line(Vec<u8>),
    /// More than [`LINE_MAX`] bytes without a newline: there is no way to continue.
    TooLong,
    /// Nothing until more arrives.
    Nothing,
}

impl LineBuffer {
    /// Appends what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Nothing more arrives: what is left is the last line.
    pub fn end(&mut self) {
        if !self.bytes.is_empty() {
            self.bytes.push(b'\n');
        }
    }

    /// Whether [`LineBuffer::take`] would give something.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let unseen = self.bytes.get(self.searched..).unwrap_or_default();
        unseen.contains(&b'\n') || self.bytes.len() > LINE_MAX
    }

    /// Takes the next line.
    pub fn take(&mut self) -> Taken {
        let unseen = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(offset) = unseen.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched > LINE_MAX {
                Taken::TooLong
            } else {
                Taken::Nothing
            };
        };
        let end = self.searched + offset;
        self.searched = 0;
        let rest = self.bytes.split_off((end + 1).min(self.bytes.len()));
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(end);
        if line.len() > LINE_MAX {
            return Taken::TooLong;
        }
        Taken::Line(line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_a_line_waits_for_the_rest() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"{\"a\"");
        assert_eq!(buffer.take(), Taken::Nothing);
        buffer.push(b":1}\n\nx");
        assert_eq!(buffer.take(), Taken::Line(b"{\"a\":1}".to_vec()));
        assert_eq!(buffer.take(), Taken::Line(Vec::new()));
        assert_eq!(buffer.take(), Taken::Nothing);
    }

    #[test]
    fn the_end_ends_a_line() {
        let mut buffer = LineBuffer::default();
        buffer.end();
        assert_eq!(buffer.take(), Taken::Nothing);
        buffer.push(b"a\nb");
        buffer.end();
        assert_eq!(buffer.take(), Taken::Line(b"a".to_vec()));
        assert_eq!(buffer.take(), Taken::Line(b"b".to_vec()));
        assert_eq!(buffer.take(), Taken::Nothing);
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; LINE_MAX]);
        assert_eq!(buffer.take(), Taken::Nothing);
        buffer.push(b"x");
        assert_eq!(buffer.take(), Taken::TooLong);
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; LINE_MAX + 1]);
        buffer.push(b"\n");
        assert_eq!(buffer.take(), Taken::TooLong);
    }

    proptest! {
        #[test]
        fn however_a_stream_is_cut_the_lines_are_the_same(
            text in "[a-c\n]{0,200}",
            cuts in proptest::collection::vec(0usize..200, 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            cuts.push(text.len());
            let (mut buffer, mut lines, mut from) = (LineBuffer::default(), Vec::new(), 0);
            for cut in cuts {
                buffer.push(&text.as_bytes()[from..cut]);
                from = cut;
                while let Taken::Line(line) = buffer.take() {
                    lines.push(String::from_utf8(line).unwrap());
                }
            }
            let mut expected: Vec<&str> = text.split('\n').collect();
            expected.pop();
            prop_assert_eq!(lines, expected);
        }
    }
}
