//! What the files of a kernel say of its variables and types, in DWARF or BTF: where a variable is, as a place that
//! code can be made of, and what its value is made of. Nothing is read before somebody asks.
//!
//! This crate knows no guest: it is handed bytes.

#![forbid(unsafe_code)]

mod abbreviations;
mod abi;
pub mod btf;
mod calls;
mod constant;
mod error;
mod frame;
mod limits;
mod lines;
mod location;
mod named;
pub mod place;
mod scope;
mod sections;
mod segments;
pub mod shape;
mod sources;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod types;
mod units;
mod unread;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub use error::DebugError;
use insn::nop::nop_run;
use insn::scan::{landing_pad, leading_call};
pub use place::{Piece, Place};
pub use shape::{Member, Moment, Shape, Slice, Structure, TypeId, Variable};
use terms::addr::{Gva, Slide};
use terms::nearest::nearest;
use terms::site::SITE_LENGTH;
pub use unread::Unread;

use self::abi::{Classes, Types};
use self::btf::functions::{Functions, Prototype};
use self::limits::{NAMES, Room};
use self::named::Named;
use self::scope::Scope;
use self::sections::Sections;
use self::units::{Dwarf, Index};

/// The files of a kernel, to be asked for variables and types.
#[derive(Debug)]
pub struct DebugInfo {
    kernel: Arc<Vec<u8>>,
    /// Of the file that has DWARF.
    sections: OnceLock<Sections>,
    symbols: Option<Arc<Vec<u8>>>,
    index: OnceLock<Result<Index, Unread>>,
    named: OnceLock<Result<Named, DebugError>>,
    btf: OnceLock<Option<Functions>>,
    slide: Slide,
}

impl DebugInfo {
    /// Of a kernel's ELF file, and of its file of symbols, if it has one: an unstripped `vmlinux` has debug
    /// information, too.
    ///
    /// # Errors
    /// [`DebugError::NotElf`] when the kernel is no ELF file.
    pub fn read(kernel: Arc<Vec<u8>>, symbols: Option<Arc<Vec<u8>>>) -> Result<Self, DebugError> {
        segments::check(&kernel)?;
        Ok(Self {
            kernel,
            sections: OnceLock::new(),
            symbols,
            index: OnceLock::new(),
            named: OnceLock::new(),
            btf: OnceLock::new(),
            slide: Slide::default(),
        })
    }

    /// Of a kernel of which there is no file: all that is known of it is its BTF ([`Self::prototype`]).
    #[must_use]
    pub fn without_files() -> Self {
        Self {
            kernel: Arc::default(),
            sections: OnceLock::new(),
            symbols: None,
            index: OnceLock::new(),
            named: OnceLock::new(),
            btf: OnceLock::new(),
            slide: Slide::default(),
        }
    }

    /// The same of a kernel that runs `slide` bytes from where it was linked: addresses that are asked for, and those
    /// that are said, are where it runs.
    #[must_use]
    pub fn moved_by(self, slide: Slide) -> Self {
        Self { slide, ..self }
    }

    /// The bytes of text at an address, as they were linked; fewer where the file holds fewer.
    #[must_use]
    pub fn text(&self, address: Gva, length: u64) -> &[u8] {
        let linked = self.slide.linked(address);
        segments::bytes_at(&self.kernel, linked, length).unwrap_or_default()
    }

    /// What values of a type are made of.
    ///
    /// # Errors
    /// [`DebugError::Damaged`].
    pub fn shape(&self, of: TypeId) -> Result<Shape, DebugError> {
        match of {
            TypeId::Dwarf(at) => self.dwarf("types", |dwarf| dwarf.shape(at)),
            TypeId::Btf(id) => {
                let functions = self.btf.get().and_then(Option::as_ref);
                let shape = functions.and_then(|functions| functions.shape(id));
                shape.ok_or_else(|| DebugError::Damaged(format!("BTF, type {id}")))
            }
        }
    }

    /// What a type is called.
    #[must_use]
    pub fn type_name(&self, of: TypeId) -> String {
        let name = match of {
            TypeId::Dwarf(at) => self.dwarf("types", |dwarf| Ok(dwarf.type_name(at))).ok(),
            TypeId::Btf(id) => {
                let functions = self.btf.get().and_then(Option::as_ref);
                functions.and_then(|functions| functions.type_name(id))
            }
        };
        name.unwrap_or_else(|| "a type without a name".to_owned())
    }

    /// The variable that `name` means there and then.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn variable(&self, moment: Moment, name: &str) -> Result<Variable, DebugError> {
        let what = format!("`{name}`");
        self.scoped(moment, &what, |scope| scope.variable(name))
    }

    /// Each parameter of the function, in their order, or why it is not known.
    ///
    /// # Errors
    /// A [`DebugError`] that says why none are known.
    pub fn parameters(
        &self,
        moment: Moment,
    ) -> Result<Vec<Result<Variable, DebugError>>, DebugError> {
        self.scoped(moment, "$args", |scope| scope.parameters())
    }

    /// What the function that begins at `address` returns; `None` if it returns nothing.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn returned(&self, address: Gva) -> Result<Option<Variable>, DebugError> {
        self.scoped(Moment::Return(address), "$retval", |scope| scope.returned())
    }

    /// Where the code for a line begins, by address.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn line(&self, file: &str, line: u64) -> Result<Vec<Gva>, DebugError> {
        let what = format!("{file}:{line}");
        let found = self.dwarf(&what, |dwarf| dwarf.line(file, line))?;
        Ok(found.iter().map(|at| self.slide.runs(*at)).collect())
    }

    /// The path of the source file that each of these functions comes from, where it is known; they are in the order of their
    /// addresses and do not lie over each other. `what` is what it is needed for.
    ///
    /// # Errors
    /// A [`DebugError`] that says why none is known.
    pub fn sources(
        &self,
        what: &str,
        functions: impl Iterator<Item = Range<Gva>>,
    ) -> Result<Vec<Option<Arc<str>>>, DebugError> {
        let linked = |at| self.slide.linked(at).0;
        let functions = functions.map(|one| linked(one.start)..linked(one.end));
        let functions: Vec<Range<u64>> = functions.collect();
        self.dwarf(what, |dwarf| Ok(dwarf.sources(&functions)))
    }

    /// What the kernel's BTF, which is `section`, says of a function by any of its names.
    pub fn prototype<'n>(
        &self,
        section: Option<&[u8]>,
        mut names: impl Iterator<Item = &'n str>,
    ) -> Option<Prototype> {
        let functions = self.btf(section)?;
        names.find_map(|name| functions.prototype(name))
    }

    /// The structure or union with this name: by DWARF, else by the kernel's BTF, which is `section`.
    #[must_use]
    pub fn structure_named(&self, section: Option<&[u8]>, name: &str) -> Option<TypeId> {
        let of_dwarf = self.named().and_then(|named| named.structure(name));
        of_dwarf.or_else(|| self.btf(section)?.structure(name))
    }

    /// The names of structures most like this one.
    #[must_use]
    pub fn structures_like(&self, section: Option<&[u8]>, name: &str) -> Vec<String> {
        let of_dwarf = self.named().into_iter().flat_map(Named::structures);
        let of_btf = self
            .btf(section)
            .into_iter()
            .flat_map(Functions::structures);
        nearest(name, of_dwarf.chain(of_btf), 3)
    }

    /// The type of a variable that is in no function.
    #[must_use]
    pub fn variable_type(&self, section: Option<&[u8]>, name: &str) -> Option<TypeId> {
        let of_dwarf = self.named().and_then(|named| named.variable(name));
        of_dwarf.or_else(|| self.btf(section)?.variable(name))
    }

    /// Why nothing is known by the names that the kernel's files have in DWARF, if they have such: then what BTF does not
    /// know may be there all the same.
    #[must_use]
    pub fn unread_names(&self) -> Option<&DebugError> {
        let why = self.all_named().as_ref().err();
        why.filter(|why| matches!(why, DebugError::Unread { .. }))
    }

    fn named(&self) -> Option<&Named> {
        self.all_named().as_ref().ok()
    }

    fn all_named(&self) -> &Result<Named, DebugError> {
        let read = || self.dwarf("names", |dwarf| Ok(dwarf.named()));
        self.named.get_or_init(read)
    }

    fn btf(&self, section: Option<&[u8]>) -> Option<&Functions> {
        let read = || Functions::read(section?.to_vec()).ok();
        self.btf.get_or_init(read).as_ref()
    }

    /// The parameters of a prototype, each where the calling convention puts it, or why that is not known.
    #[must_use]
    pub fn passed(&self, prototype: &Prototype) -> Vec<Result<Variable, DebugError>> {
        let mut classes = Classes::new(false);
        // One without a type is the "..." of C.
        let named = prototype.parameters.iter().filter(|(_, of)| of.is_some());
        let variables = named.map(|(name, of)| {
            let place = classes.pass_type(self, *of);
            let place = place.ok_or_else(|| DebugError::Place {
                name: name.clone(),
                place: "the function's entry".to_owned(),
                why: "it, or one before it, is not passed as an integer or a pointer".to_owned(),
            })?;
            Ok(Variable {
                name: name.clone(),
                of: *of,
                place,
            })
        });
        variables.collect()
    }

    /// Where a value of a type is returned, if that is known.
    #[must_use]
    pub fn returned_at(&self, of: TypeId) -> Option<Place> {
        Classes::new(false).returned_type(self, of)
    }

    fn scoped<T>(
        &self,
        moment: Moment,
        what: &str,
        ask: impl FnOnce(&Scope<'_, '_>) -> Result<T, DebugError>,
    ) -> Result<T, DebugError> {
        let moment = moment.map(|at| self.slide.linked(at));
        self.dwarf(what, |dwarf| {
            match Scope::at(dwarf, moment, |start| self.begun(start))? {
                Some(scope) => ask(&scope),
                None => Err(absent(what)),
            }
        })
    }

    /// The first instruction of a function after its landing pad and its patch site.
    fn begun(&self, start: u64) -> u64 {
        let code = segments::bytes_at(&self.kernel, Gva(start), 32).unwrap_or_default();
        let pad = landing_pad(code);
        let code = usize::try_from(pad).ok().and_then(|pad| code.get(pad..));
        let code = code.unwrap_or_default();
        let site = code.get(..SITE_LENGTH).unwrap_or_default();
        let at = start.wrapping_add(pad);
        let is_site = nop_run(site).is_some() || leading_call(site, Gva(at)).is_some();
        match is_site {
            true => at.wrapping_add(SITE_LENGTH as u64),
            false => at,
        }
    }

    /// Asks the DWARF of the files, if they have some that can be read.
    fn dwarf<T>(
        &self,
        what: &str,
        ask: impl FnOnce(&Dwarf<'_>) -> Result<T, DebugError>,
    ) -> Result<T, DebugError> {
        let unread = |why: &Unread| DebugError::Unread {
            what: what.to_owned(),
            why: why.clone(),
        };
        let files = self.sections.get_or_init(|| self.read_sections());
        if let Some(why) = files.unread() {
            return Err(unread(why));
        }
        if !files.has(".debug_info") {
            return Err(absent(what));
        }
        let index = self.index.get_or_init(|| Index::read(files));
        let index = index.as_ref().map_err(unread)?;
        let dwarf = Dwarf {
            sections: units::sections(files),
            files,
            index,
            names: Room::new(NAMES, files.bytes()),
            slide: self.slide,
        };
        let answer = ask(&dwarf);
        // What was left out for want of room may be what was asked for.
        match dwarf.names.is_exceeded() {
            true => Err(unread(&Unread::Names {
                limit: dwarf.names.limit(),
            })),
            false => answer,
        }
    }

    /// The sections of the file that has DWARF; of two that cannot be read, those of the file of symbols.
    fn read_sections(&self) -> Sections {
        let of_symbols = self.symbols.as_ref().map(Sections::read);
        match of_symbols {
            Some(found) if found.has(".debug_info") => found,
            of_symbols => {
                let of_kernel = Sections::read(&self.kernel);
                let unread = of_symbols.filter(|found| found.unread().is_some());
                match unread {
                    Some(unread) if !of_kernel.has(".debug_info") => unread,
                    _ => of_kernel,
                }
            }
        }
    }
}

impl Types for DebugInfo {
    fn shape_of(&self, of: TypeId) -> Option<Shape> {
        self.shape(of).ok()
    }
}

fn absent(what: &str) -> DebugError {
    DebugError::Absent {
        what: what.to_owned(),
    }
}
