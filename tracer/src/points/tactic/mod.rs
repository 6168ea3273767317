//! How a jump can be put at any instruction.
//!
//! ```text
//! 1  site        5 bytes that the compiler left      nop             -> jmp stub
//! 2  one         one instruction of 5 bytes or more  mov eax, [far]  -> jmp stub
//! 3  several     whole instructions of 5 or more     push; mov; sub  -> jmp stub
//! 4  hop         2 bytes, and 5 of padding in reach  push r12        -> jmp short padding; padding: jmp stub
//! 5  breakpoint  1 byte                              push rbx        -> int3
//! ```
//!
//! What stood there is *displaced*: relocated into a *detour* (`insn/relocate.rs`), where the stub continues.
//! What is written of several instructions is the jump alone; the end of the last of them stays as it was, for
//! nobody begins to execute there: the last instruction begins before the jump's end. So the only places
//! that must not be jumped to, returned to, or held by a preempted thread are the beginnings of instructions between
//! the first byte and the fifth ([`JumpPlace::inner`]). `image/branch_targets.rs` says where execution may land;
//! threads are looked for when the jump is written (`engine/saved/mod.rs`).

mod refusal;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

pub use self::refusal::{Refusal, TacticError};

use image::{Image, Site, TextRange};
use insn::flow::{Instruction, is_padding, trailing_padding, whole_instructions};
use insn::jump::{INT3, jump, short_jump};
use insn::relocate::{RelocateError, immovable, relocate};
use insn::trap::{TRAP_LENGTH, trap};
use terms::addr::Gva;
use terms::function::Function;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use crate::points::functions::untraced;
use crate::stub::detour::Detour;
use crate::text::poke::Poke;

/// Bytes of the short jump.
const HOP: usize = 2;
/// How far a short jump reaches, from its own first byte: -126 to 129.
const HOP_REACH: u64 = 130;

/// A way to get from an instruction to a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tactic {
    /// The function's own patch site.
    Site,
    /// One instruction of at least five bytes becomes a jump.
    One,
    /// Several instructions become one.
    Several,
    /// Two bytes jump to padding, where the jump is.
    Hop,
    /// One byte is a breakpoint, which somebody serves.
    Breakpoint,
}

impl Tactic {
    /// All, in the order in which they are tried.
    pub const ALL: [Self; 5] = [
        Self::Site,
        Self::One,
        Self::Several,
        Self::Hop,
        Self::Breakpoint,
    ];

    /// Its number, from 1 on.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Site => 1,
            Self::One => 2,
            Self::Several => 3,
            Self::Hop => 4,
            Self::Breakpoint => 5,
        }
    }

    /// The one of that number.
    #[must_use]
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.number() == number)
    }

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::One => "one",
            Self::Several => "several",
            Self::Hop => "hop",
            Self::Breakpoint => "breakpoint",
        }
    }

    /// Bytes that are changed at the place.
    const fn bytes(self) -> usize {
        match self {
            Self::Site | Self::One | Self::Several => SITE_LENGTH,
            Self::Hop => HOP,
            Self::Breakpoint => 1,
        }
    }
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number(), self.name())
    }
}

/// Padding that holds the jump of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Padding {
    /// Where the jump goes.
    pub at: Gva,
    /// What stands there.
    pub old: [u8; SITE_LENGTH],
}

/// A place where a jump can be put, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JumpPlace {
    /// How.
    pub tactic: Tactic,
    /// Where.
    pub at: Gva,
    /// The function that it is in.
    pub function: FunctionId,
    /// Bytes that are changed there: 5, 2 or 1.
    pub length: usize,
    /// The bytes of all the instructions that are displaced, as the image has them (and as normalising leaves
    /// them, of a site). They end where the last instruction does.
    pub displaced: Vec<u8>,
    /// Where displaced instructions begin, without the first: nobody may be there when the jump is written.
    pub inner: Vec<Gva>,
    /// Where the jump to the stub is, if not at the place itself.
    pub padding: Option<Padding>,
    /// The breakpoint is a write to this port, which leaves the guest; else it is `int3`.
    pub trap: Option<u8>,
}

impl JumpPlace {
    /// Where what is not displaced begins.
    #[must_use]
    pub fn end(&self) -> Gva {
        self.at.wrapping_add(self.displaced.len() as u64)
    }

    /// The same, of a breakpoint, by a port write that leaves the guest.
    ///
    /// # Errors
    /// A [`Refusal`] when a single instruction has no room for it.
    pub fn leaving_by(mut self, port: u8, image: &Image) -> Result<Self, Refusal> {
        let length = self.displaced.len();
        if length < TRAP_LENGTH {
            return Err(Refusal::TooShort {
                length,
                needed: TRAP_LENGTH,
            });
        }
        let second = self.at.wrapping_add(1);
        if let Some(to) = image
            .branch_targets()
            .first_in(second, second.wrapping_add(1))
        {
            return Err(Refusal::Landing { to });
        }
        self.trap = Some(port);
        self.length = TRAP_LENGTH;
        Ok(self)
    }

    /// The instructions with which a stub continues; none for a site, where it continues after the nop.
    #[must_use]
    pub fn detour(&self) -> Option<Detour> {
        (self.tactic != Tactic::Site).then(|| Detour {
            from: self.at,
            code: self.displaced.as_slice().into(),
        })
    }

    /// The writes that lead from the place to `stub`, in the order in which they are to be made; none when that
    /// is more than 2 GiB away. To take them back, reverse each, in the reverse order. The breakpoint's
    /// leads nowhere by itself.
    #[must_use]
    pub fn pokes(&self, stub: Gva) -> Option<Vec<Poke>> {
        let poke = |at, old: &[u8], new: &[u8]| {
            Some(Poke {
                function: self.function,
                at,
                expected: SiteBytes::of(old)?,
                new: SiteBytes::of(old)?.with_start(new),
            })
        };
        let at = |new: &[u8]| poke(self.at, &self.displaced, new);
        if self.tactic == Tactic::Breakpoint {
            let poke = match self.trap {
                Some(port) => at(&trap(port)),
                None => at(&[INT3]),
            };
            return Some(vec![poke?]);
        }
        let Some(padding) = self.padding else {
            return Some(vec![at(&jump(self.at, stub)?)?]);
        };
        let far = poke(padding.at, &padding.old, &jump(padding.at, stub)?)?;
        Some(vec![far, at(&short_jump(self.at, padding.at)?)?])
    }
}

/// How a jump can be put at `at`: by the tactic with the number `forced`, else by the first that is possible. The
/// breakpoint is always the last: whether anybody serves it is for the caller to know.
///
/// # Errors
/// A [`TacticError`].
#[cfg(any(test, feature = "internals"))]
pub fn choose(image: &Image, at: Gva, forced: Option<u8>) -> Result<JumpPlace, TacticError> {
    choose_beside(image, at, forced, &BTreeSet::new())
}

/// The same where the padding at the addresses in `taken` is in use.
///
/// # Errors
/// As [`choose`].
pub fn choose_beside(
    image: &Image,
    at: Gva,
    forced: Option<u8>,
    taken: &BTreeSet<Gva>,
) -> Result<JumpPlace, TacticError> {
    let wanted = match forced {
        Some(number) => Some(Tactic::numbered(number).ok_or(TacticError::Unknown(number))?),
        None => None,
    };
    let spot = match Spot::find(image, at) {
        Ok(spot) => spot,
        // Of a module the sites of functions are known, and nothing else of its text.
        Err(error @ TacticError::Module { .. }) => {
            let is_tried = wanted.is_none_or(|wanted| wanted == Tactic::Site);
            let function = image.function_at(at).filter(|_| is_tried);
            return function
                .and_then(|id| site(image, id, at).ok())
                .ok_or(error);
        }
        Err(error) => return Err(error),
    };
    let mut why = Vec::new();
    let tried = Tactic::ALL
        .into_iter()
        .filter(|tactic| wanted.is_none_or(|wanted| wanted == *tactic));
    for tactic in tried {
        match spot.place(tactic, taken) {
            Ok(place) => return Ok(place),
            Err(refusal) => why.push((tactic, refusal)),
        }
    }
    Err(match (wanted, why.pop()) {
        (Some(tactic), Some((_, why))) => TacticError::Refused { at, tactic, why },
        (_, last) => {
            why.extend(last);
            TacticError::None { at, why }
        }
    })
}

/// An address where an instruction begins.
struct Spot<'a> {
    image: &'a Image,
    id: FunctionId,
    function: &'a Function,
    code: &'a [u8],
    at: Gva,
}

impl<'a> Spot<'a> {
    fn find(image: &'a Image, at: Gva) -> Result<Self, TacticError> {
        let id = image.function_at(at);
        let function = id.and_then(|id| Some((id, image.function(id)?)));
        let (id, function) = function.ok_or(TacticError::NoFunction { at })?;
        let code = image.code(id);
        if code.is_empty() {
            return Err(no_code(function, at));
        }
        let spot = Self {
            image,
            id,
            function,
            code,
            at,
        };
        spot.instructions(1).map_err(|begins| match begins {
            Some(begins) => TacticError::InsideInstruction { at, begins },
            None => TacticError::NotCode {
                at,
                function: function.display.to_string(),
            },
        })?;
        Ok(spot)
    }

    fn instructions(&self, least: usize) -> Result<Vec<Instruction>, Option<Gva>> {
        whole_instructions(self.code, self.function.address, self.at, least)
    }

    fn place(&self, tactic: Tactic, taken: &BTreeSet<Gva>) -> Result<JumpPlace, Refusal> {
        if tactic == Tactic::Site {
            return site(self.image, self.id, self.at);
        }
        if let Some(error) = self.image.tables.missing() {
            return Err(Refusal::Unlisted(error.clone()));
        }
        let all = self
            .instructions(tactic.bytes())
            .map_err(|_| Refusal::PastEnd { end: self.end() })?;
        let length = all.first().map_or(0, Instruction::len);
        if tactic == Tactic::One && length < SITE_LENGTH {
            return Err(Refusal::TooShort {
                length,
                needed: SITE_LENGTH,
            });
        }
        self.check(&all, tactic)?;
        let bytes: usize = all.iter().map(Instruction::len).sum();
        let end = self.at.wrapping_add(bytes as u64);
        if let Some((at, what)) = owner(self.image, self.at, end) {
            return Err(Refusal::Owned { at, what });
        }
        let from = usize::try_from(self.at.0 - self.function.address.0).unwrap_or(usize::MAX);
        let displaced = self.code.get(from..).and_then(|rest| rest.get(..bytes));
        let displaced = displaced
            .ok_or(Refusal::PastEnd { end: self.end() })?
            .to_vec();
        // Near by, everything is in reach: what is left to be refused is not about the distance.
        relocate(&displaced, self.at, self.at.wrapping_add(1 << 20))?;
        let padding = match tactic {
            Tactic::Hop => Some(self.padding(taken).ok_or(Refusal::NoPadding)?),
            _ => None,
        };
        Ok(JumpPlace {
            tactic,
            at: self.at,
            function: self.id,
            length: tactic.bytes(),
            displaced,
            inner: all.iter().skip(1).map(|one| Gva(one.ip())).collect(),
            padding,
            trap: None,
        })
    }

    fn end(&self) -> Gva {
        self.function.address.wrapping_add(self.code.len() as u64)
    }

    /// Whether `all` can be displaced.
    fn check(&self, all: &[Instruction], tactic: Tactic) -> Result<(), Refusal> {
        let branch_targets = self.image.branch_targets();
        let is_entry = self.at == self.function.address;
        for one in all {
            let at = Gva(one.ip());
            if let Some(why) = immovable(one) {
                let text = one.to_string();
                return Err(RelocateError::Immovable { at, text, why }.into());
            }
            if self.image.tables.may_fault(at) {
                return Err(Refusal::Faults { at });
            }
        }
        let length = tactic.bytes() as u64;
        if let Some(to) = self.lands(self.at.wrapping_add(1), self.at.wrapping_add(length)) {
            return Err(Refusal::Landing { to });
        }
        let is_certain = all.len() == 1 && is_entry;
        let near = (!is_certain).then(|| branch_targets.doubt_near(self.at));
        match near.flatten() {
            Some(near) => Err(Refusal::Doubtful { near }),
            None if all.len() > 1 && !is_entry && self.image.loaded.catches() => {
                Err(Refusal::Catches)
            }
            None => Ok(()),
        }
    }

    /// The first place from `from` up to but not including `to` where something may land.
    fn lands(&self, from: Gva, to: Gva) -> Option<Gva> {
        let is_label = |at: &Gva| {
            let symbol = self.image.symbols.at(*at);
            symbol.is_some_and(|(_, offset)| offset == 0)
        };
        let label = (from.0..to.0).map(Gva).find(is_label);
        label.or_else(|| self.image.branch_targets().first_in(from, to))
    }

    /// Padding in reach of a short jump, as near as there is.
    fn padding(&self, taken: &BTreeSet<Gva>) -> Option<Padding> {
        let (lowest, highest) = reach(self.at);
        let functions = &self.image.functions;
        let from = functions.partition_point(|function| function.address < lowest);
        let to = functions.partition_point(|function| function.address <= highest);
        let mut found = Vec::new();
        for index in from.saturating_sub(1)..to {
            let run = self.run_after(index)?;
            found.extend(in_reach(run, self.at));
        }
        let length = SITE_LENGTH as u64;
        let is_free = |at: &Gva| {
            let end = at.wrapping_add(length);
            let before = Gva(at.0.saturating_sub(length - 1));
            taken.range(before..end).next().is_none()
                && short_jump(self.at, *at).is_some()
                && self.lands(*at, end).is_none()
                && self.image.tables.rewritten(*at, end).is_none()
        };
        found.sort_by_key(|at| at.0.abs_diff(self.at.0));
        let at = found.into_iter().find(is_free)?;
        let old = self.image.loaded.bytes_at(at, length);
        Some(Padding {
            at,
            old: *old.first_chunk()?,
        })
    }

    /// The padding after a function, which may be empty.
    fn run_after(&self, index: usize) -> Option<TextRange> {
        let id = FunctionId(u32::try_from(index).ok()?);
        let function = self.image.function(id)?;
        let code = self.image.code(id);
        let end = function.address.wrapping_add(code.len() as u64);
        let own = trailing_padding(code, function.address) as u64;
        let next = self.image.functions.get(index + 1);
        let next = next
            .map_or(end, |next| next.address)
            .min(end.wrapping_add(256));
        let gap = self
            .image
            .loaded
            .bytes_at(end, next.0.saturating_sub(end.0));
        let is_filling = self.image.is_text(end, gap.len() as u64) && is_padding(gap);
        Some(TextRange {
            start: Gva(end.0 - own),
            end: if is_filling {
                end.wrapping_add(gap.len() as u64)
            } else {
                end
            },
        })
    }
}

/// From where to where a short jump at `at` may lead, and a little farther.
const fn reach(at: Gva) -> (Gva, Gva) {
    let lowest = Gva(at.0.saturating_sub(HOP_REACH));
    (lowest, Gva(at.0.saturating_add(HOP_REACH)))
}

/// Where a jump has room in padding that a short jump at `at` may reach: padding can be as long as the file.
fn in_reach(run: TextRange, at: Gva) -> impl Iterator<Item = Gva> {
    let (lowest, highest) = reach(at);
    let last = run.end.0.saturating_sub(SITE_LENGTH as u64).min(highest.0);
    (run.start.max(lowest).0..=last).map(Gva)
}

/// The place at a function's own site.
fn site(image: &Image, id: FunctionId, at: Gva) -> Result<JumpPlace, Refusal> {
    let site = image.site_of(id).filter(|site| site.address == at);
    let site = site.ok_or(Refusal::NoSite)?;
    Ok(JumpPlace {
        tactic: Tactic::Site,
        at,
        function: id,
        length: SITE_LENGTH,
        displaced: match site.form.displaced() {
            Some(displaced) => displaced.as_slice().to_vec(),
            None => untraced(site).to_vec(),
        },
        inner: Vec::new(),
        padding: None,
        trap: None,
    })
}

/// Why there is nothing to be displaced in a function whose bytes are not in the image.
fn no_code(function: &Function, at: Gva) -> TacticError {
    match &function.module {
        Some(module) => TacticError::Module {
            at,
            function: function.display.to_string(),
            module: module.to_string(),
        },
        None => TacticError::NoFunction { at },
    }
}

/// What else there is to change in the text from `from` to `end`.
fn owner(image: &Image, from: Gva, end: Gva) -> Option<(Gva, &'static str)> {
    let is_over = |site: &&Site| {
        let displaced = site.form.displaced().map(|bytes| bytes.as_slice().len());
        let length = displaced.unwrap_or(SITE_LENGTH) as u64;
        site.address < end && site.address.0.saturating_add(length) > from.0
    };
    let own = image.function_at(from).and_then(|id| image.site_of(id));
    own.filter(is_over)
        .map(|site| (site.address, "a patch site"))
        .or_else(|| image.owned().first_in(from, end))
        .or_else(|| image.tables.rewritten(from, end))
}
