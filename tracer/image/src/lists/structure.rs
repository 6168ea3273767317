//! A list of sites in a file that does not say where it is (Linux has it in `.init.data`): the longest
//! run of ascending addresses each of which is that of a call of `__fentry__`, or of the nop that it
//! becomes.

use insn::nop::{NopRun, nop_run};
use insn::scan::{LeadingCall, leading_call};
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use crate::SymbolTable;
use crate::elf::Elf;

/// A shorter run is no list.
const LENGTH_MIN: usize = 16;

/// The address of the longest run, and what it lists.
pub(super) fn longest(elf: &Elf<'_>, symbols: &SymbolTable) -> Option<(Gva, Vec<Gva>)> {
    let fentry = symbols.address_of("__fentry__")?;
    let text = elf.text();
    let (lowest, highest) = (text.first()?.start, text.last()?.end);
    let mut longest = (Gva(0), Vec::new());
    for (start, bytes) in elf.loaded() {
        let (words, _) = bytes.as_chunks::<8>();
        let mut run: Vec<Gva> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let address = Gva(u64::from_le_bytes(*word));
            let in_text = (lowest..highest).contains(&address);
            if in_text
                && run.last().is_none_or(|last| *last < address)
                && is_site(elf, address, fentry)
            {
                run.push(address);
                continue;
            }
            keep_longer(&mut longest, &mut run, start, index);
            // A run can begin at the word that another one ends at.
            if in_text && is_site(elf, address, fentry) {
                run.push(address);
            }
        }
        keep_longer(&mut longest, &mut run, start, words.len());
    }
    (longest.1.len() >= LENGTH_MIN).then_some(longest)
}

/// `run` ended before word `end` of the segment at `start`.
fn keep_longer(longest: &mut (Gva, Vec<Gva>), run: &mut Vec<Gva>, start: Gva, end: usize) {
    if run.len() > longest.1.len() {
        let first = end.saturating_sub(run.len()) as u64 * 8;
        *longest = (Gva(start.0.saturating_add(first)), std::mem::take(run));
    }
    run.clear();
}

fn is_site(elf: &Elf<'_>, address: Gva, fentry: Gva) -> bool {
    let bytes = elf.bytes_at(address, SITE_LENGTH as u64);
    match bytes.first() {
        // The opcode of `call rel32`: most words are no site, and decoding costs.
        Some(0xe8) => matches!(
            leading_call(bytes, address),
            Some(LeadingCall::Direct(call)) if call.target == fentry
        ),
        Some(0x0f | 0x66) if bytes.len() == SITE_LENGTH => {
            matches!(nop_run(bytes), Some(NopRun::One))
        }
        _ => false,
    }
}
