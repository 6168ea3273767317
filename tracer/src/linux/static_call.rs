//! Where a static call of a Linux kernel leads while it runs.

use image::{Image, StaticCall};
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use crate::target::{MemoryError, TargetMemory};

/// Where a static call of `image` leads now; none when it returns at once.
///
/// # Errors
/// [`MemoryError`] when its trampoline cannot be read.
pub fn target(
    image: &Image,
    call: &StaticCall,
    memory: &(impl TargetMemory + ?Sized),
) -> Result<Option<Gva>, MemoryError> {
    let mut bytes = [0; SITE_LENGTH];
    memory.read(call.trampoline, &mut bytes)?;
    Ok(call.target(image, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::target::TextMemory;
    use image::testing::{ElfFile, TEXT, body};
    use insn::jump::jump;

    #[test]
    fn a_static_call_leads_where_its_trampoline_does_now() {
        let trampoline = Gva(TEXT + 0x10);
        let file = ElfFile::new()
            .text(
                TEXT,
                &[body(&[0xc3]), body(&[0xc3]), body(&[0xc3])].concat(),
            )
            .function("target", TEXT, 8)
            .function("__SCT__returns", trampoline.0, 8)
            .function("__x86_return_thunk", TEXT + 0x20, 8);
        let image = Image::parse(&file.build()).unwrap();
        let returns = &image.static_calls[0];
        let mut guest = MockTarget::with_image(1, 0, &image, Rights::ALL).unwrap();
        let bytes = jump(trampoline, Gva(TEXT)).unwrap();
        guest.write(trampoline, &bytes).unwrap();
        assert_eq!(target(&image, returns, &guest), Ok(Some(Gva(TEXT))));
        guest.write(trampoline, &[0xc3]).unwrap();
        assert_eq!(target(&image, returns, &guest), Ok(None));
        let bytes = jump(trampoline, Gva(TEXT + 0x20)).unwrap();
        guest.write(trampoline, &bytes).unwrap();
        assert_eq!(target(&image, returns, &guest), Ok(None));
    }
}
