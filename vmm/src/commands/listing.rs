//! What could be traced in an image, and why the rest cannot: as a table for people, as JSON for
//! programs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use image::{Image, Site, SkippedSite, Untraceable};
use serde::Serialize;
use terms::printable;
use terms::site::HexBytes;
use tracer::Tactic;
use tracer::remark_on_types;
use tracer::without_sites;

/// Everything that is listed of an image.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// Path of the image.
    pub image: String,
    /// Numbers of all of it.
    pub totals: Totals,
    /// The functions that can be traced, by address.
    pub sites: Vec<SiteEntry>,
    /// The functions that cannot, by address.
    pub untraceable: Vec<UntraceableEntry>,
    /// Listed places that did not become sites.
    pub skipped: Vec<SkippedEntry>,
    /// How functions without a site could be traced, by address; none when that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any: Option<Any>,
    /// Remarks on how the image was read.
    pub notes: Vec<String>,
}

/// Functions without a patch site, and what `--any` makes of them.
#[derive(Debug, Serialize)]
pub struct Any {
    /// Functions by tactic.
    pub by_tactic: BTreeMap<String, usize>,
    /// Functions that cannot be traced so either, by reason.
    pub by_reason: BTreeMap<String, usize>,
    /// Each function, by address.
    pub functions: Vec<AnyEntry>,
}

/// A function without a patch site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnyEntry {
    /// Where it begins.
    pub address: String,
    /// Its name for people.
    pub function: String,
    /// The number of the tactic by which it can be traced.
    pub tactic: Option<u8>,
    /// The bytes that would be displaced.
    pub bytes: Option<String>,
    /// Why it cannot.
    pub reason: Option<String>,
}

/// Numbers of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Functions in the image.
    pub functions: usize,
    /// Functions that can be traced.
    pub traceable: usize,
    /// Functions that cannot.
    pub untraceable: usize,
    /// Listed places that did not become sites.
    pub skipped: usize,
    /// Sites by kind and form.
    pub by_kind: BTreeMap<String, usize>,
    /// Untraceable functions by reason.
    pub by_reason: BTreeMap<String, usize>,
}

/// A function that can be traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SiteEntry {
    /// Where its site lies.
    pub address: String,
    /// Its name for people.
    pub function: String,
    /// Its name in the symbol table.
    pub symbol: String,
    /// `fentry`, `mcount` or `patchable`.
    pub kind: &'static str,
    /// `nop5`, `call` or `multi-nop`.
    pub form: &'static str,
    /// The bytes in the image.
    pub bytes: String,
}

/// A function that cannot be traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UntraceableEntry {
    /// Where it begins.
    pub address: String,
    /// Its name for people.
    pub function: String,
    /// Its name in the symbol table.
    pub symbol: String,
    /// Why it cannot be traced.
    pub reason: String,
}

/// A listed place that did not become a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedEntry {
    /// The address in the list.
    pub address: String,
    /// The function it lies in, if in one.
    pub function: Option<String>,
    /// The bytes there.
    pub bytes: String,
    /// Why it was left out.
    pub reason: String,
}

impl Listing {
    /// The listing of `image`, which was read from `path`.
    #[must_use]
    pub fn of(image: &Image, path: &str) -> Self {
        Self {
            image: path.to_owned(),
            totals: Totals::of(image),
            sites: image
                .sites
                .iter()
                .map(|site| SiteEntry::of(image, site))
                .collect(),
            untraceable: image
                .untraceable
                .iter()
                .map(|entry| UntraceableEntry::of(image, entry))
                .collect(),
            skipped: image
                .skipped
                .iter()
                .map(|place| SkippedEntry::of(image, place))
                .collect(),
            any: None,
            notes: image
                .notes
                .iter()
                .cloned()
                .chain(remark_on_types(image))
                .collect(),
        }
    }

    /// The same with what is possible where there is no site.
    #[must_use]
    pub fn with_any(mut self, image: &Image) -> Self {
        self.any = Some(Any::of(image));
        self
    }

    /// Writes one JSON object.
    ///
    /// # Errors
    /// What `out` says.
    pub fn json(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{}", printable::json_pretty(self)?)
    }

    /// Writes a table: sites, functions without one, skipped places, totals.
    ///
    /// # Errors
    /// What `out` says.
    pub fn table(&self, mut out: impl Write) -> io::Result<()> {
        self.site_rows(&mut out)?;
        self.untraceable_rows(&mut out)?;
        self.skipped_rows(&mut out)?;
        self.any_rows(&mut out)?;
        self.total_rows(&mut out)
    }

    fn site_rows(&self, out: &mut impl Write) -> io::Result<()> {
        if self.sites.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "{:<18}  {:<9}  {:<9}  FUNCTION",
            "SITE", "KIND", "FORM"
        )?;
        for site in &self.sites {
            let SiteEntry {
                address,
                function,
                kind,
                form,
                ..
            } = site;
            writeln!(out, "{address:<18}  {kind:<9}  {form:<9}  {function}")?;
        }
        writeln!(out)
    }

    fn untraceable_rows(&self, out: &mut impl Write) -> io::Result<()> {
        if self.untraceable.is_empty() {
            return Ok(());
        }
        writeln!(out, "{:<18}  NOT TRACEABLE", "ADDRESS")?;
        for entry in &self.untraceable {
            writeln!(
                out,
                "{:<18}  {}: {}",
                entry.address, entry.function, entry.reason
            )?;
        }
        writeln!(out)
    }

    fn skipped_rows(&self, out: &mut impl Write) -> io::Result<()> {
        if self.skipped.is_empty() {
            return Ok(());
        }
        writeln!(out, "{:<18}  {:<23}  SKIPPED PLACES", "ADDRESS", "BYTES")?;
        for place in &self.skipped {
            let function = place.function.as_deref().unwrap_or("no function");
            let SkippedEntry {
                address,
                bytes,
                reason,
                ..
            } = place;
            writeln!(out, "{address:<18}  {bytes:<23}  {function}: {reason}")?;
        }
        writeln!(out)
    }

    fn any_rows(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(any) = &self.any else {
            return Ok(());
        };
        writeln!(out, "{:<18}  {:<14}  WITHOUT A SITE", "ADDRESS", "TACTIC")?;
        for entry in &any.functions {
            let tactic = entry.tactic.and_then(Tactic::numbered);
            let tactic = tactic.map_or_else(|| "-".to_owned(), |tactic| tactic.to_string());
            let AnyEntry {
                address, function, ..
            } = entry;
            write!(out, "{address:<18}  {tactic:<14}  {function}")?;
            match &entry.reason {
                Some(reason) => writeln!(out, ": {reason}")?,
                None => writeln!(out)?,
            }
        }
        writeln!(out)
    }

    fn total_rows(&self, out: &mut impl Write) -> io::Result<()> {
        let Totals {
            functions,
            traceable,
            untraceable,
            skipped,
            ..
        } = self.totals;
        write!(
            out,
            "{}: {functions} functions, {traceable} traceable",
            self.image
        )?;
        writeln!(out, ", {untraceable} not, {skipped} listed places skipped")?;
        for (kind, count) in &self.totals.by_kind {
            writeln!(out, "  {count:>8} {kind}")?;
        }
        for (reason, count) in &self.totals.by_reason {
            writeln!(out, "  {count:>8} not traceable: {reason}")?;
        }
        for (tactic, count) in self.any.iter().flat_map(|any| &any.by_tactic) {
            writeln!(out, "  {count:>8} with --any: {tactic}")?;
        }
        for (reason, count) in self.any.iter().flat_map(|any| &any.by_reason) {
            writeln!(out, "  {count:>8} not even with --any: {reason}")?;
        }
        for note in &self.notes {
            writeln!(out, "  note: {note}")?;
        }
        Ok(())
    }
}

impl Totals {
    fn of(image: &Image) -> Self {
        let mut by_kind = BTreeMap::new();
        for site in &image.sites {
            let kind = format!("{} {}", site.kind.name(), site.form.name());
            *by_kind.entry(kind).or_default() += 1;
        }
        let mut by_reason = BTreeMap::new();
        for entry in &image.untraceable {
            *by_reason
                .entry(entry.reason.class().to_owned())
                .or_default() += 1;
        }
        Self {
            functions: image.functions.len(),
            traceable: image.sites.len(),
            untraceable: image.untraceable.len(),
            skipped: image.skipped.len(),
            by_kind,
            by_reason,
        }
    }
}

impl Any {
    fn of(image: &Image) -> Self {
        let mut any = Self {
            by_tactic: BTreeMap::new(),
            by_reason: BTreeMap::new(),
            functions: Vec::new(),
        };
        for (id, place) in without_sites(image) {
            let (tactic, bytes, reason) = match &place {
                Ok(place) => {
                    let name = format!("tactic {}", place.tactic);
                    *any.by_tactic.entry(name).or_default() += 1;
                    let bytes = HexBytes(&place.displaced).to_string();
                    (Some(place.tactic.number()), Some(bytes), None)
                }
                Err(why) => {
                    let class = why.class().to_owned();
                    *any.by_reason.entry(class).or_default() += 1;
                    (None, None, Some(why.to_string()))
                }
            };
            let address = image.function(id).map(|function| function.address);
            any.functions.push(AnyEntry {
                address: address.unwrap_or_default().to_string(),
                function: display(image, id, "?"),
                tactic,
                bytes,
                reason,
            });
        }
        any
    }
}

impl SiteEntry {
    fn of(image: &Image, site: &Site) -> Self {
        Self {
            address: site.address.to_string(),
            function: display(image, site.function, &site.symbol),
            symbol: site.symbol.to_string(),
            kind: site.kind.name(),
            form: site.form.name(),
            bytes: HexBytes(&site.original).to_string(),
        }
    }
}

impl UntraceableEntry {
    fn of(image: &Image, entry: &Untraceable) -> Self {
        Self {
            address: entry.address.to_string(),
            function: display(image, entry.function, &entry.symbol),
            symbol: entry.symbol.to_string(),
            reason: entry.reason.to_string(),
        }
    }
}

impl SkippedEntry {
    fn of(image: &Image, place: &SkippedSite) -> Self {
        Self {
            address: place.address.to_string(),
            function: place.function.map(|id| display(image, id, "?")),
            bytes: HexBytes(&place.bytes).to_string(),
            reason: place.reason.to_string(),
        }
    }
}

fn display(image: &Image, id: terms::function::FunctionId, otherwise: &str) -> String {
    image
        .function(id)
        .map_or(otherwise, |function| &function.display)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use image::testing::{ElfFile, TEXT, body};
    use insn::nop::NOP5;

    use super::*;

    fn listing() -> Listing {
        let file = ElfFile::new()
            .text(
                TEXT,
                &[body(&NOP5), body(&[0x90; 5]), body(&[0xc3]), body(&[0xf4])].concat(),
            )
            .list(
                "__mcount_loc",
                TEXT - 0x8_0000,
                &[TEXT, TEXT + 0x10, TEXT + 0x20],
            )
            .function("_RNvCs1234_5guest4main", TEXT, 16)
            .function("split", TEXT + 0x10, 16)
            .function("odd", TEXT + 0x20, 16)
            .function("plain", TEXT + 0x30, 16);
        Listing::of(&Image::parse(&file.build()).unwrap(), "guest.elf")
    }

    #[test]
    fn the_table_holds_every_function_and_the_totals() {
        let mut out = Vec::new();
        listing().table(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "\
SITE                KIND       FORM       FUNCTION
0xffffffff80100000  fentry     nop5       guest::main
0xffffffff80100010  fentry     multi-nop  split

ADDRESS             NOT TRACEABLE
0xffffffff80100020  odd: unexpected bytes c3 cc cc cc cc cc cc cc, expected a nop or a call
0xffffffff80100030  plain: no patch site: compiled without instrumentation, notrace or assembly

ADDRESS             BYTES                    SKIPPED PLACES
0xffffffff80100020  c3 cc cc cc cc cc cc cc  odd: unexpected bytes c3 cc cc cc cc cc cc cc, \
            expected a nop or a call

guest.elf: 4 functions, 2 traceable, 2 not, 1 listed places skipped
         1 fentry multi-nop
         1 fentry nop5
         1 not traceable: no patch site
         1 not traceable: unexpected bytes
  note: __mcount_loc: 3 addresses
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_is_one_object() {
        let mut out = Vec::new();
        listing().json(&mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["totals"]["traceable"], 2);
        assert_eq!(value["sites"][0]["function"], "guest::main");
        assert_eq!(value["sites"][0]["bytes"], "0f 1f 44 00 00");
        assert_eq!(value["untraceable"][1]["symbol"], "plain");
        assert_eq!(value["skipped"][0]["address"], "0xffffffff80100020");
    }
}
