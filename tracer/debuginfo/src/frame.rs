//! The canonical frame address at an instruction, from the rules for unwinding.

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, LittleEndian, UnwindContext, UnwindSection,
};

use super::sections::{Bytes, Sections};

/// How the address is computed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cfa<'a> {
    /// From a register of DWARF.
    Register(u16, i64),
    /// By an expression.
    Program(Bytes<'a>),
}

/// The rule for the instruction at an address.
pub(super) fn cfa(files: &Sections, at: u64) -> Option<Cfa<'_>> {
    let (debug_frame, _) = files.named(".debug_frame");
    let mut section = DebugFrame::new(debug_frame, LittleEndian);
    section.set_address_size(8);
    let from_debug = rule(&section, at, &BaseAddresses::default());
    from_debug.or_else(|| {
        let (eh_frame, address) = files.named(".eh_frame");
        let mut section = EhFrame::new(eh_frame, LittleEndian);
        section.set_address_size(8);
        rule(
            &section,
            at,
            &BaseAddresses::default().set_eh_frame(address),
        )
    })
}

fn rule<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    at: u64,
    bases: &BaseAddresses,
) -> Option<Cfa<'a>> {
    let entry = section
        .fde_for_address(bases, at, S::cie_from_offset)
        .ok()?;
    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(section, bases, &mut context, at);
    match row.ok()?.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Some(Cfa::Register(register.0, *offset)),
        CfaRule::Expression(expression) => Some(Cfa::Program(expression.get(section).ok()?.0)),
    }
}
