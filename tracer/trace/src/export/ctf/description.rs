//! What the streams hold, in the language that readers of CTF understand (TSDL; CTF 1.8.3, section 7 and appendix C).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use terms::printable::masked;

/// What a field of an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// 64 bits, with a sign.
    Signed,
    /// 64 bits.
    Unsigned,
    /// 64 bits, shown as an address.
    Address,
    /// Text with a zero at its end, of which something is before that.
    Text,
    /// Text that is empty, in one byte. babeltrace2 shows of an empty text the one that the field had before, so this is
    /// no text: an enumeration of one value, whose name says what it is.
    Empty,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Signed => "int64_t",
            Self::Unsigned => "uint64_t",
            Self::Address => "address_t",
            Self::Text => "string",
            Self::Empty => "empty_t",
        }
    }
}

/// An event with fields of these kinds. One of the same name with others is another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Class {
    pub name: String,
    pub fields: Vec<(String, Kind)>,
}

/// What is said of a trace as a whole.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The image of the guest's kernel.
    pub image: String,
    /// The command that recorded it.
    pub command_line: String,
    /// What the times are from.
    pub clock: String,
}

/// The types that all events are made of.
const TYPES: &str = "\
/* CTF 1.8 */

typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 16; align = 8; signed = false; } := uint16_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
typealias integer { size = 64; align = 8; signed = true; } := int64_t;
typealias integer { size = 64; align = 8; signed = false; base = 16; } := address_t;
typealias enum : uint8_t { \"(empty)\" = 0 } := empty_t;

trace {
	major = 1;
	minor = 8;
	byte_order = le;
	packet.header := struct {
		uint32_t magic;
	};
};
";

/// One stream for each vCPU.
const STREAM: &str = "\
clock {
	name = guest;
	freq = 1000000000;
	precision = 1;
	offset = 0;
	absolute = FALSE;
};

typealias integer { size = 32; align = 8; signed = false; map = clock.guest.value; } := low_half_t;
typealias integer { size = 64; align = 8; signed = false; map = clock.guest.value; } := time_t;

stream {
	packet.context := struct {
		time_t timestamp_begin;
		time_t timestamp_end;
		uint64_t content_size;
		uint64_t packet_size;
		uint64_t events_discarded;
		uint32_t cpu_id;
	};
	event.header := struct {
		uint16_t id;
		low_half_t timestamp;
	};
};
";

/// A step of a call, by what is known of it: it has fields for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It begins, with arguments or without.
    Entry { args: bool },
    /// It ends, with what it returned and with why that end is no measured one, or without.
    Exit { returned: bool, end: bool },
}

impl Call {
    /// All that can be, in the order of their numbers.
    const ALL: [Self; 6] = [
        Self::Entry { args: false },
        Self::Entry { args: true },
        Self::exit(false, false),
        Self::exit(true, false),
        Self::exit(false, true),
        Self::exit(true, true),
    ];

    /// An end.
    pub const fn exit(returned: bool, end: bool) -> Self {
        Self::Exit { returned, end }
    }

    /// The number of such events.
    pub const fn number(self) -> u16 {
        match self {
            Self::Entry { args } => args as u16,
            Self::Exit { returned, end } => 2 + returned as u16 + 2 * end as u16,
        }
    }

    /// What it is called; none where there are no such events.
    const fn name(self, has_ends: bool) -> Option<&'static str> {
        match (self, has_ends) {
            (Self::Entry { .. }, true) => Some("func_entry"),
            (Self::Entry { .. }, false) => Some("function"),
            (Self::Exit { .. }, true) => Some("func_exit"),
            (Self::Exit { .. }, false) => None,
        }
    }

    fn fields(self) -> String {
        let known = match self {
            Self::Entry { args } => [("args", args), ("", false)],
            Self::Exit { returned, end } => [("returned", returned), ("end", end)],
        };
        let mut fields = "\t\tthread_t tid;\n\t\tfunction_t function;\n".to_owned();
        for (name, _) in known.into_iter().filter(|(_, is_known)| *is_known) {
            // Writing to a string cannot fail.
            let _ = writeln!(fields, "\t\tstring {name};");
        }
        fields
    }
}

/// The number of remarks: those of calls are the ones before it.
pub(super) const REMARK: u16 = 6;
/// Events of the guest's own have the numbers from here on.
pub(super) const OWN: u16 = 7;

/// All of the description. Functions and threads are those that any event names, `classes` events of the guest's own;
/// where returns are not traced (`has_ends`), there are no exits.
pub(super) fn text<'a>(
    about: &About,
    functions: impl Iterator<Item = (u32, &'a str)>,
    threads: &BTreeMap<u32, String>,
    classes: &[Class],
    has_ends: bool,
) -> String {
    let mut text = TYPES.to_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\nenv {{\n\ttracer_name = \"exotrace\";\n\timage = {};\n\tcommand_line = {};\n\tclock = {};\n}};\n\n",
        quoted(&about.image),
        quoted(&about.command_line),
        quoted(&about.clock),
    );
    text += STREAM;
    numbers(&mut text, "function_t", functions);
    let names = threads.iter().map(|(thread, name)| (*thread, &**name));
    numbers(&mut text, "thread_t", names);
    for call in Call::ALL {
        if let Some(name) = call.name(has_ends) {
            event(&mut text, call.number(), name, &call.fields());
        }
    }
    event(&mut text, REMARK, "remark", "\t\tstring text;\n");
    for (class, number) in classes.iter().zip(OWN..) {
        let mut fields = String::new();
        let mut taken = BTreeSet::new();
        for (name, kind) in &class.fields {
            let name = free(plain(name), &mut taken);
            // Readers leave the first underscore out: it keeps names from being words of the language.
            let _ = writeln!(fields, "\t\t{} _{name};", kind.name());
        }
        event(&mut text, number, &class.name, &fields);
    }
    text
}

/// A name that no field before has: with a number, if it has to be.
fn free(name: String, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2u32..).map(|number| format!("{name}_{number}"));
    let mut all = std::iter::once(name.clone()).chain(numbered);
    // There are more numbers than fields.
    let free = all
        .find(|name| !taken.contains(name))
        .unwrap_or(name.clone());
    taken.insert(free.clone());
    free
}

fn event(text: &mut String, number: u16, name: &str, fields: &str) {
    let name = quoted(name);
    let _ = write!(
        text,
        "\nevent {{\n\tid = {number};\n\tname = {name};\n\tfields := struct {{\n{fields}\t}};\n}};\n"
    );
}

/// Numbers that have names.
fn numbers<'a>(text: &mut String, of: &str, names: impl Iterator<Item = (u32, &'a str)>) {
    let mut names = names.peekable();
    if names.peek().is_none() {
        // An enumeration of nothing is none.
        let _ = writeln!(text, "\ntypealias uint32_t := {of};");
        return;
    }
    let _ = write!(text, "\ntypealias enum : uint32_t {{");
    for (number, name) in names {
        let _ = write!(text, "\n\t{} = {number},", quoted(name));
    }
    let _ = writeln!(text, "\n}} := {of};");
}

/// A text of the language.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in masked(text).chars() {
        if matches!(char, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted.push('"');
    quoted
}

/// A name in letters that names can have.
fn plain(name: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    name.chars()
        .map(|char| if is_plain(char) { char } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_quotes_and_fields_are_names() {
        let own = Class {
            name: "a\"; }; /*".into(),
            fields: vec![
                ("size".into(), Kind::Signed),
                ("*p->x".into(), Kind::Address),
                ("-p->x".into(), Kind::Text),
                ("event".into(), Kind::Unsigned),
                ("event_2".into(), Kind::Unsigned),
                ("event".into(), Kind::Unsigned),
            ],
        };
        let about = About {
            image: "C:\\x\n".into(),
            ..About::default()
        };
        let threads = BTreeMap::from([(7, "cat \"x\"".into())]);
        let functions = [(3, "f\\")].into_iter();
        let text = text(&about, functions, &threads, &[own], true);
        for expected in [
            "image = \"C:\\\\x?\";",
            "\t\"f\\\\\" = 3,\n",
            "\t\"cat \\\"x\\\"\" = 7,\n",
            "name = \"a\\\"; }; /*\";",
            "\t\tint64_t _size;\n\t\taddress_t __p__x;\n\t\tstring __p__x_2;\n\t\tuint64_t _event;\n\
             \t\tuint64_t _event_2;\n\t\tuint64_t _event_3;\n",
            "id = 7;",
            "name = \"func_exit\";",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    /// A field of every one of them would be empty where nothing is known.
    #[test]
    fn a_step_of_a_call_has_fields_for_what_is_known_of_it() {
        let nobody = BTreeMap::new();
        let text = text(&About::default(), [].into_iter(), &nobody, &[], true);
        let call = "\t\tthread_t tid;\n\t\tfunction_t function;\n";
        let [args, returned, end] =
            ["args", "returned", "end"].map(|name| format!("\t\tstring {name};\n"));
        let exit = Call::exit;
        for (step, name, more) in [
            (Call::Entry { args: false }, "func_entry", String::new()),
            (Call::Entry { args: true }, "func_entry", args),
            (exit(false, false), "func_exit", String::new()),
            (exit(true, false), "func_exit", returned.clone()),
            (exit(false, true), "func_exit", end.clone()),
            (exit(true, true), "func_exit", returned + &end),
        ] {
            let number = step.number();
            let expected = format!(
                "\tid = {number};\n\tname = \"{name}\";\n\tfields := struct {{\n{call}{more}\t}};\n"
            );
            assert_eq!(text.matches(&expected).count(), 1, "{expected} in {text}");
            assert!(number < REMARK);
        }
    }

    #[test]
    fn without_returns_there_are_none_and_without_names_numbers_are_numbers() {
        let nobody = BTreeMap::new();
        let text = text(&About::default(), [].into_iter(), &nobody, &[], false);
        assert!(!text.contains("func_"), "{text}");
        assert!(text.contains("name = \"function\";"), "{text}");
        assert!(text.contains("typealias uint32_t := thread_t;"), "{text}");
    }
}
