//! Keys, as far as they mean something here.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Ctrl-C.
    Interrupt,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// So many rows down; negative is up.
    Move(i32),
    /// A screen down or up.
    Page(i32),
    /// To the first row.
    First,
    /// To the last row.
    Last,
    /// Tab, or back with Shift.
    Tab(i32),
}

impl Key {
    /// What an event of the terminal says.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) = event
        else {
            return None;
        };
        if modifiers.contains(KeyModifiers::CONTROL) {
            return (*code == KeyCode::Char('c')).then_some(Self::Interrupt);
        }
        Some(match code {
            KeyCode::Char(char) => Self::Char(*char),
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            KeyCode::Backspace => Self::Backspace,
            KeyCode::Down => Self::Move(1),
            KeyCode::Up => Self::Move(-1),
            KeyCode::PageDown => Self::Page(1),
            KeyCode::PageUp => Self::Page(-1),
            KeyCode::Home => Self::First,
            KeyCode::End => Self::Last,
            KeyCode::Tab => Self::Tab(1),
            KeyCode::BackTab => Self::Tab(-1),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_and_others_are_nothing() {
        let key = |code, modifiers| Key::of(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('c'), none), Some(Key::Char('c')));
        let control = KeyModifiers::CONTROL;
        assert_eq!(key(KeyCode::Char('c'), control), Some(Key::Interrupt));
        assert_eq!(key(KeyCode::Char('x'), control), None);
        assert_eq!(key(KeyCode::Up, none), Some(Key::Move(-1)));
        assert_eq!(
            key(KeyCode::BackTab, KeyModifiers::SHIFT),
            Some(Key::Tab(-1))
        );
        assert_eq!(key(KeyCode::F(5), none), None);
        assert_eq!(Key::of(&Event::FocusGained), None);
    }
}
