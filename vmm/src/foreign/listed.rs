//! The guests of this host, as their VMMs show them.

use std::fs;

use super::error::ForeignError;
use super::process::Process;

/// A guest of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its VMM.
    pub pid: i32,
    /// What its VMM is called.
    pub vmm: String,
    /// What its VMM calls the guest.
    pub name: Option<String>,
    /// How many vCPUs it has.
    pub vcpus: usize,
    /// How much memory its VMM says that it has, in bytes; none where that is not known without a pause.
    pub memory: Option<u64>,
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
        memory: None,
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
    let all = guests()?;
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

/// What a VMM is called: by the file that it was started from, in short.
fn vmm_of(arguments: &[String], command: &str) -> String {
    let program = arguments.first().map_or(command, String::as_str);
    let file = program.rsplit('/').next().unwrap_or(program);
    match file.strip_prefix("qemu-system-") {
        Some(_) => "qemu".to_owned(),
        None => file.to_owned(),
    }
}

/// What a VMM calls its guest: QEMU's `-name guest=NAME` or `-name NAME`, Firecracker's `--id`, lkvm's `--name`.
fn name_of(arguments: &[String]) -> Option<String> {
    const OPTIONS: [&str; 3] = ["-name", "--name", "--id"];
    let at = arguments
        .iter()
        .position(|argument| OPTIONS.contains(&argument.as_str()))?;
    let said = arguments.get(at + 1)?;
    let mut parts = said.split(',');
    let named = parts.clone().find_map(|part| part.strip_prefix("guest="));
    let name = named.or_else(|| parts.next().filter(|part| !part.contains('=')))?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guests_have_the_names_that_their_vmms_have_for_them() {
        for (line, name) in [
            (
                "/usr/bin/qemu-system-x86_64 -name build-7 -m 1G",
                Some("build-7"),
            ),
            ("qemu -name guest=build-7,debug-threads=on", Some("build-7")),
            ("qemu -name debug-threads=on", None),
            ("firecracker --id a1 --api-sock x", Some("a1")),
            ("lkvm run --name g", Some("g")),
            ("qemu -name", None),
            ("vmm run", None),
        ] {
            assert_eq!(name_of(&words(line)).as_deref(), name, "{line}");
        }
        assert_eq!(
            vmm_of(&words("/usr/bin/qemu-system-x86_64 -m 1"), "x"),
            "qemu"
        );
        assert_eq!(vmm_of(&words("./firecracker"), "x"), "firecracker");
        assert_eq!(vmm_of(&[], "lkvm"), "lkvm");
    }
}
