//! What a session's options must be, before anything is made for it.

use crate::clock::VcpuClocks;
use crate::guest_kind;
use crate::ring::geometry::Geometry;
use crate::ring::reader::Mode;
use crate::tasks::WantedTasks;
use image::Image;
use trace::glob::Pattern;
use trace::graph::rules::Rules;
use trace::live::Occasion;

use super::error::{NotApplicable, TracingError};
use super::options::{ClockSource, PERIODS_NS, RECORD_BYTES, SessionOptions, Tracer};

const KIB: u64 = 1024;
/// Longest name of a session.
const NAME_MAX: usize = 64;
/// What the rings of one session have to share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// One ring each.
    pub vcpus: u16,
    /// Of the window region.
    pub bytes: u64,
}

/// The tasks that a session records.
///
/// # Errors
/// [`TracingError::BadTask`], [`TracingError::TwoTaskFilters`], or [`NotApplicable::FollowForks`] where nothing is
/// named whose forks could be followed.
pub(super) fn wanted_tasks(options: &SessionOptions) -> Result<WantedTasks, TracingError> {
    let (only, not) = (&options.only_tasks, &options.not_tasks);
    if !only.is_empty() && !not.is_empty() {
        return Err(TracingError::TwoTaskFilters);
    }
    let is_not = !not.is_empty();
    let terms = if is_not { not } else { only };
    let wanted = WantedTasks::new(is_not, terms, options.follow_forks)?;
    match wanted.follows && wanted.is_all() {
        true => Err(NotApplicable::FollowForks.into()),
        false => Ok(wanted),
    }
}

/// The rings of one session must fit in their part of the window region, one for each vCPU.
///
/// # Errors
/// [`TracingError::RingsTooLarge`].
pub(super) fn check_room(
    tracer: Tracer,
    clock: ClockSource,
    geometry: Geometry,
    room: Room,
) -> Result<(), TracingError> {
    let words = match (tracer, clock) {
        (Tracer::Profile, _) => return Ok(()),
        (Tracer::Function | Tracer::Nop, _) | (Tracer::Graph, ClockSource::None) => 1,
        (Tracer::Graph, ClockSource::Tsc | ClockSource::Page) => 2,
    };
    let Room { vcpus, bytes: room } = room;
    let places = u64::from(vcpus) * words;
    let wanted = places.saturating_mul(geometry.bytes());
    if wanted <= room {
        return Ok(());
    }
    let most = room / places.max(1);
    Err(TracingError::RingsTooLarge {
        kib: geometry.bytes() / KIB,
        rings: vcpus,
        wanted,
        room,
        most_kib: (1 << most.max(1).ilog2()) / KIB,
    })
}

/// Each root must be a function of the image, or may come with a module.
pub(super) fn check_roots(rules: &Rules, image: &Image) -> Result<(), TracingError> {
    match rules.roots.iter().find(|root| !has_function(image, root)) {
        Some(root) => Err(TracingError::NoRoot {
            glob: root.text().to_owned(),
        }),
        None => Ok(()),
    }
}

/// Whether there is a function of that name, or may come one.
fn has_function(image: &Image, name: &Pattern) -> bool {
    let may_come = name.is_for_modules() && guest_kind::has_modules(image);
    let mut functions = image.functions.iter();
    may_come || functions.any(|function| name.matches(function))
}

/// Whether there can be each of those that it is to listen for.
pub(super) fn check_occasions(
    tracer: Tracer,
    options: &SessionOptions,
    image: &Image,
) -> Result<(), TracingError> {
    let mut occasions = options.occasions.iter();
    occasions.try_for_each(|occasion| check_occasion(occasion, tracer, options, image))
}

/// Whether there can be such an occasion in a session with these options.
pub(super) fn check_occasion(
    occasion: &Occasion,
    tracer: Tracer,
    options: &SessionOptions,
    image: &Image,
) -> Result<(), TracingError> {
    let has_durations = tracer == Tracer::Graph && options.clock != ClockSource::None;
    let reason = match occasion {
        _ if tracer == Tracer::Profile => "a profile counts, and records nothing",
        Occasion::Call(_) if tracer == Tracer::Nop => "the session traces no functions",
        Occasion::Longer(..) if !has_durations => {
            "only a graph with a clock says how long calls take"
        }
        Occasion::Call(name) | Occasion::Longer(name, _) if !has_function(image, name) => {
            "that is no function of the image"
        }
        Occasion::Event(name) => {
            let mut events = image.events();
            let is_there = events.any(|(_, event)| name.matches_name(&event.name));
            if is_there || !options.probe.is_empty() {
                return Ok(());
            }
            "that is no event of the image, and the session has no probe"
        }
        Occasion::Call(_) | Occasion::Longer(..) => return Ok(()),
    };
    Err(TracingError::NoOccasion {
        occasion: occasion.to_string(),
        reason,
    })
}

/// Whether a page is written, and a record has room, as often and as much as can be.
pub(super) fn check_numbers(options: &SessionOptions) -> Result<(), TracingError> {
    if !PERIODS_NS.contains(&options.clock_period) {
        return Err(TracingError::ClockPeriod(options.clock_period));
    }
    let is_possible = |bytes: &u64| bytes.is_power_of_two() && RECORD_BYTES.contains(bytes);
    match options.record_bytes.filter(|bytes| !is_possible(bytes)) {
        Some(bytes) => Err(TracingError::RecordBytes(bytes)),
        None => Ok(()),
    }
}

/// Whether the times of a session can be had: those that it takes from the vCPUs' counters only where these run as the host's does.
///
/// # Errors
/// [`TracingError::ClockSpeed`].
pub(super) fn check_speed(
    session: &str,
    clock: ClockSource,
    clocks: &VcpuClocks,
) -> Result<(), TracingError> {
    let is_asked = clock == ClockSource::Tsc;
    match clocks.other_speed().filter(|_| is_asked) {
        None => Ok(()),
        Some((vcpu, [khz, host_khz])) => Err(TracingError::ClockSpeed {
            session: session.to_owned(),
            vcpu,
            khz,
            host_khz,
        }),
    }
}

/// Values of calls are put to calls by the time of their records.
pub(super) fn check_values(tracer: Tracer, options: &SessionOptions) -> Result<(), TracingError> {
    let is_possible = tracer == Tracer::Graph && options.clock == ClockSource::Tsc;
    match options.captures().is_empty() || is_possible {
        true => Ok(()),
        false => Err(TracingError::NoValues),
    }
}

/// Names are for command lines and reports.
pub(super) fn check_name(name: &str) -> Result<(), TracingError> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
        return Err(TracingError::BadName {
            name: name.escape_default().to_string(),
        });
    }
    Ok(())
}

/// Whether everything that is asked for changes something.
pub(super) fn check_applies(tracer: Tracer, options: &SessionOptions) -> Result<(), NotApplicable> {
    use NotApplicable as Asked;
    let (usual, graph) = (SessionOptions::default(), &options.graph);
    let of_functions = [(Asked::Callers, options.callers)];
    let of_waits = [
        (Asked::OnFull, options.on_full != usual.on_full),
        (Asked::WaitTime, options.wait_time != usual.wait_time),
    ];
    let of_graphs = [
        (Asked::MaxDepth, graph.max_depth.is_some()),
        (Asked::GraphFunctions, !graph.functions.is_empty()),
        (Asked::GraphNotrace, !graph.notrace.is_empty()),
        (Asked::Threshold, graph.threshold.is_some()),
        (Asked::StackSize, options.stack_bytes.is_some()),
    ];
    let is_other_period = options.clock_period != usual.clock_period;
    let of_page = [
        (Asked::ClockCpu, options.clock_cpu.is_some()),
        (Asked::ClockPeriod, is_other_period),
    ];
    let all = [
        (tracer == Tracer::Function, &of_functions[..]),
        (options.mode == Mode::Lossless, &of_waits),
        (tracer == Tracer::Graph, &of_graphs),
        (options.clock == ClockSource::Page, &of_page),
    ];
    let wrong = all.into_iter().filter(|(applies, _)| !applies);
    let mut wrong = wrong.flat_map(|(_, asked)| asked);
    match wrong.find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => Err(*what),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{OnFull, WaitTime};
    use super::*;

    #[test]
    fn options_that_change_nothing_are_refused() {
        let usual = SessionOptions::default;
        let mut slow = usual();
        slow.graph.threshold = Some("10us".parse().unwrap());
        let mut root = usual();
        root.graph.functions = vec!["a".to_owned()];
        let mut stack = usual();
        stack.stack_bytes = Some(16 << 10);
        let mut callers = usual();
        callers.callers = true;
        let mut period = usual();
        period.clock_period = 1000;
        let mut cpu = usual();
        (cpu.clock_cpu, cpu.clock) = (Some(1), ClockSource::None);
        let mut depth = usual();
        depth.graph.max_depth = std::num::NonZeroU32::new(2);
        let mut notrace = usual();
        notrace.graph.notrace = vec!["a".to_owned()];
        let mut full = usual();
        full.on_full = OnFull::End;
        let mut hidden = usual();
        hidden.wait_time = WaitTime::Hidden;
        for (options, tracer, what) in [
            (depth, Tracer::Nop, NotApplicable::MaxDepth),
            (notrace, Tracer::Function, NotApplicable::GraphNotrace),
            (full, Tracer::Graph, NotApplicable::OnFull),
            (hidden, Tracer::Graph, NotApplicable::WaitTime),
            (slow, Tracer::Function, NotApplicable::Threshold),
            (root, Tracer::Nop, NotApplicable::GraphFunctions),
            (stack, Tracer::Profile, NotApplicable::StackSize),
            (callers, Tracer::Graph, NotApplicable::Callers),
            (period, Tracer::Graph, NotApplicable::ClockPeriod),
            (cpu, Tracer::Function, NotApplicable::ClockCpu),
        ] {
            assert_eq!(check_applies(tracer, &options), Err(what));
        }
        let mut all = usual();
        all.graph.max_depth = std::num::NonZeroU32::new(2);
        (all.stack_bytes, all.clock, all.clock_period) = (Some(16 << 10), ClockSource::Page, 1000);
        check_applies(Tracer::Graph, &all).unwrap();
        for tracer in [
            Tracer::Function,
            Tracer::Graph,
            Tracer::Nop,
            Tracer::Profile,
        ] {
            check_applies(tracer, &usual()).unwrap();
        }
    }

    #[test]
    fn rings_that_are_accepted_fit_in_the_window() {
        let kib = |kib: u64| Geometry::with_bytes(kib * KIB).unwrap();
        let (tsc, page, none) = (ClockSource::Tsc, ClockSource::Page, ClockSource::None);
        for (tracer, clock, vcpus, most) in [
            (Tracer::Function, tsc, 1, 262_144),
            (Tracer::Function, none, 3, 131_072),
            (Tracer::Graph, tsc, 1, 131_072),
            (Tracer::Graph, none, 1, 262_144),
            (Tracer::Graph, page, 2, 65_536),
            (Tracer::Graph, tsc, 254, 512),
        ] {
            let room = Room {
                vcpus,
                bytes: 448 << 20,
            };
            check_room(tracer, clock, kib(most), room).unwrap();
            if let Ok(larger) = Geometry::with_bytes(2 * most * KIB) {
                let message = check_room(tracer, clock, larger, room)
                    .unwrap_err()
                    .to_string();
                assert!(
                    message.ends_with(&format!("at most {most} KiB each")),
                    "{message}"
                );
            }
        }
        let room = Room {
            vcpus: 254,
            bytes: 0,
        };
        check_room(Tracer::Profile, tsc, kib(262_144), room).unwrap();
    }

    #[test]
    fn names_are_plain_words() {
        for good in ["default", "a", "boot-2.1_x", &"x".repeat(64)] {
            check_name(good).unwrap();
        }
        for bad in ["", "a b", "ä", "a/b", "\n", &"x".repeat(65)] {
            let message = check_name(bad).unwrap_err().to_string();
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
