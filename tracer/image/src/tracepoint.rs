//! Tracepoints: places that are one nop until somebody enables them, listed in the sections
//! `__tracepoints` and `__tracepoint_sites`.
//!
//! ```text
//! record    dispatch | name, length | signature (2 words) | fields, count | list | candidates, count
//! field     name, length | type, length
//! site      nop | the code that calls dispatch | record
//! ```
//!
//! *Dispatch* is a jump like that of a dynamic function; in the image it leads to the iterator. *List* is
//! a word that points at the callbacks that the iterator calls, of which there are none in the image.

use std::collections::HashMap;

use insn::nop::{NopRun, nop_run};
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Field, FieldType};
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::Image;
use super::dynamic::jump_at;
use super::elf::Elf;
use super::points::{FIELDS_MAX, Signature, is_plain, records, text, words};

/// The names of the sections.
const SECTION: &str = "__tracepoints";
const SITES: &str = "__tracepoint_sites";
/// Candidates of one tracepoint, at most.
const CANDIDATES_MAX: u64 = 256;
/// More than any guest has; each is compared with those before it.
const TRACEPOINTS_MAX: usize = 1 << 13;

/// A tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its name and its fields.
    pub format: EventFormat,
    /// What every callback must have.
    pub signature: Signature,
    /// The function that is the jump to the callback.
    pub function: FunctionId,
    /// That jump.
    pub dispatch: Gva,
    /// Where it leads in the image: the function that calls every callback of a list.
    pub iterate: Gva,
    /// The word that points at the list.
    pub list: Gva,
    /// What it is in the image: the address of an empty list.
    pub nobody: u64,
    /// The guest's own callbacks.
    pub candidates: Vec<Gva>,
    /// Every place that passes it, by address.
    pub sites: Vec<TracepointSite>,
}

/// A place that passes a tracepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracepointSite {
    /// The nop.
    pub at: Gva,
    /// Its bytes.
    pub nop: [u8; SITE_LENGTH],
    /// The code that calls dispatch, and then continues after the nop.
    pub on: Gva,
    /// The function that it lies in.
    pub function: FunctionId,
}

/// Reads the sections. What is not as it should be is left out, with a remark.
pub(super) fn read(elf: &Elf<'_>, image: &mut Image) {
    let mut notes = Vec::new();
    let mut by_record: HashMap<Gva, usize> = HashMap::new();
    for (at, record) in records(elf, SECTION, &mut notes) {
        match one(elf, image, record) {
            Ok(_) if image.tracepoints.len() >= TRACEPOINTS_MAX => {
                notes.push(format!(
                    "{SECTION}: only the first {TRACEPOINTS_MAX} are used"
                ));
                break;
            }
            Ok(tracepoint) => {
                by_record.insert(at, image.tracepoints.len());
                image.tracepoints.push(tracepoint);
            }
            Err(why) => notes.push(format!("{SECTION}: {why}, ignored")),
        }
    }
    for (_, record) in records(elf, SITES, &mut notes) {
        if let Err(why) = add_site(elf, image, &by_record, record) {
            notes.push(format!("{SITES}: {why}, ignored"));
        }
    }
    let mut sites = 0;
    for tracepoint in &mut image.tracepoints {
        tracepoint.sites.sort_by_key(|site| site.at);
        tracepoint.sites.dedup_by_key(|site| site.at);
        sites += tracepoint.sites.len();
    }
    if !image.tracepoints.is_empty() {
        let count = image.tracepoints.len();
        notes.push(format!("{SECTION}: {count} tracepoints, {sites} sites"));
    }
    image.notes.append(&mut notes);
}

fn one(elf: &Elf<'_>, image: &Image, record: [u64; 10]) -> Result<Tracepoint, String> {
    let [
        dispatch,
        name,
        length,
        id,
        id_high,
        fields,
        count,
        list,
        candidates,
        candidate_count,
    ] = record;
    let dispatch = Gva(dispatch);
    let name = text(elf, name, length).filter(|name| is_plain(name));
    let name = name.ok_or_else(|| format!("the one with the jump at {dispatch} has no name"))?;
    let bad = |what: &str| format!("{name} {what}");
    if image
        .tracepoints
        .iter()
        .any(|other| *other.format.name == *name)
    {
        return Err(bad("is there twice"));
    }
    let fields =
        read_fields(elf, fields, count).ok_or_else(|| bad("has no fields that make sense"))?;
    let (function, iterate) = jump_at(elf, image, dispatch).map_err(bad)?;
    let nobody = words(elf, list, 1, 1).and_then(|word| word.first().copied());
    let nobody = nobody
        .filter(|_| list.is_multiple_of(8) && !image.is_text(Gva(list), 8))
        .ok_or_else(|| bad("has no word for its list"))?;
    if words(elf, nobody, 1, 1) != Some(vec![0]) {
        return Err(bad("has callbacks from the start"));
    }
    let candidates = words(elf, candidates, candidate_count, CANDIDATES_MAX)
        .ok_or_else(|| bad("has no list of callbacks"))?;
    let candidates: Vec<Gva> = candidates.into_iter().map(Gva).collect();
    if !candidates.iter().all(|at| image.is_text(*at, 1)) {
        return Err(bad("has callbacks outside the text"));
    }
    Ok(Tracepoint {
        format: EventFormat::new(name.into(), fields),
        signature: Signature([id, id_high]),
        function,
        dispatch,
        iterate,
        list: Gva(list),
        nobody,
        candidates,
        sites: Vec::new(),
    })
}

fn read_fields(elf: &Elf<'_>, fields: u64, count: u64) -> Option<Vec<Field>> {
    let count = count
        .checked_mul(4)
        .filter(|words| *words <= 4 * FIELDS_MAX)?;
    let words = words(elf, fields, count, count)?;
    let (fields, _) = words.as_chunks::<4>();
    let mut read: Vec<Field> = Vec::new();
    for &[name, length, kind, kind_length] in fields {
        let name = text(elf, name, length).filter(|name| is_plain(name))?;
        if read.iter().any(|other| *other.name == *name) {
            return None;
        }
        let kind = FieldType::named(&text(elf, kind, kind_length)?)?;
        let name = name.into();
        read.push(Field { name, kind });
    }
    Some(read)
}

fn add_site(
    elf: &Elf<'_>,
    image: &mut Image,
    by_record: &HashMap<Gva, usize>,
    record: [u64; 3],
) -> Result<(), String> {
    let [at, on, tracepoint] = record.map(Gva);
    let index = by_record.get(&tracepoint);
    let index = *index.ok_or_else(|| format!("{at} is of no tracepoint"))?;
    let function = image.function_at(at);
    let function = function.ok_or_else(|| format!("{at} lies in no function"))?;
    let nop: [u8; SITE_LENGTH] = elf
        .bytes_at(at, SITE_LENGTH as u64)
        .try_into()
        .map_err(|_| format!("{at} is not in the file"))?;
    let is_nop = image.is_text(at, SITE_LENGTH as u64) && nop_run(&nop) == Some(NopRun::One);
    if !is_nop || image.function_at(on) != Some(function) {
        return Err(format!("{at} is no nop, or {on} is not in its function"));
    }
    let site = TracepointSite {
        at,
        nop,
        on,
        function,
    };
    if let Some(tracepoint) = image.tracepoints.get_mut(index) {
        tracepoint.sites.push(site);
    }
    Ok(())
}
