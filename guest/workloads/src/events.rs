//! Messages that are passed, and tracepoints at which that can be watched: the workload `events`.

use locked::Locked;
use points::tracepoint;

use crate::opaque;

tracepoint! {
    /// A message of so many bytes was sent.
    pub fn message_sent(from: u32, to: u32, size: u64) = sent_count | sent_sum;
    /// It arrived so late, the queue was or was not empty then, and this had it.
    pub fn message_received(by: u32, waited: i64, more: bool, had: *const ()) = received_count;
    /// Fields of every width, more than there are registers for.
    pub fn message_parts(a: u8, b: i8, c: u16, d: i16, e: u32, f: i32, g: u64, h: i64);
}

/// What the callbacks have seen.
pub static SENT: Locked = Locked::new(0);
/// The sum of what [`sent_sum`] has seen.
pub static SUM: Locked = Locked::new(0);
/// Calls of [`sent_sum`].
pub static SUMMED: Locked = Locked::new(0);
/// Calls of [`received_count`].
pub static RECEIVED: Locked = Locked::new(0);

/// A callback that counts.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sent_count(_from: u32, _to: u32, _size: u64) {
    SENT.fetch_add(1);
}

/// A callback that adds up.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sent_sum(from: u32, to: u32, size: u64) {
    SUMMED.fetch_add(1);
    SUM.fetch_add(size ^ u64::from(from) ^ u64::from(to));
}

/// A callback of another tracepoint.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn received_count(_by: u32, _waited: i64, _more: bool, _had: *const ()) {
    RECEIVED.fetch_add(1);
}

/// Passes one message on: one pass of each tracepoint.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "fields of every width are made of one value"
)]
pub extern "C" fn events_pass(thread: u64, value: u64) -> u64 {
    let size = opaque(value) & 0xffff_ffff_ffff;
    let (from, to) = (thread as u32, (value >> 60) as u32);
    message_sent(from, to, size);
    let passed = events_carry(value);
    let carrier = events_carry as *const ();
    message_received(to, -(size as i64), passed & 1 == 1, carrier);
    let all = passed;
    message_parts(
        all as u8, all as i8, all as u16, all as i16, all as u32, all as i32, all, all as i64,
    );
    passed
}

/// What happens to a message on its way.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn events_carry(value: u64) -> u64 {
    opaque(value)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}
