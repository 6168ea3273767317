//! The state of tracing, as the control socket shows it.

use crate::engine::{Applied, Engine, Foothold, Frozen, FrozenBy};
use crate::filter::{Files, Reason, Selection, Selector, check_matches};
use crate::points::locks;
use crate::session::SessionId;
use crate::text::poke::PokeError;
use crate::text::sites::State;
use terms::function::FunctionId;

use super::attachment::Attachment;
use super::session::Shared;
use super::{Tracing, TracingError};
use status::{
    Changed, FrozenStatus, Function, Functions, LocksStatus, SessionStatus, TracingStatus,
    microseconds,
};

/// What, where, expected and found.
fn show_frozen(frozen: &Frozen) -> FrozenStatus {
    let mut status = FrozenStatus {
        reason: frozen.to_string(),
        ..FrozenStatus::default()
    };
    if let FrozenBy::Poke(PokeError::Unexpected {
        symbol,
        at,
        expected,
        found,
    }) = &frozen.0
    {
        status.function = Some(symbol.to_string());
        status.address = Some(at.to_string());
        status.expected = Some(expected.to_string());
        status.found = Some(found.to_string());
    }
    status
}

/// The strongest of what the sessions do.
fn state_name(engine: &Engine, sessions: &[SessionStatus]) -> &'static str {
    if engine.sites().frozen().is_some() {
        return "frozen";
    }
    ["tracing", "switched-off", "waiting"]
        .into_iter()
        .find(|state| sessions.iter().any(|session| session.state == *state))
        .unwrap_or("off")
}

impl Tracing {
    /// What it does now.
    #[must_use]
    pub fn status(&self) -> TracingStatus {
        let Attachment {
            engine,
            shared,
            sessions,
            patching,
            time,
            ..
        } = &self.attachment;
        let looks = self.window_watch.looks.and(self.modules.looks);
        let patched = engine.sites().patched();
        let image = &shared.image;
        let sessions = sessions.statuses(engine);
        let untraceable = image.untraceable.iter();
        let untraceable = untraceable.filter(|entry| !engine.sites().is_gone(entry.function));
        let gone = image.sites.iter();
        let gone = gone.filter(|site| engine.sites().is_gone(site.function));
        let mut status = TracingStatus {
            state: state_name(engine, &sessions).to_owned(),
            frozen: engine.sites().frozen().map(show_frozen),
            patched: patched as u64,
            available: image.sites.len().saturating_sub(patched + gone.count()) as u64,
            skipped: untraceable.count() as u64,
            patch_method: patching.method().name().to_owned(),
            switched: patching.switched(),
            looks: looks.count,
            longest_look_us: microseconds(looks.longest),
            kprobes_unasked: patching.unasked(),
            stub_bytes: engine.foothold().map_or(0, Foothold::stub_bytes),
            sessions,
            ..TracingStatus::default()
        };
        status.clock_page = time.page_status();
        status.vcpu_clocks = time.vcpus_status();
        let (prefixes, sites) = (locks::now(image, engine.sites()), image.locks.len());
        status.smp_locks = (sites > 0).then(|| LocksStatus {
            state: prefixes.name().to_owned(),
            sites: sites as u64,
        });
        if let Some((strategy, no_gs)) = engine.foothold().map(Foothold::strategy) {
            status.cpu_strategy = Some(strategy.name().to_owned());
            status.no_gs = no_gs.map(|reason| reason.to_string());
        }
        status
    }

    /// All functions whose names match the glob, with their states.
    ///
    /// # Errors
    /// [`TracingError::Glob`] for what is none, [`TracingError::Filter`] for one that matches nothing.
    pub fn functions(&self, glob: Option<&str>) -> Result<Functions, TracingError> {
        let attachment = &self.attachment;
        let Shared { image, sources, .. } = &attachment.shared;
        let glob = glob.map(Selector::new).transpose()?;
        let known = Files::default();
        let files = match &glob {
            Some(glob) if glob.is_by_file() => sources.files(image, glob.text())?,
            _ => &known,
        };
        if let Some(glob) = &glob {
            check_matches(glob, image, files)?;
        }
        let mut functions = Vec::new();
        for (number, function) in (0..).zip(&image.functions) {
            let id = FunctionId(number);
            if attachment.engine.sites().is_gone(id) {
                continue;
            }
            if glob
                .as_ref()
                .is_none_or(|glob| glob.matches(function, files))
            {
                functions.push(attachment.show_function(id));
            }
        }
        Ok(Functions { functions })
    }
}

impl Attachment {
    fn show_function(&self, id: FunctionId) -> Function {
        let (state, reason) = match (
            self.shared.image.untraceable(id),
            self.engine.sites().state(id),
        ) {
            (Some(untraceable), _) => ("skipped", Some(untraceable.reason.to_string())),
            (None, State::Original) => ("available", None),
            (None, State::Ours(_)) => ("patched", None),
            (None, State::Foreign(why)) => ("skipped", Some(why.to_string())),
            (None, State::Gone) => ("gone", None),
        };
        self.line(id, state, reason)
    }

    fn line(&self, id: FunctionId, state: &str, reason: Option<String>) -> Function {
        let function = self.shared.image.function(id);
        let (address, name) = match function {
            Some(function) => (function.address.to_string(), function.display.to_string()),
            None => ("?".to_owned(), "?".to_owned()),
        };
        let module = function.and_then(|function| function.module.as_deref());
        Function {
            address,
            name,
            module: module.map(str::to_owned),
            state: state.to_owned(),
            reason,
        }
    }

    /// The functions whose returns a session cannot see, though it wants to.
    fn entry_only(&self, id: SessionId, selection: &Selection) -> Vec<Function> {
        let session = self.engine.sessions().get(id);
        if !session.is_ok_and(|session| session.config.tracer.hooks_returns()) {
            return Vec::new();
        }
        let line = |id: &FunctionId| {
            let why = self.shared.image.unhookable(*id)?;
            Some(self.line(*id, "patched", Some(why.to_string())))
        };
        selection.selected.iter().filter_map(line).collect()
    }

    pub fn show_changed(&self, id: SessionId, applied: &Applied, selection: &Selection) -> Changed {
        let foreign = applied
            .skipped
            .iter()
            .map(|(id, why)| (*id, why.to_string()));
        // What cannot be traced at all is no news: `functions` lists it.
        let denied = selection
            .denied
            .iter()
            .filter(|(_, why)| !matches!(why, Reason::Untraceable(_)))
            .map(|(id, why)| (*id, why.to_string()));
        let skipped = foreign
            .chain(denied)
            .map(|(id, why)| self.line(id, "skipped", Some(why)));
        Changed {
            patched: applied.patched as u64,
            restored: applied.restored as u64,
            traced: self.engine.sites().traced_by(id.0) as u64,
            skipped: skipped.collect(),
            entry_only: self.entry_only(id, selection),
            ..Changed::default()
        }
    }
}
