//! One vCPU's events in the pages of the kernel's ring buffer, as they lie in a trace.dat (trace-cmd.dat.v6(5), and
//! `kernel/trace/ring_buffer.c` of Linux for what is in a page).
//!
//! ```text
//!  0  u64  time of the first event
//!  8  u64  bytes of events; bit 31: some were lost before these, bit 30: how many stands after them
//! 16       events: u32 (type or length in words : 5, nanoseconds since the one before : 27), then their bytes
//! ```

use std::io::{self, Write};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes before the events.
const HEAD: usize = 16;
/// Some were lost before the events of this page.
const MISSED: u64 = 1 << 31;
/// How many stands after them.
const MISSED_STORED: u64 = 1 << 30;
/// The type of what makes a time of more than 27 bits.
const TIME_EXTEND: u32 = 30;
/// The type of what is no event.
const PADDING: u32 = 29;
/// The type of a time as a whole, but for its highest bits.
const TIME_STAMP: u32 = 31;
const STAMP: u64 = (1 << 59) - 1;
/// Bytes of events.
const LENGTH: u64 = (1 << 20) - 1;
const TIME_BITS: u32 = 27;
/// The most bytes whose number stands in the type.
const SHORT: usize = 28 * 4;
/// The most bytes of an event that fits into every page.
pub(super) const EVENT_MAX: usize = 2048;

/// The pages of one vCPU.
#[derive(Debug)]
pub(super) struct Pages<W> {
    out: W,
    /// The events of the page that is being filled.
    events: Vec<u8>,
    begin_ns: u64,
    last_ns: u64,
    /// Events that were lost before these.
    lost: u64,
    /// Pages that are full.
    count: u64,
}

impl<W: Write> Pages<W> {
    pub const fn new(out: W) -> Self {
        Self {
            out,
            events: Vec::new(),
            begin_ns: 0,
            last_ns: 0,
            lost: 0,
            count: 0,
        }
    }

    /// Adds an event of at most [`EVENT_MAX`] bytes; those of one vCPU come in the order of time.
    pub fn add(&mut self, time_ns: u64, bytes: &[u8]) -> io::Result<()> {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        let length = bytes.len() + padding;
        // The longest that it can be: with a time of its own, and a length of its own.
        let most = 8 + 8 + length;
        let room = PAGE - HEAD - if self.lost > 0 { 8 } else { 0 };
        if self.events.len() + most > room {
            self.flush()?;
        }
        let delta = match self.events.is_empty() {
            true => {
                self.begin_ns = time_ns.max(self.last_ns);
                0
            }
            false => time_ns.saturating_sub(self.last_ns),
        };
        self.last_ns = self.last_ns.max(time_ns);
        let (low, high) = (delta & ((1 << TIME_BITS) - 1), delta >> TIME_BITS);
        if high > 0 {
            self.word(TIME_EXTEND | low32(low) << 5);
            self.word(low32(high));
        }
        let low = if high > 0 { 0 } else { low32(low) };
        let words = u32::try_from(length / 4).unwrap_or(u32::MAX);
        if length <= SHORT && length > 0 {
            self.word(words | low << 5);
        } else {
            self.word(low << 5);
            self.word(words.saturating_add(1).saturating_mul(4));
        }
        self.events.extend(bytes);
        self.events.resize(self.events.len() + padding, 0);
        Ok(())
    }

    fn word(&mut self, word: u32) {
        self.events.extend(word.to_le_bytes());
    }

    /// So many events were lost after what was added.
    pub fn lost(&mut self, count: u64) -> io::Result<()> {
        if count > 0 && !self.events.is_empty() {
            self.flush()?;
        }
        self.lost = self.lost.saturating_add(count);
        Ok(())
    }

    /// Events that were lost after all that was added so far, and when that ended.
    pub const fn lost_at_end(&self) -> (u64, u64) {
        let lost = if self.events.is_empty() { self.lost } else { 0 };
        (lost, self.last_ns)
    }

    fn flush(&mut self) -> io::Result<()> {
        let lost = std::mem::take(&mut self.lost);
        let flags = if lost > 0 { MISSED | MISSED_STORED } else { 0 };
        let mut page = Vec::with_capacity(PAGE);
        page.extend(self.begin_ns.to_le_bytes());
        page.extend((self.events.len() as u64 | flags).to_le_bytes());
        page.append(&mut self.events);
        if lost > 0 {
            page.extend(lost.to_le_bytes());
        }
        page.resize(PAGE, 0);
        self.count += 1;
        self.out.write_all(&page)
    }

    /// Writes what is left; returns where, and how many bytes.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        if !self.events.is_empty() {
            self.flush()?;
        }
        self.out.flush()?;
        Ok((self.out, self.count * PAGE as u64))
    }
}

/// Has `to` see the events of a page, each with its time and its bytes, of which those that fill up the last word are some.
/// Returns how many were lost before the first: at least one where their number is not told. What does not look like a page
/// has no events from there on.
pub fn events(page: &[u8], mut to: impl FnMut(u64, &[u8])) -> u64 {
    let Some((time, rest)) = page.split_first_chunk() else {
        return 0;
    };
    let Some((commit, data)) = rest.split_first_chunk() else {
        return 0;
    };
    let (mut time, commit) = (u64::from_le_bytes(*time), u64::from_le_bytes(*commit));
    let length = usize::try_from(commit & LENGTH).unwrap_or(usize::MAX);
    let (mut events, after) = data.split_at_checked(length).unwrap_or((data, &[]));
    let lost = match (commit & MISSED, commit & MISSED_STORED, after) {
        (0, ..) => 0,
        (_, 0, _) => 1,
        (_, _, after) => after
            .first_chunk()
            .map_or(1, |count| u64::from_le_bytes(*count)),
    };
    while let Some((kind, delta)) = word(&mut events).map(|word| (word & 31, u64::from(word >> 5)))
    {
        let body = match kind {
            TIME_EXTEND | TIME_STAMP => {
                let Some(high) = word(&mut events) else { break };
                let whole = u64::from(high) << TIME_BITS | delta;
                time = match kind {
                    TIME_EXTEND => time.wrapping_add(whole),
                    // The highest bits of a time are in no event of its own.
                    _ => time & !STAMP | whole & STAMP,
                };
                continue;
            }
            // Nothing comes after it.
            PADDING if delta == 0 => break,
            PADDING | 0 => {
                time = time.wrapping_add(delta);
                let bytes = word(&mut events).and_then(|length| length.checked_sub(4));
                bytes.map_or(usize::MAX, |bytes| bytes as usize)
            }
            words => {
                time = time.wrapping_add(delta);
                words as usize * 4
            }
        };
        let Some((bytes, rest)) =
            events.split_at_checked(body.checked_next_multiple_of(4).unwrap_or(usize::MAX))
        else {
            break;
        };
        if kind != PADDING {
            to(time, bytes.get(..body).unwrap_or(bytes));
        }
        events = rest;
    }
    lost
}

fn word(from: &mut &[u8]) -> Option<u32> {
    let (word, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u32::from_le_bytes(*word))
}

/// What is known to have no more bits.
fn low32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn u64_at(page: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
    }

    /// What is in pages: losses before, times and bytes.
    fn read(pages: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let mut found = Vec::new();
        for page in pages.chunks(PAGE) {
            assert_eq!(page.len(), PAGE);
            let mut lost = events(page, |time, bytes| found.push((0, time, bytes.to_vec())));
            let first = u64_at(page, 8) & LENGTH;
            assert!(first > 0, "no page is empty");
            // They were lost before the first of this page.
            let count = found.len() - in_page(page);
            found[count].0 = std::mem::take(&mut lost);
        }
        found
    }

    fn in_page(page: &[u8]) -> usize {
        let mut count = 0;
        events(page, |_, _| count += 1);
        count
    }

    proptest! {
        #[test]
        fn what_is_added_is_read(
            events in prop::collection::vec(
                (prop::sample::select(vec![0u64, 1, 1 << 20, (1 << 27) - 1, 1 << 27, 1 << 40]),
                 prop::sample::select(vec![0usize, 4, 24, 40, 112, 116, EVENT_MAX]),
                 prop::sample::select(vec![0u64, 0, 0, 7]), any::<u8>()),
                0..200),
        ) {
            let mut pages = Pages::new(Vec::new());
            let (mut time, mut expected, mut lost) = (5, Vec::new(), 0);
            for (delta, length, losses, byte) in events {
                pages.lost(losses).unwrap();
                lost += losses;
                time += delta;
                let bytes = vec![byte; length];
                pages.add(time, &bytes).unwrap();
                expected.push((lost, time, bytes));
                lost = 0;
            }
            let (out, length) = pages.finish().unwrap();
            prop_assert_eq!(out.len() as u64, length);
            prop_assert_eq!(read(&out), expected);
        }
    }

    #[test]
    fn what_is_lost_at_the_end_is_known_until_something_comes_after_it() {
        let mut pages = Pages::new(Vec::new());
        assert_eq!(pages.lost_at_end(), (0, 0));
        pages.add(7, &[1]).unwrap();
        pages.lost(3).unwrap();
        pages.lost(2).unwrap();
        assert_eq!(pages.lost_at_end(), (5, 7));
        pages.add(6, &[2]).unwrap();
        assert_eq!(pages.lost_at_end(), (0, 7));
        let (out, _) = pages.finish().unwrap();
        let expected = [(0, 7, vec![1, 0, 0, 0]), (5, 7, vec![2, 0, 0, 0])];
        assert_eq!(read(&out), expected, "time does not go back");
    }

    /// As Linux writes them: a time as a whole, filling, and events that are thrown away.
    #[test]
    fn times_as_a_whole_and_what_is_no_event_are_understood() {
        let words: &[u32] = &[
            // A time of which the highest bits stay.
            TIME_STAMP | 5 << 5,
            1,
            1 | 2 << 5,
            0xaaaa,
            // Thrown away: it has taken its time all the same.
            PADDING | 3 << 5,
            12,
            0,
            0,
            // Of eight bytes, by a length of its own.
            4 << 5,
            12,
            0xbbbb,
            0xcccc,
            // What looks like an event that is thrown away, and one after it.
            PADDING,
            8,
            0,
            1 | 2 << 5,
            0xdddd,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let of = |flags: u64, after: &[u8]| {
            let commit = (bytes.len() as u64 | flags).to_le_bytes();
            [
                &((3u64 << 60) + 9).to_le_bytes(),
                &commit,
                &bytes[..],
                after,
            ]
            .concat()
        };
        let read = |page: &[u8]| {
            let mut found = Vec::new();
            let lost = events(page, |time, bytes| found.push((time, bytes.to_vec())));
            (lost, found)
        };
        let at = (3 << 60) | (1 << TIME_BITS | 5);
        let eight = [0xbb, 0xbb, 0, 0, 0xcc, 0xcc, 0, 0].to_vec();
        let expected = vec![(at + 2, vec![0xaa, 0xaa, 0, 0]), (at + 9, eight)];
        assert_eq!(read(&of(0, &[])), (0, expected.clone()));
        assert_eq!(read(&of(MISSED, &[9; 8])), (1, expected.clone()));
        let counted = of(MISSED | MISSED_STORED, &7u64.to_le_bytes());
        assert_eq!(read(&counted), (7, expected));
        // Cut anywhere, or with a length that is not so, it is read as far as it goes.
        for end in 0..counted.len() {
            let (_, found) = read(&counted[..end]);
            assert!(found.len() <= 2);
        }
    }

    proptest! {
        #[test]
        fn anything_can_be_read(page in prop::collection::vec(any::<u8>(), 0..300)) {
            events(&page, |_, bytes| assert!(bytes.len() <= 300));
        }
    }
}
