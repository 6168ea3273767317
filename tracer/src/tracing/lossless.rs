//! What a session must be so that nothing of it is lost: somebody reads, and a vCPU can be made to wait for that.

use super::options::{ClockSource, SessionOptions, Tracer, WaitTime};
use crate::ring::reader::Mode;

/// Bytes of the smallest ring: a sixteenth of it is for writers that were preempted between looking and reserving, one
/// record each, and those must have room.
const RING_BYTES_MIN: u64 = 64 << 10;

/// Why a session cannot make vCPUs wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotLossless {
    /// The guest is another's.
    #[error(
        "the vCPUs of another VMM leave the guest to that VMM, which does not let them wait for us"
    )]
    Foreign,
    /// There are no records.
    #[error("a profile counts in the guest: it has no records, and loses none")]
    Profile,
    /// Nobody would end a wait.
    #[error("nobody reads a session without an output: its first full ring would stop the guest")]
    NoOutput,
    /// There would be no time to record.
    #[error(
        "a clock page is not kept while all vCPUs wait: records after a wait would have the time before it"
    )]
    ClockPage,
    /// The guest's counters cannot be set back.
    #[error(
        "this host's KVM does not set a guest's counter back, or the guest does not see it: it would see that it waits"
    )]
    NotHidden,
    /// There is no room for preempted writers.
    #[error(
        "a ring of {} KiB has too little room for preempted threads: {} KiB at least",
        bytes >> 10,
        RING_BYTES_MIN >> 10
    )]
    SmallRing {
        /// What was asked for.
        bytes: u64,
    },
}

/// Whether vCPUs can wait for the reader of such a session, if they are to.
///
/// # Errors
/// Why not.
pub(super) fn check_lossless(
    tracer: Tracer,
    options: &SessionOptions,
    vcpus_can_wait: bool,
) -> Result<(), NotLossless> {
    let wrong = [
        (!vcpus_can_wait, NotLossless::Foreign),
        (tracer == Tracer::Profile, NotLossless::Profile),
        (options.output.is_none(), NotLossless::NoOutput),
        (options.clock == ClockSource::Page, NotLossless::ClockPage),
        (
            options.ring_bytes < RING_BYTES_MIN,
            NotLossless::SmallRing {
                bytes: options.ring_bytes,
            },
        ),
    ];
    let mut wrong = wrong.into_iter().filter(|(is, _)| *is);
    match wrong.next().filter(|_| options.mode == Mode::Lossless) {
        Some((_, why)) => Err(why),
        None => Ok(()),
    }
}

/// Whether waits can be hidden from the guest, if they are to be.
///
/// # Errors
/// Why not.
pub(super) fn check_hidden(
    options: &SessionOptions,
    can_hide: fn() -> bool,
) -> Result<(), NotLossless> {
    let is_wanted = options.mode == Mode::Lossless && options.wait_time == WaitTime::Hidden;
    match is_wanted && !can_hide() {
        true => Err(NotLossless::NotHidden),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_is_missing_is_said_and_other_modes_need_none() {
        let fine = || SessionOptions {
            mode: Mode::Lossless,
            output: Some("trace".into()),
            ring_bytes: RING_BYTES_MIN,
            ..SessionOptions::default()
        };
        let (page, bytes) = (ClockSource::Page, RING_BYTES_MIN / 2);
        let small = SessionOptions {
            ring_bytes: bytes,
            ..fine()
        };
        let unread = SessionOptions {
            output: None,
            ..fine()
        };
        let paged = SessionOptions {
            clock: page,
            ..fine()
        };
        let (function, profile) = (Tracer::Function, Tracer::Profile);
        assert_eq!(check_lossless(function, &fine(), true), Ok(()));
        for (tracer, options, can_wait, why) in [
            (function, fine(), false, NotLossless::Foreign),
            (profile, fine(), true, NotLossless::Profile),
            (function, unread, true, NotLossless::NoOutput),
            (function, paged, true, NotLossless::ClockPage),
            (function, small, true, NotLossless::SmallRing { bytes }),
        ] {
            assert_eq!(check_lossless(tracer, &options, can_wait), Err(why));
            let other = SessionOptions {
                mode: Mode::Discard,
                ..options
            };
            assert_eq!(check_lossless(tracer, &other, can_wait), Ok(()));
        }
    }

    #[test]
    fn waits_are_hidden_where_that_can_be_and_it_is_tried_only_where_it_is_asked_for() {
        let mut options = SessionOptions {
            mode: Mode::Lossless,
            ..SessionOptions::default()
        };
        let never: fn() -> bool = || panic!("nobody asked");
        assert_eq!(check_hidden(&options, never), Ok(()));
        options.wait_time = WaitTime::Hidden;
        assert_eq!(check_hidden(&options, || true), Ok(()));
        let refused = check_hidden(&options, || false);
        assert_eq!(refused, Err(NotLossless::NotHidden));
    }
}
