//! Functions of a guest that is none.

use std::sync::Arc;

use terms::addr::Gva;
use terms::function::Function;

use crate::export::uftrace::layout::Text;

/// `f0`, `f1` and so on, of 16 bytes each.
pub fn functions(count: u64) -> Vec<Function> {
    let function = |number: u64| {
        let name: Arc<str> = format!("f{number}").into();
        Function {
            address: Gva(0xffff_ffff_8010_0000 + 16 * number),
            size: 16,
            name: Arc::clone(&name),
            display: name,
            ..Function::default()
        }
    };
    (0..count).map(function).collect()
}

/// A text of these functions, to which none can come.
pub const fn text_of(functions: &[Function]) -> Text<'_> {
    let limit = None;
    Text { functions, limit }
}
