//! Which parts of the address space a Linux kernel on x86-64 never uses, whatever it loads or maps later.
//!
//! From its own map (Documentation/arch/x86/x86_64/mm.rst) and constants, the same for four and five levels:
//!
//! ```text
//! ffffff8000000000  unused                            ┐ entries of 1 GiB
//! ffffffef00000000  runtime services of EFI           │
//! ffffffff00000000  unused                            ┘ entries of 1 GiB
//! ffffffff80000000  __START_KERNEL_map: before _text  ┐ entries of 2 MiB
//!                   the kernel's image                │
//!                   from _end to KERNEL_IMAGE_SIZE    ┘ entries of 2 MiB
//! ffffffffa0000000  MODULES_VADDR, or ffffffffc0000000 where KERNEL_IMAGE_SIZE is 1 GiB
//! ffffffffff000000  fixed mappings, vsyscall
//! ```
//!
//! What is in the map of the image beside the image itself, the kernel clears once, early in its start
//! (`cleanup_highmap`), and never uses again. Before that, entries there are not zero, so nothing is free.
//!
//! These are constants of the kernel's, so nothing is asked of the guest. Its lists of mapped areas (`vmap_area_list`,
//! `vmap_area_root`) could add nothing: `alloc_vmap_area` gives out no address but between the bounds that its
//! callers pass, which are VMALLOC_START and VMALLOC_END or MODULES_VADDR and MODULES_END, so no area is ever in these
//! ranges; and what is mapped now shows in the page tables anyway, which are what is looked at. A kernel that was built
//! with a larger image map than it says by its symbols gets a smaller range, never a wrong one; one whose source was
//! changed to put something of its own there is not recognised before it does.

use image::{Image, TextRange};
use terms::addr::Gva;

use crate::paging::PAGE_2M;

/// `__START_KERNEL_map`.
const MAP: u64 = 0xffff_ffff_8000_0000;
/// `KERNEL_IMAGE_SIZE` of a kernel that is never moved.
const IMAGE_SIZE: u64 = 512 << 20;
/// `KERNEL_IMAGE_SIZE` with `CONFIG_RANDOMIZE_BASE`, since 4.7.
const IMAGE_SIZE_RANDOM: u64 = 1 << 30;
/// A function that kernels with `CONFIG_RANDOMIZE_BASE` have since 4.8, and no other (arch/x86/lib/kaslr.c). Kernels
/// that do not use it are taken to be smaller than they may be.
const OF_RANDOM_BASE: &str = "kaslr_get_random_long";
/// Address space that has no use, and is in the same topmost entry as the image.
const UNUSED: [(u64, u64); 2] = [
    (0xffff_ff80_0000_0000, 0xffff_ffef_0000_0000),
    (0xffff_ffff_0000_0000, MAP),
];

/// Where 2 MiB entries near the text can be had, the best first.
pub(crate) fn near_text(image: &Image) -> Vec<TextRange> {
    let size = match image.symbols.address_of(OF_RANDOM_BASE) {
        Some(_) => IMAGE_SIZE_RANDOM,
        None => IMAGE_SIZE,
    };
    let map = TextRange {
        start: Gva(MAP),
        end: Gva(MAP + size),
    };
    let own = own(image, map);
    // The kernel clears whole entries, and keeps those that its image begins and ends in.
    let after = own.end.0.checked_next_multiple_of(PAGE_2M);
    let ranges = [
        (after.map_or(map.end, Gva), map.end),
        (map.start, Gva(own.start.0 / PAGE_2M * PAGE_2M)),
    ];
    let ranges = ranges
        .into_iter()
        .map(|(start, end)| TextRange { start, end });
    ranges.filter_map(|range| range.common(map)).collect()
}

/// Where entries of 1 GiB can be had.
pub(crate) fn giants() -> Vec<TextRange> {
    let range = |(start, end)| TextRange {
        start: Gva(start),
        end: Gva(end),
    };
    UNUSED.map(range).to_vec()
}

/// Where the kernel's own topmost table lies (`init_mm.pgd`), if its symbols say. The tables of calls of EFI (`efi_mm`) share less with it
/// than those of processes: of the topmost entry they have a table of 1 GiB entries of their own, copied before each call
/// (`efi_sync_low_kernel_mappings`).
pub(crate) fn tables(image: &Image) -> Option<Gva> {
    image.symbols.address_of("init_top_pgt")
}

/// All that the kernel's image takes up of `map`, its data included. All of `map` when it is nowhere in it.
fn own(image: &Image, map: TextRange) -> TextRange {
    let segments = image.segments.iter().map(|segment| TextRange {
        start: segment.vaddr,
        end: segment.vaddr.wrapping_add(segment.memsz),
    });
    let named = image
        .symbols
        .address_of("_text")
        .zip(image.symbols.address_of("_end"));
    let named = named.map(|(start, end)| TextRange { start, end });
    let parts = segments.chain(named).filter_map(|part| part.common(map));
    parts
        .reduce(|one, other| TextRange {
            start: one.start.min(other.start),
            end: one.end.max(other.end),
        })
        .unwrap_or(map)
}

#[cfg(test)]
mod tests {
    use image::symbol::{Symbol, SymbolKind};
    use image::{Segment, SymbolTable};

    use super::*;

    fn image(symbols: &[(&str, u64)], segments: &[(u64, u64)]) -> Image {
        let symbol = |(name, address): &(&str, u64)| Symbol {
            name: (*name).into(),
            display: (*name).into(),
            address: Gva(*address),
            size: 0,
            kind: SymbolKind::Function,
            global: true,
        };
        let segment = |(vaddr, memsz): &(u64, u64)| Segment {
            vaddr: Gva(*vaddr),
            paddr: terms::addr::Gpa(0),
            filesz: 0,
            memsz: *memsz,
            read: true,
            write: true,
            execute: true,
        };
        Image {
            symbols: SymbolTable::new(symbols.iter().map(symbol).collect()),
            segments: segments.iter().map(segment).collect(),
            ..Image::default()
        }
    }

    fn ranges(image: &Image) -> Vec<(u64, u64)> {
        near_text(image)
            .iter()
            .map(|range| (range.start.0, range.end.0))
            .collect()
    }

    #[test]
    fn the_window_is_in_the_map_of_the_image_and_never_where_modules_are() {
        // As Debian's 6.1: the data of each processor is linked at 0.
        let segments = [
            (0xffff_ffff_8100_0000, 0x1a0_0000),
            (0, 0x3_4000),
            (0xffff_ffff_8330_0000, 0x123_4000),
        ];
        let end = ("_end", 0xffff_ffff_8460_0001);
        let text = ("_text", 0xffff_ffff_8100_0000);
        assert_eq!(
            ranges(&image(&[text, end], &segments)),
            [
                (0xffff_ffff_8480_0000, 0xffff_ffff_a000_0000),
                (MAP, 0xffff_ffff_8100_0000)
            ]
        );
        let random = (OF_RANDOM_BASE, 0xffff_ffff_8200_0000);
        assert_eq!(
            ranges(&image(&[text, end, random], &segments))[0].1,
            0xffff_ffff_c000_0000
        );
        // Without names: the end of what is loaded.
        assert_eq!(ranges(&image(&[], &segments))[0].0, 0xffff_ffff_8460_0000);
    }

    #[test]
    fn a_kernel_that_is_somewhere_else_or_fills_its_map_has_no_place() {
        for segments in [
            &[(0x10_0000, 0x1000)][..],
            &[(MAP, IMAGE_SIZE)],
            &[(MAP, u64::MAX - MAP)],
        ] {
            assert_eq!(ranges(&image(&[], segments)), []);
        }
    }
}
