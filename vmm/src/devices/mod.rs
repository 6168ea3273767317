//! What the guest finds at its I/O ports: a serial port, an exit port, the keyboard controller's
//! reset line, ACPI's power registers, a CMOS clock. Everything else reads as an empty bus.

pub mod cmos;
pub mod console;
pub mod power;
pub mod serial;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout;
use cmos::Cmos;
use console::ConsoleQueue;
use power::PowerControl;
use serial::SerialPort;

const SERIAL_PORTS: u16 = 8;
const FLOATING: u8 = 0xff;
/// Keyboard controller status: nothing to read, ready for a command.
const I8042_IDLE: u8 = 0;

/// What a port write means for the whole machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEffect {
    /// Nothing.
    None,
    /// The guest has ended with this status.
    Exit(u8),
    /// The guest has pulled the reset line.
    Reset,
    /// The guest has switched the machine off.
    PowerOff,
}

/// The I/O ports, shared by all vCPU threads.
#[derive(Debug)]
pub struct Ports {
    serial: Mutex<SerialPort>,
    console: ConsoleQueue,
    cmos: Mutex<Cmos>,
    power: Mutex<PowerControl>,
}

impl Ports {
    /// Ports with this serial port; `console` is what the port prints to.
    #[must_use]
    pub fn new(serial: SerialPort, console: ConsoleQueue) -> Self {
        Self {
            serial: Mutex::new(serial),
            console,
            cmos: Mutex::default(),
            power: Mutex::default(),
        }
    }

    /// The guest writes `data` to `port`. Waits for the console to have room while `patient`.
    pub fn write(&self, port: u16, data: &[u8], patient: impl Fn() -> bool) -> PortEffect {
        let Some(value) = data.first().copied() else {
            return PortEffect::None;
        };
        match port {
            layout::EXIT_PORT => return PortEffect::Exit(value),
            layout::I8042_COMMAND if value == layout::I8042_RESET => return PortEffect::Reset,
            _ if PowerControl::is_here(port) && self.power().write(port, data) => {
                return PortEffect::PowerOff;
            }
            layout::CMOS_INDEX => self.cmos().select(value),
            layout::CMOS_DATA => self.cmos().write(value),
            _ => {}
        }
        if let Some(offset) = serial_register(port) {
            self.console.wait_for_room(patient);
            let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
            for byte in data {
                serial.write(offset, *byte);
            }
        }
        PortEffect::None
    }

    /// The guest reads `port` into `data`.
    pub fn read(&self, port: u16, data: &mut [u8]) {
        data.fill(FLOATING);
        match port {
            layout::CMOS_DATA => data.fill(self.cmos().read()),
            layout::I8042_COMMAND => data.fill(I8042_IDLE),
            _ if PowerControl::is_here(port) => self.power().read(port, data),
            _ => {
                if let Some(offset) = serial_register(port) {
                    let mut serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
                    data.iter_mut().for_each(|byte| *byte = serial.read(offset));
                }
            }
        }
    }

    fn cmos(&self) -> MutexGuard<'_, Cmos> {
        self.cmos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn power(&self) -> MutexGuard<'_, PowerControl> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of console input that the guest has not read yet.
    #[must_use]
    pub fn unread_input(&self) -> usize {
        let serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner);
        serial.unread()
    }

    /// Console input for the guest.
    pub fn console_input(&self, bytes: &[u8]) {
        self.serial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .input(bytes);
    }
}

fn serial_register(port: u16) -> Option<u8> {
    let offset = port
        .checked_sub(layout::SERIAL_PORT)
        .filter(|offset| *offset < SERIAL_PORTS)?;
    u8::try_from(offset).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use vmm_sys_util::eventfd::EventFd;

    use super::*;
    use console::ConsoleWriter;

    fn ports() -> (Ports, ConsoleWriter) {
        let writer = ConsoleWriter::start(std::io::sink()).unwrap();
        let irq = Arc::new(EventFd::new(0).unwrap());
        let serial = SerialPort::new(irq, writer.queue());
        (Ports::new(serial, writer.queue()), writer)
    }

    #[test]
    fn the_exit_port_and_the_reset_line_have_effects() {
        let (ports, writer) = ports();
        let write = |port, value| ports.write(port, &[value], || true);
        assert_eq!(write(layout::EXIT_PORT, 7), PortEffect::Exit(7));
        assert_eq!(write(layout::I8042_COMMAND, 0xfe), PortEffect::Reset);
        assert_eq!(write(layout::I8042_COMMAND, 0xd1), PortEffect::None);
        assert_eq!(write(layout::SERIAL_PORT, b'x'), PortEffect::None);
        let off = [1, 0x34];
        let effect = ports.write(layout::ACPI_PM1_CONTROL, &off, || true);
        assert_eq!(effect, PortEffect::PowerOff);
        assert_eq!(
            ports.write(layout::EXIT_PORT, &[], || true),
            PortEffect::None
        );
        writer.finish(Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn an_empty_bus_floats_and_the_clock_has_a_good_battery() {
        let (ports, _writer) = ports();
        let read = |port| {
            let mut data = [1; 4];
            ports.read(port, &mut data);
            data
        };
        assert_eq!(read(0x1234), [0xff; 4]);
        ports.write(layout::CMOS_INDEX, &[0x0d], || true);
        assert_eq!(read(layout::CMOS_DATA), [0x80; 4]);
        assert_eq!(
            read(layout::SERIAL_PORT + 5)[0] & 0x20,
            0x20,
            "transmitter must be ready"
        );
    }

    #[test]
    fn input_beyond_the_fifo_arrives_as_the_guest_reads() {
        let (ports, _writer) = ports();
        let text: Vec<u8> = (0..=199).collect();
        ports.console_input(&text);
        let mut seen = Vec::new();
        for left in (0..text.len()).rev() {
            let mut byte = [0];
            ports.read(layout::SERIAL_PORT, &mut byte);
            seen.extend(byte);
            assert_eq!(ports.unread_input(), left);
        }
        assert_eq!(seen, text);
    }
}
