//! What the fields of events were: how many different values, which were most frequent, from what to what.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use terms::field::FieldValue;
use terms::printable::masked;

use super::rows::Rows;
use super::table::{Cell, Column, Table, Unit};
use crate::export::events::EventLine;

/// Values of a field that are told apart; of more only the range is known.
const DIFFERENT_MAX: usize = 4096;
/// Bytes of text that are kept to tell the values of a field apart: the guest chooses how long they are.
const TEXT_MAX: usize = 1 << 20;
/// Values that are named.
const NAMED: usize = 3;

/// The values of one field.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    /// How often each was there.
    of_value: HashMap<String, u64>,
    /// Bytes of text in it.
    text: usize,
    /// There were more than could be told apart.
    is_full: bool,
    /// Of numbers, from what to what.
    range: Option<(i128, i128)>,
}

impl Seen {
    fn add(&mut self, value: &FieldValue) {
        self.count += 1;
        if let Some(number) = number(value) {
            let (least, most) = self.range.unwrap_or((number, number));
            self.range = Some((least.min(number), most.max(number)));
        }
        let shown = value.to_string();
        if let Some(count) = self.of_value.get_mut(&shown) {
            *count += 1;
        } else if self.of_value.len() < DIFFERENT_MAX && self.text + shown.len() <= TEXT_MAX {
            self.text += shown.len();
            self.of_value.insert(shown, 1);
        } else {
            self.is_full = true;
        }
    }

    fn different(&self) -> Option<u64> {
        (!self.is_full).then_some(self.of_value.len() as u64)
    }

    /// The most frequent ones, or of many different numbers the range.
    fn shown(&self) -> String {
        let are_many = self.is_full || self.of_value.len() > NAMED;
        if let Some((least, most)) = self.range.filter(|_| are_many) {
            return format!("{least} to {most}");
        }
        if self.is_full {
            return format!("more than {} different ones", self.of_value.len());
        }
        let mut values: Vec<_> = self.of_value.iter().collect();
        values.sort_unstable_by_key(|(value, count)| (Reverse(**count), *value));
        let named = values.iter().take(NAMED);
        let named = named.map(|(value, count)| format!("{value} ({count})"));
        let more = if values.len() > NAMED { ", ..." } else { "" };
        named.collect::<Vec<_>>().join(", ") + more
    }
}

/// A value that is a number to people, too.
fn number(value: &FieldValue) -> Option<i128> {
    match value {
        FieldValue::Unsigned(number) => Some((*number).into()),
        FieldValue::Signed(number) => Some((*number).into()),
        _ => None,
    }
}

/// The values of all fields of all events, by event and field.
#[derive(Debug, Default)]
pub(super) struct Values(BTreeMap<String, BTreeMap<String, Seen>>);

impl Values {
    /// Of one more event.
    pub fn add(&mut self, line: &EventLine) {
        let Some(event) = &line.event else { return };
        change(&mut self.0, event, |fields| {
            for (field, value) in &line.fields.0 {
                change(fields, field, |seen| seen.add(value));
            }
        });
    }

    /// How many fields there were.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// What events there were.
    pub fn events(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.keys().map(String::as_str)
    }

    /// Of the events that are wanted, one row for each field.
    pub fn table(&self, wanted: &Rows) -> Table {
        let chosen = self.0.iter().filter(|(event, _)| wanted.have(Some(event)));
        let fields = chosen.flat_map(|(event, fields)| {
            let named = fields.iter();
            named.map(move |(field, seen)| (event, field, seen))
        });
        let row = |(event, field, seen): (&String, &String, &Seen)| {
            vec![
                seen.count.into(),
                seen.different().into(),
                Cell::name(format!("{}.{}", masked(event), masked(field))),
                Cell::name(seen.shown()),
            ]
        };
        Table {
            name: "values",
            columns: vec![
                Column::new("count", "COUNT", Unit::Number(14)),
                Column::new("different", "DIFFERENT", Unit::Number(14)),
                Column::new("field", "EVENT.FIELD", Unit::Name("")),
                Column::new("values", "= VALUES (HOW OFTEN)", Unit::Name("= ")),
            ],
            rows: fields.map(row).collect(),
            remarks: Vec::new(),
        }
    }
}

/// Changes what is known by this name, which is copied only the first time.
pub(super) fn change<T: Default>(
    known: &mut BTreeMap<String, T>,
    name: &str,
    change: impl FnOnce(&mut T),
) {
    match known.get_mut(name) {
        Some(one) => change(one),
        None => change(known.entry(name.to_owned()).or_default()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(values: impl IntoIterator<Item = FieldValue>) -> (Option<u64>, String) {
        let mut seen = Seen::default();
        values.into_iter().for_each(|value| seen.add(&value));
        (seen.different(), seen.shown())
    }

    #[test]
    fn few_values_are_named_the_most_frequent_first() {
        let numbers = [5, 3, 5, 3, 9, 5].map(FieldValue::Unsigned);
        assert_eq!(shown(numbers), (Some(3), "5 (3), 3 (2), 9 (1)".to_owned()));
        let text = |text: &str| FieldValue::of_text(text.as_bytes(), false);
        let texts = ["b", "a", "b", "c", "d"].map(text);
        let expected = r#""b" (2), "a" (1), "c" (1), ..."#;
        assert_eq!(shown(texts), (Some(4), expected.to_owned()));
        assert_eq!(
            shown([FieldValue::Fault]),
            (Some(1), "fault (1)".to_owned())
        );
    }

    #[test]
    fn of_more_than_can_be_told_apart_nothing_is_made_up() {
        let most = DIFFERENT_MAX as u64;
        let numbers = |count| shown((0..count).map(FieldValue::Unsigned));
        assert_eq!(numbers(most), (Some(most), "0 to 4095".to_owned()));
        assert_eq!(numbers(most + 1), (None, "0 to 4096".to_owned()));
        let texts = (0..=most).map(|n| FieldValue::of_text(n.to_string().as_bytes(), false));
        let expected = "more than 4096 different ones";
        assert_eq!(shown(texts), (None, expected.to_owned()));
    }

    #[test]
    fn long_texts_are_told_apart_until_they_are_too_much() {
        let length = TEXT_MAX / 8 - 2;
        let texts =
            |count: u8| (0..count).map(|n| FieldValue::of_text(&vec![b'a' + n; length], false));
        assert_eq!(shown(texts(8)).0, Some(8));
        let expected = "more than 8 different ones";
        assert_eq!(shown(texts(9)), (None, expected.to_owned()));
    }

    proptest! {
        #[test]
        fn a_range_has_all_numbers(numbers in prop::collection::vec(any::<i64>(), 4..20)) {
            let (different, text) = shown(numbers.iter().copied().map(FieldValue::Signed));
            let least = numbers.iter().min().unwrap();
            let most = numbers.iter().max().unwrap();
            prop_assume!(different > Some(3));
            prop_assert_eq!(text, format!("{least} to {most}"));
        }
    }
}
