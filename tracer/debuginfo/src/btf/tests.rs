use super::functions::Functions;
use super::testing::Builder;
use super::{Btf, BtfError, Field};

/// A struct like Linux' `module`, with everything that paths go through.
fn types() -> Vec<u8> {
    let mut btf = Builder::new();
    let long = btf.int("unsigned long", 8);
    let char = btf.int("char", 1);
    let pointer = btf.pointer(0);
    let name = btf.array(char, 56);
    let memory = btf.structure(
        "module_memory",
        16,
        &[("base", pointer, 0), ("size", long, 8)],
    );
    let constant = btf.add("", 10, 0, memory, &[]);
    let alias = btf.add("memory_t", 8, 0, constant, &[]);
    let memories = btf.array(alias, 7);
    let inner = btf.structure("", 16, &[("first", long, 0), ("second", long, 8)]);
    let either = btf.compound(5, "", 16, &[("whole", pointer, 0), ("", inner, 0)]);
    btf.structure(
        "module",
        256,
        &[("name", name, 24), ("", either, 80), ("mem", memories, 96)],
    );
    btf.enumeration("module_state", &[("LIVE", 0), ("COMING", 1)]);
    btf.build()
}

#[test]
fn members_are_found_by_path() {
    let section = types();
    let btf = Btf::parse(&section).unwrap();
    let field = |path| {
        btf.field("module", path)
            .map(|Field { offset, size }| (offset, size))
    };
    assert_eq!(field("name"), Some((24, 56)));
    assert_eq!(field("whole"), Some((80, 8)));
    assert_eq!(field("second"), Some((88, 8)));
    assert_eq!(field("mem"), Some((96, 112)));
    assert_eq!(field("mem[0].base"), Some((96, 8)));
    assert_eq!(field("mem[6].size"), Some((96 + 6 * 16 + 8, 8)));
    for absent in [
        "mem[7].base",
        "mem.base",
        "name.x",
        "third",
        "",
        "mem[",
        "mem[x]",
    ] {
        assert_eq!(field(absent), None, "{absent}");
    }
    assert_eq!(btf.field("modul", "name"), None);
    assert_eq!(btf.size_of("module_memory"), Some(16));
    assert_eq!(btf.enumerator("module_state", "COMING"), Some(1));
    assert_eq!(btf.enumerator("module_state", "GOING"), None);
}

#[test]
fn types_that_contain_themselves_end() {
    let mut btf = Builder::new();
    btf.add("loop", 8, 0, 1, &[]);
    btf.compound(5, "", 8, &[("", 2, 0)]);
    btf.array(3, 4);
    btf.structure("all", 8, &[("alias", 1, 0), ("array", 3, 0), ("", 2, 0)]);
    let section = btf.build();
    let btf = Btf::parse(&section).unwrap();
    for path in ["alias", "array", "array[1]", "deep"] {
        assert_eq!(btf.field("all", path), None, "{path}");
    }
}

/// Names may share their ends: of one long one each of many structures can have another part.
#[test]
fn names_are_no_longer_than_a_kernel_s_and_together_not_far_longer_than_their_section() {
    let section = |lengths: &[usize]| {
        let mut btf = Builder::new();
        let end = btf.string(&"x".repeat(600)) + 600;
        for _ in lengths {
            btf.add("", 4, 0, 0, &[]);
        }
        let mut section = btf.build();
        for (index, length) in lengths.iter().enumerate() {
            let name = end - u32::try_from(*length).unwrap();
            let at = 24 + 12 * index;
            section[at..at + 4].copy_from_slice(&name.to_le_bytes());
        }
        Functions::read(section)
    };
    let some = section(&[512, 513, 600, 7]).unwrap();
    let knows = |length| some.structure(&"x".repeat(length)).is_some();
    assert!(knows(512) && knows(7) && !knows(513) && !knows(600));
    let many: Vec<usize> = (0..2000).map(|index| 1 + index % 512).collect();
    let error = section(&many).unwrap_err();
    assert!(matches!(error, BtfError::Names { .. }), "{error}");
    let fewer: Vec<usize> = (0..2000).map(|index| 1 + index % 32).collect();
    section(&fewer).unwrap();
}

#[test]
fn damage_is_named() {
    let good = types();
    assert_eq!(Btf::parse(&[]).unwrap_err(), BtfError::Header);
    assert_eq!(Btf::parse(&good[1..]).unwrap_err(), BtfError::Header);
    assert_eq!(
        Btf::parse(&good[..good.len() - 1]).unwrap_err(),
        BtfError::Outside
    );
    let mut unknown = good.clone();
    unknown[24 + 7] = 31;
    assert_eq!(
        Btf::parse(&unknown).unwrap_err(),
        BtfError::Kind { kind: 31, id: 1 }
    );
}

/// Each byte changed in turn: an error, or types that can be asked for anything.
#[test]
fn damage_anywhere_is_an_error_or_goes_by() {
    let good = types();
    for index in 0..good.len() {
        for change in [1, 0x80, 0xff] {
            let mut section = good.clone();
            section[index] ^= change;
            if let Ok(btf) = Btf::parse(&section) {
                for path in ["second", "mem[6].size", "name"] {
                    let _ = btf.field("module", path);
                }
                let _ = btf.enumerator("module_state", "COMING");
            }
        }
    }
}
