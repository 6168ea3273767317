//! What the host's kernel has to keep a run from doing more than it must.

use super::check::{Check, Need, Subject};
use crate::confine::places;

const LANDLOCK: Subject = Subject {
    name: "places to write (landlock)",
    need: Need::Optional,
    means: "a run whose guest has taken it over can write wherever its user can",
    mend: "boot a kernel that has landlock, and has it on (CONFIG_SECURITY_LANDLOCK, lsm=landlock,...)",
};

/// Asks for it.
pub(super) fn look(checks: &mut Vec<Check>) {
    let there = places::is_known();
    checks.push(LANDLOCK.check(there, if there { "yes" } else { "no" }));
}
