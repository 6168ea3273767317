//! The ACPI PM1a registers: by which a guest switches the machine off. No event ever happens, and the
//! system control interrupt never comes.

use crate::layout::{ACPI_PM1_CONTROL, ACPI_PM1_EVENT, ACPI_SLEEP_TYPE_OFF};

/// In PM1a control: ACPI is on, and stays so.
const SCI_ENABLED: u16 = 1;
const SLEEP_TYPE_SHIFT: u16 = 10;
const SLEEP_TYPE_MASK: u16 = 7;
const SLEEP_ENABLE: u16 = 1 << 13;

/// Which events happened; after it, which of them the guest wants to hear of.
const STATUS: u16 = ACPI_PM1_EVENT;
const ENABLE: u16 = ACPI_PM1_EVENT + 2;
const REGISTER_BYTES: u16 = 2;

/// The registers.
#[derive(Debug, Default)]
pub struct PowerControl {
    /// Kept because a guest looks whether it could enable an event.
    enabled: u16,
}

impl PowerControl {
    /// Whether `port` is one of these registers.
    #[must_use]
    pub fn is_here(port: u16) -> bool {
        let within = |start: u16| (start..start + REGISTER_BYTES).contains(&port);
        [STATUS, ENABLE, ACPI_PM1_CONTROL].into_iter().any(within)
    }

    /// The guest writes `data` to `port`. Says whether that switches the machine off.
    #[must_use]
    pub fn write(&mut self, port: u16, data: &[u8]) -> bool {
        let [low, high, ..] = *data else { return false };
        let value = u16::from_le_bytes([low, high]);
        match port {
            ENABLE => {
                self.enabled = value;
                false
            }
            ACPI_PM1_CONTROL => {
                let kind = value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK;
                value & SLEEP_ENABLE != 0 && kind == u16::from(ACPI_SLEEP_TYPE_OFF)
            }
            _ => false,
        }
    }

    /// The guest reads `port` into `data`.
    pub fn read(&self, port: u16, data: &mut [u8]) {
        let value = match port {
            ENABLE => self.enabled,
            ACPI_PM1_CONTROL => SCI_ENABLED,
            _ => 0,
        };
        data.fill(0);
        for (byte, of_value) in data.iter_mut().zip(value.to_le_bytes()) {
            *byte = of_value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sleep_type_of_off_with_the_enable_bit_is_off() {
        let mut power = PowerControl::default();
        let off = u16::from(ACPI_SLEEP_TYPE_OFF) << SLEEP_TYPE_SHIFT | SCI_ENABLED;
        let mut write = |port, value: u16| power.write(port, &value.to_le_bytes());
        assert!(write(ACPI_PM1_CONTROL, off | SLEEP_ENABLE));
        assert!(
            !write(ACPI_PM1_CONTROL, off),
            "Linux writes the type first and enables it then"
        );
        assert!(!write(
            ACPI_PM1_CONTROL,
            1 << SLEEP_TYPE_SHIFT | SLEEP_ENABLE
        ));
        assert!(!write(ENABLE, off | SLEEP_ENABLE));
        assert!(!power.write(ACPI_PM1_CONTROL, &[0xff]));
    }

    #[test]
    fn acpi_is_on_and_nothing_ever_happens() {
        let mut power = PowerControl::default();
        assert!(!power.write(STATUS, &[0xff; 2]));
        assert!(!power.write(ENABLE, &[0x20, 0x04]));
        let read = |port| {
            let mut data = [0xff; 2];
            power.read(port, &mut data);
            u16::from_le_bytes(data)
        };
        assert_eq!(
            [read(STATUS), read(ENABLE), read(ACPI_PM1_CONTROL)],
            [0, 0x420, SCI_ENABLED]
        );
        let here = PowerControl::is_here;
        assert!(!here(STATUS - 1) && here(ENABLE + 1) && !here(ACPI_PM1_CONTROL + 2));
    }
}
