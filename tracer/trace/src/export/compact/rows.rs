//! Records that are rare beside calls, one by one, each with all that it says.
//!
//! ```text
//!  row     what it is (3 losses, 4 a point, 5 values of a call, 6 a stall, 7 the host, 8 a wait), the time since the record before
//!          (a number, zigzag), then what it says
//!  number  7 bits in a byte, the lowest first; the highest bit says that more follow
//! ```

use terms::addr::Gva;
use terms::event_format::EventId;
use terms::field::FieldValue;
use terms::function::FunctionId;

use super::bytes::{Bytes, Malformed, put_number, put_signed, put_text};
use crate::event::{CallValues, Moment, Passed, Record, RecordKind, Values};
use crate::host::{ExitReason, HostStep, HostThread};

/// Records of calls that stand together in columns.
pub(super) const GROUP: usize = 64;

/// What stands before each group or row.
pub(super) const CALLS: u8 = 1;
pub(super) const GRAPH: u8 = 2;
pub(super) const CALLED: u8 = 9;
const LOST: u8 = 3;
const POINT: u8 = 4;
const CAPTURED: u8 = 5;
const STALL: u8 = 6;
const HOST: u8 = 7;
const WAIT: u8 = 8;

/// Values of one record, at most.
const VALUES_MAX: u64 = 4096;
/// Callers that one stack can have, at most.
const STACK_MAX: u64 = 1024;

/// Adds a record; calls have columns of their own.
pub(super) fn encode(record: &Record, before_ns: u64, into: &mut Vec<u8>) {
    let tag = match record.kind {
        RecordKind::Entry(_) | RecordKind::Called { .. } | RecordKind::Graph { .. } => return,
        RecordKind::Lost(_) => LOST,
        RecordKind::Point(_) => POINT,
        RecordKind::Captured(_) => CAPTURED,
        RecordKind::Stall(_) => STALL,
        RecordKind::Host(_) => HOST,
        RecordKind::Wait { .. } => WAIT,
    };
    into.push(tag);
    put_signed(record.time_ns.wrapping_sub(before_ns).cast_signed(), into);
    match &record.kind {
        RecordKind::Entry(_) | RecordKind::Called { .. } | RecordKind::Graph { .. } => {}
        RecordKind::Lost(count) | RecordKind::Stall(count) => put_number(*count, into),
        RecordKind::Point(passed) => {
            put_number(passed.event.0.into(), into);
            put_values(&passed.values, into);
        }
        RecordKind::Captured(call) => {
            put_number(call.function.0.into(), into);
            into.push(call.moment as u8);
            put_number(call.slot, into);
            put_values(&call.values, into);
        }
        RecordKind::Host(step) => put_host(**step, into),
        RecordKind::Wait { vcpu, length_ns } => {
            put_number((*vcpu).into(), into);
            put_number(*length_ns, into);
        }
    }
}

/// The record after its first byte; none for a byte that begins no row.
pub(super) fn decode(tag: u8, before_ns: u64, from: &mut Bytes<'_>) -> Result<Record, Malformed> {
    if !(LOST..=WAIT).contains(&tag) {
        return Err(Malformed("no kind of record"));
    }
    let since = from.signed()?.cast_unsigned();
    let time_ns = before_ns.wrapping_add(since);
    let kind = match tag {
        LOST => RecordKind::Lost(from.number()?),
        STALL => RecordKind::Stall(from.number()?),
        POINT => RecordKind::Point(Box::new(Passed {
            event: EventId(from.number32()?),
            values: values(from)?,
        })),
        CAPTURED => RecordKind::Captured(Box::new(CallValues {
            function: FunctionId(from.number32()?),
            moment: match from.byte()? {
                0 => Moment::Entry,
                1 => Moment::Exit,
                _ => return Err(Malformed("no moment of a call")),
            },
            slot: from.number()?,
            values: values(from)?,
        })),
        HOST => RecordKind::Host(Box::new(host(from)?)),
        _ => RecordKind::Wait {
            vcpu: u16::try_from(from.number()?).map_err(|_| Malformed("no vCPU"))?,
            length_ns: from.number()?,
        },
    };
    Ok(Record { time_ns, kind })
}

fn put_values(values: &[FieldValue], into: &mut Vec<u8>) {
    put_number(values.len() as u64, into);
    for value in values {
        match value {
            FieldValue::Fault => into.push(0),
            FieldValue::Bool(is) => into.extend([1, u8::from(*is)]),
            FieldValue::Unsigned(number) => {
                into.push(2);
                put_number(*number, into);
            }
            FieldValue::Signed(number) => {
                into.push(3);
                put_signed(*number, into);
            }
            FieldValue::Pointer(at) => {
                into.push(4);
                put_number(at.0, into);
            }
            FieldValue::Character { char } => {
                into.push(5);
                put_number(u32::from(*char).into(), into);
            }
            FieldValue::Enumerator { name } => {
                into.push(6);
                put_text(name, into);
            }
            FieldValue::Text { text, truncated } => {
                into.push(7 + u8::from(*truncated));
                put_text(text, into);
            }
            FieldValue::Bytes { bytes } => {
                into.push(9);
                put_text(bytes, into);
            }
            FieldValue::Stack { stack, truncated } => {
                into.push(10 + u8::from(*truncated));
                put_number(stack.len() as u64, into);
                stack.iter().for_each(|one| put_text(one, into));
            }
        }
    }
}

fn values(from: &mut Bytes<'_>) -> Result<Values, Malformed> {
    let count = from.number()?;
    if count > VALUES_MAX {
        return Err(Malformed("more values than a record can have"));
    }
    (0..count).map(|_| value(from)).collect()
}

fn value(from: &mut Bytes<'_>) -> Result<FieldValue, Malformed> {
    Ok(match from.byte()? {
        0 => FieldValue::Fault,
        1 => FieldValue::Bool(from.byte()? != 0),
        2 => FieldValue::Unsigned(from.number()?),
        3 => FieldValue::Signed(from.signed()?),
        4 => FieldValue::Pointer(Gva(from.number()?)),
        5 => FieldValue::Character {
            char: char::from_u32(from.number32()?).ok_or(Malformed("no character"))?,
        },
        6 => FieldValue::Enumerator { name: from.text()? },
        truncated @ (7 | 8) => FieldValue::Text {
            text: from.text()?,
            truncated: truncated == 8,
        },
        9 => FieldValue::Bytes {
            bytes: from.text()?,
        },
        truncated @ (10 | 11) => {
            let count = from.number()?;
            if count > STACK_MAX {
                return Err(Malformed("a stack that is deeper than any"));
            }
            FieldValue::Stack {
                stack: (0..count).map(|_| from.text()).collect::<Result<_, _>>()?,
                truncated: truncated == 11,
            }
        }
        _ => return Err(Malformed("no kind of value")),
    })
}

fn put_host(step: HostStep, into: &mut Vec<u8>) {
    let (tag, thread) = match step {
        HostStep::Lost(count) => {
            into.push(0);
            return put_number(count.into(), into);
        }
        HostStep::Entry(thread) => (1, thread),
        HostStep::Exit(thread, reason) => (2 + reason as u8, thread),
    };
    into.push(tag);
    put_number(thread.tid.into(), into);
    put_number(thread.cpu.into(), into);
    put_number(thread.rip.0, into);
}

fn host(from: &mut Bytes<'_>) -> Result<HostStep, Malformed> {
    let tag = from.byte()?;
    if tag == 0 {
        return Ok(HostStep::Lost(from.number32()?));
    }
    let thread = HostThread {
        tid: from.number32()?,
        cpu: u16::try_from(from.number()?).map_err(|_| Malformed("no CPU"))?,
        rip: Gva(from.number()?),
    };
    if tag == 1 {
        return Ok(HostStep::Entry(thread));
    }
    let reason = ExitReason::ALL.get(usize::from(tag - 2));
    let reason = reason.ok_or(Malformed("no reason of an exit"))?;
    Ok(HostStep::Exit(thread, *reason))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_kind_of_value_and_step_comes_back() {
        let values: Values = [
            FieldValue::Fault,
            FieldValue::Bool(true),
            FieldValue::Unsigned(u64::MAX),
            FieldValue::Signed(-5),
            FieldValue::Signed(5),
            FieldValue::Pointer(Gva(0xffff_ffff_8100_0000)),
            FieldValue::Character { char: 'ÿ' },
            FieldValue::Enumerator { name: "RED".into() },
            FieldValue::of_text(b"eth\n0", false),
            FieldValue::of_text(b"", true),
            FieldValue::of_bytes(&[0, 255]),
        ]
        .into();
        let thread = HostThread {
            tid: 7,
            cpu: 300,
            rip: Gva(1 << 63),
        };
        let exits = ExitReason::ALL.map(|reason| HostStep::Exit(thread, reason));
        let steps = exits.into_iter();
        let steps = steps.chain([HostStep::Entry(thread), HostStep::Lost(u32::MAX)]);
        let mut kinds: Vec<RecordKind> = steps.map(|step| RecordKind::Host(step.into())).collect();
        let passed = Passed {
            event: EventId(3),
            values: Arc::clone(&values),
        };
        let call = |moment| CallValues {
            function: FunctionId(9),
            moment,
            slot: !7,
            values: Arc::clone(&values),
        };
        kinds.extend([
            RecordKind::Point(passed.into()),
            RecordKind::Captured(call(Moment::Entry).into()),
            RecordKind::Captured(call(Moment::Exit).into()),
            RecordKind::Stall(1),
            RecordKind::Wait {
                vcpu: 300,
                length_ns: u64::MAX,
            },
            RecordKind::Lost(u64::MAX),
        ]);
        for kind in kinds {
            for time_ns in [0, 5, u64::MAX] {
                let record = Record {
                    time_ns,
                    kind: kind.clone(),
                };
                let mut bytes = Vec::new();
                encode(&record, 5, &mut bytes);
                let mut from = Bytes::of(&bytes);
                let tag = from.byte().unwrap();
                assert_eq!(decode(tag, 5, &mut from), Ok(record));
                assert!(from.is_empty());
                for length in 1..bytes.len() {
                    let mut from = Bytes::of(&bytes[1..length]);
                    assert!(decode(tag, 5, &mut from).is_err(), "{length}");
                }
            }
        }
    }
}
