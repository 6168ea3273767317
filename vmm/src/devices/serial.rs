//! COM1: vm-superio's 8250 with KVM's interrupt line and our console at its other end.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use vm_superio::serial::SerialEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use super::console::ConsoleQueue;

/// Bytes of console input that wait for the guest; what comes beyond is dropped, as on a real line.
pub const INPUT_LIMIT: usize = 64 << 10;

/// An interrupt line as an eventfd that KVM listens to.
#[derive(Debug)]
pub struct IrqLine(Arc<EventFd>);

impl Trigger for IrqLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// Tells when the guest has read all input of the FIFO, so that more can be given.
#[derive(Debug)]
pub struct InputDrained(Arc<std::sync::atomic::AtomicBool>);

impl SerialEvents for InputDrained {
    fn buffer_read(&self) {}
    fn out_byte(&self) {}
    fn tx_lost_byte(&self) {}
    fn in_buffer_empty(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The serial port.
#[derive(Debug)]
pub struct SerialPort {
    uart: Serial<IrqLine, InputDrained, ConsoleQueue>,
    drained: Arc<std::sync::atomic::AtomicBool>,
    waiting: VecDeque<u8>,
    /// Bytes that the FIFO holds at most.
    fifo: usize,
}

impl SerialPort {
    /// A port that interrupts through `irq` and prints to `console`.
    #[must_use]
    pub fn new(irq: Arc<EventFd>, console: ConsoleQueue) -> Self {
        let drained = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let events = InputDrained(Arc::clone(&drained));
        let uart = Serial::with_events(IrqLine(irq), events, console);
        Self {
            fifo: uart.fifo_capacity(),
            uart,
            drained,
            waiting: VecDeque::new(),
        }
    }

    /// The guest writes `value` to register `offset`.
    pub fn write(&mut self, offset: u8, value: u8) {
        if let Err(error) = self.uart.write(offset, value) {
            log::debug!("serial register {offset} <- {value:#x}: {error}");
        }
    }

    /// The guest reads register `offset`.
    pub fn read(&mut self, offset: u8) -> u8 {
        let value = self.uart.read(offset);
        if self
            .drained
            .swap(false, std::sync::atomic::Ordering::Relaxed)
        {
            self.feed();
        }
        value
    }

    /// Console input for the guest.
    pub fn input(&mut self, bytes: &[u8]) {
        let room = INPUT_LIMIT.saturating_sub(self.waiting.len());
        self.waiting.extend(bytes.iter().take(room));
        self.feed();
    }

    /// Bytes of input that the guest has not read yet.
    #[must_use]
    pub fn unread(&self) -> usize {
        self.waiting.len() + self.fifo.saturating_sub(self.uart.fifo_capacity())
    }

    fn feed(&mut self) {
        let room = self.uart.fifo_capacity().min(self.waiting.len());
        let chunk: Vec<u8> = self.waiting.iter().take(room).copied().collect();
        match self.uart.enqueue_raw_bytes(&chunk) {
            Ok(taken) => drop(self.waiting.drain(..taken)),
            Err(error) => log::debug!("serial input waits: {error}"),
        }
    }
}
