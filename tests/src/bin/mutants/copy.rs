//! The copy of the sources that is changed and built. Files that are as they were keep their time, so that little is
//! compiled when little has changed.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use super::Failed;

/// The tree inside the place for mutants.
pub const TREE: &str = "tree";
/// What a build needs of the repository.
const PARTS: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "clippy.toml",
    "tracer",
    "vmm",
    "tests",
    "fuzz",
    // Whose commands a test runs.
    "README.md",
    "docs",
];

/// Every text file that a build needs, by path.
///
/// # Errors
/// When git does not list them, or one cannot be read.
pub fn sources(root: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "--"])
        .args(PARTS)
        .current_dir(root)
        .output()?;
    let names = String::from_utf8(listed.stdout)?;
    let mut sources = BTreeMap::new();
    for name in names.lines() {
        // What is no text is no source.
        if let Ok(text) = fs::read_to_string(root.join(name)) {
            sources.insert(name.to_owned(), text);
        }
    }
    Ok(sources)
}

/// Removes what is no source any more: cargo finds tests by their files.
fn prune(tree: &Path, folder: &Path, sources: &BTreeMap<String, String>) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .strip_prefix(tree)?
            .to_str()
            .ok_or("a name of no text")?;
        if path.is_dir() {
            prune(tree, &path, sources)?;
        } else if !sources.contains_key(name) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Writes the copy; returns a digest of it.
///
/// # Errors
/// When a file cannot be written.
pub fn write(root: &Path, place: &Path, sources: &BTreeMap<String, String>) -> Result<u64, Failed> {
    let tree = place.join(TREE);
    for (name, text) in sources {
        let path = tree.join(name);
        if fs::read_to_string(&path).is_ok_and(|before| before == *text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)?;
    }
    for folder in PARTS.map(|part| tree.join(part)) {
        if folder.is_dir() {
            prune(&tree, &folder, sources)?;
        }
    }
    // Guests and kernels are the same.
    let images = tree.join("images");
    if !images.exists() {
        std::os::unix::fs::symlink(root.join("images"), images)?;
    }
    let mut hasher = DefaultHasher::new();
    // This program and its list change no answer.
    let is_asked = |name: &&String| {
        let is_own = name.starts_with("tests/mutants") || name.starts_with("tests/src/bin/");
        !is_own && !name.ends_with(".md")
    };
    for name in sources.keys().filter(is_asked) {
        (name, sources.get(name)).hash(&mut hasher);
    }
    Ok(hasher.finish())
}
