//! The door of the library is narrow: the names that an embedder finds in `tracer` without its features.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::TokenTree;
use syn::{Attribute, Item, ItemMacro, ItemMod, UseTree, Visibility};

use crate::source::{Source, sources};

/// So many names, most of which our own VMM uses. This number may only go down.
const NAMES: usize = 90;

/// The folder of the crate's sources.
const FOLDER: &str = "tracer/src";

#[test]
fn the_library_shows_no_more_than_an_embedder_needs() {
    let sources = sources(FOLDER).into_iter();
    let sources: BTreeMap<PathBuf, Source> = sources
        .map(|source| (source.path.clone(), source))
        .collect();
    let mut names = BTreeSet::new();
    shown(&sources, Path::new(FOLDER), "lib.rs", &mut names);
    let count = names.len();
    assert!(
        count <= NAMES,
        "tracer shows {count} names, {NAMES} are allowed: {names:?}"
    );
    assert_eq!(count, NAMES, "it has become less: write that down here");
}

/// The names that a module shows, whose file is this one in `folder`.
fn shown(
    sources: &BTreeMap<PathBuf, Source>,
    folder: &Path,
    file: &str,
    names: &mut BTreeSet<String>,
) {
    let source = &sources[&folder.join(file)];
    for item in &source.file().items {
        if let Item::Mod(inside) = item {
            if is_shown(&inside.vis, &inside.attrs) {
                descend(sources, folder, file, inside, names);
            }
            continue;
        }
        names.extend(names_of(item));
    }
}

fn descend(
    sources: &BTreeMap<PathBuf, Source>,
    folder: &Path,
    file: &str,
    inside: &ItemMod,
    names: &mut BTreeSet<String>,
) {
    let name = inside.ident.to_string();
    let folder = match file {
        "lib.rs" | "mod.rs" => folder.to_owned(),
        _ => folder.join(file.trim_end_matches(".rs")),
    };
    let one = format!("{name}.rs");
    match sources.contains_key(&folder.join(&one)) {
        true => shown(sources, &folder, &one, names),
        false => shown(sources, &folder.join(name), "mod.rs", names),
    }
}

/// Whether everybody sees it, without a feature.
fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_conditional = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| {
            let tokens = attribute
                .meta
                .require_list()
                .expect("a condition")
                .tokens
                .clone();
            // Without the feature it is there as well, and is not for everybody.
            !tokens.to_string().starts_with("not")
        });
    matches!(visibility, Visibility::Public(_)) && !is_conditional
}

fn names_of(item: &Item) -> Vec<String> {
    let (visibility, attributes, name) = match item {
        Item::Const(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Enum(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Fn(item) => (&item.vis, &item.attrs, &item.sig.ident),
        Item::Static(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Struct(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Trait(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Type(item) => (&item.vis, &item.attrs, &item.ident),
        Item::Use(line) if is_shown(&line.vis, &line.attrs) => {
            let mut names = Vec::new();
            leaves(&line.tree, &mut names);
            return names;
        }
        Item::Macro(made) => return made_by(made),
        _ => return Vec::new(),
    };
    let shown = is_shown(visibility, attributes).then(|| name.to_string());
    shown.into_iter().collect()
}

/// What a macro makes public, by the words of its call: `pub enum Name`.
fn made_by(made: &ItemMacro) -> Vec<String> {
    let tokens: Vec<TokenTree> = made.mac.tokens.clone().into_iter().collect();
    let named = tokens.windows(3).filter(|words| {
        words[0].to_string() == "pub" && ["enum", "struct"].contains(&&*words[1].to_string())
    });
    named.map(|words| words[2].to_string()).collect()
}

fn leaves(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(name) => names.push(name.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, names)),
        UseTree::Glob(_) => panic!("a glob shows nobody knows what"),
    }
}
