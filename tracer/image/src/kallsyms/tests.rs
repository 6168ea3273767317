use terms::addr::Gva;

use super::testing::{Entry, Layout, tables};
use crate::testing::{ElfFile, TEXT, body, call};
use crate::{Image, ImageError, SkipReason, SymbolKind};

const FUNCTIONS: u64 = 700;
const DATA: u64 = TEXT + 0x10_0000;
const FENTRY: u64 = TEXT;

fn address(function: u64) -> u64 {
    TEXT + 16 * (function + 1)
}

/// A stripped kernel with 700 functions, `long` ones among them if the layout can write them.
fn symbols(layout: Layout) -> Vec<Entry> {
    let entry = |letter, name: &str, address| (letter, name.to_owned(), address);
    let mut symbols = Vec::new();
    if layout.absolute_percpu {
        symbols.push(entry(b'A', "fixed_percpu_data", 0));
        symbols.push(entry(b'D', "current_task", 0x1_8f00));
    }
    symbols.push(entry(b'T', "_stext", TEXT));
    symbols.push(entry(b'T', "__fentry__", FENTRY));
    symbols.push(entry(b'T', "__entry_text_start", address(0)));
    for function in 0..FUNCTIONS {
        let long = if layout.wide {
            "x".repeat(150)
        } else {
            "x".repeat(100)
        };
        let tail = if function % 50 == 7 { &*long } else { "" };
        let letter = if function % 3 == 0 { b'T' } else { b't' };
        symbols.push(entry(
            letter,
            &format!("sys_read_{function}{tail}"),
            address(function),
        ));
    }
    symbols.push(entry(b't', "__pfx_after", address(FUNCTIONS) + 8));
    symbols.push(entry(b'T', "_etext", address(FUNCTIONS) + 16));
    symbols.push(entry(b'd', "jiffies", DATA));
    symbols
}

fn kernel(data: &[u8], listed: bool) -> Vec<u8> {
    let list: Vec<u64> = (0..FUNCTIONS).map(address).collect();
    if listed {
        file(data)
            .list(".init.data", DATA + 0x10_0000, &list)
            .build()
    } else {
        file(data).build()
    }
}

/// Its text and its data.
fn file(data: &[u8]) -> ElfFile {
    let mut text = body(&[0xc3]).to_vec();
    for function in 0..FUNCTIONS {
        text.extend(body(&call(address(function), FENTRY)));
    }
    text.extend([0xcc; 32]);
    let mut banner = b"Linux version 6.1.0-test (a@b) #1\n".to_vec();
    banner.resize(64, 0);
    ElfFile::new()
        .text(TEXT, &text)
        .data(".rodata", DATA, &[&banner[..], data].concat())
}

fn read(layout: Layout) -> Image {
    let symbols = symbols(layout);
    let data = tables(&symbols, TEXT, layout);
    Image::parse(&kernel(&data, true)).unwrap()
}

/// Where the tables of test kernels lie: after the banner.
const TABLES: u64 = DATA + 64;

/// Every layout of before, and that of 7.0, whose offsets can begin at any multiple of four.
fn layouts() -> impl Iterator<Item = Layout> {
    let latest = Layout {
        from_themselves: Some(TABLES),
        wide: true,
        addresses_first: false,
        by_name: false,
        absolute_percpu: false,
        whole: false,
        odd: false,
    };
    let odd = Layout {
        odd: true,
        ..latest
    };
    Layout::all().chain([latest, odd])
}

#[test]
fn every_layout_gives_the_same_symbols() {
    for layout in layouts() {
        let image = read(layout);
        let mut found: Vec<(String, u64)> = image
            .symbols
            .iter()
            .map(|symbol| (symbol.name.to_string(), symbol.address.0))
            .collect();
        let mut expected: Vec<(String, u64)> = symbols(layout)
            .into_iter()
            .map(|(_, name, address)| (name, address))
            .collect();
        found.sort();
        expected.sort();
        assert!(found == expected, "{layout:?}: {} symbols", found.len());
    }
}

#[test]
fn letters_become_kinds_and_labels_are_no_functions() {
    let image = read(Layout::all().last().unwrap());
    let kind = |name| {
        let symbol = image.symbols.named(name).next().unwrap();
        (symbol.kind, symbol.global)
    };
    assert_eq!(kind("sys_read_0"), (SymbolKind::Function, true));
    assert_eq!(kind("sys_read_1"), (SymbolKind::Function, false));
    assert_eq!(kind("jiffies"), (SymbolKind::Object, false));
    assert_eq!(kind("current_task"), (SymbolKind::Object, true));
    assert_eq!(kind("__entry_text_start"), (SymbolKind::Other, true));
    assert_eq!(kind("__pfx_after"), (SymbolKind::Other, false));
    assert_eq!(kind("_stext"), (SymbolKind::Other, true));
}

#[test]
fn sites_are_found_by_what_their_list_lists() {
    let image = read(Layout::all().next().unwrap());
    let functions = usize::try_from(FUNCTIONS).unwrap();
    assert_eq!(image.sites.len(), functions);
    assert_eq!(&*image.sites[3].symbol, "sys_read_3");
    let notes = image.notes.join("\n");
    assert!(
        notes.contains("a list of 700 calls of __fentry__ at"),
        "{notes}"
    );
    let linux = image.linux.unwrap();
    assert_eq!(linux.version, "6.1.0-test");
    assert_eq!(linux.text.unwrap().start.0, TEXT);
    assert_eq!(linux.init_text, None);
    assert!(!linux.prepares_sites);
}

#[test]
fn a_kernel_without_kallsyms_says_so() {
    let image = Image::parse(&kernel(&[0; 4000], true)).unwrap();
    let version = "6.1.0-test".to_owned();
    assert_eq!(
        image.check_traceable(),
        Err(ImageError::NoKallsyms { version })
    );
}

/// That was said to be a kernel without CONFIG_KALLSYMS.
#[test]
fn symbols_that_cannot_be_read_are_not_called_absent() {
    let layout = Layout::all().last().unwrap();
    // The first 20 of 702 lie in text, wherever it is.
    let mut moved = symbols(layout);
    for (_, _, address) in moved.iter_mut().skip(22) {
        *address += 0x800_0000;
    }
    let refused = |data: &[u8]| {
        let image = Image::parse(&kernel(data, true)).unwrap();
        image.check_traceable().unwrap_err()
    };
    let said = refused(&tables(&moved, TEXT, layout)).to_string();
    assert!(said.contains("of its 708 symbols 705 are code"), "{said}");
    assert!(said.contains("20 lie where code is"), "{said}");
    assert!(!said.contains("CONFIG"), "{said}");
    let mut spoilt = tables(&symbols(layout), TEXT, layout);
    let half = spoilt.len() / 2;
    spoilt[half..half + 64].fill(0xff);
    let said = refused(&spoilt).to_string();
    assert!(said.contains("no names before it"), "{said}");
}

#[test]
fn symbols_can_come_from_a_system_map() {
    let map: String = symbols(Layout::all().last().unwrap())
        .iter()
        .map(|(letter, name, address)| format!("{address:016x} {} {name}\n", char::from(*letter)))
        .collect();
    let file = kernel(&[0; 4000], true);
    let image = Image::parse_with_symbols(&file, map.as_bytes()).unwrap();
    assert_eq!(image.sites.len(), usize::try_from(FUNCTIONS).unwrap());
    let refused = |map: &str| Image::parse_with_symbols(&file, map.as_bytes()).unwrap_err();
    let (line, found) = (2, "no symbol".to_owned());
    assert_eq!(
        refused("ffffffff80100000 T a\nno symbol\n"),
        ImageError::NotSymbols { line, found }
    );
    assert_eq!(
        refused("ffffffffffffffff B The real System.map is in the dbg package\n"),
        ImageError::OtherSymbols {
            functions: 0,
            inside: 0
        }
    );
}

/// Whatever is damaged, the rest is read, or nothing is.
#[test]
fn damaged_tables_are_read_or_left_alone() {
    for layout in Layout::all() {
        let good = tables(&symbols(layout), TEXT, layout);
        for index in (0..good.len()).step_by(97) {
            let mut data = good.clone();
            data[index] ^= 1 << (index % 8);
            let image = Image::parse(&kernel(&data, false)).unwrap();
            let count = image.symbols.len();
            assert!(count <= symbols(layout).len(), "byte {index}: {count}");
        }
    }
}

/// A name of Rust's that is twice as long with every level of what it is about: `f` of a tuple of two tuples of two tuples.
fn of_tuples(levels: usize, number: u64) -> String {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let start = format!("INvC3abc7f{number:06}");
    // Where the tuple within lies, from the beginning after `_R`.
    let within = |level: usize| match start.len() + levels - level {
        0 => String::new(),
        at => char::from(DIGITS[at - 1]).to_string(),
    };
    let all = (1..=levels).fold("u".to_owned(), |of, level| {
        format!("T{of}B{}_E", within(level - 1))
    });
    format!("_R{start}{all}E")
}

#[test]
fn names_that_stand_for_far_longer_ones_are_counted_as_long() {
    let name = of_tuples(9, 0);
    let long = crate::symtab::demangled(&name).unwrap();
    assert!(name.len() < 80 && long.len() > 1500, "{name} {long}");
    let layout = layouts().next().unwrap();
    let of = |levels| {
        let all = (0..FUNCTIONS).map(|at| (b'T', of_tuples(levels, at), address(at)));
        let data = tables(&all.collect::<Vec<_>>(), TEXT, layout);
        Image::parse(&kernel(&data, false)).map(|image| image.symbols.len())
    };
    assert_eq!(of(2).unwrap() as u64, FUNCTIONS);
    let error = of(9).unwrap_err();
    assert!(matches!(error, ImageError::AbsurdNames { .. }), "{error}");
}

/// All before it is looked through for each.
#[test]
fn of_tables_of_tokens_that_have_no_names_not_many_are_looked_at() {
    let layout = layouts().next().unwrap();
    let symbols = symbols(layout);
    let good = tables(&symbols, TEXT, layout);
    let count = |others: usize| {
        let mut data = tables(&symbols[..10], TEXT, layout);
        data.resize(data.len().next_multiple_of(64), 0);
        let data = [data.repeat(others), good.clone()].concat();
        Image::parse(&kernel(&data, false)).unwrap().symbols.len()
    };
    assert_eq!(count(0), symbols.len());
    assert_eq!(count(super::TABLES_MAX - 1), symbols.len());
    assert_eq!(count(super::TABLES_MAX), 0);
}

/// A map of a kernel whose functions from number `from` on lie 16 bytes further.
fn map_of_another(from: u64, banner: Option<u64>) -> String {
    let banner = banner.map(|at| (b'R', "linux_banner".to_owned(), at));
    let line = |(letter, name, at): Entry| {
        let moved = at >= address(from) && at < DATA;
        let at = if moved { at + 16 } else { at };
        format!("{at:016x} {} {name}\n", char::from(letter))
    };
    let symbols = symbols(Layout::all().last().unwrap());
    symbols.into_iter().chain(banner).map(line).collect()
}

#[test]
fn symbols_of_another_build_are_refused() {
    let layout = Layout::all().last().unwrap();
    let stripped = kernel(&[0; 4000], true);
    let own = kernel(&tables(&symbols(layout), TEXT, layout), true);
    let refused = |file: &[u8], map: &str| {
        let refused = Image::parse_with_symbols(file, map.as_bytes()).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("belongs to another kernel"), "{message}");
        refused
    };
    // The same is good with and without symbols of the kernel's own, and with a banner in its place.
    for file in [&stripped, &own] {
        for banner in [None, Some(DATA)] {
            let map = map_of_another(FUNCTIONS, banner);
            Image::parse_with_symbols(file, map.as_bytes()).unwrap();
        }
    }
    let at = Gva(DATA + 8);
    assert_eq!(
        refused(&stripped, &map_of_another(FUNCTIONS, Some(at.0))),
        ImageError::OtherBanner { at }
    );
    let moved = refused(&own, &map_of_another(600, None));
    assert!(
        matches!(&moved, ImageError::OtherAddresses { name, given, own, .. }
            if name == "sys_read_600" && *given == Gva(address(601)) && *own == Gva(address(600))),
        "{moved}"
    );
    // Half of the functions begin in the middle of what is listed.
    let halved = map_of_another(FUNCTIONS, None);
    let halved: String = halved
        .lines()
        .map(|line| match line.split_once("sys_read_") {
            Some((before, number)) if number.ends_with(['1', '3', '5', '7', '9']) => {
                let (at, letter) = before.split_once(' ').unwrap();
                let at = u64::from_str_radix(at, 16).unwrap() + 8;
                format!("{at:016x} {letter}sys_read_{number}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    assert!(matches!(
        refused(&stripped, &halved),
        ImageError::OtherSites { .. }
    ));
}

/// Where a kernel of two segments has its init text: among the data that can be written.
const INIT: u64 = DATA + 0x20_0000;
const INIT_FUNCTIONS: u64 = 300;
const INIT_OBJECT_BYTES: usize = 8 * 300;

/// A kernel of two segments: init text lies in the writable one, beside data that claims to be code.
fn of_two_segments(layout: Layout) -> Vec<u8> {
    let mut symbols = symbols(layout);
    symbols.push((b'T', "_sinittext".to_owned(), INIT));
    for function in 0..INIT_FUNCTIONS {
        let name = format!("start_{function}");
        symbols.push((b't', name, INIT + 16 * function));
    }
    let end = INIT + 16 * INIT_FUNCTIONS;
    symbols.push((b'T', "_einittext".to_owned(), end));
    // More data than code, with letters of code: its section claims to be some.
    for object in 0..INIT_FUNCTIONS {
        let at = end + 0x1000 + 8 * object;
        symbols.push((b'T', format!("object_{object}"), at));
    }
    let mut init = Vec::new();
    for function in 0..INIT_FUNCTIONS {
        init.extend(body(&call(INIT + 16 * function, FENTRY)));
    }
    let text = (0..FUNCTIONS).map(address);
    let list: Vec<u64> = text
        .chain((0..INIT_FUNCTIONS).map(|function| INIT + 16 * function))
        .collect();
    file(&tables(&symbols, TEXT, layout))
        .list(".init.data", DATA + 0x10_0000, &list)
        .code_in_data(".init.text", INIT, &init)
        .executable_data(".data", end + 0x1000, &[0x90; INIT_OBJECT_BYTES])
        .build()
}

#[test]
fn init_text_in_a_writable_segment_is_text_and_data_that_claims_to_be_code_is_none() {
    for layout in layouts() {
        let image = Image::parse(&of_two_segments(layout)).unwrap();
        image.check_traceable().unwrap();
        let traced = |name| {
            let function = image.functions.iter().zip(0..);
            let mut named = function.filter(|(function, _)| &*function.name == name);
            let (_, id) = named.next().unwrap();
            image.site_of(terms::function::FunctionId(id)).is_some()
        };
        assert!(traced("sys_read_3") && traced("start_7"), "{layout:?}");
        let object = image.symbols.named("object_7").next().unwrap();
        assert!(!image.is_text(object.address, 1), "{layout:?}: data");
        assert_ne!(object.kind, SymbolKind::Function, "{layout:?}: data");
    }
}

/// A kernel makes its sites nops by its list. One in it stays a call for ever, and was said to be traceable.
#[test]
fn a_call_that_the_kernel_does_not_list_is_no_site() {
    // Its symbols have offsets: whole addresses would be a longer run of sites than the list.
    let layout = layouts().last().unwrap();
    let mut symbols = symbols(layout);
    symbols.push((b'T', "ftrace_init".to_owned(), address(FUNCTIONS) + 24));
    let list: Vec<u64> = (1..FUNCTIONS).map(address).collect();
    let kernel = file(&tables(&symbols, TEXT, layout)).list(".init.data", DATA + 0x10_0000, &list);
    let image = Image::parse(&kernel.build()).unwrap();
    assert_eq!(image.sites.len() as u64, FUNCTIONS - 1);
    let [left_out] = &image.skipped[..] else {
        panic!("{:?}", image.skipped);
    };
    assert_eq!(left_out.address.0, address(0));
    assert_eq!(left_out.reason, SkipReason::Unlisted);
}
