//! Where the guest is: what its vCPUs execute, and whether a kernel runs where it was linked. The Linux
//! in a bzImage does, as it is entered unpacked; but a kernel can come with code of its own that moves it
//! (KASLR), and then all that is known of it is elsewhere. It cannot hide that: it has told the processor
//! where its system calls enter.

use crate::paging::{PageTableRoot, translate};
use crate::target::{StoppedTarget, TargetMemory, VcpuRegisters};
use image::Image;
use image::site::Site;
use terms::addr::Gva;
use terms::function::{Function, FunctionId};
use terms::site::HexBytes;

use super::Tracing;
use super::error::TracingError;
use crate::engine::Engine;
use crate::guest::{Guest, StoppedGuest};
use crate::guest_kind;

impl Tracing {
    /// A place in the guest's text, for messages.
    #[must_use]
    pub fn place(&self, address: Gva) -> String {
        within(address, &self.attachment.shared.image).map_or_else(
            || address.to_string(),
            |function| format!("{function} ({address})"),
        )
    }

    /// Whether the kernel runs where its functions are known to be.
    ///
    /// # Errors
    /// [`TracingError::Moved`] when it does not; [`TracingError::Stop`] or [`TracingError::Register`] when
    /// that cannot be seen.
    pub fn check_place(&self, guest: &impl Guest) -> Result<(), TracingError> {
        check_place(&mut guest.stop()?, &self.attachment.shared.image)
    }

    /// What each vCPU executes now, in one line for people; nothing when the guest cannot be paused.
    #[must_use]
    pub fn places(&self, guest: &impl Guest) -> Option<String> {
        let stopped = guest.stop().ok()?;
        Some(places(stopped.vcpus(), &self.attachment.shared.image))
    }
}

/// Whether the guest's page tables lead the first and the last of its lasting sites where they were loaded, and so the words that
/// lead to lists of callbacks: there they are written while it runs, when no vCPU is asked for its tables.
pub(super) fn is_where_loaded(
    guest: &impl Guest,
    stopped: &impl StoppedTarget,
    engine: &Engine,
) -> bool {
    let image = engine.image();
    let leads_there = |at: Gva| {
        let mut vcpus = stopped.vcpus().iter().filter(|vcpu| vcpu.online);
        let found = vcpus.find_map(|vcpu| {
            let root = PageTableRoot::of_text(stopped, vcpu, at).ok()?;
            translate(stopped, root, at).ok()
        });
        found.is_some_and(|found| guest.locate(at).is_some_and(|(at, _)| at == found.physical))
    };
    let stays = |site: &&Site| engine.transient().stays(image, site.function, site.address);
    let mut sites = image.sites.iter().filter(stays);
    let Some(first) = sites.next() else {
        // Nothing shows it.
        return false;
    };
    let last = sites.next_back().unwrap_or(first);
    let lists = [image.tracepoints.first(), image.tracepoints.last()];
    let lists = lists
        .into_iter()
        .flatten()
        .map(|tracepoint| tracepoint.list);
    let ends = [first.address, last.address];
    ends.into_iter().chain(lists).all(leads_there)
}

/// Checks it; a kernel that has not set system calls up yet is believed.
///
/// # Errors
/// [`TracingError::Moved`], or [`TracingError::Register`] when KVM does not give the register.
pub(super) fn check_place(
    stopped: &mut impl StoppedGuest,
    image: &Image,
) -> Result<(), TracingError> {
    let Some(entry) = guest_kind::of(image).system_call_entry() else {
        return Ok(());
    };
    let Some(linked) = image.symbols.address_of(entry) else {
        return Ok(());
    };
    compare(entry, linked, stopped.syscall_entry(0)?)
}

fn compare(entry: &'static str, linked: Gva, runs: Gva) -> Result<(), TracingError> {
    if runs.0 == 0 || runs == linked {
        return Ok(());
    }
    Err(TracingError::Moved {
        entry,
        linked,
        runs,
    })
}

/// Functions whose text is looked at.
const COMPARED: usize = 64;
/// Where in them: patch sites, which kernels change themselves, are before it.
const COMPARED_FROM: usize = 16;
/// So many bytes are compared; shorter functions are passed over.
const COMPARED_BYTES: usize = 16;

/// Some of an image's text, by which it is known.
#[derive(Debug)]
pub(super) struct TextSample<'a>(Vec<(&'a Function, &'a [u8])>);

impl<'a> TextSample<'a> {
    /// Of functions all over the image: to be taken before the guest is stopped.
    pub fn of(image: &'a Image) -> Self {
        let long = (0..)
            .zip(&image.functions)
            .filter_map(|(number, function)| {
                let code = image.code(FunctionId(number));
                let code = code.get(COMPARED_FROM..COMPARED_FROM + COMPARED_BYTES)?;
                Some((function, code))
            });
        let long: Vec<_> = long.collect();
        let step = long.len().div_ceil(COMPARED).max(1);
        Self(long.into_iter().step_by(step).collect())
    }

    /// Checks that it is what is in memory. A kernel changes its text in many places, and two builds have the same in some
    /// (Debian 6.1, traced: 7 of 64 are others; two builds of the bundled guest: 35 of 57): where more than half is not as
    /// it should be, another one runs. What cannot be read says nothing.
    ///
    /// # Errors
    /// [`TracingError::OtherKernel`].
    pub fn check(&self, target: &impl TargetMemory) -> Result<(), TracingError> {
        let (mut compared, mut others, mut first) = (0, 0, None);
        for (function, file) in &self.0 {
            let at = function.address.wrapping_add(COMPARED_FROM as u64);
            let mut runs = [0; COMPARED_BYTES];
            if target.read(at, &mut runs).is_err() {
                continue;
            }
            compared += 1;
            if runs == **file {
                continue;
            }
            others += 1;
            first.get_or_insert((function, at, runs, file));
        }
        let Some((function, at, runs, file)) = first.filter(|_| others * 2 > compared) else {
            return Ok(());
        };
        Err(TracingError::OtherKernel {
            compared,
            others,
            function: function.display.to_string(),
            at,
            runs: HexBytes(&runs).to_string(),
            file: HexBytes(file).to_string(),
        })
    }
}

/// vCPUs that are named in one line.
const NAMED: usize = 4;

/// What each vCPU executes, for people.
pub(super) fn places(vcpus: &[VcpuRegisters], image: &Image) -> String {
    let mut places: Vec<String> = (0..)
        .zip(vcpus)
        .take(NAMED)
        .map(|(vcpu, registers): (u16, _)| format!("vCPU {vcpu} is {}", place(registers, image)))
        .collect();
    if vcpus.len() > NAMED {
        places.push("...".to_owned());
    }
    places.join(", ")
}

fn place(vcpu: &VcpuRegisters, image: &Image) -> String {
    let at = Gva(vcpu.rip);
    match (within(at, image), vcpu.online) {
        (_, false) => "not started".to_owned(),
        (Some(function), _) => format!("in {function}"),
        (None, _) => format!("at {at} in ring {}", vcpu.cpl),
    }
}

/// The function that has the address, and how far in it that is.
pub(super) fn within(at: Gva, image: &Image) -> Option<String> {
    let function = image.function_at(at).and_then(|id| image.function(id))?;
    Some(match at.0.saturating_sub(function.address.0) {
        0 => function.display.to_string(),
        offset => format!("{}+{offset:#x}", function.display),
    })
}

#[cfg(test)]
mod tests {
    use crate::mock::{MockTarget, Rights};
    use crate::target::TextMemory;

    use super::*;

    /// Of as many functions as are looked at, so many have other text; and one lies where nothing can be read.
    #[test]
    fn another_kernel_is_one_that_has_more_other_text_than_the_same() {
        let named = |name: &str| Function {
            name: name.into(),
            display: name.into(),
            ..Function::default()
        };
        let functions: Vec<Function> = (0..5)
            .map(|number| Function {
                address: Gva(0xffff_ffff_8100_0000 + 0x40 * number),
                ..named(&format!("f{number}"))
            })
            .collect();
        let away = Function {
            address: Gva(0xffff_ffff_9000_0000),
            ..named("away")
        };
        let file = [0x90; COMPARED_BYTES];
        let mut target = MockTarget::new(1, 1 << 21);
        let text = Gva(0xffff_ffff_8100_0000);
        target
            .map(text, terms::addr::Gpa(0x10_0000), 4096, Rights::ALL)
            .unwrap();
        for others in 0..=4 {
            for (number, function) in functions.iter().take(4).enumerate() {
                let runs = if number < others { [0xcc; 16] } else { file };
                let at = function.address.wrapping_add(COMPARED_FROM as u64);
                target.write(at, &runs).unwrap();
            }
            let compared = functions.iter().take(4).chain([&away]);
            let sample = TextSample(compared.map(|function| (function, &file[..])).collect());
            match sample.check(&target) {
                Ok(()) => assert!(others <= 2, "{others}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(others > 2, "{said}");
                    assert!(said.contains(&format!("of 4 functions that were looked at {others}")));
                    assert!(said.contains("f0 has cc cc"), "{said}");
                }
            }
        }
    }

    #[test]
    fn places_are_functions_and_offsets_where_there_are_any() {
        let image = Image {
            functions: vec![Function {
                address: Gva(0x1000),
                size: 0x20,
                name: "idle".into(),
                display: "idle".into(),
                ..Function::default()
            }],
            ..Image::default()
        };
        let vcpu = |rip, cpl, online| VcpuRegisters {
            rip,
            cpl,
            online,
            ..VcpuRegisters::default()
        };
        let vcpus = [
            vcpu(0x100b, 0, true),
            vcpu(0x2000, 3, true),
            vcpu(0xfff0, 0, false),
        ];
        assert_eq!(
            places(&vcpus, &image),
            "vCPU 0 is in idle+0xb, vCPU 1 is at 0x2000 in ring 3, vCPU 2 is not started"
        );
        assert!(places(&[vcpus[0]; 5], &image).ends_with(", ..."));
    }

    #[test]
    fn only_a_kernel_that_has_moved_is_refused() {
        let linked = Gva(0xffff_ffff_8200_0080);
        compare("entry", linked, Gva(0)).unwrap();
        compare("entry", linked, linked).unwrap();
        let refused = compare("entry", linked, Gva(0xffff_ffff_8e00_0080)).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("0xffffffff8e000080"), "{message}");
        assert!(message.contains("nokaslr"), "{message}");
    }
}
