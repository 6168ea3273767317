//! A digest of the guest's text as it stands in memory: the same before attach and after detach.
//!
//! A kernel that changes its own text while it runs (Linux: static branches, static calls, its own tracer)
//! never has the same text twice. Of such a one the digest covers what tracing writes to, the patch sites.

use image::{Image, Site, TextRange};
use sha2::{Digest, Sha256};
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use crate::target::{MemoryError, TargetMemory};

const CHUNK: u64 = 4096;

/// The SHA-256 of all executable bytes of the image that stay, as they are in guest memory now, in
/// hexadecimal; of a kernel that changes its own text, of all its patch sites that stay.
///
/// # Errors
/// [`MemoryError`] when the guest has unmapped part of its text.
pub fn text_digest(
    memory: &(impl TargetMemory + ?Sized),
    image: &Image,
) -> Result<String, MemoryError> {
    let mut hash = Sha256::new();
    if image.normalises_itself() {
        let lasting: Vec<TextRange> = image.lasting_text().collect();
        let lasts = |site: &&Site| {
            let holds = |range: &TextRange| range.holds(site.address, SITE_LENGTH as u64);
            lasting.iter().any(holds)
        };
        for site in image.sites.iter().filter(lasts) {
            let mut bytes = [0; SITE_LENGTH];
            memory.read(site.address, &mut bytes)?;
            hash.update(bytes);
        }
        return Ok(hexadecimal(hash));
    }
    for range in image.lasting_text() {
        let mut at = range.start;
        while at < range.end {
            let length = (range.end.0 - at.0).min(CHUNK - at.0 % CHUNK);
            let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
            memory.read(at, &mut bytes)?;
            hash.update(&bytes);
            at = Gva(at.0.saturating_add(length));
        }
    }
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
