//! Text that does not stay: the guest frees it at a moment of its own. The rule that makes this safe
//! is that nothing of it is written but while the guest is stopped, and that the guest is asked *then* what
//! is still there. It cannot free anything between the answer and the write; what is written while it runs is text that
//! stays (`Transient::stays`). (Text that the guest announces and waits for is simpler: `announced.rs`. Modules are announced by
//! `announcer.rs` before their first function runs, and else found in its list.)

use std::ops::Range;
use std::sync::Arc;

use image::Image;
use insn::jump::INT3;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SiteBytes;

use crate::guest_kind;
use crate::introspection::{Introspection, Loaded, ModuleError};
use crate::module::Module;
use crate::personality::Personality;
use crate::record::FUNCTIONS_MAX;
use crate::stack::{Unwind, UnwindError};
use crate::target::PhysicalMemory;
use crate::text::sites::Sites;

/// Symbols of modules that are read in one look, and as how many a module counts at least. A guest can have a
/// thousand modules with a hundred thousand symbols each: the rest has its turn in the looks after this one.
const SYMBOLS_A_LOOK: usize = 1 << 14;
const SYMBOLS_LEAST: usize = 256;

/// What one look may read.
#[derive(Debug)]
struct Budget(usize);

impl Budget {
    /// Whether so many symbols may be read in this look. A module is read in one piece: the first one may be larger
    /// than all that is left.
    fn allows(&mut self, symbols: usize) -> bool {
        let symbols = symbols.max(SYMBOLS_LEAST);
        let allowed = symbols <= self.0 || self.0 == SYMBOLS_A_LOOK;
        self.0 = match allowed {
            true => self.0.saturating_sub(symbols),
            // In their order: a smaller one does not get past.
            false => 0,
        };
        allowed
    }
}

/// A module whose functions are in the image.
#[derive(Debug)]
struct KnownModule {
    module: Module,
    functions: Range<u32>,
}

/// What has come and gone since the last time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// The names of modules that are new.
    pub came: Vec<Arc<str>>,
    /// The names of modules that are gone.
    pub left: Vec<Arc<str>>,
    /// Modules that could not be read, and why.
    pub unread: Vec<(Arc<str>, String)>,
    /// How many modules are there and have their turn in a later look.
    pub waiting: usize,
    /// That of the new ones of which no function has run yet.
    pub announced: Option<Arc<str>>,
}

impl Moved {
    /// Whether anything is different now.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !self.came.is_empty() || !self.left.is_empty()
    }
}

/// What there is of the guest that does not stay, and who can be asked about it.
#[derive(Debug)]
pub struct Transient {
    kind: &'static dyn Personality,
    /// What the guest can be asked while it runs, if anything.
    pub(super) inside: Option<Box<dyn Introspection>>,
    /// Whether the guest has freed the text that it needed to start.
    init_is_gone: bool,
    modules: Vec<KnownModule>,
}

impl Transient {
    /// What does not stay of the guest that was loaded from `image`.
    pub(super) fn of(image: &Image) -> Self {
        Self {
            kind: guest_kind::of(image),
            inside: guest_kind::of(image).introspection(image),
            init_is_gone: false,
            modules: Vec::new(),
        }
    }

    /// Whether stacks of the guest's kernel can be walked, as far as the image says.
    #[must_use]
    pub fn can_unwind(&self) -> bool {
        let inside = self.inside.as_ref();
        inside.is_some_and(|inside| inside.can_unwind())
    }

    /// Who walks them, also through the modules that are known now.
    ///
    /// # Errors
    /// An [`UnwindError`].
    pub fn unwind(&self, memory: &dyn PhysicalMemory) -> Result<Arc<dyn Unwind>, UnwindError> {
        let inside = self.inside.as_ref().ok_or(UnwindError::None)?;
        let kernel = inside.unwind(memory)?;
        Ok(self.unwind_modules(&*kernel, memory))
    }

    /// Who walks them as `before` does, also through the modules that are known now.
    pub fn unwind_modules(
        &self,
        before: &dyn Unwind,
        memory: &dyn PhysicalMemory,
    ) -> Arc<dyn Unwind> {
        let modules = self.modules.iter().map(|known| known.module.clone());
        before.with(memory, &modules.collect::<Vec<_>>())
    }

    /// Whether the guest has freed this text, which it needed only to start.
    pub(super) fn is_freed(&self, image: &Image, at: Gva) -> bool {
        self.init_is_gone && !self.kind.lasts(image, at)
    }

    /// Whether the text of this function stays as long as the guest runs, so that nobody has to be asked whether it is there.
    pub(crate) fn stays(&self, image: &Image, function: FunctionId, at: Gva) -> bool {
        let of_kernel = image
            .function(function)
            .is_some_and(|one| one.module.is_none());
        let mut parts = image.parts.iter();
        of_kernel && !parts.any(|part| part.text.holds(at, 1)) && self.kind.lasts(image, at)
    }

    /// Looks what the guest has given back since the last time, and forgets it. While the guest is
    /// stopped the answer holds until it continues; else it may be late, never wrong.
    pub(super) fn look(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        image: &Image,
        sites: &mut Sites,
    ) -> Moved {
        self.look_for_init(memory, image, sites);
        let mut moved = Moved::default();
        if !self.modules.is_empty() {
            // A list that cannot be read was read in the middle of a change, or is the work of a hostile guest. What is patched is
            // not forgotten for that, or nobody would give it back; what is written there is compared with before.
            if let Ok(loaded) = self.loaded(memory, image) {
                self.forget(memory, sites, &loaded, &mut moved);
            }
        }
        moved
    }

    /// As [`Self::look`], and takes in the functions of modules that have come, as many as one look may read: first of
    /// all those of the module whose description is at `announced`, whose init function is about to be called: it is not
    /// live yet, but its text is in its place.
    ///
    /// # Errors
    /// A [`ModuleError`] when the list of modules cannot be read; then those are known that were.
    pub(super) fn read_modules(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        image: &mut Arc<Image>,
        sites: &mut Sites,
        announced: Option<Gva>,
    ) -> Result<Moved, ModuleError> {
        self.look_for_init(memory, image, sites);
        let mut moved = Moved::default();
        let list = self.loaded(memory, image)?;
        self.forget(memory, sites, &list, &mut moved);
        let mut budget = Budget(SYMBOLS_A_LOOK);
        let is_announced = |loaded: &&Loaded| Some(loaded.module.at) == announced;
        let first = list.iter().filter(is_announced);
        let rest = list.iter().filter(|one| one.is_live && !is_announced(one));
        for Loaded { module, .. } in first.chain(rest) {
            if self.modules.iter().any(|known| known.module == *module) {
                continue;
            }
            if budget.allows(self.symbols_of(memory, module)) {
                self.add_module(memory, image, module, &mut moved);
                if Some(module.at) == announced {
                    moved.announced = Some(Arc::clone(&module.name));
                }
            } else {
                moved.waiting += 1;
            }
        }
        Ok(moved)
    }

    /// How many symbols a module says that it has; 0 where that cannot be read, as the rest of it cannot be then.
    fn symbols_of(&self, memory: &(impl PhysicalMemory + ?Sized), module: &Module) -> usize {
        let inside = self.inside.as_ref();
        inside.map_or(0, |inside| inside.symbols(&memory, module).unwrap_or(0))
    }

    fn add_module(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        image: &mut Arc<Image>,
        module: &Module,
        moved: &mut Moved,
    ) {
        let Some(inside) = &self.inside else {
            return;
        };
        let contents = inside.contents(&memory, module);
        let added = contents
            .map_err(|error| error.to_string())
            .and_then(|contents| {
                let image = Arc::make_mut(image);
                let added = image.add(contents.added(module), FUNCTIONS_MAX);
                added.ok_or_else(|| "no more functions can be numbered".to_owned())
            });
        let module = module.clone();
        let (functions, refused) = match added {
            Ok(functions) => (functions, None),
            Err(reason) => (0..0, Some(reason)),
        };
        match refused {
            None => moved.came.push(Arc::clone(&module.name)),
            Some(reason) => moved.unread.push((Arc::clone(&module.name), reason)),
        }
        // Also one that cannot be read is known: it is not tried again and again.
        self.modules.push(KnownModule { module, functions });
    }

    /// What the guest says is loaded.
    fn loaded(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        image: &Image,
    ) -> Result<Vec<Loaded>, ModuleError> {
        match &self.inside {
            Some(inside) => inside.modules(&memory, &image.text),
            None => Ok(Vec::new()),
        }
    }

    /// Whether a module of this name is there, as far as was looked.
    #[must_use]
    pub fn knows(&self, module: &str) -> bool {
        self.modules
            .iter()
            .any(|known| &*known.module.name == module)
    }

    /// Forgets the modules that are not among `loaded`, or are not what they were.
    fn forget(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        sites: &mut Sites,
        loaded: &[Loaded],
        moved: &mut Moved,
    ) {
        let modules = std::mem::take(&mut self.modules);
        let (there, gone) = modules.into_iter().partition(|known: &KnownModule| {
            loaded.iter().any(|one| one.module == known.module)
                && !self.is_reborn(memory, sites, known)
        });
        self.modules = there;
        for KnownModule { module, functions } in gone {
            sites.gone(functions.map(FunctionId));
            moved.left.push(module.name);
        }
    }

    /// Whether a module was unloaded and loaded again at the same place: then none of our jumps is there. A breakpoint of the guest's
    /// own over the first byte of one goes again. The first one that stands answers; all are looked at before none does, for what is
    /// taken for gone nobody takes away.
    fn is_reborn(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        sites: &Sites,
        known: &KnownModule,
    ) -> bool {
        let Some(inside) = &self.inside else {
            return true;
        };
        let stands = |(at, ours): (Gva, SiteBytes)| {
            let found = ours.like(|bytes| inside.read(&memory, at, bytes));
            let of_all_but_the_first = |bytes: SiteBytes| bytes.starting_with(INT3);
            found.is_ok_and(|found| of_all_but_the_first(found) == of_all_but_the_first(ours))
        };
        let functions = known.functions.clone().map(FunctionId);
        let mut patched = functions.filter_map(|id| sites.ours_at(id)).peekable();
        patched.peek().is_some() && !patched.any(stands)
    }

    fn look_for_init(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        image: &Image,
        sites: &mut Sites,
    ) {
        let Some(inside) = &self.inside else {
            return;
        };
        if self.init_is_gone || !inside.init_is_gone(&memory) {
            return;
        }
        self.init_is_gone = true;
        let linked = image.sites.iter().filter(|site| {
            let function = image.function(site.function);
            function.is_some_and(|function| function.module.is_none())
        });
        let freed = linked.filter(|site| self.is_freed(image, site.address));
        sites.gone(freed.map(|site| site.function));
    }

    /// Whether the guest is changing its own text, or is about to. None where that cannot be told.
    #[must_use]
    pub fn changes_text(&self, memory: &(impl PhysicalMemory + ?Sized)) -> Option<bool> {
        self.inside.as_ref()?.changes_text(&memory)
    }

    /// Whether modules can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        let inside = self.inside.as_ref();
        inside.is_some_and(|inside| inside.has_modules())
    }
}
