//! Which file of a crate names which other: its `use` lines and the paths that it writes out, followed through
//! re-exports to the file that has the item.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use syn::visit::{self, Visit};
use syn::{Item, ItemUse, UseTree};

use crate::source::{Source, sources};

/// Re-exports that are followed one after the other.
const HOPS_MAX: usize = 16;

/// A module with a file of its own, as the names from the crate's root to it.
pub type Module = Vec<String>;

/// The modules of a crate.
pub struct Crate {
    modules: BTreeMap<Module, Named>,
}

/// What a module's file names.
#[derive(Default)]
struct Named {
    /// Names that its `use` lines bring in, and what each stands for.
    uses: BTreeMap<String, Vec<String>>,
    /// Every path in it.
    paths: BTreeSet<Vec<String>>,
}

impl Crate {
    /// The crate whose sources are in `folder`.
    pub fn read(folder: &str) -> Self {
        let modules = sources(folder).into_iter().map(|source| {
            let inside = source.path.strip_prefix(folder).expect("below it");
            (module(inside), named(&source))
        });
        Self {
            modules: modules.collect(),
        }
    }

    /// How many files it has.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Its folders and files right below the root.
    pub fn folders(&self) -> BTreeSet<&str> {
        let first = self.modules.keys().filter_map(|module| module.first());
        first.map(String::as_str).collect()
    }

    /// Each file with every other that it names. That a child names what its parent has is left out: they are
    /// one module.
    pub fn arrows(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let arrows = self.modules.iter().map(|(from, named)| {
            let to = named
                .paths
                .iter()
                .filter_map(|path| self.owner(from, path, HOPS_MAX))
                .filter(|to| *to != from && Some(to.as_slice()) != parent(from));
            (from, to.collect())
        });
        arrows.collect()
    }

    /// The files that lead back to themselves, each group that hangs together by itself.
    pub fn circles(&self) -> Vec<BTreeSet<&Module>> {
        let arrows = self.arrows();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> = arrows
            .keys()
            .map(|from| (*from, reached(&arrows, from)))
            .collect();
        let mut circles: Vec<BTreeSet<&Module>> = Vec::new();
        for (from, to) in &reach {
            let together = to.iter().filter(|other| reach[*other].contains(from));
            let together: BTreeSet<&Module> = together.copied().collect();
            if !together.is_empty() && !circles.contains(&together) {
                circles.push(together);
            }
        }
        circles
    }

    /// The module whose file has what a path in `from` leads to, if it is one of this crate.
    fn owner(&self, from: &Module, path: &[String], hops: usize) -> Option<&Module> {
        let hops = hops.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.descend(&Vec::new(), rest, hops),
            "self" => self.descend(from, rest, hops),
            "super" => self.descend(&parent(from)?.to_vec(), rest, hops),
            _ if self.child(from, first).is_some() || self.imported(from, first).is_some() => {
                self.descend(from, path, hops)
            }
            _ => None,
        }
    }

    fn descend(&self, from: &Module, path: &[String], hops: usize) -> Option<&Module> {
        let (here, _) = self.modules.get_key_value(from)?;
        let Some((first, rest)) = path.split_first() else {
            return Some(here);
        };
        if first == "super" {
            return self.descend(&parent(from)?.to_vec(), rest, hops);
        }
        if let Some(child) = self.child(from, first) {
            return self.descend(&child, rest, hops);
        }
        match self.imported(from, first) {
            // What is brought in may be another crate's.
            Some(stands_for) => self.owner(from, &[stands_for, rest].concat(), hops),
            None => Some(here),
        }
    }

    fn child(&self, of: &Module, name: &str) -> Option<Module> {
        let child = [of.as_slice(), &[name.to_owned()]].concat();
        self.modules.contains_key(&child).then_some(child)
    }

    fn imported(&self, into: &Module, name: &str) -> Option<&[String]> {
        let stands_for = self.modules.get(into)?.uses.get(name)?;
        // A name that stands for itself is another crate's.
        (stands_for.first().map(String::as_str) != Some(name)).then_some(stands_for)
    }
}

fn parent(of: &Module) -> Option<&[String]> {
    of.split_last().map(|(_, parent)| parent)
}

fn reached<'a>(
    arrows: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut left: Vec<&Module> = arrows[from].iter().copied().collect();
    while let Some(next) = left.pop() {
        if found.insert(next) {
            left.extend(&arrows[next]);
        }
    }
    found
}

/// The module that a file below the crate's `src` is.
fn module(path: &Path) -> Module {
    let without = path.with_extension("");
    let names = without.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    });
    let mut names: Module = names.collect();
    if matches!(
        names.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        names.pop();
    }
    names
}

fn named(source: &Source) -> Named {
    let (mut named, file) = (Named::default(), source.file());
    for item in &file.items {
        if let Item::Use(line) = item {
            brought_in(&line.tree, &mut Vec::new(), &mut named.uses);
        }
    }
    named.visit_file(&file);
    named
}

/// The names that a `use` line brings in.
fn brought_in(tree: &UseTree, before: &mut Vec<String>, uses: &mut BTreeMap<String, Vec<String>>) {
    let mut add = |last: &syn::Ident, name: &syn::Ident| {
        let is_self = last == "self";
        let whole = before.iter().cloned();
        let whole = whole.chain((!is_self).then(|| last.to_string()));
        let whole: Vec<String> = whole.collect();
        let name = match is_self && last == name {
            true => whole.last().cloned().unwrap_or_default(),
            false => name.to_string(),
        };
        uses.insert(name, whole);
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            brought_in(&path.tree, before, uses);
            before.pop();
        }
        UseTree::Name(name) => add(&name.ident, &name.ident),
        UseTree::Rename(name) => add(&name.ident, &name.rename),
        UseTree::Group(group) => {
            for tree in &group.items {
                brought_in(tree, before, uses);
            }
        }
        UseTree::Glob(_) => {
            uses.insert(format!("{}::*", before.join("::")), before.clone());
        }
    }
}

impl<'a> Visit<'a> for Named {
    fn visit_item_use(&mut self, line: &'a ItemUse) {
        let mut uses = BTreeMap::new();
        brought_in(&line.tree, &mut Vec::new(), &mut uses);
        self.paths.extend(uses.into_values());
    }

    /// For whom something is visible names nothing.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string());
        self.paths.insert(names.collect());
        visit::visit_path(self, path);
    }
}

#[test]
fn an_item_is_in_the_file_that_has_it_and_not_where_it_is_passed_on() {
    let parts = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a.rs",
            "use crate::b::Passed; use crate::c; struct A(c::d::D);",
        ),
        (
            "b/mod.rs",
            "mod has; pub use has::Passed; pub use std::vec::Vec;",
        ),
        (
            "b/has.rs",
            "use super::Vec; pub struct Passed; struct B(super::Own);",
        ),
        ("c/mod.rs", "pub mod d;"),
        ("c/d.rs", "pub struct D(crate::a::A);"),
    ];
    let source = |text: &str| Source {
        path: "".into(),
        text: text.to_owned(),
    };
    let modules = parts.map(|(path, text)| (module(Path::new(path)), named(&source(text))));
    let of = Crate {
        modules: modules.into_iter().collect(),
    };
    let shown = |module: &Module| module.join("::");
    let arrows = of.arrows();
    let arrows = arrows
        .iter()
        .flat_map(|(from, to)| to.iter().map(|to| (shown(from), shown(to))));
    let expected = [
        ("a", "b::has"),
        ("a", "c"),
        ("a", "c::d"),
        ("b", "b::has"),
        ("c::d", "a"),
    ];
    let expected = expected.map(|(from, to)| (from.to_owned(), to.to_owned()));
    assert_eq!(arrows.collect::<Vec<_>>(), expected);
    let circles = of.circles();
    let circles: Vec<Vec<String>> = circles
        .iter()
        .map(|circle| circle.iter().map(|module| shown(module)).collect())
        .collect();
    assert_eq!(circles, [["a", "c::d"]]);
}
