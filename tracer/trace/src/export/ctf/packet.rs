//! The events of one vCPU as packets of a stream (CTF 1.8.3, sections 5 and 6): each says when it begins and ends, and how
//! many records were lost on this vCPU until then.

use std::io::{self, Write};

/// At the start of each packet.
const MAGIC: u32 = 0xc1fc_1fc1;
/// Bytes before the events.
const HEAD: usize = 4 + 8 * 5 + 4;
/// A packet is closed when it has so many bytes of events.
const FULL: usize = 64 << 10;
/// Bytes of an event before what is its own: its number, and the low half of its time.
const EVENT_HEAD: usize = 6;

/// Bytes of an event of its own: what it carries.
#[derive(Debug, Default)]
pub(super) struct Payload(Vec<u8>);

impl Payload {
    pub fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Text up to its first zero, which no text here has.
    pub fn text(mut self, text: &str) -> Self {
        self.0.extend(text.bytes().take_while(|byte| *byte != 0));
        self.0.push(0);
        self
    }
}

/// The stream of one vCPU.
#[derive(Debug)]
pub(super) struct Stream<W> {
    out: W,
    vcpu: u16,
    events: Vec<u8>,
    begin_ns: u64,
    last_ns: u64,
    /// Records that were lost so far, and those that a packet has told of.
    lost: u64,
    told: u64,
    has_packets: bool,
}

impl<W: Write> Stream<W> {
    pub const fn new(out: W, vcpu: u16) -> Self {
        Self {
            out,
            vcpu,
            events: Vec::new(),
            begin_ns: 0,
            last_ns: 0,
            lost: 0,
            told: 0,
            has_packets: false,
        }
    }

    /// An event of this number; a time before the last one is taken for it.
    pub fn add(&mut self, time_ns: u64, number: u16, payload: &Payload) -> io::Result<()> {
        let time_ns = time_ns.max(self.last_ns);
        // An event has the low half of its time: a reader must not miss that it has begun anew.
        let is_far = time_ns - self.last_ns > u32::MAX.into();
        if is_far || self.events.len() + EVENT_HEAD + payload.0.len() > FULL {
            self.close()?;
        }
        if self.events.is_empty() {
            self.begin_ns = time_ns;
        }
        self.last_ns = time_ns;
        self.events.extend(number.to_le_bytes());
        self.events.extend(low_half(time_ns).to_le_bytes());
        self.events.extend(&payload.0);
        Ok(())
    }

    /// So many records were lost before the next event.
    pub fn lost(&mut self, time_ns: u64, count: u64) -> io::Result<()> {
        self.close()?;
        let time_ns = time_ns.max(self.last_ns);
        if !self.has_packets {
            // How much a stream has lost is the difference to the packet before.
            (self.begin_ns, self.last_ns) = (time_ns, time_ns);
            self.packet()?;
        }
        self.lost = self.lost.saturating_add(count);
        Ok(())
    }

    /// Writes what waits. What was lost after the last event has a packet without any.
    pub fn finish(mut self) -> io::Result<()> {
        if self.events.is_empty() && self.told != self.lost {
            self.begin_ns = self.last_ns;
            self.packet()?;
        }
        self.close()?;
        self.out.flush()
    }

    fn close(&mut self) -> io::Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        self.packet()
    }

    fn packet(&mut self) -> io::Result<()> {
        let bits = (HEAD + self.events.len()) as u64 * 8;
        let mut head = Vec::with_capacity(HEAD);
        head.extend(MAGIC.to_le_bytes());
        for number in [self.begin_ns, self.last_ns, bits, bits, self.lost] {
            head.extend(number.to_le_bytes());
        }
        head.extend(u32::from(self.vcpu).to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(&self.events)?;
        self.events.clear();
        (self.told, self.has_packets) = (self.lost, true);
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the other half is that of the event before"
)]
const fn low_half(time_ns: u64) -> u32 {
    time_ns as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begin, end, lost and bytes of events of each packet.
    fn packets(mut bytes: &[u8]) -> Vec<(u64, u64, u64, usize)> {
        let mut packets = Vec::new();
        while !bytes.is_empty() {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(bytes[..4], MAGIC.to_le_bytes());
            let length = usize::try_from(word(20) / 8).unwrap();
            assert_eq!(word(20), word(28));
            assert_eq!(bytes[44..48], [3, 0, 0, 0]);
            packets.push((word(4), word(12), word(36), length - HEAD));
            bytes = &bytes[length..];
        }
        packets
    }

    fn written(steps: impl FnOnce(&mut Stream<&mut Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut stream = Stream::new(&mut out, 3);
        steps(&mut stream).unwrap();
        stream.finish().unwrap();
        out
    }

    #[test]
    fn losses_stand_between_packets_and_at_both_ends() {
        let none = Payload::default();
        let out = written(|stream| {
            stream.lost(10, 2)?;
            stream.add(20, 7, &none)?;
            stream.add(30, 7, &none)?;
            stream.lost(40, 3)?;
            stream.lost(45, 1)?;
            stream.add(50, 7, &none)?;
            stream.lost(60, 5)
        });
        let expected = [
            (10, 10, 0, 0),
            (20, 30, 2, 12),
            (50, 50, 6, 6),
            (50, 50, 11, 0),
        ];
        assert_eq!(packets(&out), expected);
        assert!(written(|_| Ok(())).is_empty());
    }

    #[test]
    fn a_packet_ends_when_it_is_full_or_time_has_gone_far() {
        let long = Payload::default().text(&"x".repeat(40_000));
        let none = Payload::default();
        let far = 10 + (1 << 32);
        let out = written(|stream| {
            stream.add(5, 1, &long)?;
            stream.add(10, 1, &long)?;
            stream.add(far - 1, 1, &none)?;
            stream.add(2 * far, 1, &none)?;
            // Not back in time.
            stream.add(9, 1, &none)
        });
        let expected = [
            (5, 5, 0, 40_007),
            (10, far - 1, 0, 40_013),
            (2 * far, 2 * far, 0, 12),
        ];
        assert_eq!(packets(&out), expected);
    }

    #[test]
    fn text_ends_at_its_zero() {
        assert_eq!(Payload::default().text("a\0b").u32(1).0, b"a\0\x01\0\0\0");
        assert_eq!(Payload::default().u64(2).0, [2, 0, 0, 0, 0, 0, 0, 0]);
    }
}
