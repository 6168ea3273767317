//! Words of data that may be addresses.

use terms::addr::Gva;

/// What words of 32 bits at each fourth byte of `data`, which lies at `at`, point at, as an address and relative
/// to themselves, and words of 64 bits there.
pub(super) fn words(data: &[u8], at: Gva) -> impl Iterator<Item = u64> + '_ {
    let short = aligned(data, at).filter_map(|(here, rest)| {
        let word = i64::from(i32::from_le_bytes(*rest.first_chunk()?));
        Some([here.wrapping_add_signed(word), word.cast_unsigned()])
    });
    short.flatten().chain(long_words(data, at))
}

/// The words of 64 bits at each fourth byte of `data`, which lies at `at`.
pub(super) fn long_words(data: &[u8], at: Gva) -> impl Iterator<Item = u64> + '_ {
    aligned(data, at).filter_map(|(_, rest)| Some(u64::from_le_bytes(*rest.first_chunk()?)))
}

/// Each fourth byte of `data`, which lies at `at`: its address and what is there.
fn aligned(data: &[u8], at: Gva) -> impl Iterator<Item = (u64, &[u8])> {
    let lead = usize::try_from(at.0.wrapping_neg() & 3).unwrap_or_default();
    let offsets = (lead..data.len()).step_by(4);
    offsets.filter_map(move |offset| Some((at.0.wrapping_add(offset as u64), data.get(offset..)?)))
}
