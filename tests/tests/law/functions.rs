//! A function does one thing: how many lines it may have.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use crate::source::sources;

/// Lines that a function may have, its signature and braces included.
const LINES: usize = 60;

/// The functions of a file that have more.
#[derive(Default)]
struct Long(Vec<(String, usize)>);

impl Long {
    fn look(&mut self, signature: &Signature, body: &Block) {
        let (first, last) = (signature.span().start().line, body.span().end().line);
        let lines = last + 1 - first;
        if lines > LINES {
            self.0.push((signature.ident.to_string(), lines));
        }
    }
}

impl<'a> Visit<'a> for Long {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        self.look(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        self.look(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'a TraitItemFn) {
        if let Some(body) = &function.default {
            self.look(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

fn long_functions(file: &syn::File) -> Vec<(String, usize)> {
    let mut long = Long::default();
    long.visit_file(file);
    long.0
}

#[test]
fn no_function_has_more_lines_than_can_be_seen_at_once() {
    let sources = ["tracer", "vmm/src"].into_iter().flat_map(sources);
    let of = |source: crate::source::Source| {
        let path = source.path.display().to_string();
        let long = long_functions(&source.file()).into_iter();
        long.map(|(name, lines)| format!("{path}: {name}, {lines} lines"))
            .collect::<Vec<_>>()
    };
    let long: Vec<String> = sources.flat_map(of).collect();
    assert!(long.is_empty(), "over {LINES} lines:\n{}", long.join("\n"));
}

#[test]
fn lines_are_counted_from_the_signature_to_the_last_brace() {
    let body = |statements| format!("fn f(\n) {{\n{}}}", "let _ = 0;\n".repeat(statements));
    let long = |text: &str| long_functions(&syn::parse_file(text).expect("Rust"));
    assert_eq!(long(&body(LINES - 3)), []);
    assert_eq!(long(&body(LINES - 2)), [("f".to_owned(), LINES + 1)]);
    let method = format!("struct A; impl A {{ {} }}", body(LINES));
    assert_eq!(long(&method), [("f".to_owned(), LINES + 3)]);
}
