//! What a user has chosen to see, and what keys change of it.

use std::cmp::Ordering;

use super::counted::{Row, Since};
use super::keys::Key;
use super::table::heaviest_first;

/// A column, by which rows can be in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Calls.
    Hits,
    /// Calls a second.
    Rate,
    /// Time without that of traced calls inside.
    Own,
    /// The same of each second.
    Load,
    /// Time from entries to exits.
    Total,
    /// The same of a call.
    Average,
    /// The function's name.
    Name,
}

impl Column {
    /// From left to right.
    pub const ALL: [Self; 7] = [
        Self::Hits,
        Self::Rate,
        Self::Own,
        Self::Load,
        Self::Total,
        Self::Average,
        Self::Name,
    ];

    /// What stands above it.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Hits => "HITS",
            Self::Rate => "HITS/S",
            Self::Own => "SELF",
            Self::Load => "SELF/S",
            Self::Total => "TOTAL",
            Self::Average => "AVG",
            Self::Name => "FUNCTION",
        }
    }

    fn beside(self, right: bool) -> Self {
        let step = if right { 1 } else { Self::ALL.len() - 1 };
        let at = Self::ALL.iter().position(|column| *column == self);
        let at = (at.unwrap_or(0) + step) % Self::ALL.len();
        Self::ALL.get(at).copied().unwrap_or(self)
    }
}

/// A row with what came of it since the look before.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// What is known of it.
    pub row: &'a Row,
    /// Calls a second.
    pub rate: Option<u64>,
    /// Nanoseconds of self time a second.
    pub load: Option<u64>,
}

/// What is to be done that is more than to show something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Nothing,
    /// To end.
    End,
    /// Another session: so many after this one.
    Session(i32),
}

/// What is seen.
#[derive(Debug, Clone)]
pub struct View {
    /// The column by which rows are in order.
    pub column: Column,
    /// Least first.
    pub is_reversed: bool,
    /// Only names that contain it.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// Nothing new is shown.
    pub is_paused: bool,
    /// The function whose callers are shown.
    pub callers_of: Option<String>,
    /// The row that is chosen.
    pub selected: usize,
    /// Rows that are there to be chosen from.
    count: usize,
    /// Rows of a screen.
    page: usize,
}

impl Default for View {
    fn default() -> Self {
        Self {
            column: Column::Own,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            callers_of: None,
            selected: 0,
            count: 0,
            page: 1,
        }
    }
}

impl View {
    /// The rows that are seen, in order.
    #[must_use]
    pub fn shown<'a>(&self, rows: &'a [Row], since: Option<&Since<'_>>) -> Vec<Shown<'a>> {
        let shown = |row: &'a Row| Shown {
            row,
            rate: since.map(|since| since.hits_per_second(row)),
            load: since.and_then(|since| since.self_ns_per_second(row)),
        };
        // The filter is about functions: of one whose callers are asked for, all are shown.
        let is_wanted = |row: &&Row| self.callers_of.is_some() || row.name.contains(&self.filter);
        let mut shown: Vec<_> = rows.iter().filter(is_wanted).map(shown).collect();
        shown.sort_by(|one, other| {
            let order = self.order(one, other);
            let order = if self.is_reversed {
                order.reverse()
            } else {
                order
            };
            order.then_with(|| heaviest_first(one.row, other.row))
        });
        shown
    }

    /// There are so many rows, and so many of them fit on the screen.
    pub fn fit(&mut self, count: usize, page: usize) {
        (self.count, self.page) = (count, page.max(1));
        self.selected = self.selected.min(count.saturating_sub(1));
    }

    /// A key; `chosen` is the name in the row that is chosen.
    pub fn press(&mut self, key: Key, chosen: Option<&str>) -> Wish {
        match key {
            Key::Interrupt => return Wish::End,
            _ if self.is_typing => self.type_filter(key),
            Key::Char('q') => return Wish::End,
            Key::Tab(step) => return Wish::Session(step),
            Key::Char(char) => self.choose(char),
            Key::Enter => self.drill(chosen),
            Key::Escape | Key::Backspace => self.back(),
            Key::Move(rows) => self.walk(rows.signum(), 1),
            Key::Page(screens) => self.walk(screens.signum(), self.page),
            Key::First => self.selected = 0,
            Key::Last => self.selected = self.count.saturating_sub(1),
        }
        Wish::Nothing
    }

    /// Shows another session.
    pub fn begin_anew(&mut self) {
        self.callers_of = None;
        self.selected = 0;
        self.is_paused = false;
    }

    fn choose(&mut self, char: char) {
        match char {
            ' ' | 'p' => self.is_paused = !self.is_paused,
            '/' => self.is_typing = true,
            '>' | '.' => self.column = self.column.beside(true),
            '<' | ',' => self.column = self.column.beside(false),
            'r' => self.is_reversed = !self.is_reversed,
            'j' => self.walk(1, 1),
            'k' => self.walk(-1, 1),
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(char) => self.filter.push(char),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        self.selected = 0;
    }

    fn drill(&mut self, chosen: Option<&str>) {
        if let Some(chosen) = chosen.filter(|_| self.callers_of.is_none()) {
            self.callers_of = Some(chosen.to_owned());
            self.selected = 0;
        }
    }

    fn back(&mut self) {
        if self.callers_of.take().is_none() {
            self.filter.clear();
        }
        self.selected = 0;
    }

    fn walk(&mut self, direction: i32, rows: usize) {
        let last = self.count.saturating_sub(1);
        self.selected = match direction {
            ..0 => self.selected.saturating_sub(rows),
            _ => self.selected.saturating_add(rows).min(last),
        };
    }

    /// Most first; names from a to z.
    fn order(&self, one: &Shown<'_>, other: &Shown<'_>) -> Ordering {
        let key = |of: &Shown<'_>| match self.column {
            Column::Hits => Some(of.row.hits),
            Column::Rate => of.rate,
            Column::Own => Some(of.row.weight().0),
            Column::Load => of.load,
            Column::Total => of.row.timed.map(|_| of.row.total_ns),
            Column::Average => of.row.average_ns(),
            Column::Name => None,
        };
        match self.column {
            Column::Name => one.row.name.cmp(&other.row.name),
            _ => key(other).cmp(&key(one)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |name: &str, hits, total_ns, self_ns| Row {
            key: name.to_owned(),
            name: name.to_owned(),
            hits,
            timed: Some(hits),
            total_ns,
            self_ns: Some(self_ns),
            clamped: None,
        };
        vec![
            row("vfs_open", 10, 1000, 100),
            row("vfs_read", 5, 900, 900),
            row("getname", 100, 200, 200),
        ]
    }

    fn names(view: &View, rows: &[Row]) -> Vec<String> {
        let shown = view.shown(rows, None);
        shown.iter().map(|shown| shown.row.name.clone()).collect()
    }

    fn press(view: &mut View, keys: &str) {
        for char in keys.chars() {
            assert_eq!(view.press(Key::Char(char), None), Wish::Nothing);
        }
    }

    #[test]
    fn columns_are_chosen_one_beside_the_other_and_reversed() {
        let (rows, mut view) = (rows(), View::default());
        assert_eq!(names(&view, &rows), ["vfs_read", "getname", "vfs_open"]);
        press(&mut view, ">>");
        assert_eq!(view.column, Column::Total);
        assert_eq!(names(&view, &rows), ["vfs_open", "vfs_read", "getname"]);
        press(&mut view, "r");
        assert_eq!(names(&view, &rows), ["getname", "vfs_read", "vfs_open"]);
        press(&mut view, "r>");
        assert_eq!(names(&view, &rows), ["vfs_read", "vfs_open", "getname"]);
        press(&mut view, ">");
        assert_eq!(names(&view, &rows), ["getname", "vfs_open", "vfs_read"]);
        press(&mut view, ">");
        assert_eq!(view.column, Column::Hits);
        assert_eq!(names(&view, &rows), ["getname", "vfs_open", "vfs_read"]);
        press(&mut view, "<");
        assert_eq!(view.column, Column::Name);
    }

    #[test]
    fn a_filter_is_typed_kept_and_taken_back() {
        let (rows, mut view) = (rows(), View::default());
        press(&mut view, "/vfs_q");
        assert!(names(&view, &rows).is_empty() && view.is_typing);
        view.press(Key::Backspace, None);
        view.press(Key::Enter, None);
        assert_eq!(names(&view, &rows), ["vfs_read", "vfs_open"]);
        press(&mut view, "r");
        assert_eq!(view.filter, "vfs_");
        view.press(Key::Escape, None);
        assert_eq!(names(&view, &rows).len(), 3);
        press(&mut view, "/x");
        view.press(Key::Escape, None);
        assert!(view.filter.is_empty() && !view.is_typing);
    }

    #[test]
    fn callers_are_gone_into_and_come_back_from_whatever_the_filter() {
        let (rows, mut view) = (rows(), View::default());
        press(&mut view, "/vfs");
        view.press(Key::Enter, Some("vfs_read"));
        assert_eq!(view.callers_of, None);
        view.press(Key::Enter, Some("vfs_read"));
        assert_eq!(view.callers_of.as_deref(), Some("vfs_read"));
        assert_eq!(names(&view, &rows).len(), 3);
        view.press(Key::Enter, Some("getname"));
        assert_eq!(view.callers_of.as_deref(), Some("vfs_read"));
        view.press(Key::Escape, None);
        assert_eq!(
            (view.callers_of.as_deref(), view.filter.as_str()),
            (None, "vfs")
        );
    }

    #[test]
    fn the_chosen_row_stays_among_those_that_are_there() {
        let mut view = View::default();
        view.fit(3, 2);
        view.press(Key::Move(-1), None);
        assert_eq!(view.selected, 0);
        press(&mut view, "j");
        assert_eq!(view.selected, 1);
        view.press(Key::Page(1), None);
        assert_eq!(view.selected, 2);
        view.press(Key::Page(-1), None);
        assert_eq!(view.selected, 0);
        view.press(Key::Last, None);
        assert_eq!(view.selected, 2);
        view.fit(1, 2);
        assert_eq!(view.selected, 0);
        view.fit(0, 0);
        press(&mut view, "jk");
        assert_eq!(view.selected, 0);
    }

    #[test]
    fn it_ends_by_q_or_ctrl_c_and_ctrl_c_also_while_a_filter_is_typed() {
        let mut view = View::default();
        assert_eq!(view.press(Key::Char('q'), None), Wish::End);
        assert_eq!(view.press(Key::Tab(-1), None), Wish::Session(-1));
        press(&mut view, "/q p");
        assert_eq!((view.filter.as_str(), view.is_paused), ("q p", false));
        assert_eq!(view.press(Key::Interrupt, None), Wish::End);
        view.press(Key::Enter, None);
        press(&mut view, " ");
        assert!(view.is_paused);
        view.begin_anew();
        assert!(!view.is_paused);
    }
}
