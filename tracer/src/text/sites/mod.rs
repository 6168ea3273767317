//! The table of sites: every place of the text that anybody has wanted something at, with what stood there, what stands
//! there, who wants it, and in what state it is. It computes what has to be written for what is wanted ([`Sites::edit`]);
//! only the commit changes states.
//!
//! ```text
//!                 made                          made
//!   original ────────────> ours      foreign ────────> ours      any ──> gone, with its text
//!      ^  <────────────────  |          ^ left out
//!      └─────────────────────┘          └── original
//! ```
//!
//! *Frozen* are all sites or none: where a jump of ours is somebody else's bytes, nobody knows what else is.

pub mod as_linked;
mod noted;
mod stuck;
mod words;

use std::collections::HashMap;

use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use self::noted::Noted;
use self::stuck::Stuck;
use self::words::Words;
use super::edit::{Displacement, Edit, Lead, Point, SiteId, Wanted};
use super::frozen::{Frozen, FrozenBy};
use super::journal::{Entry, Found, Slot};
use super::poke::{Poke, PokeError};
use super::word::WordWrite;
use crate::stub::template::Captures;
use crate::target::TargetMemory;

/// Jumps that are looked at, to know whether any is still there.
const SAMPLE: usize = 64;

/// What is known of one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// What the guest has there.
    Original,
    /// Bytes of ours, which lead there.
    Ours(Lead),
    /// It was not what it should have been when it was to be changed: left as it is.
    Foreign(PokeError),
    /// The guest has given its memory back: nothing is written there any more.
    Gone,
}

static ORIGINAL: State = State::Original;
static GONE: State = State::Gone;

impl State {
    /// Where our bytes lead, if they stand there.
    #[must_use]
    pub const fn lead(&self) -> Option<&Lead> {
        match self {
            Self::Ours(lead) => Some(lead),
            Self::Original | Self::Foreign(_) | Self::Gone => None,
        }
    }
}

/// A site.
#[derive(Debug)]
struct Site {
    point: Point,
    function: FunctionId,
    at: Gva,
    /// What stood there.
    original: SiteBytes,
    /// What stands there.
    now: SiteBytes,
    state: State,
    /// Where the journal has it.
    slot: Option<Slot>,
}

/// All of them, and the words of data that are written with them.
#[derive(Debug)]
pub struct Sites {
    all: Vec<Site>,
    /// Numbers of sites whose text is gone.
    free: Vec<SiteId>,
    places: HashMap<(Gva, Point), SiteId>,
    /// The functions' own sites.
    own: Vec<Option<SiteId>>,
    /// The functions whose memory was given back.
    gone: Vec<bool>,
    /// The functions whose site nobody has made one nop; none are looked for where all are known to be.
    as_linked: Option<Vec<bool>>,
    words: Words,
    frozen: Option<Frozen>,
    noted: Noted,
    stuck: Stuck,
}

impl Default for Sites {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            own: Vec::new(),
            gone: Vec::new(),
            as_linked: Some(Vec::new()),
            words: Words::default(),
            frozen: None,
            noted: Noted::default(),
            stuck: Stuck::default(),
        }
    }
}

impl Sites {
    /// Everything is as the guest has it; what is in these functions is not there yet.
    pub fn without(functions: impl IntoIterator<Item = FunctionId>) -> Self {
        let mut sites = Self::default();
        sites.gone(functions);
        sites
    }

    /// The change that brings about what is wanted at a site; none when it is so.
    pub fn edit(&mut self, wanted: Wanted) -> Option<Edit> {
        let id = self.number(&wanted)?;
        let site = self.all.get(id.index())?;
        let before = site.state.lead().copied();
        let (new, after) = match wanted.ours {
            Some((bytes, lead)) => (bytes, Some(lead)),
            None => (site.original, None),
        };
        let (displacement, closes, opens) = match (before, after) {
            (None, Some(_)) => (Displacement::Begins, wanted.inner, wanted.added),
            (Some(_), None) => (Displacement::Ends, wanted.added, wanted.inner),
            _ => Default::default(),
        };
        (before != after).then(|| Edit {
            displacement: match wanted.displaces {
                true => displacement,
                false => Displacement::None,
            },
            closes,
            opens,
            ..site.change(id, new, before, after)
        })
    }

    /// The change that makes `normal` what the guest has at a site, once and for all, instead of what stands there.
    pub fn normalise(&mut self, wanted: &Wanted, normal: SiteBytes) -> Option<Edit> {
        let id = self.number(wanted)?;
        Some(self.all.get(id.index())?.change(id, normal, None, None))
    }

    /// The number of the site that this is about.
    fn number(&mut self, wanted: &Wanted) -> Option<SiteId> {
        let key = (wanted.at, wanted.point);
        let known = self.places.get(&key).copied();
        if let Some(site) = known.and_then(|id| self.all.get_mut(id.index())) {
            if site.state.lead().is_none() {
                // Where another instruction was displaced before, or what is there was made one nop.
                (site.original, site.now) = (wanted.original, wanted.original);
            }
            return known;
        }
        let site = Site {
            point: wanted.point,
            function: wanted.function,
            at: wanted.at,
            original: wanted.original,
            now: wanted.original,
            state: State::Original,
            slot: None,
        };
        let id = match self.free.pop() {
            Some(id) => {
                *self.all.get_mut(id.index())? = site;
                id
            }
            None => {
                self.all.push(site);
                SiteId(u32::try_from(self.all.len() - 1).ok()?)
            }
        };
        self.places.insert(key, id);
        if wanted.point == Point::Function {
            set(&mut self.own, wanted.function, Some(id));
        }
        Some(id)
    }

    /// Whether a change was planned for what is there now: another plan may have been carried out since.
    #[must_use]
    pub fn is_current(&self, edit: &Edit) -> bool {
        self.all.get(edit.site.index()).is_some_and(|site| {
            (site.at, site.point) == (edit.poke.at, edit.point)
                && site.state.lead() == edit.before.as_ref()
                && site.now == edit.poke.expected
        })
    }

    /// The same of a word.
    #[must_use]
    pub fn is_word_current(&self, word: &WordWrite) -> bool {
        self.word(word.at).is_none_or(|now| now == word.old)
    }

    /// Notes that a change has been made.
    pub fn made(&mut self, edit: &Edit) {
        self.stuck.is_over(edit.site);
        if let Some(site) = self.all.get_mut(edit.site.index()) {
            site.now = edit.poke.new;
            site.state = match edit.after {
                Some(lead) => State::Ours(lead),
                None => State::Original,
            };
        }
    }

    /// Notes that a word has been written.
    pub fn made_word(&mut self, word: &WordWrite) {
        self.stuck.is_over_of(word);
        self.words.made(word);
    }

    /// Notes that a site was left as it was found.
    pub fn left(&mut self, edit: &Edit, why: PokeError) {
        if let Some(site) = self.all.get_mut(edit.site.index())
            && site.state.lead().is_none()
        {
            site.state = State::Foreign(why);
        }
    }

    /// What a word holds that we have written.
    #[must_use]
    pub fn word(&self, at: Gva) -> Option<u64> {
        self.words.now(at)
    }

    /// Where a site leads, if bytes of ours stand there.
    #[must_use]
    pub fn lead(&self, point: Point, at: Gva) -> Option<&Lead> {
        let id = self.places.get(&(at, point))?;
        self.all.get(id.index())?.state.lead()
    }

    /// The state of a function's own site.
    #[must_use]
    pub fn state(&self, function: FunctionId) -> &State {
        if self.is_gone(function) {
            return &GONE;
        }
        let site = self.own(function);
        site.map_or(&ORIGINAL, |site| &site.state)
    }

    fn own(&self, function: FunctionId) -> Option<&Site> {
        let id = *self.own.get(function.index())?;
        self.all.get(id?.index())
    }

    /// The sessions that trace a function.
    #[must_use]
    pub fn sessions(&self, function: FunctionId) -> SessionSet {
        let lead = self.state(function).lead();
        lead.map_or_else(SessionSet::default, |lead| lead.traced_by)
    }

    /// What a function's stub calls.
    #[must_use]
    pub fn captures(&self, function: FunctionId) -> Captures {
        let lead = self.state(function).lead();
        lead.map_or_else(Captures::default, |lead| lead.captures)
    }

    /// The places at which bytes of ours were written that lead where `is_meant` says, and the guest has them still, be it below a
    /// breakpoint of its own or made into a jump or call of its own: another kernel may run in its place. And the words of data that
    /// hold what we have written. What cannot be read leads nowhere.
    pub fn leading(
        &self,
        memory: &(impl TargetMemory + ?Sized),
        is_meant: impl Fn(Gva) -> bool,
    ) -> impl Iterator<Item = Gva> {
        let leads = move |site: &&Site| {
            let (Some(lead), Some(entry)) = (site.state.lead(), site.entry()) else {
                return false;
            };
            let Ok(found) = site.now.like(|bytes| memory.read(site.at, bytes)) else {
                return false;
            };
            match entry.found(found) {
                Found::Original => false,
                Found::Ours | Found::Cut | Found::Covered => is_meant(lead.to),
                Found::Others { leads_to } => leads_to.is_some_and(&is_meant),
            }
        };
        let sites = self.all.iter().filter(leads).map(|site| site.at);
        sites.chain(self.words.leading(memory))
    }

    /// How many functions lead to a session.
    #[must_use]
    pub fn traced_by(&self, session: u8) -> usize {
        let leads = self.all.iter().filter_map(|site| site.state.lead());
        leads.filter(|lead| lead.traced_by.has(session)).count()
    }

    /// How many functions have our jump in them for a user.
    #[must_use]
    pub fn patched(&self) -> usize {
        let own = self.all.iter().filter(|one| one.point == Point::Function);
        let leads = own.filter_map(|site| site.state.lead());
        leads.filter(|lead| lead.is_for_users()).count()
    }

    /// Whether the function's memory was given back.
    #[must_use]
    pub fn is_gone(&self, function: FunctionId) -> bool {
        self.gone.get(function.index()) == Some(&true)
    }

    /// Forgets what is in these functions: their memory was given back, with whatever stood there.
    pub fn gone(&mut self, functions: impl IntoIterator<Item = FunctionId>) {
        let mut are_any = false;
        for function in functions {
            set(&mut self.gone, function, true);
            set(&mut self.own, function, None);
            // What comes in its place is made normal.
            if let Some(as_linked) = &mut self.as_linked {
                set(as_linked, function, false);
            }
            are_any = true;
        }
        if !are_any {
            return;
        }
        let gone = &self.gone;
        let (all, free, noted) = (&mut self.all, &mut self.free, &mut self.noted);
        let stuck = &mut self.stuck;
        self.places.retain(|_, id| {
            let site = all.get_mut(id.index());
            let is_gone = |site: &&mut Site| gone.get(site.function.index()) == Some(&true);
            let Some(site) = site.filter(is_gone) else {
                return true;
            };
            site.state = State::Gone;
            noted.is_gone(site.slot.take());
            stuck.is_over(*id);
            free.push(*id);
            false
        });
    }

    /// Notes that the function's memory is there, as the guest has it.
    pub fn came(&mut self, function: FunctionId) {
        set(&mut self.gone, function, false);
    }

    /// Whether none of our jumps is where it was written, of some that are looked at. The guest may write over one or
    /// the other.
    #[must_use]
    pub fn has_lost_its_jumps(&self, memory: &(impl TargetMemory + ?Sized)) -> bool {
        let own = self.own.iter().flatten();
        let sites = own.filter_map(|id| self.all.get(id.index()));
        let ours = sites.filter_map(|site| Some((site, site.entry()?)));
        let stands = |(site, entry): (&Site, Entry)| {
            let found = site.now.like(|bytes| memory.read(site.at, bytes)).ok()?;
            match entry.found(found) {
                // What is below it comes back.
                Found::Covered => None,
                Found::Ours | Found::Cut => Some(true),
                // A kernel that has just been loaded has calls there.
                Found::Original | Found::Others { .. } => Some(false),
            }
        };
        let mut seen = ours.take(SAMPLE).filter_map(stands).peekable();
        seen.peek().is_some() && !seen.any(|stands| stands)
    }

    /// Every place where bytes of ours stand, as the journal has it.
    #[cfg(test)]
    pub fn ours(&self) -> impl Iterator<Item = Entry> {
        self.all.iter().filter_map(Site::entry)
    }

    /// Why patching is frozen, if it is.
    #[must_use]
    pub const fn frozen(&self) -> Option<&Frozen> {
        self.frozen.as_ref()
    }

    /// Refuses while it is.
    ///
    /// # Errors
    /// Why it is.
    pub fn check_frozen(&self) -> Result<(), Frozen> {
        self.frozen.clone().map_or(Ok(()), Err)
    }

    /// Nothing is written any more, for this reason.
    pub fn freeze(&mut self, why: impl Into<FrozenBy>) -> Frozen {
        self.frozen.insert(Frozen(why.into())).clone()
    }

    /// Takes the kill switch back, after somebody has looked into it.
    pub fn thaw(&mut self) {
        self.frozen = None;
    }

    /// Takes functions for the guest's own again at whose sites what stood there before us stands again: a tracer of the guest's own that
    /// was switched on over our jumps leaves nops where it is switched off. Not where probes are on the way. Says how many.
    pub fn take_given_back(&mut self, memory: &(impl TargetMemory + ?Sized)) -> u64 {
        let own = (0u32..).zip(&mut self.all);
        let is_function_only = |(_, site): &(u32, &mut Site)| {
            let lead = site.state.lead();
            site.point == Point::Function
                && lead.is_some_and(|lead| lead.recorded_by.is_empty() && Some(lead.to) == lead.own)
        };
        let mut given_back = 0;
        for (id, site) in own.filter(is_function_only) {
            let found = site.original.like(|bytes| memory.read(site.at, bytes));
            if found.is_ok_and(|found| found == site.original) {
                (site.now, site.state) = (site.original, State::Original);
                self.noted.has_changed(SiteId(id));
                given_back += 1;
            }
        }
        given_back
    }

    /// Where the site of a function is and what of ours was written there, if something was.
    #[must_use]
    pub fn ours_at(&self, function: FunctionId) -> Option<(Gva, SiteBytes)> {
        let site = self.own(function)?;
        site.state.lead()?;
        Some((site.at, site.now))
    }
}

impl SiteId {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Site {
    fn change(
        &self,
        site: SiteId,
        new: SiteBytes,
        before: Option<Lead>,
        after: Option<Lead>,
    ) -> Edit {
        Edit {
            site,
            point: self.point,
            poke: Poke {
                function: self.function,
                at: self.at,
                expected: self.now,
                new,
            },
            before,
            after,
            displacement: Displacement::None,
            closes: Vec::new(),
            opens: Vec::new(),
        }
    }

    /// What the journal has to say of it; nothing when it is not ours.
    fn entry(&self) -> Option<Entry> {
        Some(Entry {
            at: self.at,
            function: self.function,
            sessions: self.state.lead()?.sessions(),
            original: self.original,
            ours: self.now,
            before: self.now,
        })
    }
}

/// Sets what is known of a function.
fn set<T: Clone + Default>(all: &mut Vec<T>, function: FunctionId, to: T) {
    let index = function.index();
    if all.len() <= index {
        all.resize(index + 1, T::default());
    }
    if let Some(slot) = all.get_mut(index) {
        *slot = to;
    }
}

#[cfg(test)]
mod tests;
