//! Location expressions, as places: the stack machine of DWARF with expressions in place of numbers.

use gimli::{DebugAddrIndex, Expression as Program, Operation, Reader, UnitOffset};
use terms::addr::Gva;
use terms::expression::{Expression, Operator};

use super::place::{Piece, Place, extended};
use super::sections::Bytes;
use super::shape::Shape;
use super::units::{Dwarf, Unit};

/// Operations of one expression, at most.
const OPERATIONS_MAX: usize = 512;
/// Numbers, registers and operations that a place is made of, at most.
const SIZE_MAX: usize = 512;
/// Expressions that need others.
const DEPTH_MAX: u32 = 8;

/// Why an expression is no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The value is nowhere.
    OptimisedOut,
    /// It is somewhere, but that cannot be said.
    Cannot(String),
}

fn cannot(why: &str) -> NoPlace {
    NoPlace::Cannot(why.to_owned())
}

/// What takes two numbers and gives one, in the order in which they are.
const fn operator(operation: &Operation<Bytes<'_>>) -> Option<Operator> {
    use Operator as O;
    Some(match operation {
        Operation::And => O::And,
        Operation::Or => O::Or,
        Operation::Xor => O::Xor,
        Operation::Plus => O::Add,
        Operation::Minus => O::Subtract,
        Operation::Mul => O::Multiply,
        Operation::Div => O::DivideSigned,
        Operation::Mod => O::Remainder,
        Operation::Shl => O::ShiftLeft,
        Operation::Shr => O::ShiftRight,
        Operation::Shra => O::ShiftRightSigned,
        Operation::Eq => O::Equal,
        Operation::Ne => O::NotEqual,
        Operation::Lt => O::LessSigned,
        Operation::Le => O::LessOrEqualSigned,
        _ => return None,
    })
}

/// What an expression is worked out against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'u, 'a> {
    pub dwarf: &'u Dwarf<'a>,
    pub unit: &'u Unit<'a>,
    /// The program counter.
    pub at: u64,
    /// Whether that is the first instruction of the function.
    pub is_entry: bool,
    /// What the function says its frame base is.
    pub base: Option<Program<Bytes<'a>>>,
}

/// An expression and how much it is made of.
type Sized = (Expression, usize);

/// The number that instructions have for DWARF's register.
pub(super) fn register(dwarf: u16) -> Result<Expression, NoPlace> {
    const NUMBERS: [u8; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
    match NUMBERS.get(usize::from(dwarf)) {
        Some(number) => Ok(Expression::Register(*number)),
        None if (17..=32).contains(&dwarf) => Err(NoPlace::Cannot(format!(
            "it is in the vector register xmm{}, which probes do not read",
            dwarf - 17
        ))),
        None => Err(NoPlace::Cannot(format!(
            "it is in register {dwarf} of DWARF, which probes do not read"
        ))),
    }
}

/// What has been worked out so far.
#[derive(Default)]
struct Machine {
    stack: Vec<Sized>,
    pieces: Vec<Piece>,
    /// A place that is not made of the stack.
    place: Option<Option<Place>>,
}

impl<'a> Frame<'_, 'a> {
    /// Where the value is that this expression is about.
    pub fn place(&self, program: Program<Bytes<'a>>) -> Result<Place, NoPlace> {
        self.worked_out(program, 0)
    }

    fn worked_out(&self, program: Program<Bytes<'a>>, depth: u32) -> Result<Place, NoPlace> {
        let mut machine = Machine::default();
        self.run(program, depth, &mut machine)?;
        let whole = machine.take()?;
        if machine.pieces.is_empty() {
            return whole.ok_or(NoPlace::OptimisedOut);
        }
        if machine.pieces.iter().all(|piece| piece.place.is_none()) {
            return Err(NoPlace::OptimisedOut);
        }
        Ok(Place::Pieces(machine.pieces))
    }

    /// The number that an expression leaves on the stack.
    fn number(&self, program: Program<Bytes<'a>>, depth: u32) -> Result<Sized, NoPlace> {
        if depth > DEPTH_MAX {
            return Err(cannot("its expression needs itself"));
        }
        match self.worked_out(program, depth + 1)? {
            // A register names itself; everything else is an address.
            Place::Memory(value) | Place::Value(value) => Ok((value.clone(), size_of(&value))),
            Place::Pieces(_) => Err(cannot("its expression is in pieces where one is needed")),
        }
    }

    fn run(
        &self,
        program: Program<Bytes<'a>>,
        depth: u32,
        machine: &mut Machine,
    ) -> Result<(), NoPlace> {
        let mut operations = program.operations(self.unit.encoding());
        for _ in 0..OPERATIONS_MAX {
            match operations.next() {
                Ok(Some(operation)) => self.step(operation, depth, machine)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(NoPlace::Cannot(format!("damaged: {error}"))),
            }
        }
        Err(cannot("its expression is too long"))
    }

    /// Where an address of the file is while the kernel runs.
    fn runs(&self, address: u64) -> u64 {
        self.dwarf.slide.runs(Gva(address)).0
    }

    /// An entry of the file's table of addresses.
    fn indexed(&self, index: DebugAddrIndex<usize>) -> Result<u64, NoPlace> {
        let value = self.dwarf.sections.address(self.unit, index);
        value.map_err(|error| NoPlace::Cannot(error.to_string()))
    }

    fn step(
        &self,
        operation: Operation<Bytes<'a>>,
        depth: u32,
        machine: &mut Machine,
    ) -> Result<(), NoPlace> {
        if machine.calculate(&operation)? || machine.locate(&operation)? {
            return Ok(());
        }
        let generic = |base_type: UnitOffset| base_type == UnitOffset(0);
        match operation {
            Operation::Nop => {}
            Operation::Address { address } => machine.constant(self.runs(address)),
            Operation::AddressIndex { index } => {
                let address = self.indexed(index)?;
                machine.constant(self.runs(address));
            }
            Operation::ConstantIndex { index } => machine.constant(self.indexed(index)?),
            Operation::RegisterOffset {
                register: number,
                offset,
                base_type,
            } => {
                let value = register(number.0)?.offset(offset);
                machine.push(value, 2)?;
                if !generic(base_type) {
                    self.convert(base_type, machine)?;
                }
            }
            Operation::FrameOffset { offset } => {
                let base = self
                    .base
                    .ok_or_else(|| cannot("its function has no frame base"))?;
                let (base, size) = self.number(base, depth)?;
                machine.push(base.offset(offset), size + 1)?;
            }
            Operation::CallFrameCFA => {
                let (cfa, size) = self.cfa(depth)?;
                machine.push(cfa, size)?;
            }
            Operation::Convert { base_type } if generic(base_type) => {}
            Operation::Convert { base_type } | Operation::Reinterpret { base_type } => {
                self.convert(base_type, machine)?;
            }
            Operation::EntryValue { expression } if self.is_entry => {
                let (value, size) = self.number(Program(expression), depth)?;
                machine.push(value, size)?;
            }
            Operation::EntryValue { .. } => return Err(NoPlace::OptimisedOut),
            Operation::TLS => return Err(cannot("it is one of each thread")),
            Operation::Bra { .. } | Operation::Skip { .. } => {
                return Err(cannot("its expression has branches"));
            }
            _ => return Err(cannot("its expression does what probes cannot do")),
        }
        Ok(())
    }

    /// Has the top of the stack be a number of a type.
    fn convert(&self, base_type: UnitOffset, machine: &mut Machine) -> Result<(), NoPlace> {
        let at = base_type.to_debug_info_offset(&self.unit.header);
        let shape = at.and_then(|at| self.dwarf.shape(at.0).ok());
        let Some(Shape::Number { kind, signed, .. }) = shape else {
            return Err(cannot(
                "its expression computes with what is no whole number",
            ));
        };
        let bits = u8::try_from(8 * kind.bytes()).unwrap_or(64);
        let (value, size) = machine.pop()?;
        machine.push(extended(value, bits, signed), size + 1)
    }

    /// The canonical frame address.
    fn cfa(&self, depth: u32) -> Result<Sized, NoPlace> {
        const RSP: u8 = 4;
        if self.is_entry {
            // Right above the return address.
            return Ok((Expression::Register(RSP).offset(8), 2));
        }
        if depth > DEPTH_MAX {
            return Err(cannot("its expression needs itself"));
        }
        match super::frame::cfa(self.dwarf.files, self.at) {
            Some(super::frame::Cfa::Register(number, offset)) => {
                Ok((register(number)?.offset(offset), 2))
            }
            Some(super::frame::Cfa::Program(program)) => self.number(Program(program), depth + 1),
            None => Err(cannot(
                "it lies in the function's frame, and nothing says where that is (no .debug_frame or .eh_frame)",
            )),
        }
    }
}

impl Machine {
    /// Does what needs nothing but the numbers on the stack. Says whether `operation` is such.
    fn calculate(&mut self, operation: &Operation<Bytes<'_>>) -> Result<bool, NoPlace> {
        use Operator as O;
        match *operation {
            Operation::UnsignedConstant { value } => self.constant(value),
            Operation::SignedConstant { value } => self.constant(value.cast_unsigned()),
            Operation::TypedLiteral { ref value, .. } => self.constant(little_endian(value)?),
            Operation::Drop => drop(self.pop()?),
            Operation::Pick { index } => self.pick(usize::from(index))?,
            Operation::Swap => self.swap()?,
            Operation::Rot => {
                let (top, second, third) = (self.pop()?, self.pop()?, self.pop()?);
                self.stack.extend([top, third, second]);
            }
            Operation::Gt => {
                self.swap()?;
                self.apply(O::LessSigned)?;
            }
            Operation::Ge => {
                self.swap()?;
                self.apply(O::LessOrEqualSigned)?;
            }
            Operation::PlusConstant { value } => {
                let (left, size) = self.pop()?;
                self.push(left.offset(value.cast_signed()), size + 1)?;
            }
            Operation::Neg => {
                self.constant(0);
                self.swap()?;
                self.apply(O::Subtract)?;
            }
            Operation::Not => {
                self.constant(u64::MAX);
                self.apply(O::Xor)?;
            }
            Operation::Abs => self.absolute()?,
            Operation::Deref {
                size, space: false, ..
            } => {
                let (address, nodes) = self.pop()?;
                if !matches!(size, 1 | 2 | 4 | 8) {
                    return Err(cannot("its expression reads a number of an odd size"));
                }
                self.push(address.load(size), nodes + 1)?;
            }
            _ => match operator(operation) {
                Some(operator) => self.apply(operator)?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// Notes where the value is. Says whether `operation` tells.
    fn locate(&mut self, operation: &Operation<Bytes<'_>>) -> Result<bool, NoPlace> {
        match *operation {
            Operation::Register { register: number } => {
                self.place = Some(Some(Place::Value(register(number.0)?)));
            }
            Operation::StackValue => {
                let (value, _) = self.pop()?;
                self.place = Some(Some(Place::Value(value)));
            }
            Operation::ImplicitValue { ref data } => {
                let value = Expression::Constant(little_endian(data)?);
                self.place = Some(Some(Place::Value(value)));
            }
            Operation::ImplicitPointer { .. } => self.place = Some(None),
            Operation::Piece {
                size_in_bits,
                bit_offset,
            } => {
                let place = self.take()?;
                self.pieces.push(Piece {
                    bits: size_in_bits,
                    skip: bit_offset.unwrap_or(0),
                    place: place.map(Box::new),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn push(&mut self, value: Expression, size: usize) -> Result<(), NoPlace> {
        if size > SIZE_MAX || self.stack.len() >= OPERATIONS_MAX {
            return Err(cannot("its expression is too large"));
        }
        self.stack.push((value, size));
        Ok(())
    }

    fn constant(&mut self, value: u64) {
        self.stack.push((Expression::Constant(value), 1));
    }

    fn pop(&mut self) -> Result<Sized, NoPlace> {
        self.stack
            .pop()
            .ok_or_else(|| cannot("damaged: its expression takes more than there is"))
    }

    fn pick(&mut self, index: usize) -> Result<(), NoPlace> {
        let at = self.stack.len().checked_sub(index + 1);
        let picked = at.and_then(|at| self.stack.get(at)).cloned();
        let (value, size) =
            picked.ok_or_else(|| cannot("damaged: its expression takes more than there is"))?;
        self.push(value, size)
    }

    fn swap(&mut self) -> Result<(), NoPlace> {
        let (last, before) = (self.pop()?, self.pop()?);
        self.stack.extend([last, before]);
        Ok(())
    }

    fn apply(&mut self, operator: Operator) -> Result<(), NoPlace> {
        let ((right, right_size), (left, left_size)) = (self.pop()?, self.pop()?);
        let size = left_size + right_size + 1;
        self.push(Expression::apply(operator, left, right), size)
    }

    /// |x| is (x ^ s) - s, where s is all sign.
    fn absolute(&mut self) -> Result<(), NoPlace> {
        let (value, size) = self.pop()?;
        let by = Expression::Constant(63);
        let sign = Expression::apply(Operator::ShiftRightSigned, value.clone(), by);
        let turned = Expression::apply(Operator::Xor, value, sign.clone());
        let value = Expression::apply(Operator::Subtract, turned, sign);
        self.push(value, 3 * size + 6)
    }

    /// The place that was described last: nothing described is nowhere.
    fn take(&mut self) -> Result<Option<Place>, NoPlace> {
        if let Some(place) = self.place.take() {
            return Ok(place);
        }
        Ok(self.stack.pop().map(|(address, _)| Place::Memory(address)))
    }
}

/// Numbers, registers and operations in an expression.
fn size_of(value: &Expression) -> usize {
    match value {
        Expression::Constant(_) | Expression::Register(_) | Expression::Own(_) => 1,
        Expression::Load { address, .. } => 1 + size_of(address),
        Expression::Extend { value, .. } => 1 + size_of(value),
        Expression::Apply(_, left, right) => 1 + size_of(left) + size_of(right),
    }
}

fn little_endian(data: &Bytes<'_>) -> Result<u64, NoPlace> {
    let bytes = data
        .to_slice()
        .map_err(|error| NoPlace::Cannot(error.to_string()))?;
    let mut word = [0; 8];
    let fits = word.get_mut(..bytes.len());
    fits.ok_or_else(|| cannot("it is a constant of more than 64 bits"))?
        .copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(word))
}
