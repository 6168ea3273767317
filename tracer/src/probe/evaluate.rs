//! Expressions worked out to values with types, and their numbers.

use debuginfo::place::{NoBits, extended};
use debuginfo::{DebugError, DebugInfo, Place, Shape, TypeId, Variable};
use image::Image;
use image::symbol::SymbolKind;
use terms::expression::{Expression, Operator};

use super::BadProbe;
use super::expression::{Node, What};
use super::places::Point;
use super::typed::{Kind, Typed, Width};

/// The registers that the System V calling convention passes integers and pointers in.
pub(crate) const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
const ARGUMENTS_LENGTH: i64 = 6;
const RSP: u8 = 4;
const RAX: u8 = 0;

/// Where and when expressions are worked out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evaluator<'a> {
    pub image: &'a Image,
    pub debug: Option<&'a DebugInfo>,
    pub point: Point,
}

/// What is wrong with a part of an expression.
pub(super) fn wrong(text: &str, why: impl Into<String>) -> BadProbe {
    BadProbe::Value {
        text: text.to_owned(),
        why: why.into(),
    }
}

/// The `number`-th argument (from 1) at a function's first instruction, if it is an integer or a pointer and all
/// before it are, too.
pub(crate) fn argument(number: u8) -> Place {
    let index = number.saturating_sub(1);
    match ARGUMENTS.get(usize::from(index)) {
        Some(register) => Place::Value(Expression::Register(*register)),
        None => {
            // The first is right above the return address.
            let above = 8 * (1 + i64::from(index) - ARGUMENTS_LENGTH);
            Place::Memory(Expression::Register(RSP).offset(above))
        }
    }
}

impl Evaluator<'_> {
    pub fn evaluate(&self, node: &Node) -> Result<Typed, BadProbe> {
        Ok(match &node.what {
            What::Number(number, other) => {
                let width = Width::written(*number, *other);
                Typed::number(Expression::Constant(*number), width)
            }
            What::Text(_) => {
                return Err(wrong(&node.text, "text can only be compared, by == and !="));
            }
            What::Name(name) => self.named(name)?,
            What::Register(number, bytes) => {
                let value = extended(Expression::Register(*number), 8 * bytes, false);
                Typed::new(Kind::Untyped, Place::Value(value))
            }
            What::Returned => self.returned()?,
            What::Argument(number) => self.argument(*number)?,
            What::Current => self.current()?,
            What::Stack => {
                let why =
                    "is no value to compute with: capture it by itself, as $stack or $stack[BYTES]";
                return Err(wrong(&node.text, why));
            }
            What::OfCpu(wanted) => self.of_cpu(wanted)?,
            What::Cast(of, cast) => self.cast(of, cast)?,
            What::Member(of, name) => {
                let of_value = self.evaluate(of)?;
                self.member(of_value, name, &of.text)?
            }
            What::Arrow(of, name) => {
                let target = self.target(self.evaluate(of)?, &of.text)?;
                self.member(target, name, &format!("*{}", of.text))?
            }
            What::Index(of, index) => self.index(of, index)?,
            What::Dereferenced(of) => self.target(self.evaluate(of)?, &of.text)?,
            What::Address(of) => {
                let of_value = self.evaluate(of)?;
                self.address(of_value, &of.text)?
            }
            What::Unary(sign, of) => self.unary(sign, of)?,
            What::Binary(sign, left, right) => self.binary(node, sign, left, right)?,
        })
    }

    fn named(&self, name: &str) -> Result<Typed, BadProbe> {
        let found = match self.point {
            Point::Return(_) => Err(DebugError::Absent {
                what: format!("`{name}`"),
            }),
            _ => self.variable(name),
        };
        let error = match found {
            Ok(variable) => return Ok(typed(variable)),
            Err(error) => error,
        };
        if error.is_absent() || matches!(error, DebugError::Variable { .. }) {
            match name {
                "true" => return Ok(Typed::number(Expression::Constant(1), Width::INT)),
                "false" | "NULL" => {
                    return Ok(Typed::number(Expression::Constant(0), Width::INT));
                }
                _ => {}
            }
            if let Some(found) = self.symbol(name) {
                return Ok(found);
            }
        }
        if matches!(self.point, Point::Return(_)) {
            let why = "variables are gone at a function's return: $retval, registers and symbols are there; probe \
                       the function itself for its parameters";
            return Err(wrong(name, why));
        }
        Err(error.into())
    }

    /// What lies at a symbol; what it is, nobody says.
    fn symbol(&self, name: &str) -> Option<Typed> {
        let symbols = self.image.symbols.named(name);
        let found =
            symbols.max_by_key(|symbol| (symbol.kind == SymbolKind::Object, symbol.global))?;
        let place = Place::Memory(Expression::Constant(found.address.0));
        Some(Typed::new(Kind::Untyped, place))
    }

    fn returned(&self) -> Result<Typed, BadProbe> {
        if !matches!(self.point, Point::Return(_)) {
            let why = "is there at a function's return: FUNCTION%return";
            return Err(wrong("$retval", why));
        }
        match self.returned_variable() {
            Ok(Some(variable)) => Ok(typed(variable)),
            Ok(None) => Err(wrong("$retval", "the function returns nothing")),
            Err(error) if error.is_absent() => {
                let rax = Place::Value(Expression::Register(RAX));
                Ok(Typed::new(Kind::Untyped, rax))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn argument(&self, number: u8) -> Result<Typed, BadProbe> {
        let text = format!("$arg{number}");
        if !matches!(self.point, Point::Entry(_)) {
            let why = "arguments are where the calling convention says at a function's first instruction only";
            return Err(wrong(&text, why));
        }
        let Ok(parameters) = self.parameters() else {
            return Ok(Typed::new(Kind::Untyped, argument(number)));
        };
        let count = parameters.len();
        match parameters.into_iter().nth(usize::from(number) - 1) {
            Some(variable) => Ok(typed(variable?)),
            // More may be passed than a prototype says.
            None if count < ARGUMENTS.len() => Ok(Typed::new(Kind::Untyped, argument(number))),
            None => Err(wrong(&text, format!("the function has {count} parameters"))),
        }
    }

    fn unary(&self, sign: &str, of: &Node) -> Result<Typed, BadProbe> {
        let (value, width) = self.number(of)?;
        let zero = Expression::Constant(0);
        Ok(match sign {
            "!" => Typed::number(Expression::apply(Operator::Equal, value, zero), Width::INT),
            "-" => arithmetic(Operator::Subtract, zero, value, width),
            _ => arithmetic(Operator::Xor, value, Expression::Constant(u64::MAX), width),
        })
    }

    fn binary(
        &self,
        node: &Node,
        sign: &str,
        left: &Node,
        right: &Node,
    ) -> Result<Typed, BadProbe> {
        if matches!(sign, "&&" | "||") {
            let (left, right) = (self.is_true(left)?, self.is_true(right)?);
            let operator = match sign {
                "&&" => Operator::And,
                _ => Operator::Or,
            };
            return Ok(Typed::number(
                Expression::apply(operator, left, right),
                Width::INT,
            ));
        }
        let (left, right) = (Side::of(self, left), Side::of(self, right));
        if matches!(sign, "+" | "-")
            && let Some(pointer) = self.moved(sign, &left, &right)?
        {
            return Ok(pointer);
        }
        let ((left, left_width), (right, right_width)) = self.both(&left, &right)?;
        let width = match sign {
            "<<" | ">>" => left_width,
            _ => left_width.common(right_width),
        };
        let (left, right) = match sign {
            "<<" | ">>" => (left, right),
            _ => (
                widened(left, left_width, width),
                widened(right, right_width, width),
            ),
        };
        let Some((operator, is_swapped)) = operator(sign, width.signed) else {
            return Err(wrong(&node.text, format!("`{sign}` is no operator")));
        };
        let (left, right) = match is_swapped {
            true => (right, left),
            false => (left, right),
        };
        Ok(match sign {
            "==" | "!=" | "<" | "<=" | ">" | ">=" => {
                Typed::number(Expression::apply(operator, left, right), Width::INT)
            }
            _ => arithmetic(operator, left, right, width),
        })
    }

    /// Two numbers, one of which may be the name of a value of the other's type.
    #[expect(clippy::type_complexity, reason = "two numbers, each with its width")]
    fn both(
        &self,
        left: &Side<'_>,
        right: &Side<'_>,
    ) -> Result<((Expression, Width), (Expression, Width)), BadProbe> {
        let by_name = |of: &Side<'_>, name: &Side<'_>| {
            let What::Name(name) = &name.node.what else {
                return None;
            };
            let value = self.enumerator(of.value.as_ref().ok()?, name)?;
            Some((Expression::Constant(value.cast_unsigned()), Width::I64))
        };
        let number = |side: &Side<'_>| self.value(side.value()?, &side.node.text);
        if let Some(right) = by_name(left, right) {
            return Ok((number(left)?, right));
        }
        if let Some(left) = by_name(right, left) {
            return Ok((left, number(right)?));
        }
        Ok((number(left)?, number(right)?))
    }

    /// What `name` is worth in the type of a value.
    fn enumerator(&self, of: &Typed, name: &str) -> Option<i64> {
        let names = match self.shape(of).ok()?? {
            Shape::Number { names, .. } => names?,
            Shape::Structure(structure) => structure.variant?.1,
            _ => return None,
        };
        let last = |known: &str| known.rsplit("::").next() == name.rsplit("::").next();
        let found = names.names.iter().find(|(_, known)| last(known));
        found.map(|(value, _)| *value)
    }

    /// Whether a number is not zero, as 1 or 0.
    fn is_true(&self, node: &Node) -> Result<Expression, BadProbe> {
        let (value, _) = self.number(node)?;
        let zero = Expression::Constant(0);
        Ok(Expression::apply(Operator::NotEqual, value, zero))
    }

    /// A pointer, moved by a number of what it points to.
    fn moved(
        &self,
        sign: &str,
        left: &Side<'_>,
        right: &Side<'_>,
    ) -> Result<Option<Typed>, BadProbe> {
        let (Ok(first), Ok(second)) = (&left.value, &right.value) else {
            return Ok(None);
        };
        let (left, right) = (&left.node.text, &right.node.text);
        let (pointer, text, by, by_text) = match (self.pointed(first)?, self.pointed(second)?) {
            (Some(_), None) => (first, left, second, right),
            (None, Some(_)) if sign == "+" => (second, right, first, left),
            _ => return Ok(None),
        };
        let to = self.pointed(pointer)?.unwrap_or(Kind::Untyped);
        let size = self.size(&to, text)?.max(1);
        let (by, _) = self.value(by, by_text)?;
        let by = match (size, by) {
            (1, by) => by,
            (size, Expression::Constant(by)) => Expression::Constant(by.wrapping_mul(size)),
            (size, by) => Expression::apply(Operator::Multiply, by, Expression::Constant(size)),
        };
        let (address, _) = self.value(pointer, text)?;
        let operator = match sign {
            "+" => Operator::Add,
            _ => Operator::Subtract,
        };
        let moved = match (operator, by) {
            (Operator::Add, Expression::Constant(by)) => address.offset(by.cast_signed()),
            (operator, by) => Expression::apply(operator, address, by),
        };
        let kind = Kind::Pointer(Box::new(to));
        Ok(Some(Typed::new(kind, Place::Value(moved))))
    }

    /// The number that an expression is.
    pub fn number(&self, node: &Node) -> Result<(Expression, Width), BadProbe> {
        let value = self.evaluate(node)?;
        self.value(&value, &node.text)
    }

    /// The number that a value is, and what it is promoted to.
    pub fn value(&self, of: &Typed, text: &str) -> Result<(Expression, Width), BadProbe> {
        if let (Kind::Number(width), Place::Value(value)) = (&of.kind, &of.place) {
            return Ok((value.clone(), *width));
        }
        let (bytes, signed) = match (&of.kind, self.shape(of)?) {
            (Kind::Number(width), _) => (u64::from(width.bits / 8), width.signed),
            (_, None | Some(Shape::Pointer(_))) => (8, false),
            (_, Some(Shape::Number { kind, signed, .. })) => (u64::from(kind.bytes()), signed),
            (_, Some(Shape::Array { .. })) => {
                // As in C, an array is the address of its first element.
                return Ok((self.address_of(of, text)?, Width::U64));
            }
            (_, Some(Shape::Structure(structure))) => {
                if let Some((member, _)) = &structure.variant {
                    let discriminant = self.part(of, member, text)?;
                    return self.value(&discriminant, text);
                }
                let members = structure.members.iter().map(|one| one.name.as_str());
                let members: Vec<&str> = members.filter(|name| !name.is_empty()).take(8).collect();
                let why = format!(
                    "is a structure ({}), not a number: name a member ({})",
                    structure.name,
                    members.join(", ")
                );
                return Err(wrong(text, why));
            }
            (_, Some(Shape::Void)) => return Err(wrong(text, "has no type that has values")),
            (_, Some(Shape::Unreadable { what, .. })) => {
                return Err(wrong(text, format!("is {what}, which is no number")));
            }
        };
        let bits = of.field.unwrap_or(u8::try_from(8 * bytes).unwrap_or(64));
        let value = self.bits(&of.place, bits, signed, text)?;
        Ok((value, Width::promoted(u64::from(bits).div_ceil(8), signed)))
    }

    /// So many bits of a place.
    pub fn bits(
        &self,
        place: &Place,
        bits: u8,
        signed: bool,
        text: &str,
    ) -> Result<Expression, BadProbe> {
        place.number(0, bits, signed).map_err(|why| match why {
            NoBits::OptimisedOut => wrong(text, "is optimised out here, or a part of it is"),
            NoBits::Odd => wrong(text, "lies so that no number holds it"),
        })
    }

    /// What debug information says of a value's type; nothing of what has none.
    pub fn shape(&self, of: &Typed) -> Result<Option<Shape>, BadProbe> {
        match of.kind {
            Kind::Of(id) => self.shape_of(id).map(Some),
            _ => Ok(None),
        }
    }

    pub fn shape_of(&self, id: TypeId) -> Result<Shape, BadProbe> {
        let debug = self.debug.ok_or_else(|| DebugError::Absent {
            what: "types".to_owned(),
        })?;
        Ok(debug.shape(id)?)
    }
}

/// One side of an operator, and what it is.
struct Side<'n> {
    node: &'n Node,
    value: Result<Typed, BadProbe>,
}

impl<'n> Side<'n> {
    /// Worked out once: it can have as many operators as the whole.
    fn of(with: &Evaluator<'_>, node: &'n Node) -> Self {
        Self {
            node,
            value: with.evaluate(node),
        }
    }

    fn value(&self) -> Result<&Typed, BadProbe> {
        self.value.as_ref().map_err(Clone::clone)
    }
}

/// A variable, as a value.
pub(super) fn typed(variable: Variable) -> Typed {
    let kind = variable.of.map_or(Kind::Untyped, Kind::Of);
    Typed::new(kind, variable.place)
}

/// A number of a type, as one of a type that is as wide or wider. It is extended by its own sign already.
fn widened(value: Expression, from: Width, to: Width) -> Expression {
    match from.bits == to.bits && from.signed != to.signed {
        true => extended(value, to.bits, to.signed),
        false => value,
    }
}

/// What an operation on numbers of a width gives.
/// The operator for a sign, and whether it takes its sides in the other order.
fn operator(sign: &str, signed: bool) -> Option<(Operator, bool)> {
    use Operator as O;
    let of = |unsigned, with_sign| if signed { with_sign } else { unsigned };
    let operator = match sign {
        "+" => O::Add,
        "-" => O::Subtract,
        "*" => O::Multiply,
        "/" => of(O::Divide, O::DivideSigned),
        "%" => of(O::Remainder, O::RemainderSigned),
        "&" => O::And,
        "|" => O::Or,
        "^" => O::Xor,
        "<<" => O::ShiftLeft,
        ">>" => of(O::ShiftRight, O::ShiftRightSigned),
        "==" => O::Equal,
        "!=" => O::NotEqual,
        "<" | ">" => of(O::Less, O::LessSigned),
        "<=" | ">=" => of(O::LessOrEqual, O::LessOrEqualSigned),
        _ => return None,
    };
    Some((operator, matches!(sign, ">" | ">=")))
}

fn arithmetic(operator: Operator, left: Expression, right: Expression, width: Width) -> Typed {
    let value = Expression::apply(operator, left, right);
    let exact = matches!(operator, Operator::And | Operator::Or | Operator::Xor) && width.signed;
    let value = match exact {
        true => value,
        false => extended(value, width.bits, width.signed),
    };
    Typed::number(value, width)
}
