//! Functions that lead to one of several others: `jmp target`, five bytes that somebody retargets.

use core::any::TypeId;

use crate::text::Text;

/// The record of a dynamic function, in the section `__dynamic_functions`.
#[derive(Debug)]
#[repr(C)]
pub struct DynamicFunction {
    jump: *const (),
    name: Text,
    signature: TypeId,
    types: Text,
    targets: *const (),
    count: usize,
}

// SAFETY: nobody in the guest reads it, and what it points at is never written.
unsafe impl Sync for DynamicFunction {}

impl DynamicFunction {
    /// The record of the function of type `Signature` whose jump lies at `jump`.
    #[must_use]
    pub const fn new<Signature: 'static>(
        jump: *const (),
        name: &'static str,
        types: &'static str,
        targets: &'static [Signature],
    ) -> Self {
        Self {
            jump,
            name: Text::new(name),
            signature: TypeId::of::<Signature>(),
            types: Text::new(types),
            targets: targets.as_ptr().cast(),
            count: targets.len(),
        }
    }
}

/// Declares functions that lead to the first of the named ones until somebody retargets them. They are
/// called like any other function:
///
/// ```ignore
/// dynamic_function! {
///     /// Adds in one of two ways.
///     pub fn add(a: u64, b: u64) -> u64 = add_wrapping | add_saturating;
/// }
/// ```
///
/// Any signature that `extern "C"` can have is possible; each target has the same one. The name is a
/// symbol, so no other function of the image can have it. The jump begins at a multiple of eight, so
/// it lies in one cache line. Needs the feature `fn_align`.
#[macro_export]
macro_rules! dynamic_function {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?
            = $default:ident $(| $other:ident)*;
    )*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[rustc_align(8)]
        $vis extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            ::core::arch::naked_asm!(
                ".byte 0xe9",
                ".long {target} - . - 4",
                target = sym $default,
            )
        }
        const _: () = {
            type Signature = extern "C" fn($($type),*) $(-> $result)?;
            #[used]
            #[unsafe(link_section = "__dynamic_functions")]
            static RECORD: $crate::function::DynamicFunction =
                $crate::function::DynamicFunction::new::<Signature>(
                    $name as *const (),
                    stringify!($name),
                    stringify!(fn($($type),*) $(-> $result)?),
                    &[$default, $($other),*],
                );
        };
    )*};
}
