//! What debug information says of a place: DWARF, and where there is none for it BTF.

use debuginfo::btf::functions::Prototype;
use debuginfo::{DebugError, Variable};

use super::evaluate::Evaluator;
use super::places::Point;

impl Evaluator<'_> {
    /// The variable that a name means here.
    pub(super) fn variable(&self, name: &str) -> Result<Variable, DebugError> {
        let what = format!("`{name}`");
        let debug = self.debug.ok_or(DebugError::Absent { what })?;
        let found = debug.variable(self.point.moment(self.image), name);
        let Some((absent, prototype)) = self.instead(&found) else {
            return found;
        };
        let Some(index) = prototype
            .parameters
            .iter()
            .position(|(known, _)| known == name)
        else {
            return Err(match prototype.parameters.is_empty() {
                true => absent,
                false => self.no_parameter(name, &prototype),
            });
        };
        if !matches!(self.point, Point::Entry(_)) {
            return Err(DebugError::Place {
                name: name.to_owned(),
                place: self.point.describe(self.image),
                why: "there is BTF only, which says where parameters are at a function's first instruction".to_owned(),
            });
        }
        let mut passed = debug.passed(&prototype).into_iter();
        passed.nth(index).unwrap_or(Err(absent))
    }

    /// Each parameter, or why it is not known.
    pub(super) fn parameters(&self) -> Result<Vec<Result<Variable, DebugError>>, DebugError> {
        let debug = self.debug.ok_or_else(|| DebugError::Absent {
            what: "$args".to_owned(),
        })?;
        let found = debug.parameters(self.point.moment(self.image));
        match (self.instead(&found), self.point) {
            (Some((_, prototype)), Point::Entry(_)) => Ok(debug.passed(&prototype)),
            _ => found,
        }
    }

    /// What the function returns; `None` if nothing.
    pub(super) fn returned_variable(&self) -> Result<Option<Variable>, DebugError> {
        let debug = self.debug.ok_or_else(|| DebugError::Absent {
            what: "$retval".to_owned(),
        })?;
        let function = self.point.function().and_then(|id| self.image.function(id));
        let address = function
            .map(|function| function.address)
            .unwrap_or_default();
        let found = debug.returned(address);
        let Some((_, prototype)) = self.instead(&found) else {
            return found;
        };
        let Some(of) = prototype.returned else {
            return Ok(None);
        };
        let place = debug.returned_at(of).ok_or_else(|| DebugError::Place {
            name: "$retval".to_owned(),
            place: self.point.describe(self.image),
            why: format!(
                "{} is not returned as an integer or a pointer",
                debug.type_name(of)
            ),
        })?;
        Ok(Some(Variable {
            name: "retval".to_owned(),
            of: Some(of),
            place,
        }))
    }

    /// What BTF says where DWARF says nothing, or cannot be read.
    fn instead<T>(&self, found: &Result<T, DebugError>) -> Option<(DebugError, Prototype)> {
        let absent = found.as_ref().err().filter(|error| error.is_absent())?;
        let function = self.image.function(self.point.function()?)?;
        let prototype = self
            .debug?
            .prototype(self.image.btf.as_deref(), function.names())?;
        Some((absent.clone(), prototype))
    }

    fn no_parameter(&self, name: &str, prototype: &Prototype) -> DebugError {
        let names = prototype.parameters.iter().map(|(known, _)| known.clone());
        let known: Vec<String> = names.filter(|known| !known.is_empty()).collect();
        DebugError::Variable {
            name: name.to_owned(),
            place: self.point.describe(self.image),
            near: terms::nearest::nearest(name, known.iter().map(String::as_str), 3),
            known,
        }
    }
}
