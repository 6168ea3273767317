//! What a session needs, as far as the image says: asked before the guest starts, since the attach point may be a
//! boot away, and before an older trace is replaced.

use std::borrow::Cow;
use std::sync::Arc;

use debuginfo::DebugInfo;
use image::Image;

use crate::engine::Engine;
use crate::engine::tasks::check;
use crate::filter::{Filter, FilterError, Selection, Sources};
use crate::guest_kind;
use crate::points::any;
use crate::stack::UnwindError;
use terms::function::FunctionId;

use super::call_values::captures_of;
use super::checks::{check_applies, wanted_tasks};
use super::error::TracingError;
use super::options::{SessionOptions, Tracer, TracingOptions};
use super::probe_text::Read;
use super::session::Shared;

impl TracingOptions {
    /// Whether there can be such a filter; and where the kernel's file is given, whether it selects something of that: all that can be said of it before
    /// there is a guest. Where a guest's memory says what can be traced, that is not.
    ///
    /// # Errors
    /// [`TracingError::Filter`], [`TracingError::Image`].
    pub fn check_filter(
        &self,
        kernel: Option<(&Image, Option<DebugInfo>)>,
    ) -> Result<(), TracingError> {
        let filter = Filter::new(&self.filter, &self.notrace)?;
        let Some((image, debug)) = kernel.filter(|_| self.enabled) else {
            return Ok(());
        };
        let mut image = Cow::Borrowed(image);
        if self.any {
            any::admit(image.to_mut());
        }
        let has_names = image.check_traceable();
        let has_more = guest_kind::has_sites_in_memory(&image);
        if has_more && has_names.is_err() {
            return Ok(());
        }
        has_names?;
        match filter.select(&image, &Sources::new(debug.map(Arc::new))) {
            Err(FilterError::NothingTraceable { .. } | FilterError::NothingLeft { .. })
                if has_more =>
            {
                Ok(())
            }
            selected => Ok(selected.map(drop)?),
        }
    }
}

/// What is asked of a session, and of what.
pub(super) struct Early<'a> {
    pub shared: &'a Shared,
    pub engine: &'a Engine,
    pub tracer: Tracer,
    pub options: &'a SessionOptions,
}

impl Early<'_> {
    /// Whether the options mean something for this tracer, and its probes can be set.
    ///
    /// # Errors
    /// [`TracingError`] names the option or the probe.
    pub fn check(&self) -> Result<(), TracingError> {
        check_applies(self.tracer, self.options)?;
        let tasks = wanted_tasks(self.options)?;
        if !tasks.is_all() {
            check(self.engine, &tasks)?;
        }
        let mut probes = Vec::new();
        for text in &self.options.probe {
            let tactic = self.options.probe_tactic;
            match self.shared.read_probe(text, tactic, |_| false)? {
                Read::Here(new) => probes.extend(new),
                Read::Waits { .. } => {}
            }
        }
        if probes.iter().any(|probe| probe.capture.needs_stack())
            && !self.engine.transient().can_unwind()
        {
            return Err(UnwindError::None.into());
        }
        Ok(self.engine.check_probes(&probes)?)
    }

    /// Whether values of these functions' calls can be captured, if that is asked for.
    ///
    /// # Errors
    /// [`TracingError::NoTypes`].
    pub fn check_types(&self, selection: &Selection) -> Result<(), TracingError> {
        let selected = &selection.selected;
        if self.options.captures().is_empty() || selected.is_empty() {
            return Ok(());
        }
        let is_known = |function: &FunctionId| captures_of(self.shared, *function).is_some();
        match selected.iter().any(is_known) {
            true => Ok(()),
            false => Err(TracingError::NoTypes {
                functions: selected.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Linux;
    use image::testing::nop_image;

    /// Whether it is refused, of a kernel of four functions, the second of which has no site; and why.
    fn refused(filter: &str, change: impl FnOnce(&mut Image)) -> Option<String> {
        let mut image = nop_image(4);
        change(&mut image);
        let options = TracingOptions {
            enabled: true,
            filter: vec![filter.to_owned()],
            ..TracingOptions::default()
        };
        let refused = options.check_filter(Some((&image, None)));
        // What is a matter of the pattern alone is said without a kernel, too.
        let alone = options.check_filter(None).err();
        assert!(alone.is_none_or(|_| refused.is_err()));
        refused.err().map(|why| why.to_string())
    }

    fn without_site(image: &mut Image) {
        image.sites.retain(|site| site.function != FunctionId(1));
    }

    fn linux(image: &mut Image) {
        image.linux = Some(Linux {
            version: "6.1".to_owned(),
            text: None,
            init_text: None,
            rodata: None,
            prepares_sites: true,
            identity: image::Identity::default(),
        });
    }

    /// It was said after the guest had been held for its memory to be found.
    #[test]
    fn a_filter_is_refused_by_what_the_kernels_file_says() {
        assert_eq!(refused("f*", |_| ()), None);
        let why = refused("nothing_like_that", |_| ());
        assert!(why.unwrap().contains("no function matches"));
        let why = refused("nothing_like_that", linux);
        assert!(why.unwrap().contains("no function matches"));
        assert!(refused("f1[", |_| ()).unwrap().contains("bad glob"));
        let options = TracingOptions {
            filter: vec!["f1[".to_owned()],
            ..TracingOptions::default()
        };
        options.check_filter(None).unwrap_err();
    }

    /// Where functions have their sites, the memory of a Linux says.
    #[test]
    fn what_of_a_linux_can_be_traced_its_file_does_not_say() {
        assert!(
            refused("f1", without_site)
                .unwrap()
                .contains("none can be traced")
        );
        let both = |image: &mut Image| {
            without_site(image);
            linux(image);
        };
        assert_eq!(refused("f1", both), None);
    }
}
