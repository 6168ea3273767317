//! Messages between threads, through channels with a lock each.

use core::sync::atomic::{AtomicU64, Ordering};

use locked::Locked;

use crate::events::{message_received, message_sent};

/// Channels that there are.
pub const CHANNELS: usize = 16;
/// Messages that fit into each.
const SLOTS: usize = 1024;

/// A queue. Everything but the lock is only used by who holds it.
struct Channel {
    taken: Locked,
    sent: AtomicU64,
    received: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

impl Channel {
    /// Where message number `count` is.
    fn slot(&self, count: u64) -> Option<&AtomicU64> {
        self.slots.get(index(count, SLOTS))
    }
}

/// `number` as an index below `length`.
fn index(number: u64, length: usize) -> usize {
    usize::try_from(number).unwrap_or_default() % length
}

static CHANNEL: [Channel; CHANNELS] = [const {
    Channel {
        taken: Locked::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        slots: [const { AtomicU64::new(0) }; SLOTS],
    }
}; CHANNELS];

/// A channel's number, as tracepoints have it.
#[inline(always)]
fn number(channel: u64) -> u32 {
    u32::try_from(channel).unwrap_or(u32::MAX)
}

/// The slot of message number `count` of a channel, while its lock is held.
macro_rules! with_slot {
    ($channel:expr, |$held:ident| $use:expr) => {{
        let Some($held) = CHANNEL.get(index($channel, CHANNELS)) else {
            return 0;
        };
        if $held.taken.compare_exchange(0, 1).is_err() {
            return 0;
        }
        let done = $use;
        $held.taken.store(0);
        done
    }};
}

/// Puts a message into a channel. 0: it is full or in use.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn messages_send(channel: u64, message: u64) -> u64 {
    with_slot!(channel, |held| {
        let sent = held.sent.load(Ordering::Relaxed);
        let waiting = sent.wrapping_sub(held.received.load(Ordering::Relaxed));
        match held.slot(sent) {
            Some(slot) if waiting < SLOTS as u64 => {
                slot.store(message, Ordering::Relaxed);
                held.sent.store(sent.wrapping_add(1), Ordering::Relaxed);
                message_sent(number(channel), number(channel), message);
                1
            }
            _ => 0,
        }
    })
}

/// Takes a message out of a channel. 0: it is empty or in use.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn messages_receive(channel: u64) -> u64 {
    with_slot!(channel, |held| {
        let received = held.received.load(Ordering::Relaxed);
        let sent = held.sent.load(Ordering::Relaxed);
        match held.slot(received) {
            Some(slot) if received != sent => {
                let message = slot.load(Ordering::Relaxed);
                let next = received.wrapping_add(1);
                held.received.store(next, Ordering::Relaxed);
                let from = (&raw const *held).cast();
                message_received(number(channel), 0, next != sent, from);
                message
            }
            _ => 0,
        }
    })
}
