//! Expressions as C and Rust write them, as a tree.

use super::BadProbe;
use super::misfit::Misfit;
use super::token::{Token, Word, tokens};

/// Expressions one inside the other, at most.
const DEPTH_MAX: usize = 64;

/// A part of an expression, and the text that it was written as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub text: String,
    /// Where that begins.
    pub at: usize,
    pub what: What,
}

/// What a part of an expression is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// A number, and whether it was written in another base than ten.
    Number(u64, bool),
    /// Text, to compare with.
    Text(Vec<u8>),
    /// A variable.
    Name(String),
    /// So many bytes of a register.
    Register(u8, u8),
    /// `$retval`.
    Returned,
    /// `$arg1` and so on, from 1.
    Argument(u8),
    /// `$current`.
    Current,
    /// `$stack`.
    Stack,
    /// `this_cpu_read(x)`, `this_cpu_ptr(x)`.
    OfCpu(OfCpu),
    /// `(struct s *)p`, `(s)p`, `(s,member)p`.
    Cast(Box<Node>, Cast),
    /// `s.f`.
    Member(Box<Node>, String),
    /// `p->f`.
    Arrow(Box<Node>, String),
    /// `a[i]`.
    Index(Box<Node>, Box<Node>),
    /// `*p`.
    Dereferenced(Box<Node>),
    /// `&x`.
    Address(Box<Node>),
    /// `-x`, `~x`, `!x`.
    Unary(&'static str, Box<Node>),
    /// `x + y`.
    Binary(&'static str, Box<Node>, Box<Node>),
}

/// A variable of which each processor has its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfCpu {
    pub name: String,
    /// Where that begins.
    pub at: usize,
    /// Whether its address is meant.
    pub is_address: bool,
}

/// What a pointer is said to lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cast {
    /// The structure.
    pub to: String,
    /// Where its name begins.
    pub at: usize,
    /// The member of it that the pointer leads to, as names one inside the other, and where the first begins; without, it leads to the whole.
    pub from: Option<(Vec<String>, usize)>,
}

/// How a value is to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Format {
    /// `u32`, `string`.
    pub name: String,
    /// The number in brackets after it.
    pub length: Option<u64>,
    /// The number in brackets after that.
    pub count: Option<u64>,
    /// Where it begins.
    pub at: usize,
}

/// `name=expression:format`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fetch {
    pub name: String,
    pub node: Node,
    pub format: Option<Format>,
}

/// Reads a fetch.
pub(super) fn fetch(text: &str) -> Result<Fetch, Misfit> {
    let mut parser = Parser::new(text)?;
    let name = parser.given_name();
    let node = parser.expression(0)?;
    let format = parser.format()?;
    parser.end()?;
    let name = name.unwrap_or_else(|| node.text.clone());
    Ok(Fetch { name, node, format })
}

/// Reads a condition.
pub(super) fn condition(text: &str) -> Result<Node, Misfit> {
    let mut parser = Parser::new(text)?;
    let node = parser.expression(0)?;
    parser.end()?;
    Ok(node)
}

/// How closely an operator binds; the same as in C.
fn strength(sign: &str) -> Option<u8> {
    Some(match sign {
        "||" => 1,
        "&&" => 2,
        "|" => 3,
        "^" => 4,
        "&" => 5,
        "==" | "!=" => 6,
        "<" | "<=" | ">" | ">=" => 7,
        "<<" | ">>" => 8,
        "+" | "-" => 9,
        "*" | "/" | "%" => 10,
        _ => return None,
    })
}

pub(super) struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    pub(super) next: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, Misfit> {
        Ok(Self {
            text,
            tokens: tokens(text)?,
            next: 0,
            depth: 0,
        })
    }

    pub(super) fn peek(&self) -> &Word {
        self.tokens
            .get(self.next)
            .map_or(&Word::End, |token| &token.word)
    }

    pub(super) fn take(&mut self) -> Word {
        let word = self.peek().clone();
        self.next += 1;
        word
    }

    pub(super) fn accept(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.peek(), Word::Sign(found) if *found == sign);
        self.next += usize::from(is_it);
        is_it
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<(), Misfit> {
        if self.accept(sign) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{sign}`")))
    }

    /// Where the next word begins.
    pub(super) fn at(&self) -> usize {
        let token = self.tokens.get(self.next);
        token.map_or(self.text.len(), |token| token.start)
    }

    /// Whether this sign follows the next word.
    pub(super) fn is_next_but_one(&self, sign: &str) -> bool {
        let token = self.tokens.get(self.next + 1);
        token.is_some_and(|token| matches!(token.word, Word::Sign(found) if found == sign))
    }

    fn end(&mut self) -> Result<(), Misfit> {
        match self.peek() {
            Word::End => Ok(()),
            _ => Err(self.unexpected("an operator or the end")),
        }
    }

    /// What stands at the next word is not what belongs there.
    pub(super) fn unexpected(&self, wanted: &str) -> Misfit {
        let token = self.tokens.get(self.next);
        let found = token.and_then(|token| self.text.get(token.start..token.end));
        let found = match found {
            None | Some("") => "the end".to_owned(),
            Some(found) => format!("`{found}`"),
        };
        self.wrong(format!("expected {wanted}, found {found}"))
    }

    /// What is wrong at the next word.
    fn wrong(&self, what: String) -> Misfit {
        let token = self.tokens.get(self.next);
        Misfit {
            at: token.map_or(self.text.len(), |token| token.start),
            why: BadProbe::Syntax {
                text: self.text.to_owned(),
                what,
            },
        }
    }

    /// `name=` at the beginning.
    fn given_name(&mut self) -> Option<String> {
        let Word::Name(name) = self.peek() else {
            return None;
        };
        let name = name.clone();
        let is_given = matches!(
            self.tokens.get(self.next + 1),
            Some(token) if token.word == Word::Sign("=")
        );
        self.next += if is_given { 2 } else { 0 };
        is_given.then_some(name)
    }

    fn format(&mut self) -> Result<Option<Format>, Misfit> {
        if !self.accept(":") {
            return Ok(None);
        }
        let Word::Name(name) = self.peek().clone() else {
            return Err(self.unexpected("a type"));
        };
        let at = self.tokens.get(self.next).map_or(0, |token| token.start);
        self.next += 1;
        let length = self.bracketed()?;
        let count = match length {
            Some(_) => self.bracketed()?,
            None => None,
        };
        Ok(Some(Format {
            name,
            length,
            count,
            at,
        }))
    }

    /// A number in brackets, if there are some.
    fn bracketed(&mut self) -> Result<Option<u64>, Misfit> {
        if !self.accept("[") {
            return Ok(None);
        }
        let Word::Number(number, _) = *self.peek() else {
            return Err(self.unexpected("a length"));
        };
        self.next += 1;
        self.expect("]")?;
        Ok(Some(number))
    }

    /// The text from where the token `start` begins up to the last one that was taken.
    fn node(&self, start: usize, what: What) -> Node {
        let from = self.tokens.get(start).map_or(0, |token| token.start);
        let last = self.next.checked_sub(1);
        let to = last.and_then(|last| self.tokens.get(last));
        let text = self.text.get(from..to.map_or(from, |token| token.end));
        Node {
            text: text.unwrap_or_default().to_owned(),
            at: from,
            what,
        }
    }

    fn deeper<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, Misfit>,
    ) -> Result<T, Misfit> {
        if self.depth >= DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} expressions lie in each other");
            return Err(self.wrong(what));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Operators that bind more closely than `weakest`.
    fn expression(&mut self, weakest: u8) -> Result<Node, Misfit> {
        self.deeper(|parser| {
            let start = parser.next;
            let mut left = parser.unary()?;
            let mut joined = 0;
            while let Word::Sign(sign) = *parser.peek()
                && let Some(strength) = strength(sign).filter(|strength| *strength > weakest)
            {
                joined += 1;
                if joined > DEPTH_MAX {
                    return Err(parser.unexpected("fewer operators in one expression"));
                }
                parser.next += 1;
                let right = parser.expression(strength)?;
                let what = What::Binary(sign, Box::new(left), Box::new(right));
                left = parser.node(start, what);
            }
            Ok(left)
        })
    }

    fn unary(&mut self) -> Result<Node, Misfit> {
        self.deeper(|parser| {
            let start = parser.next;
            let Word::Sign(sign) = *parser.peek() else {
                return parser.postfix();
            };
            if !matches!(sign, "*" | "&" | "-" | "~" | "!") {
                return parser.postfix();
            }
            parser.next += 1;
            let inner = Box::new(parser.unary()?);
            let what = match sign {
                "*" => What::Dereferenced(inner),
                "&" => What::Address(inner),
                _ => What::Unary(sign, inner),
            };
            Ok(parser.node(start, what))
        })
    }

    fn postfix(&mut self) -> Result<Node, Misfit> {
        let start = self.next;
        let mut node = self.primary()?;
        for _ in 0..DEPTH_MAX {
            let inner = Box::new(node.clone());
            let what = if self.accept("[") {
                let index = self.expression(0)?;
                self.expect("]")?;
                What::Index(inner, Box::new(index))
            } else if self.accept(".") {
                What::Member(inner, self.member()?)
            } else if self.accept("->") {
                What::Arrow(inner, self.member()?)
            } else {
                return Ok(node);
            };
            node = self.node(start, what);
        }
        Err(self.unexpected("fewer members in one expression"))
    }

    fn member(&mut self) -> Result<String, Misfit> {
        match self.peek().clone() {
            Word::Name(name) => {
                self.next += 1;
                Ok(name)
            }
            Word::Number(number, _) => {
                self.next += 1;
                Ok(number.to_string())
            }
            _ => Err(self.unexpected("a member's name")),
        }
    }

    fn primary(&mut self) -> Result<Node, Misfit> {
        let start = self.next;
        let what = match self.peek().clone() {
            Word::Number(number, other) => What::Number(number, other),
            Word::Text(text) => What::Text(text),
            Word::Name(name) => {
                if let Some(of_cpu) = self.of_cpu(&name)? {
                    return Ok(self.node(start, What::OfCpu(of_cpu)));
                }
                What::Name(name)
            }
            Word::Register(number, bytes) => What::Register(number, bytes),
            Word::Special(name) => special(&name).map_err(|why| {
                let at = self.tokens.get(self.next).map_or(0, |token| token.start);
                Misfit { at, why }
            })?,
            Word::Sign("(") => {
                if let Some((cast, is_c)) = self.cast() {
                    // The kernel's casts bind more closely than its arrows, C's less.
                    let of = match is_c {
                        true => self.unary()?,
                        false => self.deeper(Self::primary)?,
                    };
                    return Ok(self.node(start, What::Cast(Box::new(of), cast)));
                }
                self.next += 1;
                let inner = self.expression(0)?;
                self.expect(")")?;
                return Ok(self.node(start, inner.what));
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.take();
        Ok(self.node(start, what))
    }
}

fn special(name: &str) -> Result<What, BadProbe> {
    match name {
        "retval" => return Ok(What::Returned),
        "current" => return Ok(What::Current),
        "stack" => return Ok(What::Stack),
        _ => {}
    }
    let number = name.strip_prefix("arg").and_then(|rest| rest.parse().ok());
    let number = number.filter(|number| (1..=ARGUMENTS_MAX).contains(number));
    number.map(What::Argument).ok_or_else(|| BadProbe::Special {
        name: name.to_owned(),
    })
}

/// Arguments that can be named by their number.
pub(super) const ARGUMENTS_MAX: u8 = 16;
