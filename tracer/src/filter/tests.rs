//! Filters on built images, and globs against a matcher of a few lines.

use image::testing::{ElfFile, TEXT, body, nop_image};
use insn::nop::NOP5;
use proptest::prelude::*;

use super::*;

fn selected(image: &Image, include: &[&str], notrace: &[&str]) -> Vec<String> {
    let selection = Filter::new(include, notrace)
        .unwrap()
        .select(image, &Sources::default())
        .unwrap();
    let ids = selection.selected.iter();
    ids.map(|id| image.function(*id).unwrap().display.to_string())
        .collect()
}

/// `a_one`, `a_two` and `exc_page_fault` with sites, `plain` without.
fn mixed() -> Image {
    let sites = [TEXT, TEXT + 0x10, TEXT + 0x20];
    let file = ElfFile::new()
        .text(
            TEXT,
            &[body(&NOP5), body(&NOP5), body(&NOP5), body(&[0xc3])].concat(),
        )
        .list("__mcount_loc", TEXT - 0x8_0000, &sites)
        .function("a_one", TEXT, 16)
        .function("_RNvCs1234_5guest5a_two", TEXT + 0x10, 16)
        .function("exc_page_fault", TEXT + 0x20, 16)
        .function("plain", TEXT + 0x30, 16);
    Image::parse(&file.build()).unwrap()
}

#[test]
fn no_include_means_everything_that_may_be_traced() {
    let image = mixed();
    let selection = Filter::default()
        .select(&image, &Sources::default())
        .unwrap();
    assert_eq!(selection.selected, [FunctionId(0), FunctionId(1)]);
    let denied: Vec<(u32, String)> = selection
        .denied
        .iter()
        .map(|(id, reason)| (id.0, reason.to_string()))
        .collect();
    assert_eq!(denied.len(), 2);
    assert!(
        denied[0].1.contains("'exc_*'") && denied[0].1.contains("Linux"),
        "{denied:?}"
    );
    assert!(denied[1].1.contains("no patch site"), "{denied:?}");
}

#[test]
fn raw_and_demangled_names_match() {
    let image = mixed();
    assert_eq!(selected(&image, &["guest::a_*"], &[]), ["guest::a_two"]);
    assert_eq!(selected(&image, &["_RNv*"], &[]), ["guest::a_two"]);
    assert_eq!(selected(&image, &["*a_*"], &["*two"]), ["a_one"]);
}

#[test]
fn a_file_asks_for_debug_information() {
    let image = mixed();
    let select = |glob: &str| {
        let filter = Filter::new(&[glob], &[]);
        filter.and_then(|filter| filter.select(&image, &Sources::default()))
    };
    let error = select("file:core.c").unwrap_err().to_string();
    assert_eq!(
        error,
        "'file:core.c' asks for a source file, and there is no debug information that has them"
    );
    for glob in [
        "file:",
        "file::a_*",
        "file:a.c:",
        "file:[:a_*",
        "file:a.c:[",
    ] {
        let error = select(glob).unwrap_err();
        assert!(matches!(error, FilterError::Glob(_)), "{glob}: {error}");
    }
}

#[test]
fn nothing_matched_names_near_misses() {
    let image = mixed();
    let error = |include: &[&str], notrace: &[&str]| {
        Filter::new(include, notrace)
            .unwrap()
            .select(&image, &Sources::default())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&["a_oen"], &[]),
        "no function matches 'a_oen'; near: a_one"
    );
    assert_eq!(
        error(&["a_one"], &["zzz"]),
        "no function matches 'zzz'; `vmm sites` and `vmm ctl functions` list them"
    );
    for regex in ["^a_one$", "a_.*x", "a_one|b_one", r"a_\w"] {
        let error = error(&[regex], &[]);
        assert!(error.contains("not for a regular expression"), "{error}");
    }
    assert!(error(&["plai?"], &[]).contains("none can be traced: plain: no patch site"));
    assert!(error(&["a_one"], &["a_*"]).contains("excluded by notrace 'a_*'"));
    assert!(error(&["exc_*"], &[]).contains("never traced ('exc_*'"));
}

#[test]
fn one_bad_include_fails_the_whole_filter() {
    let image = nop_image(4);
    let error = Filter::new(&["f1", "g9"], &[])
        .unwrap()
        .select(&image, &Sources::default())
        .unwrap_err();
    assert!(matches!(error, FilterError::NoMatch { glob, .. } if glob == "g9"));
}

#[test]
fn filters_are_edited() {
    let image = nop_image(12);
    let selected = |filter: &Filter| {
        let selection = filter.select(&image, &Sources::default());
        selection.unwrap().selected
    };
    let mut filter = Filter::new(&["f1"], &[]).unwrap();
    filter.add(Side::Include, "f2").unwrap();
    filter.add(Side::Include, "f2").unwrap();
    assert_eq!(
        filter.globs(Side::Include).collect::<Vec<_>>(),
        ["f1", "f2"]
    );
    assert_eq!(selected(&filter).len(), 2);
    filter.add(Side::Notrace, "f2").unwrap();
    assert_eq!(selected(&filter), [FunctionId(1)]);
    let error = filter.remove(Side::Include, "f3").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the filter has no glob 'f3' to remove; it has: f1, f2"
    );
    filter.remove(Side::Include, "f1").unwrap();
    filter.remove(Side::Notrace, "f2").unwrap();
    assert_eq!(selected(&filter), [FunctionId(2)]);
    assert_eq!(filter.globs(Side::Include).collect::<Vec<_>>(), ["f2"]);
    filter.add(Side::Include, "f1*").unwrap();
    filter.remove(Side::Include, "f2").unwrap();
    assert_eq!(selected(&filter).len(), 3);
    filter.remove(Side::Include, "f1*").unwrap();
    assert_eq!(selected(&filter).len(), 12);
}

#[test]
fn the_deny_list_is_well_formed_and_spares_ordinary_names() {
    let deny = DenyList::new().unwrap();
    for name in [
        "mcount",
        "__fentry__",
        "asm_exc_page_fault",
        "default_do_nmi",
        "ftrace_stub",
    ] {
        assert!(deny.forbids(name).is_some(), "{name}");
    }
    for name in [
        "leaf",
        "unmirror",
        "guest::exc_handler",
        "do_error",
        "mcounts",
    ] {
        assert_eq!(deny.forbids(name), None, "{name}");
    }
}

/// Names of Linux 5.10 to 7.3, of what no list of sites has.
#[test]
fn the_longer_deny_lists_have_what_runs_early_what_pokes_and_how_returns_are_made() {
    let image = Image::default();
    let lists = [DenyList::without_sites(&image), DenyList::inside(&image)];
    for deny in lists.map(Result::unwrap) {
        for name in [
            "startup_64",
            "secondary_startup_64",
            "secondary_startup_64_no_verify",
            "common_startup_64",
            "__startup_64",
            "__startup_secondary_64",
            "__pi___startup_64",
            "__pi_startup_64_setup_gdt_idt",
            "verify_cpu",
            "sev_verify_cbit",
            "start_cpu0",
            "soft_restart_cpu",
            "wakeup_long64",
            "srso_safe_ret",
            "srso_alias_safe_ret",
            "srso_safe_ret_alias",
            "srso_untrain_ret_alias",
            "srso_alias_untrain_ret",
            "its_return_thunk",
            "entry_ibpb",
            "write_ibpb",
            "__bhi_args",
            "poke_int3_handler",
            "smp_text_poke_int3_handler",
            "smp_text_poke_batch_finish",
            "__smp_text_poke_batch_add",
            "fred_entry_from_kernel",
            "fred_exc_debug",
        ] {
            assert!(deny.forbids(name).is_some(), "{name}");
        }
        for name in [
            "start_kernel",
            "x86_64_start_kernel",
            "early_setup_idt",
            "cpu_startup_entry",
            "is_safe_return",
            "fred_sysvec_reboot",
        ] {
            assert_eq!(deny.forbids(name), None, "{name}");
        }
    }
}

/// What a glob of letters, `*` and `?` means, said as plainly as possible.
fn plainly_matches(glob: &[u8], name: &[u8]) -> bool {
    match (glob.split_first(), name.split_first()) {
        (None, _) => name.is_empty(),
        (Some((b'*', rest)), None) => plainly_matches(rest, name),
        (Some((b'*', rest)), Some((_, tail))) => {
            plainly_matches(rest, name) || plainly_matches(glob, tail)
        }
        (Some((b'?', rest)), Some((_, tail))) => plainly_matches(rest, tail),
        (Some((wanted, rest)), Some((found, tail))) => {
            wanted == found && plainly_matches(rest, tail)
        }
        (Some(_), None) => false,
    }
}

/// The globs of the traced side after these were added one after the other.
fn added(globs: &[&str]) -> Filter {
    let mut filter = Filter::default();
    for glob in globs {
        filter.add(Side::Include, glob).unwrap();
    }
    filter
}

#[test]
fn what_is_taken_out_is_not_traced_and_says_so() {
    let image = mixed();
    assert_eq!(selected(&image, &["!a_*"], &[]), ["guest::a_two"]);
    assert_eq!(selected(&image, &["*a_*", "!a_*"], &[]), ["guest::a_two"]);
    assert_eq!(selected(&image, &["*a_*", "!*two"], &[]), ["a_one"]);
    // The last one decides.
    assert_eq!(selected(&image, &["!a_*", "a_one"], &[]), ["a_one"]);
    assert_eq!(selected(&image, &["*a_*"], &["*", "!a_*"]), ["a_one"]);
    let selection = added(&["*a_*", "!*two"])
        .select(&image, &Sources::default())
        .unwrap();
    let taken_out = selection.denied.iter().find(|(id, _)| id.0 == 1).unwrap();
    assert_eq!(taken_out.1.to_string(), "excluded by '!*two'");
    // What was never in is not taken out.
    let selection = added(&["a_one", "!*two"])
        .select(&image, &Sources::default())
        .unwrap();
    assert_eq!(selection.denied, []);
    // That nothing is left does not mean everything.
    let error = added(&["a_one", "!a_*"])
        .select(&image, &Sources::default())
        .unwrap_err();
    assert!(matches!(error, FilterError::NothingLeft { .. }), "{error}");
    let error = added(&["!nobody"])
        .select(&image, &Sources::default())
        .unwrap_err();
    assert!(matches!(error, FilterError::NoMatch { .. }), "{error}");
    let none: [&str; 0] = [];
    let error = Filter::new(&["!"], &none).unwrap_err();
    assert!(matches!(error, FilterError::Glob(_)), "{error}");
}

#[test]
fn globs_read_back_as_they_decide() {
    for (globs, expected) in [
        (&["a*", "b*", "a*"][..], &["a*", "b*"][..]),
        (&["a*", "b*", "!a*"], &["b*", "!a*"]),
        (&["!a*", "b*", "a*"], &["b*", "a*"]),
        (&["a*", "!ab", "a*"], &["!ab", "a*"]),
        (&["a*", "!ab", "!ab"], &["a*", "!ab"]),
        // Else everything but these would be traced.
        (&["a*", "!a*"], &["a*", "!a*"]),
    ] {
        let filter = added(globs);
        let read: Vec<&str> = filter.globs(Side::Include).collect();
        assert_eq!(read, expected, "{globs:?}");
    }
    let mut filter = added(&["a*", "!ab"]);
    filter.remove(Side::Include, "!ab").unwrap();
    filter.remove(Side::Include, "ab").unwrap_err();
    assert_eq!(filter, added(&["a*"]));
}

proptest! {
    /// As if each glob put its functions into a set, or took them out, one after the other.
    #[test]
    fn globs_are_a_set_that_is_written_to(
        globs in proptest::collection::vec((any::<bool>(), "[ab*]{1,3}"), 1..8),
        names in proptest::collection::hash_set("[ab]{1,3}", 1..8),
    ) {
        let mut filter = super::ordered::Ordered::default();
        let is_any_put_in = globs.iter().any(|(takes_out, _)| !takes_out);
        let mut set: std::collections::HashSet<&String> = match is_any_put_in {
            true => std::collections::HashSet::new(),
            false => names.iter().collect(),
        };
        for (takes_out, glob) in &globs {
            let matched = names.iter().filter(|name| plainly_matches(glob.as_bytes(), name.as_bytes()));
            for name in matched {
                match takes_out {
                    true => { set.remove(name); }
                    false => { set.insert(name); }
                }
            }
            let sign = if *takes_out { "!" } else { "" };
            filter.add(&format!("{sign}{glob}")).unwrap();
        }
        for name in &names {
            let function = Function { name: name.as_str().into(), display: name.as_str().into(), ..Function::default() };
            let is_in = filter.decide(&function, &Files::default()) == super::ordered::Decision::In;
            prop_assert_eq!(is_in, set.contains(name), "{:?} of {:?}", name, filter);
        }
    }
}

proptest! {
    /// The selection is exactly what the globs say, whatever they are.
    #[test]
    fn selections_agree_with_a_plain_matcher(
        include in prop::collection::vec("[f0-3*?]{1,4}", 0..4),
        notrace in prop::collection::vec("[f0-3*?]{1,4}", 0..3),
    ) {
        let image = nop_image(40);
        let any = |globs: &[String], name: &str| {
            globs.iter().any(|glob| plainly_matches(glob.as_bytes(), name.as_bytes()))
        };
        let wanted: Vec<FunctionId> = (0u32..)
            .map(FunctionId)
            .zip(&image.functions)
            .filter(|(_, f)| include.is_empty() || any(&include, &f.name))
            .filter(|(_, f)| !any(&notrace, &f.name))
            .map(|(id, _)| id)
            .collect();
        match Filter::new(&include, &notrace).unwrap().select(&image, &Sources::default()) {
            Ok(selection) => {
                prop_assert_eq!(&selection.selected, &wanted);
                prop_assert!(selection.denied.is_sorted_by_key(|(id, _)| *id));
                let twice = selection.denied.iter().any(|(id, _)| wanted.contains(id));
                prop_assert!(!twice);
            }
            Err(FilterError::NoMatch { glob, .. }) => {
                prop_assert!(!image.functions.iter().any(|f| any(std::slice::from_ref(&glob), &f.name)));
            }
            Err(error) => prop_assert!(wanted.is_empty(), "{}", error),
        }
    }

    /// Anything at all can be given as a glob.
    #[test]
    fn no_glob_panics(glob in any::<String>()) {
        if let Ok(filter) = Filter::new(&[&glob], &[]) {
            let _ = filter.select(&nop_image(2), &Sources::default()).map_err(|error| error.to_string());
        }
    }
}

#[test]
fn so_many_globs_are_compared_and_no_more() {
    let globs: Vec<String> = (0..=512).map(|n| format!("f{n}")).collect();
    let none: [String; 0] = [];
    let error = Filter::new(&globs, &none).unwrap_err();
    assert_eq!(error, FilterError::Glob(GlobError::Many { count: 513 }));
    let mut filter = Filter::new(&globs[1..], &none).unwrap();
    // One that is there changes nothing.
    filter.add(Side::Include, "f1").unwrap();
    assert_eq!(filter.add(Side::Include, "f0").unwrap_err(), error);
    filter.add(Side::Notrace, "f0").unwrap();
}
