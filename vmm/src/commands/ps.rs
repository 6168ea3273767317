//! `vmm ps`: the KVM guests of this host.

use serde::Serialize;
use terms::printable::{json_pretty, masked};

use super::stdout::print;
use crate::confine::root::{Deed, refuse_root};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::foreign::listed::{Amount, Listed, guests};
use crate::foreign::look::Seen;
use crate::foreign::process::Process;
use crate::layout::{GIB, MIB};
use crate::options::as_root::AsRoot;

/// A line of the list.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    listed: Listed,
    /// What it runs, if that was asked for.
    guest: Option<String>,
}

/// Lists them; with what each of them runs, for which it is held for a moment, if that is wanted.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn ps(with_guest: bool, as_root: AsRoot, json: bool) -> Result<ExitStatus, Failure> {
    if with_guest {
        refuse_root(Deed::Look, as_root.allow_root).map_err(Failure::bad_input)?;
    }
    let rows = guests()?.into_iter().map(|listed| match with_guest {
        true => looked_at(listed),
        false => Row {
            listed,
            guest: None,
        },
    });
    let rows: Vec<Row> = rows.collect();
    let text = match json {
        true => json_pretty(&rows).map_err(Failure::output)? + "\n",
        false => table(&rows),
    };
    print(text).map(|()| ExitStatus::Success)
}

/// With what was seen of it.
fn looked_at(listed: Listed) -> Row {
    let seen = Process::open(listed.pid).and_then(|process| Seen::of(&process));
    let seen = match seen {
        Ok(seen) => seen,
        Err(error) => {
            let guest = Some(format!("not known: {error}"));
            return Row { listed, guest };
        }
    };
    let pid = listed.pid;
    let held = seen.held.as_secs_f64() * 1000.0;
    log::info!("the guest of process {pid} was held for {held:.1} ms");
    let guest = match seen.version() {
        Ok(version) => format!("Linux {version}"),
        Err(error) => format!("not known: {error}"),
    };
    // What the VMM was told is more: devices have some of it.
    let told = listed.memory.filter(|amount| !amount.is_guess);
    let memory = Some(told.unwrap_or(Amount {
        bytes: seen.ram_bytes().next_multiple_of(MIB),
        is_guess: false,
    }));
    Row {
        listed: Listed { memory, ..listed },
        guest: Some(guest),
    }
}

fn table(rows: &[Row]) -> String {
    let head = line(["PID", "VMM", "NAME", "VCPUS", "MEMORY", "GUEST"]);
    rows.iter().fold(head, |text, row| text + &row.line())
}

impl Row {
    fn line(&self) -> String {
        let Listed {
            pid,
            vmm,
            name,
            vcpus,
            memory,
        } = &self.listed;
        let (pid, vcpus) = (pid.to_string(), vcpus.to_string());
        let memory = memory.map_or_else(|| "-".to_owned(), amount);
        let vmm = masked(vmm);
        let name = masked(name.as_deref().unwrap_or("-"));
        let guest = masked(self.guest.as_deref().unwrap_or("-"));
        line([&pid, &vmm, &name, &vcpus, &memory, &guest])
    }
}

fn line([pid, vmm, name, vcpus, memory, guest]: [&str; 6]) -> String {
    format!("{pid:<8} {vmm:<12} {name:<20} {vcpus:<5}  {memory:<10} {guest}\n")
}

/// As `8 GiB`, `640 MiB`, or `~640 MiB` where it is a guess.
fn amount(amount: Amount) -> String {
    let Amount { bytes, is_guess } = amount;
    let about = if is_guess { "~" } else { "" };
    match bytes.is_multiple_of(GIB) {
        true => format!("{about}{} GiB", bytes / GIB),
        false => format!("{about}{} MiB", bytes / MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_is_known_and_a_dash_for_the_rest() {
        let listed = Listed {
            pid: 4711,
            vmm: "qemu".to_owned(),
            name: Some("build-7\u{1b}[2J".to_owned()),
            vcpus: 4,
            memory: Some(Amount {
                bytes: 8 << 30,
                is_guess: false,
            }),
        };
        let row = Row {
            listed: listed.clone(),
            guest: Some("Linux 6.1.0-56-cloud-amd64".to_owned()),
        };
        let words: Vec<_> = row.line().split_whitespace().map(str::to_owned).collect();
        assert!(!row.line().contains('\u{1b}'), "{words:?}");
        assert_eq!(
            words[3..],
            ["4", "8", "GiB", "Linux", "6.1.0-56-cloud-amd64"]
        );
        let unknown = Row {
            listed: Listed {
                name: None,
                memory: None,
                ..listed
            },
            guest: None,
        };
        let line = unknown.line();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words, ["4711", "qemu", "-", "4", "-", "-"]);
        let guess = |bytes| {
            amount(Amount {
                bytes,
                is_guess: true,
            })
        };
        assert_eq!(
            (guess(640 << 20), guess(0)),
            ("~640 MiB".to_owned(), "~0 GiB".to_owned())
        );
    }
}
