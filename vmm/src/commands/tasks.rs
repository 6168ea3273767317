//! What `vmm ctl tasks` prints.

use super::ask::ask;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::verbs::ctl::{CtlOptions, TasksVerb};
use status::{TaskStatus, TasksChanged};

/// Makes the request and prints the result.
pub(super) fn tasks(options: &CtlOptions, verb: &TasksVerb) -> Result<ExitStatus, Failure> {
    match verb {
        TasksVerb::Set(method) if method.0.not => {
            let told = told("all but these are recorded", "all but these were already");
            ask(options, method, told)
        }
        TasksVerb::Set(method) => ask(
            options,
            method,
            told(
                "only these are recorded",
                "only these were recorded already",
            ),
        ),
        TasksVerb::Add(method) => ask(
            options,
            method,
            told("they are named, too", "they were named already"),
        ),
        TasksVerb::Remove(method) => ask(
            options,
            method,
            told("they are named no more", "they were not named"),
        ),
        TasksVerb::Clear(method) => ask(
            options,
            method,
            told("all are recorded", "all were recorded already"),
        ),
        TasksVerb::Show(method) => ask(options, method, |of: &TaskStatus| shown(of) + "\n"),
    }
}

/// Says whether it was so already, and what it has cost the guest.
fn told(yes: &str, no: &str) -> impl FnOnce(&TasksChanged) -> String {
    move |told| match told.changed {
        true => format!("{yes}; {}\n", told.paused()),
        false => format!("{no}\n"),
    }
}

/// Which tasks, in one line.
pub(super) fn shown(of: &TaskStatus) -> String {
    let follows = if of.follow_forks {
        ", and those that they make"
    } else {
        ""
    };
    let by = of.by.iter().map(|by| format!(" (by {by})"));
    let by: String = by.collect();
    match (&*of.only, &*of.not) {
        ([], []) => "all".to_owned(),
        (only, []) => format!("{} only{follows}{by}", only.join(", ")),
        (_, not) => format!("all but {}{follows}{by}", not.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_recorded_is_said_in_one_line() {
        let all = TaskStatus::default();
        assert_eq!(shown(&all), "all");
        let only = TaskStatus {
            only: vec!["12".to_owned(), "sh".to_owned()],
            follow_forks: true,
            by: Some("stub".to_owned()),
            ..all.clone()
        };
        let line = "12, sh only, and those that they make (by stub)";
        assert_eq!(shown(&only), line);
        let not = TaskStatus {
            not: vec!["cgroup:/a".to_owned()],
            ..all
        };
        assert_eq!(shown(&not), "all but cgroup:/a");
    }
}
