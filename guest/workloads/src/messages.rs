//! Messages between threads, through channels with a lock each.

use core::sync::atomic::{AtomicU64, Ordering};

use locked::Locked;

/// Channels that there are.
pub const CHANNELS: usize = 16;
/// Messages that fit into each.
const SLOTS: u64 = 1024;

/// A queue. Everything but the lock is only used by who holds it.
struct Channel {
    taken: Locked,
    sent: AtomicU64,
    received: AtomicU64,
    slots: [AtomicU64; SLOTS as usize],
}

static CHANNEL: [Channel; CHANNELS] = [const {
    Channel {
        taken: Locked::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        slots: [const { AtomicU64::new(0) }; SLOTS as usize],
    }
}; CHANNELS];

/// The slot of message number `count` of a channel, while its lock is held.
macro_rules! with_slot {
    ($channel:expr, |$held:ident| $use:expr) => {{
        let $held = &CHANNEL[$channel as usize % CHANNELS];
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
        let has_room = sent.wrapping_sub(held.received.load(Ordering::Relaxed)) < SLOTS;
        if has_room {
            held.slots[(sent % SLOTS) as usize].store(message, Ordering::Relaxed);
            held.sent.store(sent.wrapping_add(1), Ordering::Relaxed);
        }
        u64::from(has_room)
    })
}

/// Takes a message out of a channel. 0: it is empty or in use.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn messages_receive(channel: u64) -> u64 {
    with_slot!(channel, |held| {
        let received = held.received.load(Ordering::Relaxed);
        if received == held.sent.load(Ordering::Relaxed) {
            0
        } else {
            let message = held.slots[(received % SLOTS) as usize].load(Ordering::Relaxed);
            held.received
                .store(received.wrapping_add(1), Ordering::Relaxed);
            message
        }
    })
}
