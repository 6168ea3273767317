//! The guests of this host, as their VMMs show them.

use std::fs;

use serde::Serialize;

use super::command_line::{memory_of, name_of, vmm_of};
use super::error::ForeignError;
use super::lock::NAME;
use super::process::{Mapping, Process};

/// No guest has less memory in one piece.
const LEAST: u64 = 16 << 20;

/// A guest of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its VMM.
    pub pid: i32,
    /// What its VMM is called.
    pub vmm: String,
    /// What its VMM calls the guest.
    pub name: Option<String>,
    /// How many vCPUs it has.
    pub vcpus: usize,
    /// How much memory it has, as far as that can be told without a pause.
    pub memory: Option<Amount>,
}

/// How much memory a guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// In bytes.
    pub bytes: u64,
    /// Whether nobody has said so: it is the largest piece of memory that its VMM has.
    pub is_guess: bool,
}

/// The guests of this host whose VMMs we may look at, by process.
///
/// # Errors
/// [`ForeignError::Proc`] when `/proc` cannot be read.
pub fn guests() -> Result<Vec<Listed>, ForeignError> {
    let unreadable = |source| ForeignError::Proc {
        pid: 0,
        what: "",
        source,
    };
    let entries = fs::read_dir("/proc").map_err(unreadable)?;
    let number = |entry: std::io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
    };
    let mut pids: Vec<i32> = entries.filter_map(number).collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(listed).collect())
}

/// The guest of a process, if it has one.
fn listed(pid: i32) -> Option<Listed> {
    let process = Process::open(pid).ok()?;
    process.vm_descriptor().ok()?;
    let vcpus = process.vcpu_descriptors().ok()?.len();
    let arguments = process.arguments();
    // One that is used to try things out has none.
    (vcpus > 0).then(|| Listed {
        pid,
        vmm: vmm_of(&arguments, &process.command()),
        name: name_of(&arguments),
        vcpus,
        memory: amount(&arguments, &process.mappings().unwrap_or_default()),
    })
}

/// The guest that is meant: by process, by name, or the only one.
///
/// # Errors
/// [`ForeignError::NoSuchGuest`], [`ForeignError::WhichGuest`], [`ForeignError::Proc`].
pub fn chosen(wanted: Option<&str>) -> Result<i32, ForeignError> {
    if let Some(pid) = wanted.and_then(|wanted| wanted.parse().ok()) {
        return Ok(pid);
    }
    among(&guests()?, wanted)
}

/// The guest of these that is meant: by name, or the only one.
fn among(all: &[Listed], wanted: Option<&str>) -> Result<i32, ForeignError> {
    let is_meant = |guest: &&Listed| wanted.is_none() || guest.name.as_deref() == wanted;
    let meant: Vec<_> = all.iter().filter(is_meant).collect();
    match (meant.as_slice(), wanted) {
        ([one], _) => Ok(one.pid),
        ([], Some(name)) => Err(ForeignError::NoSuchGuest {
            name: name.to_owned(),
        }),
        (several, _) => Err(ForeignError::WhichGuest {
            guests: several.len(),
        }),
    }
}

/// How much memory a guest has whose VMM was started so and has these mappings.
fn amount(arguments: &[String], mappings: &[Mapping]) -> Option<Amount> {
    if let Some(bytes) = memory_of(arguments) {
        let is_guess = false;
        return Some(Amount { bytes, is_guess });
    }
    let window = format!("/memfd:{NAME}");
    let is_window = |of: &&Mapping| {
        of.file
            .as_ref()
            .is_some_and(|file| file.starts_with(&window))
    };
    let others = mappings.iter().filter(|mapping| !is_window(mapping));
    let bytes = others.map(|mapping| mapping.bytes).max();
    let bytes = bytes.filter(|bytes| *bytes >= LEAST)?;
    let is_guess = true;
    Some(Amount { bytes, is_guess })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_has_told_is_the_largest_piece_but_ours() {
        let mapping = |mib: u64, file: Option<&str>| Mapping {
            start: 0x1000,
            bytes: mib << 20,
            file: file.map(Into::into),
            offset: 0,
            is_shared: file.is_some(),
        };
        let mappings = [
            mapping(8, None),
            mapping(192, None),
            mapping(512, Some("/memfd:exotrace")),
        ];
        let told = ["lkvm", "run", "--mem", "320"].map(str::to_owned);
        let of = |arguments: &[String], mappings: &[Mapping]| {
            let amount = amount(arguments, mappings)?;
            Some((amount.bytes >> 20, amount.is_guess))
        };
        assert_eq!(of(&told, &mappings), Some((320, false)));
        assert_eq!(of(&[], &mappings), Some((192, true)));
        assert_eq!(of(&[], &mappings[..1]), None);
    }

    #[test]
    fn who_is_meant_is_the_only_one_or_the_only_one_of_its_name() {
        let guest = |pid: i32, name: Option<&str>| Listed {
            pid,
            vmm: "qemu".to_owned(),
            name: name.map(str::to_owned),
            vcpus: 1,
            memory: None,
        };
        let all = [
            guest(1, None),
            guest(2, Some("build")),
            guest(3, Some("web")),
            guest(4, Some("web")),
        ];
        let several = |all: &[Listed], wanted| match among(all, wanted) {
            Err(ForeignError::WhichGuest { guests }) => guests,
            other => panic!("{other:?}"),
        };
        assert_eq!(among(&all[..1], None).unwrap(), 1);
        assert_eq!(several(&all, None), 4);
        assert_eq!(several(&[], None), 0);
        assert_eq!(among(&all, Some("build")).unwrap(), 2);
        assert_eq!(several(&all, Some("web")), 2);
        let error = among(&all, Some("mail")).unwrap_err();
        assert!(matches!(error, ForeignError::NoSuchGuest { name } if name == "mail"));
    }
}
