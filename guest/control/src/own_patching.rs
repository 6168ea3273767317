//! A guest that patches its own functions all the time, and minds what others have put there: each change compares and writes
//! by one step, so it writes over nothing but what it knows. What it has put there itself nobody else may write over.

use crate::console::print;
use crate::kernel_call;

/// A nop of five bytes that no compiler makes: `nopl 1(%rax, %rax)`.
const OTHER: u64 = 0x01_0044_1f0f;
/// The bytes of a site in its word.
const SITE: u64 = (1 << 40) - 1;

/// The sites that are patched.
#[derive(Default)]
pub struct OwnPatching {
    sites: Option<[Site; 3]>,
    /// Changes that were made.
    changes: u64,
    /// How often something of somebody else's stood there.
    met: u64,
    /// How often what was put there was gone.
    overwritten: u64,
}

/// One of them, in the first word of its function.
#[derive(Clone, Copy)]
struct Site {
    at: u64,
    /// What was there first.
    first: u64,
    /// Whether the other nop is there.
    is_changed: bool,
}

impl OwnPatching {
    /// Begins with the sites of these functions; or ends, with each as it was, and says what has happened.
    pub fn toggle(&mut self, functions: [u64; 3]) {
        if self.sites.is_none() {
            self.sites = Some(functions.map(Site::of));
            return print(format_args!("patching"));
        }
        self.step_where(|site| site.is_changed);
        let Self {
            changes,
            met,
            overwritten,
            ..
        } = core::mem::take(self);
        print(format_args!("counter changes {changes}"));
        print(format_args!("counter met {met}"));
        print(format_args!("counter overwritten {overwritten}"));
        print(format_args!("patched"));
    }

    /// Changes each site once, if it is as it was left.
    pub fn step(&mut self) {
        self.step_where(|_| true);
    }

    fn step_where(&mut self, is_meant: impl Fn(&Site) -> bool) {
        let sites = self.sites.iter_mut().flatten();
        for site in sites.filter(|site| is_meant(site)) {
            let other = site.first & !SITE | OTHER;
            let (old, new) = match site.is_changed {
                true => (other, site.first),
                false => (site.first, other),
            };
            // SAFETY: functions are aligned to more than a word; one nop is as good as the other.
            let found = unsafe { kernel_call::replace_text(site.at, old, new) };
            match (found == old, site.is_changed) {
                (true, _) => {
                    site.is_changed = !site.is_changed;
                    self.changes += 1;
                }
                (false, false) => self.met += 1,
                (false, true) => {
                    self.overwritten += 1;
                    site.is_changed = false;
                }
            }
        }
    }
}

impl Site {
    fn of(at: u64) -> Self {
        Self {
            at,
            // SAFETY: functions are aligned to more than a word, and their text is mapped.
            first: unsafe { (at as *const u64).read_volatile() },
            is_changed: false,
        }
    }
}
