//! What a session's options must be, before anything is made for it.

use image::Image;
use tracer::filter::Pattern;
use tracer::graph::selection::Rules;
use tracer::linux::Kernel;
use tracer::ring::geometry::Geometry;

use super::error::TracingError;
use super::options::{ClockChoice, SessionOptions, Tracer};
use crate::layout;

/// Longest name of a session.
const NAME_MAX: usize = 64;
/// The rings of one session must fit in the window region, one for each vCPU.
///
/// # Errors
/// [`TracingError::RingsTooLarge`].
pub(super) fn check_room(
    tracer: Tracer,
    clock: ClockChoice,
    geometry: Geometry,
    vcpus: u16,
) -> Result<(), TracingError> {
    let words = match (tracer, clock) {
        (Tracer::Profile, _) => return Ok(()),
        (Tracer::Function | Tracer::Nop, _) | (Tracer::Graph, ClockChoice::None) => 1,
        (Tracer::Graph, ClockChoice::Tsc | ClockChoice::Page) => 2,
    };
    let places = u64::from(vcpus) * words;
    let wanted = places.saturating_mul(geometry.bytes());
    if wanted <= layout::RINGS_SIZE {
        return Ok(());
    }
    let most = layout::RINGS_SIZE / places;
    Err(TracingError::RingsTooLarge {
        kib: geometry.bytes() / layout::KIB,
        rings: vcpus,
        wanted,
        most_kib: (1 << most.ilog2()) / layout::KIB,
    })
}

/// Each root must be a function of the image, or may come with a module of Linux.
pub(super) fn check_roots(rules: &Rules, image: &Image) -> Result<(), TracingError> {
    let has_modules = || Kernel::of(image).is_some_and(|kernel| kernel.modules.is_some());
    let is_there = |root: &Pattern| {
        let may_come = root.is_for_modules() && has_modules();
        may_come
            || image
                .functions
                .iter()
                .any(|function| root.matches(function))
    };
    match rules.roots.iter().find(|root| !is_there(root)) {
        Some(root) => Err(TracingError::NoRoot {
            glob: root.text().to_owned(),
        }),
        None => Ok(()),
    }
}

/// Values of calls are put to calls by the time of their records.
pub(super) fn check_values(tracer: Tracer, options: &SessionOptions) -> Result<(), TracingError> {
    let is_possible = tracer == Tracer::Graph && options.clock == ClockChoice::Tsc;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_are_accepted_fit_in_the_window() {
        let kib = |kib: u64| Geometry::with_bytes(kib * layout::KIB).unwrap();
        let (tsc, page, none) = (ClockChoice::Tsc, ClockChoice::Page, ClockChoice::None);
        for (tracer, clock, vcpus, most) in [
            (Tracer::Function, tsc, 1, 262_144),
            (Tracer::Function, none, 3, 131_072),
            (Tracer::Graph, tsc, 1, 131_072),
            (Tracer::Graph, none, 1, 262_144),
            (Tracer::Graph, page, 2, 65_536),
            (Tracer::Graph, tsc, 254, 512),
        ] {
            check_room(tracer, clock, kib(most), vcpus).unwrap();
            if let Ok(larger) = Geometry::with_bytes(2 * most * layout::KIB) {
                let message = check_room(tracer, clock, larger, vcpus)
                    .unwrap_err()
                    .to_string();
                assert!(
                    message.ends_with(&format!("--ring-size {most}")),
                    "{message}"
                );
            }
        }
        check_room(Tracer::Profile, tsc, kib(262_144), 254).unwrap();
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
