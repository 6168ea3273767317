//! Who records each marker, and the plan that changes it: as with functions, the nop of each place becomes a
//! jump to a stub that has the recorders of all sessions, and goes on after it.

use image::{Image, Marker};
use insn::jump::jump;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use crate::points::events::OutOfReach;
use crate::text::edit::{Edit, Lead, Point, Wanted};
use crate::text::sites::Sites;

/// The sessions that record a marker.
#[must_use]
pub fn recorded_by(sites: &Sites, marker: &Marker) -> SessionSet {
    let place = marker.sites.first();
    let lead = place.and_then(|place| sites.lead(Point::Marker, place.at));
    lead.map(|lead| lead.recorded_by).unwrap_or_default()
}

/// The markers that a session records.
pub fn of(image: &Image, sites: &Sites, session: u8) -> impl Iterator<Item = EventId> {
    let numbered = (0u32..).zip(&image.markers);
    let first = u32::try_from(image.tracepoints.len()).unwrap_or(u32::MAX);
    let recorded = numbered.filter(move |(_, marker)| recorded_by(sites, marker).has(session));
    recorded.map(move |(number, _)| EventId(first.saturating_add(number)))
}

/// Plans that these sessions record a marker, by a stub for each of its places; none when it is so already.
///
/// # Errors
/// [`OutOfReach`].
pub fn plan(
    sites: &mut Sites,
    marker: &Marker,
    recorded_by: SessionSet,
    stubs: &[Gva],
) -> Result<Vec<Edit>, OutOfReach> {
    let mut edits = Vec::new();
    for (index, place) in marker.sites.iter().enumerate() {
        let ours = match stubs.get(index) {
            None => None,
            Some(stub) => {
                let bytes = jump(place.at, *stub).ok_or_else(|| OutOfReach {
                    event: marker.format.name.to_string(),
                    from: place.at,
                    to: *stub,
                })?;
                let lead = Lead {
                    to: *stub,
                    recorded_by,
                    ..Lead::default()
                };
                Some((SiteBytes::new(bytes), lead))
            }
        };
        let nop = SiteBytes::new(place.nop);
        let wanted = Wanted::new(Point::Marker, place.function, place.at, nop, ours);
        edits.extend(sites.edit(wanted));
    }
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use image::marker::MarkerSite;
    use insn::nop::NOP5;
    use terms::event_format::EventFormat;
    use terms::function::FunctionId;

    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);
    const STUB: Gva = Gva(0xffff_ffff_8200_0000);

    fn image() -> Image {
        let site = |at| MarkerSite {
            at,
            nop: NOP5,
            operands: Vec::new(),
            function: FunctionId(0),
        };
        let sites = [AT, AT.wrapping_add(64)].map(site).to_vec();
        let format = EventFormat::new("a:b".into(), Vec::new());
        Image {
            markers: vec![Marker { format, sites }],
            ..Image::default()
        }
    }

    #[test]
    fn a_marker_is_changed_once_and_by_a_plan_that_is_current() {
        let image = image();
        let marker = &image.markers[0];
        let mut sites = Sites::default();
        let stubs = [STUB, STUB.wrapping_add(64)];
        let by = |session| SessionSet::default().with(session);
        let on = plan(&mut sites, marker, by(1), &stubs).unwrap();
        let other = plan(&mut sites, marker, by(2), &stubs).unwrap();
        assert!(on.iter().all(|edit| edit.before.is_none()) && on.len() == 2);
        let are_current =
            |sites: &Sites, plan: &[Edit]| plan.iter().all(|one| sites.is_current(one));
        assert!(are_current(&sites, &on) && are_current(&sites, &other));
        on.iter().for_each(|edit| sites.made(edit));
        assert!(!are_current(&sites, &other));
        assert_eq!(recorded_by(&sites, marker), by(1));
        assert_eq!(of(&image, &sites, 1).collect::<Vec<_>>(), [EventId(0)]);
        assert_eq!(of(&image, &sites, 2).count(), 0);
        assert_eq!(plan(&mut sites, marker, by(1), &stubs), Ok(Vec::new()));
        let off = plan(&mut sites, marker, SessionSet::default(), &[]).unwrap();
        assert!(off.iter().all(Edit::is_at_jump_of_ours));
        let back: Vec<Edit> = on.iter().map(Edit::reverse).collect();
        assert_eq!(off, back);
    }
}
