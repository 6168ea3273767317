//! Conditions.

use terms::expression::Expression;

use super::BadProbe;
use super::evaluate::Evaluator;
use super::expression::{Node, What};
use super::resolve::Capturing;
use crate::capture::Condition;

impl Evaluator<'_> {
    /// Whether an expression is true.
    pub(super) fn condition(&self, node: &Node) -> Result<Condition, BadProbe> {
        match &node.what {
            What::Binary("&&", left, right) => {
                let mut all = Vec::new();
                for side in [left, right] {
                    match self.condition(side)? {
                        Condition::All(inner) => all.extend(inner),
                        other => all.push(other),
                    }
                }
                Ok(Condition::All(all))
            }
            What::Binary("||", left, right) => {
                let mut any = Vec::new();
                for side in [left, right] {
                    match self.condition(side)? {
                        Condition::Any(inner) => any.extend(inner),
                        other => any.push(other),
                    }
                }
                Ok(Condition::Any(any))
            }
            What::Unary("!", inner) => Ok(Condition::Not(Box::new(self.condition(inner)?))),
            What::Binary(sign @ ("==" | "!="), left, right) => match self.compared(left, right)? {
                Some(is) if *sign == "==" => Ok(is),
                Some(is) => Ok(Condition::Not(Box::new(is))),
                None => self.non_zero(node),
            },
            _ => self.non_zero(node),
        }
    }

    fn non_zero(&self, node: &Node) -> Result<Condition, BadProbe> {
        let (value, _): (Expression, _) = self.number(node)?;
        Ok(Condition::NonZero(value))
    }

    /// A comparison with text, if it is one.
    fn compared(&self, left: &Node, right: &Node) -> Result<Option<Condition>, BadProbe> {
        let (of, text) = match (&left.what, &right.what) {
            (_, What::Text(text)) => (left, text),
            (What::Text(text), _) => (right, text),
            _ => return Ok(None),
        };
        let value = self.evaluate(of)?;
        let (found, _) = Capturing(*self).text(&value, &of.text)?;
        Ok(Some(Condition::TextIs(found, text.as_slice().into())))
    }
}
