//! Places at which somebody may want to know what happens: one nop while nobody does.
//!
//! ```text
//! off               one callback                       several
//!   nop               jmp on                             jmp on
//!   …                 …                                  …
//!                   on: arguments, call dispatch       on: arguments, call dispatch
//!                   dispatch: jmp callback             dispatch: jmp iterate ──> each callback
//! ```

use core::any::TypeId;

use crate::text::Text;

/// The record of a tracepoint, in the section `__tracepoints`.
#[derive(Debug)]
#[repr(C)]
pub struct Tracepoint {
    dispatch: *const (),
    name: Text,
    signature: TypeId,
    fields: *const Field,
    field_count: usize,
    callbacks: *const (),
    candidates: *const (),
    candidate_count: usize,
}

/// A field: its name and its type.
#[derive(Debug)]
#[repr(C)]
pub struct Field {
    /// What it is called.
    pub name: Text,
    /// `u8` to `u64`, `i8` to `i64`, `usize`, `isize`, `bool`, or a pointer to something sized.
    pub kind: Text,
}

// SAFETY: nobody in the guest reads it, and what it points at is code, text, or an atomic.
unsafe impl Sync for Tracepoint {}

impl Tracepoint {
    /// The record of the tracepoint whose callbacks have the type `Signature`.
    #[must_use]
    pub const fn new<Signature: 'static, List>(
        dispatch: *const (),
        name: &'static str,
        fields: &'static [Field],
        callbacks: &'static List,
        candidates: &'static [Signature],
    ) -> Self {
        Self {
            dispatch,
            name: Text::new(name),
            signature: TypeId::of::<Signature>(),
            fields: fields.as_ptr(),
            field_count: fields.len(),
            callbacks: (&raw const *callbacks).cast(),
            candidates: candidates.as_ptr().cast(),
            candidate_count: candidates.len(),
        }
    }
}

/// Declares tracepoints: functions without a result that do nothing until somebody outside enables them.
///
/// ```ignore
/// tracepoint! {
///     /// A message was sent.
///     pub fn message_sent(from: u32, to: u32, size: u64) = count_messages | sum_sizes;
/// }
/// ```
///
/// Fields are integers, `bool` and pointers. The functions after `=`, if there are any, are callbacks that can be
/// enabled by name; each takes the fields. Every place that passes the tracepoint is one nop of five bytes
/// in line and code to call the callbacks out of it, and has a record in the section `__tracepoint_sites`:
/// the nop, that code, the tracepoint.
///
/// Needs the features `fn_align` and `patchable_function_entry`: the iterator is no patch site.
#[macro_export]
macro_rules! tracepoint {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($field:ident: $type:ty),* $(,)?) $(= $($callback:ident)|+)?;
    )*) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[allow(clippy::too_many_arguments, reason = "as many as there are fields")]
        $vis fn $name($($field: $type),*) {
            use ::core::ptr;
            use ::core::sync::atomic::{AtomicPtr, Ordering};
            use $crate::text::Text;
            use $crate::tracepoint::{Field, Tracepoint};

            type Callback = extern "C" fn($($type),*);

            static NOBODY: [Option<Callback>; 1] = [None];
            /// Ends with `None`. What it points at is never written: a thread can be anywhere in it.
            static CALLBACKS: AtomicPtr<Option<Callback>> =
                AtomicPtr::new((&raw const NOBODY).cast_mut().cast());

            #[patchable_function_entry(prefix_nops = 0, entry_nops = 0)]
            extern "C" fn iterate($($field: $type),*) {
                let mut next = CALLBACKS.load(Ordering::Acquire);
                // SAFETY: the list ends with `None`, and nobody goes past that.
                while let Some(callback) = unsafe { ptr::read(next) } {
                    callback($($field),*);
                    next = next.wrapping_add(1);
                }
            }

            #[unsafe(naked)]
            #[rustc_align(8)]
            extern "C" fn dispatch($($field: $type),*) {
                ::core::arch::naked_asm!(
                    ".byte 0xe9",
                    ".long {target} - . - 4",
                    target = sym iterate,
                )
            }

            #[used]
            #[unsafe(link_section = "__tracepoints")]
            static RECORD: Tracepoint = Tracepoint::new::<Callback, _>(
                dispatch as *const (),
                stringify!($name),
                &[$(Field {
                    name: Text::new(stringify!($field)),
                    kind: Text::new(stringify!($type)),
                }),*],
                &CALLBACKS,
                &[$($($callback),+)?],
            );

            // SAFETY: a nop, or a jump to the block.
            unsafe {
                ::core::arch::asm!(
                    "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                    ".pushsection __tracepoint_sites, \"a\", @progbits",
                    ".balign 8",
                    ".quad 2b, {on}, {record}",
                    ".popsection",
                    on = label { dispatch($($field),*) },
                    record = sym RECORD,
                    options(nomem, nostack, preserves_flags),
                );
            }
        }
    )*};
}
