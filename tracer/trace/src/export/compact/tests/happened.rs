//! What happens in a session, by a few numbers.

use super::*;

/// Values of a point or a call.
fn values(number: u64) -> Values {
    let text = FieldValue::of_text(format!("to{number}").as_bytes(), number.is_multiple_of(3));
    [FieldValue::Signed(number.cast_signed() - 3), text].into()
}

/// What happens on one ring of calls, by a few numbers.
pub(super) fn calls(seed: &[(u8, u16)], vcpu: u16, is_graph: bool, from_ns: u64) -> Vec<Record> {
    let mut time_ns = from_ns;
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut records = Vec::new();
    for (what, number) in seed {
        time_ns += u64::from(*number) << (what % 7);
        let function = FunctionId(u32::from(*number) % 320);
        let stack = 0xffff_8880_0000_0000 + u64::from(vcpu + u16::from(what % 5 == 0)) * STACK;
        let slot = stack + STACK - 64 - 64 * open.len() as u64;
        let kind = match (what % 11, is_graph) {
            (0, _) => RecordKind::Lost((*number % 3).into()),
            (5..=8, false) => RecordKind::Called {
                function,
                caller: slot | u64::from(*what),
            },
            (_, false) => RecordKind::Entry(function),
            (1..=5, true) => match open.pop() {
                Some((function, slot)) => RecordKind::Graph {
                    function: FunctionId(function),
                    step: Step::Exit,
                    slot,
                },
                None => continue,
            },
            (6, true) => RecordKind::Graph {
                function,
                step: Step::Unhooked,
                slot: slot - 64,
            },
            (7, true) if !open.is_empty() => RecordKind::Graph {
                function,
                step: Step::Tail,
                slot: open.last().unwrap().1,
            },
            (_, true) => {
                open.push((function.0, slot));
                RecordKind::Graph {
                    function,
                    step: Step::Entry,
                    slot,
                }
            }
        };
        records.push(Record { time_ns, kind });
    }
    records
}

/// The values of calls, right before each.
pub(super) fn captures(records: &[Record]) -> Vec<Record> {
    let capture = |record: &Record| match record.kind {
        RecordKind::Graph {
            function,
            step: step @ (Step::Entry | Step::Exit),
            slot,
        } if function.0 < 4 => Some(Record {
            time_ns: record.time_ns.saturating_sub(1),
            kind: RecordKind::Captured(Box::new(CallValues {
                function,
                moment: match step {
                    Step::Exit => Moment::Exit,
                    _ => Moment::Entry,
                },
                slot,
                values: values(record.time_ns),
            })),
        }),
        _ => None,
    };
    records.iter().filter_map(capture).collect()
}

/// What else happens: to the clock, on the host, at points.
pub(super) fn others(seed: &[(u8, u16)], from_ns: u64) -> Vec<(Origin, Record)> {
    let record = |(index, (what, number)): (usize, &(u8, u16))| {
        let vcpu = number % RINGS;
        let thread = HostThread {
            tid: 9,
            cpu: *number,
            rip: Gva(number.wrapping_mul(77).into()),
        };
        let (origin, kind) = match what % 6 {
            0 => (Origin::Clock, RecordKind::Stall(u64::from(*number) + 1)),
            1 => (
                Origin::Host(vcpu),
                RecordKind::Host(Box::new(HostStep::Entry(thread))),
            ),
            2 => (
                Origin::Host(vcpu),
                RecordKind::Host(Box::new(HostStep::Exit(thread, ExitReason::PortRead))),
            ),
            3 => (
                Origin::Points(vcpu),
                RecordKind::Lost(u64::from(*number % 4)),
            ),
            _ => (
                Origin::Points(vcpu),
                RecordKind::Point(Box::new(Passed {
                    event: EventId(0),
                    values: values((*number).into()),
                })),
            ),
        };
        let time_ns = from_ns + 50 * index as u64;
        (origin, Record { time_ns, kind })
    };
    seed.iter().enumerate().map(record).collect()
}
