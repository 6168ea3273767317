//! No type does everything: what it has of methods, in all its `impl` blocks together, wherever they stand.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use syn::visit::{self, Visit};
use syn::{ImplItem, ItemImpl, Type};

use crate::source::sources;

/// Methods that a type may have. Those of traits are not counted: the trait asks for them.
const METHODS: usize = 40;

/// Types that have more, and how many. These numbers may only go down.
const LARGE: [(&str, &str, usize); 0] = [];

/// How many methods each type of a crate has.
#[derive(Default)]
struct Methods {
    of: BTreeMap<String, usize>,
}

impl<'a> Visit<'a> for Methods {
    fn visit_item_impl(&mut self, block: &'a ItemImpl) {
        if let (None, Type::Path(of)) = (&block.trait_, &*block.self_ty) {
            let name = of.path.segments.last().expect("a name").ident.to_string();
            let is_method = |item: &&ImplItem| matches!(item, ImplItem::Fn(_));
            *self.of.entry(name).or_default() += block.items.iter().filter(is_method).count();
        }
        visit::visit_item_impl(self, block);
    }
}

/// The folder of the crate that a source belongs to.
fn crate_of(path: &Path) -> String {
    let is_source = |part: &Component<'_>| part.as_os_str() != "src";
    let parts = path.components().take_while(is_source);
    parts.collect::<std::path::PathBuf>().display().to_string()
}

#[test]
fn no_type_has_more_methods_than_can_be_known() {
    let mut crates: BTreeMap<String, Methods> = BTreeMap::new();
    for source in ["tracer", "vmm/src", "tests/src"]
        .into_iter()
        .flat_map(sources)
    {
        let methods = crates.entry(crate_of(&source.path)).or_default();
        methods.visit_file(&source.file());
    }
    let large: BTreeMap<(&str, &str), usize> = crates
        .iter()
        .flat_map(|(name, methods)| {
            let large = methods.of.iter().filter(|(_, count)| **count > METHODS);
            large.map(|(of, count)| ((&**name, &**of), *count))
        })
        .collect();
    let allowed = LARGE.map(|(name, of, count)| ((name, of), count));
    assert_eq!(
        large,
        BTreeMap::from(allowed),
        "types with more than {METHODS} methods: what a type knows of its own goes to a type of that; fewer are welcome, \
         and the list then shrinks"
    );
}

#[test]
fn methods_are_counted_over_all_blocks_and_without_those_of_traits() {
    let text = "struct A<T>(T); impl<T> A<T> { fn a() {} const B: u8 = 0; fn b(&self) {} } \
                impl Clone for A<u8> { fn clone(&self) -> Self { loop {} } } \
                mod inner { impl super::A<u8> { pub fn c() {} } } struct D;";
    let mut methods = Methods::default();
    methods.visit_file(&syn::parse_file(text).expect("Rust"));
    assert_eq!(methods.of, BTreeMap::from([("A".to_owned(), 3)]));
    assert_eq!(
        crate_of(Path::new("tracer/insn/src/flow/scan.rs")),
        "tracer/insn"
    );
}
