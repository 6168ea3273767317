//! Markers: places in the middle of functions that are one nop, with a note that says where values are
//! there. The notes are those of USDT (`.note.stapsdt`, as SystemTap's `sdt.h` writes them):
//!
//! ```text
//! note      name size, description size, type 3 | "stapsdt" | description
//! desc      place, base, semaphore (64 bits each) | provider \0 | name \0 | operands \0
//! operands  "8@%rdi -4@-20(%rbp) 4@$5": bytes, negative with a sign, and where
//! ```
//!
//! A note of type 1 by the owner `exotrace` gives the operands of a place names: place | "a,b" \0.

use std::collections::HashMap;

use insn::nop::{NopRun, nop_run};
use insn::operand::register_named;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Field, FieldType};
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::Image;
use super::elf::Elf;
use super::points::{FIELDS_MAX, Operand, is_plain};

const SECTION: &str = ".note.stapsdt";
/// The owners of notes, and their types.
const PROBE: (&[u8], u32) = (b"stapsdt", 3);
const NAMES: (&[u8], u32) = (b"exotrace", 1);
/// As many as a record can tell apart, with the tracepoints.
const MARKERS_MAX: usize = 1 << 16;

/// A marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Its name, `provider:name`, and its fields.
    pub format: EventFormat,
    /// Every place of it, by address.
    pub sites: Vec<MarkerSite>,
}

/// A place of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerSite {
    /// The nop.
    pub at: Gva,
    /// Its bytes.
    pub nop: [u8; SITE_LENGTH],
    /// Where each field is.
    pub operands: Vec<Operand>,
    /// The function that it lies in.
    pub function: FunctionId,
}

/// One note.
struct Note<'a> {
    owner: &'a [u8],
    kind: u32,
    description: &'a [u8],
}

/// Reads the notes. What cannot be used is left out, with a remark.
pub(super) fn read(elf: &Elf<'_>, image: &mut Image) {
    let sections = elf.sections_named(SECTION);
    let all = || sections.iter().flat_map(|(_, data)| notes(data));
    let is =
        |note: &Note<'_>, (owner, kind): (&[u8], u32)| note.owner == owner && note.kind == kind;
    let names: HashMap<u64, Vec<String>> = all()
        .filter(|note| is(note, NAMES))
        .filter_map(|note| names_of(note.description))
        .collect();
    let mut skipped: HashMap<&'static str, usize> = HashMap::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let mut sites = 0;
    for note in all().filter(|note| is(note, PROBE)) {
        match add(elf, image, &names, &mut by_name, note.description) {
            Ok(()) => sites += 1,
            Err(why) => *skipped.entry(why).or_default() += 1,
        }
    }
    for marker in &mut image.markers {
        marker.sites.sort_by_key(|site| site.at);
        marker.sites.dedup_by_key(|site| site.at);
    }
    if sites > 0 {
        let count = image.markers.len();
        image
            .notes
            .push(format!("{SECTION}: {count} markers, {sites} sites"));
    }
    let mut skipped: Vec<_> = skipped.into_iter().collect();
    skipped.sort_unstable();
    for (why, count) in skipped {
        image
            .notes
            .push(format!("{SECTION}: {count} markers {why}, ignored"));
    }
}

/// The notes of a section, up to the first that is cut off.
fn notes(mut data: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        let (header, rest) = data.split_at_checked(12)?;
        let (words, _) = header.as_chunks::<4>();
        let [owner_size, size, kind] = *words else {
            return None;
        };
        let (owner, rest) = padded(rest, u32::from_le_bytes(owner_size))?;
        let (description, rest) = padded(rest, u32::from_le_bytes(size))?;
        data = rest;
        Some(Note {
            owner: owner.strip_suffix(b"\0").unwrap_or(owner),
            kind: u32::from_le_bytes(kind),
            description,
        })
    })
}

/// The first `size` bytes, and what follows after the padding to whole words.
fn padded(data: &[u8], size: u32) -> Option<(&[u8], &[u8])> {
    let size = usize::try_from(size).ok()?;
    let (wanted, _) = data.split_at_checked(size)?;
    let end = size.checked_next_multiple_of(4)?.min(data.len());
    Some((wanted, data.get(end..)?))
}

fn word(data: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = data.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

fn string(data: &[u8]) -> Option<(&str, &[u8])> {
    let end = data.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(data.get(..end)?).ok()?;
    Some((text, data.get(end + 1..)?))
}

/// A place, and what its operands are called.
fn names_of(description: &[u8]) -> Option<(u64, Vec<String>)> {
    let (place, rest) = word(description)?;
    let (names, _) = string(rest)?;
    let names: Vec<String> = names
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    Some((place, names))
}

fn add(
    elf: &Elf<'_>,
    image: &mut Image,
    names: &HashMap<u64, Vec<String>>,
    by_name: &mut HashMap<String, usize>,
    description: &[u8],
) -> Result<(), &'static str> {
    let (place, event, operands) = probe(description).ok_or("have notes that make no sense")?;
    let (kinds, operands): (Vec<FieldType>, Vec<Operand>) = operands.into_iter().unzip();
    let at = Gva(place);
    let nop: Option<[u8; SITE_LENGTH]> = elf.bytes_at(at, SITE_LENGTH as u64).try_into().ok();
    let nop = nop
        .filter(|nop| image.is_text(at, SITE_LENGTH as u64) && nop_run(nop) == Some(NopRun::One))
        .ok_or("have no nop of five bytes")?;
    let function = image.function_at(at).ok_or("lie in no function")?;
    let named = names.get(&place).map(Vec::as_slice).unwrap_or_default();
    let site = MarkerSite {
        at,
        nop,
        operands,
        function,
    };
    let known = by_name
        .get(&event)
        .and_then(|index| image.markers.get_mut(*index));
    if let Some(marker) = known {
        if !marker
            .format
            .fields
            .iter()
            .map(|field| &field.kind)
            .eq(&kinds)
        {
            return Err("have other types than the first of their name");
        }
        marker.sites.push(site);
        return Ok(());
    }
    if image.markers.len() >= MARKERS_MAX {
        return Err("are too many");
    }
    image.markers.push(Marker {
        format: EventFormat::new(event.as_str().into(), fields(&kinds, named)),
        sites: vec![site],
    });
    by_name.insert(event, image.markers.len() - 1);
    Ok(())
}

/// Place, name and operands of a probe.
#[expect(
    clippy::type_complexity,
    reason = "three things that are looked at apart"
)]
fn probe(description: &[u8]) -> Option<(u64, String, Vec<(FieldType, Operand)>)> {
    let (place, rest) = word(description)?;
    let (_base, rest) = word(rest)?;
    let (_semaphore, rest) = word(rest)?;
    let (provider, rest) = string(rest)?;
    let (name, rest) = string(rest)?;
    let (operands, _) = string(rest)?;
    let event = format!("{provider}:{name}");
    if !is_plain(&event) {
        return None;
    }
    let operands: Option<Vec<_>> = operands.split_whitespace().map(operand).collect();
    let operands = operands.filter(|operands| operands.len() as u64 <= FIELDS_MAX)?;
    Some((place, event, operands))
}

/// One operand, such as `-4@-20(%rbp)`. An address with an index is none: compilers have no need for
/// one here.
fn operand(text: &str) -> Option<(FieldType, Operand)> {
    let (size, place) = text.split_once('@')?;
    let kind = FieldType::named(match size {
        "1" => "u8",
        "2" => "u16",
        "4" => "u32",
        "8" => "u64",
        "-1" => "i8",
        "-2" => "i16",
        "-4" => "i32",
        "-8" => "i64",
        _ => return None,
    })?;
    let operand = if let Some(value) = place.strip_prefix('$') {
        let value = value.parse::<i64>().ok();
        let value = value.or_else(|| text_of_u64(place.strip_prefix('$')?))?;
        Operand::Constant(value)
    } else if let Some(inner) = place.strip_suffix(')') {
        let (displacement, base) = inner.split_once('(')?;
        let displacement = match displacement {
            "" => 0,
            number => number.parse().ok()?,
        };
        let (base, bytes) = register_named(base)?;
        if bytes != 8 {
            return None;
        }
        Operand::Memory { base, displacement }
    } else {
        let (number, _) = register_named(place)?;
        Operand::Register(number)
    };
    Some((kind, operand))
}

/// A number that needs all 64 bits.
fn text_of_u64(text: &str) -> Option<i64> {
    text.parse::<u64>().ok().map(u64::cast_signed)
}

/// The fields: by the names that were given, as far as they are names and differ; others by their
/// numbers, from 1 on as other tools count them.
fn fields(kinds: &[FieldType], names: &[String]) -> Vec<Field> {
    let mut fields: Vec<Field> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let given = names
            .get(index)
            .filter(|name| is_plain(name) && fields.iter().all(|field| *field.name != ***name));
        let name = given
            .cloned()
            .unwrap_or_else(|| format!("arg{}", index + 1));
        fields.push(Field {
            name: name.into(),
            kind: kind.clone(),
        });
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_read() {
        let of = |text: &str| operand(text).map(|(kind, at)| (kind.name().to_owned(), at));
        let memory = |base, displacement| Operand::Memory { base, displacement };
        for (text, kind, at) in [
            ("8@%rdi", "u64", Operand::Register(7)),
            ("-4@%r10d", "i32", Operand::Register(10)),
            ("1@%r11b", "u8", Operand::Register(11)),
            ("-2@%bx", "i16", Operand::Register(3)),
            ("4@-20(%rbp)", "u32", memory(5, -20)),
            ("-8@(%rsp)", "i64", memory(4, 0)),
            ("-4@$5", "i32", Operand::Constant(5)),
            ("-8@$-7", "i64", Operand::Constant(-7)),
            ("8@$18446744073709551615", "u64", Operand::Constant(-1)),
        ] {
            assert_eq!(of(text), Some((kind.to_owned(), at)), "{text}");
        }
        for bad in [
            "",
            "8",
            "3@%rax",
            "8@%xmm0",
            "8@4(%rax,%rbx,8)",
            "8@x(%rip)",
            "8@(%eax)",
            "4@$x",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn notes_that_are_cut_off_end_the_list() {
        let mut section = Vec::new();
        for word in [8u32, 4, 3] {
            section.extend(word.to_le_bytes());
        }
        section.extend(b"stapsdt\0abcd");
        let whole = section.clone();
        section.extend(&whole);
        for end in 0..section.len() {
            let expected = end / whole.len();
            assert_eq!(notes(&section[..end]).count(), expected, "{end} bytes");
        }
        assert_eq!(notes(&section).count(), 2);
        assert!(notes(&[0xff; 64]).next().is_none());
    }
}
