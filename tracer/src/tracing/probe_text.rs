//! What a user writes for a probe.

use crate::engine::probes::NewProbe;
use crate::probe;

use super::TracingError;
use super::session::Shared;

impl Shared {
    /// The probes that `text` describes: one at each of its places.
    ///
    /// # Errors
    /// [`TracingError::BadProbe`] says what is wrong with it.
    pub fn read_probe(
        &self,
        text: &str,
        tactic: Option<u8>,
    ) -> Result<Vec<NewProbe>, TracingError> {
        let image = &self.image;
        let debug = self.debug.as_deref();
        let resolved =
            probe::parse(text).and_then(|request| probe::resolve(image, debug, &request));
        let resolved = resolved.map_err(|why| TracingError::BadProbe {
            probe: text.to_owned(),
            why,
        })?;
        let new = |resolved: probe::Resolved| NewProbe {
            name: resolved.name,
            point: resolved.point,
            capture: resolved.capture,
            tactic,
        };
        Ok(resolved.into_iter().map(new).collect())
    }
}
