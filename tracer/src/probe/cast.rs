//! Pointers that are said to lead to something: `((struct s *)p)->member` as in C, `(s)p->member` and, for what a member is in,
//! `(s,member)p->other` as in the kernel's own probes.

use debuginfo::{DebugError, Place, Shape};
use terms::expression::Expression;

use super::BadProbe;
use super::evaluate::{Evaluator, wrong};
use super::expression::{Cast, Node, Parser};
use super::token::Word;
use super::typed::{Kind, Typed};

impl Parser<'_> {
    /// The cast that begins here, if one does, and whether it is C's. Then the next word is what is cast.
    pub(super) fn cast(&mut self) -> Option<(Cast, bool)> {
        let start = self.next;
        let found = self.read_cast();
        if found.is_none() {
            self.next = start;
        }
        found
    }

    fn read_cast(&mut self) -> Option<(Cast, bool)> {
        self.accept("(").then_some(())?;
        let mut to = self.name()?;
        let is_tagged = matches!(to.0.as_str(), "struct" | "union");
        if is_tagged {
            to = self.name()?;
        }
        let from = match self.accept(",") {
            false => None,
            true => {
                let (first, at) = self.name()?;
                let mut names = vec![first];
                while self.accept(".") {
                    names.push(self.name()?.0);
                }
                Some((names, at))
            }
        };
        let is_c = from.is_none() && self.accept("*");
        self.accept(")").then_some(())?;
        // What is between parentheses and followed by an operator is a value.
        let is_value = matches!(
            self.peek(),
            Word::Name(_)
                | Word::Special(_)
                | Word::Register(..)
                | Word::Number(..)
                | Word::Sign("(")
        );
        let (to, at) = to;
        let is_cast = is_c || is_tagged || from.is_some() || is_value;
        is_cast.then_some((Cast { to, at, from }, is_c))
    }

    /// The name that stands here, and where it begins.
    fn name(&mut self) -> Option<(String, usize)> {
        let Word::Name(name) = self.peek() else {
            return None;
        };
        let name = name.clone();
        let at = self.at();
        self.take();
        Some((name, at))
    }
}

impl Evaluator<'_> {
    /// A pointer, as one to what the cast says.
    pub(super) fn cast(&self, of: &Node, cast: &Cast) -> Result<Typed, BadProbe> {
        let debug = self.debug.ok_or_else(|| DebugError::Absent {
            what: format!("`{}`", cast.to),
        })?;
        let btf = self.image.btf.as_deref();
        let to = debug.structure_named(btf, &cast.to);
        let to = to.ok_or_else(|| {
            let near = debug.structures_like(btf, &cast.to);
            match debug.unread_names().filter(|_| near.is_empty()) {
                Some(why) => BadProbe::Debug(why.clone()),
                None => BadProbe::Structure {
                    name: cast.to.clone(),
                    near,
                },
            }
        })?;
        let to = Kind::Of(to);
        let (mut address, _) = self.value(&self.evaluate(of)?, &of.text)?;
        if let Some((names, _)) = &cast.from {
            let before = self.distance(&to, names, &cast.to)?;
            address = address.offset(before.wrapping_neg());
        }
        let kind = Kind::Pointer(Box::new(to));
        Ok(Typed::new(kind, Place::Value(address)))
    }

    /// How many bytes of a structure are before a member of it.
    fn distance(&self, of: &Kind, names: &[String], text: &str) -> Result<i64, BadProbe> {
        // As if it lay at 0: members know how to be found.
        let zero = Place::Memory(Expression::Constant(0));
        let mut at = Typed::new(of.clone(), zero);
        for name in names {
            if !matches!(self.shape(&at)?, Some(Shape::Structure(_))) {
                return Err(wrong(
                    text,
                    format!(
                        "has no member {}: a part of it is no structure",
                        names.join(".")
                    ),
                ));
            }
            at = self.member(at, name, text)?;
        }
        match self.address_of(&at, &names.join("."))? {
            Expression::Constant(bytes) => Ok(bytes.cast_signed()),
            _ => Err(wrong(text, "has that member nowhere")),
        }
    }
}
