//! What the command line of a VMM says of its guest: what it is called, and how much memory it has. A VMM can say there what it
//! likes; nothing is done with it but showing it, and finding a guest by its name.

use terms::quantity::bytes;

/// What a VMM is called: by the file that it was started from, in short.
pub fn vmm_of(arguments: &[String], command: &str) -> String {
    let program = arguments.first().map_or(command, String::as_str);
    let file = program.rsplit('/').next().unwrap_or(program);
    match file.strip_prefix("qemu-system-") {
        Some(_) => "qemu".to_owned(),
        None => file.to_owned(),
    }
}

/// What a VMM calls its guest: QEMU's `-name guest=NAME` or `-name NAME`, Firecracker's `--id`, lkvm's `--name`.
pub fn name_of(arguments: &[String]) -> Option<String> {
    let said = value_of(arguments, &["-name", "--name", "--id"])?;
    first_or(said, "guest=").map(str::to_owned)
}

/// The bytes of memory that a guest was started with: QEMU's `-m 1G` or `-m size=1G`, ours and lkvm's `--memory` and `--mem`,
/// Cloud Hypervisor's `--memory size=1G`. A number alone is in MiB, as with all of them.
pub fn memory_of(arguments: &[String]) -> Option<u64> {
    let said = value_of(arguments, &["-m", "--memory", "--mem"])?;
    bytes(first_or(said, "size=")?, "M").ok()
}

/// What an option was given: as the next word, or after `=`.
fn value_of<'a>(arguments: &'a [String], options: &[&str]) -> Option<&'a str> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if options.contains(&word.as_str()) {
            return words.next().map(String::as_str);
        }
        let split = word.split_once('=');
        if let Some((_, value)) = split.filter(|(option, _)| options.contains(option)) {
            return Some(value);
        }
    }
    None
}

/// Of the parts of a value, what stands after `key`; or else the first one, if it stands alone.
fn first_or<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let mut parts = value.split(',');
    let keyed = parts.clone().find_map(|part| part.strip_prefix(key));
    keyed.or_else(|| parts.next().filter(|part| !part.contains('=')))
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
            ("firecracker --id=a1", Some("a1")),
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

    #[test]
    fn guests_have_the_memory_that_they_were_started_with() {
        for (line, mib) in [
            ("qemu -m 256", Some(256)),
            ("qemu -m 1G -smp 2", Some(1024)),
            ("qemu -m size=2g,slots=4,maxmem=8g", Some(2048)),
            ("qemu -m 512M,slots=4,maxmem=8g", Some(512)),
            ("qemu -m slots=4,maxmem=8g", None),
            ("vmm run --memory 512", Some(512)),
            ("vmm run --memory=1G", Some(1024)),
            ("cloud-hypervisor --memory size=1G,shared=on", Some(1024)),
            ("lkvm run --mem 320", Some(320)),
            ("qemu -m much", None),
            ("qemu -m", None),
            ("qemu", None),
        ] {
            let bytes = mib.map(|mib: u64| mib << 20);
            assert_eq!(memory_of(&words(line)), bytes, "{line}");
        }
    }
}
