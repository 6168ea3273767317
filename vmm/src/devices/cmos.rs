//! The CMOS clock of a PC (Motorola MC146818): the host's UTC, and registers that hold what is written.
//!
//! It never says "update in progress" and never interrupts: each read of a time register takes the
//! host's clock, so a kernel that reads twice to be sure sees one consistent time.

use std::time::{SystemTime, UNIX_EPOCH};

const REGISTERS: usize = 128;
/// Bit 7 of the index port switches NMIs off; the rest is the index.
const INDEX_MASK: u8 = 0x7f;

const REGISTER_A: u8 = 0x0a;
const REGISTER_B: u8 = 0x0b;
const REGISTER_C: u8 = 0x0c;
const REGISTER_D: u8 = 0x0d;
/// 32,768 Hz base, 1,024 Hz rate, no update in progress.
const A_RUNNING: u8 = 0x26;
const A_UPDATE: u8 = 0x80;
/// Hours from 0 to 23, numbers in BCD.
const B_24_HOURS: u8 = 0x02;
const B_BINARY: u8 = 0x04;
/// The battery is good.
const D_VALID: u8 = 0x80;

/// The clock and its registers.
#[derive(Debug)]
pub struct Cmos {
    index: u8,
    registers: [u8; REGISTERS],
}

impl Default for Cmos {
    fn default() -> Self {
        let mut cmos = Self {
            index: 0,
            registers: [0; REGISTERS],
        };
        cmos.store(REGISTER_A, A_RUNNING);
        cmos.store(REGISTER_B, B_24_HOURS);
        cmos
    }
}

impl Cmos {
    /// The guest chooses the register that the data port stands for.
    pub fn select(&mut self, value: u8) {
        self.index = value & INDEX_MASK;
    }

    /// The guest writes the data port. The time itself cannot be set: it is the host's.
    pub fn write(&mut self, value: u8) {
        match self.index {
            REGISTER_A => self.store(REGISTER_A, value & !A_UPDATE),
            REGISTER_B => self.store(REGISTER_B, (value | B_24_HOURS) & !B_BINARY),
            REGISTER_C | REGISTER_D => {}
            index => self.store(index, value),
        }
    }

    /// The guest reads the data port.
    #[must_use]
    pub fn read(&self) -> u8 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        self.read_at(since.map_or(0, |since| since.as_secs()))
    }

    fn read_at(&self, seconds: u64) -> u8 {
        let time = Utc::at(seconds);
        let value = match self.index {
            0x00 => time.second,
            0x02 => time.minute,
            0x04 => time.hour,
            0x06 => time.weekday,
            0x07 => time.day,
            0x08 => time.month,
            0x09 => time.year % 100,
            0x32 => time.year / 100,
            REGISTER_C => return 0,
            REGISTER_D => return D_VALID,
            index => return self.registers.get(usize::from(index)).copied().unwrap_or(0),
        };
        bcd(value)
    }

    fn store(&mut self, index: u8, value: u8) {
        if let Some(register) = self.registers.get_mut(usize::from(index)) {
            *register = value;
        }
    }
}

fn bcd(value: u64) -> u8 {
    u8::try_from(value % 100 / 10 * 16 + value % 10).unwrap_or_default()
}

/// A moment as the clock shows it.
#[derive(Debug, PartialEq, Eq)]
struct Utc {
    year: u64,
    month: u64,
    day: u64,
    /// 1 is Sunday.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// Days of the months of a year that begins in March, so that the leap day is its last.
const MONTHS: [u64; 12] = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29];
const DAYS_4_YEARS: u64 = 4 * 365 + 1;
const DAYS_100_YEARS: u64 = 25 * DAYS_4_YEARS - 1;
const DAYS_400_YEARS: u64 = 4 * DAYS_100_YEARS + 1;
/// From 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: u64 = 719_468;
/// 1 January 1970 was a Thursday.
const THURSDAY: u64 = 4;

impl Utc {
    fn at(seconds: u64) -> Self {
        let days = seconds / 86_400;
        // Cycles of 400, 100, 4 and 1 years; the last of three kinds is a day longer.
        let mut left = days + DAYS_TO_1970;
        let mut year = left / DAYS_400_YEARS * 400;
        left %= DAYS_400_YEARS;
        for (length, years, most) in [(DAYS_100_YEARS, 100, 3), (DAYS_4_YEARS, 4, 24), (365, 1, 3)]
        {
            let cycles = (left / length).min(most);
            year += cycles * years;
            left -= cycles * length;
        }
        let mut month = 3;
        for length in MONTHS {
            if left < length {
                break;
            }
            left -= length;
            month += 1;
        }
        if month > 12 {
            month -= 12;
            year += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            weekday: (days + THURSDAY) % 7 + 1,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_shown_right() {
        let date = |seconds| {
            let Utc {
                year, month, day, ..
            } = Utc::at(seconds);
            (year, month, day)
        };
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(951_782_399), (2000, 2, 28));
        assert_eq!(date(951_782_400), (2000, 2, 29));
        assert_eq!(date(951_868_800), (2000, 3, 1));
        assert_eq!(date(1_735_603_200), (2024, 12, 31));
        assert_eq!(date(4_107_542_399), (2100, 2, 28));
        assert_eq!(date(4_107_542_400), (2100, 3, 1));
        let moment = Utc::at(1_000_000_000);
        assert_eq!((moment.hour, moment.minute, moment.second), (1, 46, 40));
        assert_eq!(moment.weekday, 1, "9 September 2001 was a Sunday");
    }

    #[test]
    fn days_follow_each_other_for_four_centuries() {
        let mut before = Utc::at(0);
        for day in 1..146_097 {
            let now = Utc::at(day * 86_400);
            let next_day = now.day == before.day + 1 && now.month == before.month;
            let next_month = now.day == 1 && now.month % 12 == (before.month + 1) % 12;
            assert!(next_day || next_month, "{before:?} {now:?}");
            before = now;
        }
        assert_eq!((before.year, before.month, before.day), (2369, 12, 31));
    }

    #[test]
    fn registers_are_in_bcd_and_no_update_is_ever_in_progress() {
        let mut cmos = Cmos::default();
        let mut read = |index: u8| {
            cmos.select(index | 0x80);
            cmos.read_at(1_000_000_000)
        };
        assert_eq!([read(4), read(2), read(0)], [0x01, 0x46, 0x40]);
        assert_eq!(
            [read(0x32), read(9), read(8), read(7)],
            [0x20, 0x01, 0x09, 0x09]
        );
        assert_eq!(read(REGISTER_D), D_VALID);
        cmos.select(REGISTER_A);
        cmos.write(0xff);
        assert_eq!(cmos.read() & A_UPDATE, 0);
        cmos.select(REGISTER_B);
        cmos.write(0);
        assert_eq!(cmos.read(), B_24_HOURS);
        cmos.select(0x40);
        cmos.write(0x5a);
        assert_eq!(cmos.read(), 0x5a);
    }
}
