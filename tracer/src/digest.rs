//! A digest of the guest's text as it stands in memory: the same before attach and after detach.

use sha2::{Digest, Sha256};

use crate::addr::Gva;
use crate::image::Image;
use crate::target::{MemoryError, TargetMemory};

const CHUNK: u64 = 4096;

/// The SHA-256 of all executable bytes of the image that stay, as they are in guest memory now, in
/// hexadecimal.
///
/// # Errors
/// [`MemoryError`] when the guest has unmapped part of its text.
pub fn text_digest(
    memory: &(impl TargetMemory + ?Sized),
    image: &Image,
) -> Result<String, MemoryError> {
    let mut hash = Sha256::new();
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
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
