//! What each processor has its own of: the kernel's variables of that kind, and the task that runs on it.
//!
//! While a Linux runs its own code, gs leads to the data of the processor, and a symbol in there is a distance from that.

use debuginfo::{Place, Shape};
use image::Image;
use terms::addr::Gva;
use terms::expression::{Expression, Operator};

use super::BadProbe;
use super::evaluate::{Evaluator, wrong};
use super::expression::{OfCpu, Parser};
use super::misfit::Misfit;
use super::token::Word;
use super::typed::{Kind, Typed};

/// What holds the address of the processor's own data.
const BASE: &str = "this_cpu_off";
/// What holds the address of the task that runs.
const TASK: &str = "current_task";
/// From 6.2 to 6.14 that is a member of this.
const HOT: &str = "pcpu_hot";
/// What a task is.
const TASK_TYPE: &str = "task_struct";

impl Parser<'_> {
    /// `this_cpu_read(x)` or `this_cpu_ptr(x)`, if that is what the name at the next word begins.
    pub(super) fn of_cpu(&mut self, name: &str) -> Result<Option<OfCpu>, Misfit> {
        let is_address = match name {
            "this_cpu_read" => false,
            "this_cpu_ptr" => true,
            _ => return Ok(None),
        };
        if !self.is_next_but_one("(") {
            return Ok(None);
        }
        self.take();
        self.expect("(")?;
        let at = self.at();
        let Word::Name(name) = self.peek().clone() else {
            return Err(self.unexpected("the name of a variable of each processor"));
        };
        self.take();
        self.expect(")")?;
        Ok(Some(OfCpu {
            name,
            at,
            is_address,
        }))
    }
}

impl Evaluator<'_> {
    /// A processor's own variable, or its address.
    pub(super) fn of_cpu(&self, wanted: &OfCpu) -> Result<Typed, BadProbe> {
        let name = &wanted.name;
        let at = own_symbol(self.image, name).ok_or_else(|| {
            let why = "is no variable of which each processor has its own";
            wrong(name, why)
        })?;
        let base = own_word(self.image, BASE).ok_or_else(|| {
            let why = format!("cannot be found: the kernel has no `{BASE}`");
            wrong(name, why)
        })?;
        let address = match at.0 {
            0 => base,
            at => Expression::apply(Operator::Add, base, Expression::Constant(at)),
        };
        let debug = self.debug;
        let of = debug.and_then(|debug| debug.variable_type(self.image.btf.as_deref(), name));
        let kind = of.map_or(Kind::Untyped, Kind::Of);
        Ok(match wanted.is_address {
            true => Typed::new(Kind::Pointer(Box::new(kind)), Place::Value(address)),
            false => Typed::new(kind, Place::Memory(address)),
        })
    }

    /// The task that runs.
    pub(super) fn current(&self) -> Result<Typed, BadProbe> {
        let at = own_word(self.image, TASK).or_else(|| hot_task(self));
        let at = at.ok_or_else(|| {
            let why = format!("cannot be found: the kernel has neither `{TASK}` nor `{HOT}`");
            wrong("$current", why)
        })?;
        let debug = self.debug;
        let of = debug.and_then(|one| one.structure_named(self.image.btf.as_deref(), TASK_TYPE));
        let kind = of.map_or(Kind::Untyped, Kind::Of);
        Ok(Typed::new(Kind::Pointer(Box::new(kind)), Place::Value(at)))
    }
}

/// The word of the task that runs, where it is a member of the processor's own structure.
fn hot_task(of: &Evaluator<'_>) -> Option<Expression> {
    let debug = of.debug?;
    let hot = debug.structure_named(of.image.btf.as_deref(), HOT)?;
    let place = Place::Memory(Expression::Constant(own_symbol(of.image, HOT)?.0));
    let hot = Typed::new(Kind::Of(hot), place);
    if !matches!(of.shape(&hot), Ok(Some(Shape::Structure(_)))) {
        return None;
    }
    let task = of.member(hot, TASK, HOT).ok()?;
    match of.address_of(&task, HOT).ok()? {
        Expression::Constant(at) => own(Gva(at)),
        _ => None,
    }
}

/// The word at a symbol of the processor's own data.
fn own_word(image: &Image, name: &str) -> Option<Expression> {
    own(own_symbol(image, name)?)
}

/// Where a symbol of the processor's own data is, as it was linked.
fn own_symbol(image: &Image, name: &str) -> Option<Gva> {
    let symbols = &image.symbols;
    let start = symbols.address_of("__per_cpu_start")?;
    let end = symbols.address_of("__per_cpu_end")?;
    let at = symbols.address_of(name)?;
    (start..end).contains(&at).then_some(at)
}

/// The word at this distance from the processor's own data: instructions have 32 bits for it.
fn own(at: Gva) -> Option<Expression> {
    i32::try_from(at.0.cast_signed()).ok().map(Expression::Own)
}
