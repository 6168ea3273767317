//! What records take in memory beside themselves: a value of one byte in a file is one of 24 here, and a record has up to 4096.

use crate::columns::Part;
use crate::event::{CallValues, Passed, Record, RecordKind, weight};
use crate::host::HostStep;

/// Bytes that all of these take beside themselves. Steps of a graph take none.
pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a Part>) -> usize {
    let rows = parts.into_iter().map(|part| match part {
        Part::Rows(rows) => rows.as_slice(),
        Part::Steps(_) => &[],
    });
    rows.flatten().map(of_record).sum()
}

fn of_record(record: &Record) -> usize {
    match &record.kind {
        RecordKind::Point(passed) => size_of::<Passed>() + weight(&passed.values),
        RecordKind::Captured(call) => size_of::<CallValues>() + weight(&call.values),
        RecordKind::Host(_) => size_of::<HostStep>(),
        RecordKind::Entry(_)
        | RecordKind::Called { .. }
        | RecordKind::Graph { .. }
        | RecordKind::Lost(_)
        | RecordKind::Stall(_)
        | RecordKind::Wait { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use terms::event_format::EventId;
    use terms::field::FieldValue;

    use super::*;
    use crate::event::Values;

    #[test]
    fn what_values_take_is_known() {
        let text = FieldValue::of_text(b"abc", false);
        let stack = FieldValue::Stack {
            stack: ["a".into(), "".into()].into(),
            truncated: false,
        };
        let values: Values = [FieldValue::Bool(true), text, stack].into();
        let point = Record {
            time_ns: 1,
            kind: RecordKind::Point(Box::new(Passed {
                event: EventId(0),
                values,
            })),
        };
        let loss = Record {
            time_ns: 1,
            kind: RecordKind::Lost(1),
        };
        let fixed = size_of::<Passed>() + 2 * size_of::<usize>();
        let each = 3 * size_of::<FieldValue>() + 3 + 2 * size_of::<Box<str>>() + 1;
        assert_eq!(of(&[Part::Rows(vec![point, loss])]), fixed + each);
    }
}
