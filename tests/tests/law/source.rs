//! The sources of the repository as the laws look at them: whole files, less what is compiled for tests only.
//! What that is, a parser says, so that it may stand anywhere in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it is in the repository.
    pub path: PathBuf,
    /// Its text, comments included, without what is for tests only.
    pub text: String,
}

impl Source {
    /// Its text, parsed.
    pub fn file(&self) -> syn::File {
        parsed(&self.path, &self.text)
    }

    /// Every name and keyword in its code.
    pub fn names(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        collect_names(self.tokens(), &mut found);
        found
    }

    /// Every string in it that is no documentation.
    pub fn strings(&self) -> Vec<String> {
        let mut found = Vec::new();
        collect_strings(self.tokens(), &mut found);
        found
    }

    fn tokens(&self) -> TokenStream {
        self.text.parse().expect("Rust")
    }
}

/// Every Rust file below `folder`, but those that are for tests only.
pub fn sources(folder: &str) -> Vec<Source> {
    // Most laws look at the same folders, each in a thread of its own.
    static READ: Mutex<BTreeMap<String, Vec<Source>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let known = read.entry(folder.to_owned());
    known.or_insert_with(|| read_sources(folder)).clone()
}

fn read_sources(folder: &str) -> Vec<Source> {
    let mut tests = BTreeSet::new();
    let cut = |path: PathBuf| {
        let whole = fs::read_to_string(&path).expect("a source file");
        let file = parsed(&path, &whole);
        tests.extend(test_modules(&path, &file));
        let text = without_tests(&whole, &file);
        Source { path, text }
    };
    let files: Vec<Source> = all_files(folder).into_iter().map(cut).collect();
    let is_test = |path: &Path| {
        tests
            .iter()
            .any(|test| path == test.with_extension("rs") || path.starts_with(test))
    };
    let in_repository = |Source { path, text }| Source {
        path: path.strip_prefix(root()).expect("below it").to_owned(),
        text,
    };
    files
        .into_iter()
        .filter(|file| !is_test(&file.path))
        .map(in_repository)
        .collect()
}

fn all_files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {folder}");
    found.sort();
    found
}

fn parsed(path: &Path, text: &str) -> syn::File {
    syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text with blanks in place of what is compiled for tests only.
fn without_tests(text: &str, file: &syn::File) -> String {
    let mut found = Tests::default();
    found.visit_file(file);
    let mut left = text.to_owned();
    for range in found.ranges {
        let blank = text[range.clone()].replace(|char| char != '\n', " ");
        // In bytes, for spans count them; a character of several becomes one blank.
        let blank = format!("{blank:<width$}", width = range.len());
        left.replace_range(range, &blank);
    }
    left
}

/// Where modules that are for tests only, and have files of their own, have them: without `.rs`.
fn test_modules(path: &Path, file: &syn::File) -> Vec<PathBuf> {
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => {
            Some(folder_of(path).join(module.ident.to_string()))
        }
        _ => None,
    });
    modules.collect()
}

/// Where a module in this file has its children.
fn folder_of(path: &Path) -> PathBuf {
    let is_folder = ["mod.rs", "lib.rs", "main.rs"]
        .iter()
        .any(|name| path.ends_with(name));
    match is_folder {
        true => path.parent().expect("a folder").to_owned(),
        false => path.with_extension(""),
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_it = |attribute: &Attribute| {
        let condition = attribute.parse_args::<syn::Path>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|path| path.is_ident("test"))
    };
    attributes.iter().any(is_it)
}

/// Where items are that are for tests only.
#[derive(Default)]
struct Tests {
    ranges: Vec<Range<usize>>,
}

impl<'a> Visit<'a> for Tests {
    fn visit_item(&mut self, item: &'a Item) {
        if is_for_tests(attributes(item)) {
            self.ranges.push(item.span().byte_range());
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if is_for_tests(attributes) {
            self.ranges.push(item.span().byte_range());
        } else {
            visit::visit_impl_item(self, item);
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn collect_names(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_names(group.stream(), found),
            TokenTree::Ident(name) => {
                found.insert(name.to_string());
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Strings, those of `#[doc = "..."]` left out: comments are there so, too.
fn collect_strings(tokens: TokenStream, found: &mut Vec<String>) {
    let mut after_doc = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_strings(group.stream(), found),
            TokenTree::Literal(literal) => {
                if let syn::Lit::Str(text) = syn::Lit::new(literal)
                    && !after_doc
                {
                    found.push(text.value());
                }
                after_doc = false;
            }
            TokenTree::Ident(name) => after_doc = name == "doc",
            TokenTree::Punct(mark) => {
                after_doc &= mark.as_char() == '=' && mark.spacing() == Spacing::Alone;
            }
        }
    }
}

#[test]
fn what_is_for_tests_is_cut_out_wherever_it_stands() {
    let text = "use a::B; // größe\n#[cfg(test)]\nuse c::D;\n/// Why.\n#[cfg(test)]\nmod tests { fn f() {} }\n\
                struct S;\nimpl S { #[cfg(test)] fn t() {} fn kept() { \"text\"; } }\n\
                #[cfg(any(test, feature = \"mock\"))]\nfn mocked() {}\n#[cfg(test)] mod more;";
    let file = syn::parse_file(text).expect("Rust");
    let left = without_tests(text, &file);
    for kept in ["use a::B", "// größe", "struct S", "fn kept", "fn mocked"] {
        assert!(left.contains(kept), "{kept}: {left}");
    }
    for cut in ["use c::D", "mod tests", "fn f", "fn t", "mod more", "Why"] {
        assert!(!left.contains(cut), "{cut}: {left}");
    }
    assert_eq!(left.lines().count(), text.lines().count());
    let more = test_modules(Path::new("a/b.rs"), &file);
    assert_eq!(more, [Path::new("a/b/more")]);
    let source = Source {
        path: PathBuf::new(),
        text: left,
    };
    assert_eq!(source.strings(), ["text", "mock"]);
}
