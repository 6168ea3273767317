//! The screen: what is known and what was chosen, drawn.

use std::path::Path;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row as Cells, Table, TableState};
use status::RingStatus;
use status::SessionStatus;
use terms::printable::masked;
use terms::quantity::{grouped, plain};

use super::counted::{Counted, Since};
use super::table::{average, time};
use super::view::{Column, Shown, View};
use crate::control::status::Status;

/// Lines above and below the rows: three of the header, what was chosen, the headings, the keys.
const AROUND: u16 = 6;
/// Cells of a number.
const NUMBER_WIDTH: u16 = 11;
const KEYS: &str =
    "q end  </> order  r reverse  / filter  enter callers  esc back  tab session  space hold";

/// What is drawn.
#[derive(Debug)]
pub struct Picture<'a> {
    /// What was chosen.
    pub view: &'a View,
    /// The guest.
    pub status: &'a Status,
    /// The session.
    pub session: &'a SessionStatus,
    /// Its functions.
    pub counted: &'a Counted,
    /// The same one look ago.
    pub before: Option<&'a Counted>,
    /// The rows that are seen, in order.
    pub shown: &'a [Shown<'a>],
    /// What there is to say.
    pub said: Option<&'a str>,
}

/// Rows that a screen of this height has room for.
#[must_use]
pub fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(AROUND))
}

/// Draws it.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture<'_>) {
    let heights = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [guest, session, lost, chosen, rows, keys] = Layout::vertical(heights).areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(guest_line(picture.status), bold), guest);
    frame.render_widget(Line::raw(session_line(picture)), session);
    frame.render_widget(Line::raw(lost_line(picture)), lost);
    frame.render_widget(Line::raw(chosen_line(picture)), chosen);
    draw_rows(frame, picture, rows);
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Line::styled(KEYS, dim), keys);
}

fn guest_line(status: &Status) -> String {
    let guest = &status.guest;
    let kernel = Path::new(&guest.kernel).file_name();
    let kernel = kernel.map_or(guest.kernel.as_str().into(), |name| name.to_string_lossy());
    let (seconds, tenths) = (guest.uptime_ms / 1000, guest.uptime_ms % 1000 / 100);
    let vcpus = plain(status.vcpus.len() as u64, "vCPU");
    let pauses = &status.pauses.released;
    let took = match pauses.count {
        0 => String::new(),
        _ => format!(", p50 {:.0} us, max {:.0} us", pauses.p50_us, pauses.max_us),
    };
    format!(
        "{}  {}  up {seconds}.{tenths} s  {vcpus}  {}{took}",
        masked(&kernel),
        guest.state,
        plain(pauses.count, "pause")
    )
}

fn session_line(picture: &Picture<'_>) -> String {
    let Picture {
        session, counted, ..
    } = picture;
    let rate = picture.before.map(|before| {
        let since = Since::new(before, counted);
        let rates = counted.rows.iter().map(|row| since.hits_per_second(row));
        let rate = rates.fold(0, u64::saturating_add);
        format!("  {}/s", grouped(rate))
    });
    format!(
        "session {} ({}, {})  {}{}",
        masked(&session.name),
        session.tracer,
        session.state,
        counted.summary(),
        rate.unwrap_or_default()
    )
}

/// What is in no count.
fn lost_line(picture: &Picture<'_>) -> String {
    let session = picture.session;
    let lost = lost(&session.rings).saturating_add(lost(&session.event_rings));
    let unread = match picture.counted.unread {
        0 => String::new(),
        unread => format!("  {} not taken in time", grouped(unread)),
    };
    let clamped = picture.counted.clamped_said();
    let clamped = clamped.map_or_else(String::new, |said| format!("  {said}"));
    format!("{} lost{unread}{clamped}", grouped(lost))
}

fn lost(rings: &[RingStatus]) -> u64 {
    let lost = rings.iter().map(|ring| ring.lost);
    lost.fold(0, u64::saturating_add)
}

fn chosen_line(picture: &Picture<'_>) -> String {
    let view = picture.view;
    let mut parts = Vec::new();
    if view.is_paused {
        parts.push("HELD".to_owned());
    }
    if let Some(function) = &view.callers_of {
        parts.push(format!("callers of {}", masked(function)));
    }
    if view.is_typing || !view.filter.is_empty() {
        let cursor = if view.is_typing { "_" } else { "" };
        parts.push(format!("filter: {}{cursor}", masked(&view.filter)));
    }
    parts.extend(picture.said.map(|said| masked(said).into_owned()));
    parts.join("  ")
}

fn draw_rows(frame: &mut Frame<'_>, picture: &Picture<'_>, area: Rect) {
    let period_ns = picture.counted.period_ns;
    let rows = picture.shown.iter().map(|shown| cells(shown, period_ns));
    let widths = Column::ALL.map(|column| match column {
        Column::Name => Constraint::Min(10),
        _ => Constraint::Length(NUMBER_WIDTH),
    });
    let table = Table::new(rows, widths)
        .header(headings(picture.view))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = (!picture.shown.is_empty()).then_some(picture.view.selected);
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn headings(view: &View) -> Cells<'static> {
    let heading = |column: Column| {
        let mark = match (column == view.column, view.is_reversed) {
            (false, _) => "",
            (true, false) => "v",
            (true, true) => "^",
        };
        let text = format!("{}{mark}", column.heading());
        match column {
            Column::Name if view.callers_of.is_some() => Cell::from(format!("CALLER{mark}")),
            Column::Name => Cell::from(text),
            _ => number(text),
        }
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Cells::new(Column::ALL.map(heading)).style(bold)
}

fn cells(shown: &Shown<'_>, period_ns: Option<u64>) -> Cells<'static> {
    let row = shown.row;
    let cell = |column| match column {
        Column::Hits => number(row.hits.to_string()),
        Column::Rate => number(known(shown.rate.map(|rate| rate.to_string()))),
        Column::Own => number(known(row.self_ns.map(time))),
        Column::Load => number(known(shown.load.map(time))),
        Column::Total => number(known(row.timed.map(|_| time(row.total_ns)))),
        Column::Average => number(known(average(row, period_ns))),
        Column::Name => Cell::from(masked(&row.name).into_owned()),
    };
    Cells::new(Column::ALL.map(cell))
}

fn known(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Text::from(Span::raw(text)).alignment(Alignment::Right))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tracer::guest::Paused;

    use super::super::counted::Row;
    use super::super::keys::Key;
    use super::*;
    use crate::control::status::{GuestStatus, MemoryStatus, Pauses, VcpuStatus};
    use crate::pause_times::PauseTimes;

    fn status() -> Status {
        let mut times = PauseTimes::default();
        times.released(Paused {
            counter: 0,
            length: Duration::from_micros(46),
        });
        Status {
            memory: MemoryStatus::default(),
            guest: GuestStatus {
                state: "running".to_owned(),
                kernel: "/boot/vm\u{1b}linux".to_owned(),
                memory_mib: 64,
                uptime_ms: 12_345,
            },
            vcpus: vec![VcpuStatus {
                vcpu: 0,
                state: "running".to_owned(),
            }],
            tracing: Default::default(),
            pauses: Pauses::from(tracer::guest::Pauses::from(&times)),
            triggers: Vec::new(),
        }
    }

    fn counted(at: Instant, hits: u64) -> Counted {
        let row = |name: &str, hits, self_ns| Row {
            key: name.to_owned(),
            name: name.to_owned(),
            hits,
            timed: Some(hits),
            total_ns: 2_500_000,
            self_ns: Some(self_ns),
            clamped: None,
        };
        Counted {
            at,
            session: "p".to_owned(),
            period_ns: None,
            rows: vec![row("leaf\u{7}", hits, 10), row("root", 1, 1000)],
            unread: 7,
        }
    }

    fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
        let at = Instant::now();
        let before = counted(at, 10);
        let now = counted(at + Duration::from_secs(1), 1500);
        let since = Since::new(&before, &now);
        let ring = RingStatus {
            lost: 1234,
            ..RingStatus::default()
        };
        let session = SessionStatus {
            name: "p".to_owned(),
            tracer: "profile".to_owned(),
            state: "tracing".to_owned(),
            rings: vec![ring],
            ..SessionStatus::default()
        };
        let shown = view.shown(&now.rows, Some(&since));
        let picture = Picture {
            view,
            status: &status(),
            session: &session,
            counted: &now,
            before: Some(&before),
            shown: &shown,
            said: None,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &picture)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        lines
            .map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect())
            .collect()
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn everything_has_its_line_and_nothing_of_the_guests_is_for_the_terminal() {
        let lines = drawn(&View::default(), 100, 10);
        assert_eq!(
            lines[0].trim(),
            "vm?linux  running  up 12.3 s  1 vCPU  1 pause, p50 46 us, max 46 us"
        );
        assert_eq!(
            lines[1].trim(),
            "session p (profile, tracing)  1501 hits of 2 functions  1,490/s"
        );
        assert_eq!(lines[2].trim(), "1,234 lost  7 not taken in time");
        assert_eq!(lines[3].trim(), "");
        let headings = "HITS HITS/S SELFv SELF/S TOTAL AVG FUNCTION";
        assert_eq!(words(&lines[4]).join(" "), headings);
        assert_eq!(
            words(&lines[5]).join(" "),
            "1 0 1.000 us 0 ns 2.500 ms 2.500 ms root"
        );
        assert_eq!(
            words(&lines[6]).join(" "),
            "1500 1490 10 ns 0 ns 2.500 ms 1.666 us leaf?"
        );
        assert!(lines[9].starts_with("q end"), "{lines:?}");
    }

    #[test]
    fn what_was_chosen_is_said() {
        let mut view = View::default();
        view.fit(2, page(10));
        for key in [' ', '/', 'r', 'o'].map(Key::Char) {
            view.press(key, None);
        }
        let lines = drawn(&view, 100, 10);
        assert_eq!(lines[3].trim(), "HELD  filter: ro_");
        assert!(lines[5].contains("root") && lines[6].trim().is_empty());
        view.press(Key::Enter, None);
        view.press(Key::Enter, Some("root"));
        view.press(Key::Char('r'), None);
        let lines = drawn(&view, 100, 10);
        assert_eq!(lines[3].trim(), "HELD  callers of root  filter: ro");
        assert!(lines[4].contains("SELF^") && lines[4].contains("CALLER"));
    }

    #[test]
    fn the_chosen_row_is_on_the_screen_and_a_small_one_is_no_error() {
        let mut view = View::default();
        view.fit(2, page(7));
        view.press(Key::Last, None);
        let lines = drawn(&view, 80, 7);
        assert!(lines[5].contains("leaf?"), "{lines:?}");
        for (width, height) in [(1, 1), (10, 3), (200, 4)] {
            assert_eq!(drawn(&view, width, height).len(), usize::from(height));
        }
    }
}
