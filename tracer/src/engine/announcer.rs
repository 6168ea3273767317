//! Modules that have come, told by the guest itself before their first function runs.
//!
//! The list of modules says what is there when somebody looks. A function of the guest is called once for each module,
//! when all of it is in its place and nothing of it has run: while anybody wants to know, the stub of that function
//! rings the host's doorbell, which leaves the guest. The vCPU continues when the host has seen to the module. What is
//! written is a routine of two instructions in the window and our jump at the function's own site, which is no user's: it
//! is in no count, and goes when nobody wants to know any more.

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;

use crate::guest_kind;
use crate::stub::doorbell::Doorbell;

/// The function whose stub tells of modules.
#[derive(Debug)]
pub(super) struct Announcer {
    function: FunctionId,
    port: u8,
    /// Whether anybody wants to know, from the next plan on.
    pub is_wanted: bool,
}

impl Announcer {
    /// That of the guest, if it has one; the host sees to vCPUs that write to this port.
    pub fn of(image: &Image, port: u8) -> Option<Self> {
        let called = guest_kind::of(image).called_for_modules()?;
        Some(Self {
            function: with_site(image, called)?,
            port,
            is_wanted: false,
        })
    }

    /// The function.
    pub const fn function(&self) -> FunctionId {
        self.function
    }

    /// What the stub of `function` calls first, before `routine`, if it has to tell of a module.
    pub fn doorbell(&self, function: FunctionId, routine: Option<Gva>) -> Option<Doorbell> {
        (self.function == function && self.is_wanted).then_some(Doorbell {
            port: self.port,
            go_on: routine,
        })
    }
}

/// The function of the kernel's that is called so, if it has a site.
pub(super) fn with_site(image: &Image, called: &str) -> Option<FunctionId> {
    let is_it = |id: &FunctionId| {
        let function = image.function(*id);
        function.is_some_and(|one| &*one.name == called && one.module.is_none())
    };
    let mut functions = image.sites.iter().map(|site| site.function);
    functions.find(is_it)
}
