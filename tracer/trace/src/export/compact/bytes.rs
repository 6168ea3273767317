//! Numbers and text in bytes that may come from anywhere.

/// What is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

const SHORT: Malformed = Malformed("it ends in the middle of a record");

/// Adds a number, 7 bits in a byte.
pub(super) fn put_number(mut number: u64, into: &mut Vec<u8>) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            into.push(low & 0x7f);
            return;
        }
        into.push(low | 0x80);
    }
}

/// The same with a sign, which comes last.
pub(super) fn put_signed(number: i64, into: &mut Vec<u8>) {
    put_number((number << 1 ^ number >> 63).cast_unsigned(), into);
}

/// Adds text: its length, then it.
pub(super) fn put_text(text: &str, into: &mut Vec<u8>) {
    put_number(text.len() as u64, into);
    into.extend_from_slice(text.as_bytes());
}

/// What is left to read.
#[derive(Debug)]
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next so many.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next so many, as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number of more than 64 bits"))
    }

    pub fn number32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number of more than 32 bits"))
    }

    pub fn signed(&mut self) -> Result<i64, Malformed> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub fn text(&mut self) -> Result<Box<str>, Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        let text = str::from_utf8(self.take(length)?).map_err(|_| Malformed("no text"))?;
        Ok(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            put_signed(number.cast_signed(), &mut bytes);
            put_signed(number.wrapping_neg().cast_signed(), &mut bytes);
            let mut from = Bytes::of(&bytes);
            assert_eq!(from.number(), Ok(number));
            assert_eq!(from.signed(), Ok(number.cast_signed()));
            assert_eq!(from.signed(), Ok(number.wrapping_neg().cast_signed()));
            assert!(from.is_empty());
        }
        Bytes::of(&[0x80; 11]).number().unwrap_err();
        Bytes::of(&[0x80]).number().unwrap_err();
    }
}
