//! Where a probe is to be, as addresses.

use std::sync::Arc;

use debuginfo::{DebugError, DebugInfo, Moment};
use image::Image;
use insn::boundary::{Boundary, boundary};
use terms::addr::Gva;
use terms::function::Function;
use terms::function::FunctionId;
use terms::nearest::nearest;

use super::BadProbe;
use super::request::{Request, Spec};

/// Where a probe is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before the first instruction of a function.
    Entry(FunctionId),
    /// Before any other instruction.
    At {
        /// The function that it belongs to, if that is known.
        function: Option<FunctionId>,
        /// The instruction.
        at: Gva,
    },
    /// After the return of a function.
    Return(FunctionId),
}

impl Point {
    /// When variables are looked at.
    pub(super) fn moment(self, image: &Image) -> Moment {
        let start = |id| image.function(id).map_or(Gva(0), |found| found.address);
        match self {
            Self::Entry(function) => Moment::Entry(start(function)),
            Self::At { at, .. } => Moment::At(at),
            Self::Return(function) => Moment::Return(start(function)),
        }
    }

    /// The function that it is in.
    pub const fn function(self) -> Option<FunctionId> {
        match self {
            Self::Entry(function) | Self::Return(function) => Some(function),
            Self::At { function, .. } => function,
        }
    }

    /// As people say it.
    pub(super) fn describe(self, image: &Image) -> String {
        let name = |id| image.function(id).map_or("?", |found| &*found.display);
        match self {
            Self::Entry(function) => name(function).to_owned(),
            Self::Return(function) => format!("{}%return", name(function)),
            Self::At { at, .. } => place_of(image, at),
        }
    }
}

/// An address as function and offset.
fn place_of(image: &Image, at: Gva) -> String {
    match image.function_at(at).and_then(|id| image.function(id)) {
        Some(Function {
            address, display, ..
        }) => match at.0 - address.0 {
            0 => display.to_string(),
            offset => format!("{display}+{offset:#x}"),
        },
        None => at.to_string(),
    }
}

/// The points of a place, and its name.
pub(super) fn points(
    image: &Image,
    debug: Option<&DebugInfo>,
    request: &Request,
) -> Result<(Arc<str>, Vec<Point>), BadProbe> {
    let (place, module) = (&request.place, request.module());
    match &request.spec {
        Spec::Function { name, offset: 0 } => {
            let points = functions(image, module, name)?
                .into_iter()
                .map(Point::Entry);
            Ok((name.as_str().into(), points.collect()))
        }
        Spec::Function { name, offset } => {
            let found = functions(image, module, name)?.into_iter();
            let points = found.map(|id| within(image, place, id, *offset));
            let points = points.collect::<Result<_, _>>()?;
            Ok((format!("{name}+{offset:#x}").into(), points))
        }
        Spec::Return { name } => {
            let points = functions(image, module, name)?
                .into_iter()
                .map(Point::Return);
            Ok((format!("{name}%return").into(), points.collect()))
        }
        Spec::Address(address) => {
            let at = Gva(*address);
            let point = address_point(image, place, at)?;
            Ok((place_of(image, at).into(), vec![point]))
        }
        Spec::Line { file, line } => line_points(image, debug, file, *line),
    }
}

fn line_points(
    image: &Image,
    debug: Option<&DebugInfo>,
    file: &str,
    line: u64,
) -> Result<(Arc<str>, Vec<Point>), BadProbe> {
    let name = format!("{file}:{line}");
    let debug = debug.ok_or_else(|| DebugError::Absent { what: name.clone() })?;
    let addresses = debug.line(file, line)?;
    let points = addresses.iter().map(|at| point_at(image, *at));
    let points: Vec<Point> = points.collect();
    if let Some(at) = addresses.iter().find(|at| !image.is_text(**at, 1)) {
        return Err(BadProbe::Debug(DebugError::Elsewhere {
            file: file.to_owned(),
            line,
            at: *at,
        }));
    }
    Ok((name.into(), points))
}

/// Every function that is called so; of a module, if one is named.
fn functions(image: &Image, module: Option<&str>, name: &str) -> Result<Vec<FunctionId>, BadProbe> {
    let is_meant = |function: &Function| module.is_none() || function.module.as_deref() == module;
    let all = || {
        let all = (0..).map(FunctionId).zip(&image.functions);
        all.filter(|(_, function)| is_meant(function))
    };
    let found = all().filter(|(_, function)| function.names().any(|known| known == name));
    let mut found: Vec<FunctionId> = found.map(|(id, _)| id).collect();
    if found.is_empty() {
        // The end of a path is enough where no other ends so.
        let tail = format!("::{name}");
        let ends = all().filter(|(_, function)| function.display.ends_with(&tail));
        found = ends.map(|(id, _)| id).collect();
    }
    if found.is_empty() {
        let names = all().flat_map(|(_, function)| function.names());
        return Err(BadProbe::Function {
            name: name.to_owned(),
            near: nearest(name, names, 3),
        });
    }
    Ok(found)
}

fn address_point(image: &Image, place: &str, at: Gva) -> Result<Point, BadProbe> {
    if !image.is_text(at, 1) {
        return Err(BadProbe::NotText { address: at });
    }
    let Some(id) = image.function_at(at) else {
        return Ok(point_at(image, at));
    };
    let start = image.function(id).map_or(at, |function| function.address);
    within(image, place, id, at.0 - start.0)
}

fn point_at(image: &Image, at: Gva) -> Point {
    let function = image.function_at(at);
    let starts = function
        .and_then(|id| image.function(id))
        .is_some_and(|found| found.address == at);
    match function {
        Some(function) if starts => Point::Entry(function),
        function => Point::At { function, at },
    }
}

/// The instruction `offset` bytes into a function, if one begins there.
fn within(image: &Image, place: &str, id: FunctionId, offset: u64) -> Result<Point, BadProbe> {
    let Function {
        address,
        size,
        display,
        ..
    } = image.function(id).cloned().unwrap_or_default();
    let at = address.checked_add(offset).filter(|_| offset < size);
    let at = at.ok_or_else(|| BadProbe::PastEnd {
        place: place.to_owned(),
        size,
    })?;
    let code = image.loaded.bytes_at(address, size);
    let function = display.to_string();
    let place = place.to_owned();
    match boundary(code, address, at) {
        // Without its bytes, nothing is known.
        _ if code.is_empty() => Ok(point_at(image, at)),
        Boundary::Here => Ok(point_at(image, at)),
        Boundary::Inside {
            start,
            end,
            instruction,
        } => Err(BadProbe::InsideInstruction {
            place,
            function,
            instruction,
            start: start.0 - address.0,
            end: end.0.wrapping_sub(address.0),
        }),
        Boundary::Unknown(bad) => Err(BadProbe::NoInstruction {
            place,
            function,
            bad: bad.0 - address.0,
        }),
    }
}
