//! What a trace.dat says of its own contents: the texts that Linux has below `tracing/events`, of the events that are in it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The pages of its ring buffers.
pub(super) const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
     \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
     \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
     \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

/// The word before each event.
pub(super) const HEADER_EVENT: &str = "# compressed entry header\n\
     \ttype_len    :    5 bits\n\
     \ttime_delta  :   27 bits\n\
     \tarray       :   32 bits\n\
     \n\
     \tpadding     : type == 29\n\
     \ttime_extend : type == 30\n\
     \ttime_stamp : type == 31\n\
     \tdata max type_len  == 28\n";

/// Clocks, and which one the times are from: nanoseconds.
pub(super) const CLOCK: &str = "[local] global counter uptime perf mono mono_raw boot x86-tsc\n";

/// An event of Linux: its name and number, its fields after the common ones, and how it is printed.
#[derive(Debug)]
pub(super) struct Format {
    name: Cow<'static, str>,
    pub id: u16,
    /// Type and name, bytes, whether it has a sign.
    fields: &'static [(&'static str, usize, bool)],
    print: &'static str,
}

/// A function is entered; nothing is known of its end.
pub(super) const FUNCTION: Format = Format {
    name: Cow::Borrowed("function"),
    id: 1,
    fields: &[
        ("unsigned long ip", 8, false),
        ("unsigned long parent_ip", 8, false),
    ],
    print: "\" %ps <-- %ps\", (void *)REC->ip, (void *)REC->parent_ip",
};

/// A function is entered.
pub(super) const ENTRY: Format = Format {
    name: Cow::Borrowed("funcgraph_entry"),
    id: 11,
    fields: &[("unsigned long func", 8, false), ("int depth", 4, true)],
    print: "\"--> %ps (%d)\", (void *)REC->func, REC->depth",
};

/// It returns.
pub(super) const EXIT: Format = Format {
    name: Cow::Borrowed("funcgraph_exit"),
    id: 10,
    fields: &[
        ("unsigned long func", 8, false),
        ("int depth", 4, true),
        ("unsigned int overrun", 4, false),
        ("unsigned long long calltime", 8, false),
        ("unsigned long long rettime", 8, false),
    ],
    print: "\"<-- %ps (%d) (start: %llx  end: %llx) over: %d\", (void *)REC->func, REC->depth, REC->calltime, \
            REC->rettime, REC->overrun",
};

/// Text: what is to be said of the trace.
pub(super) const PRINT: Format = Format {
    name: Cow::Borrowed("print"),
    id: 5,
    fields: &[("unsigned long ip", 8, false), ("char buf[]", 0, false)],
    print: "\"%ps: %s\", (void *)REC->ip, REC->buf",
};

/// The host enters a guest, as an event of KVM.
pub(super) const KVM_ENTRY: Format = Format {
    name: Cow::Borrowed("kvm_entry"),
    id: 900,
    fields: &[
        ("unsigned int vcpu_id", 4, false),
        ("unsigned long rip", 8, false),
    ],
    print: "\"vcpu %u, rip 0x%lx\", REC->vcpu_id, REC->rip",
};

/// It is back.
pub(super) const KVM_EXIT: Format = Format {
    name: Cow::Borrowed("kvm_exit"),
    id: 901,
    fields: &[
        ("unsigned int vcpu_id", 4, false),
        ("unsigned long guest_rip", 8, false),
        ("unsigned int exit_reason", 4, false),
        ("unsigned int isa", 4, false),
        ("__data_loc char[] reason", 4, false),
    ],
    print: "\"vcpu %u reason %s rip 0x%lx\", REC->vcpu_id, __get_str(reason), REC->guest_rip",
};

/// The number of the first event that is not Linux's.
const FIRST_OWN: u16 = 1000;
/// So many kinds have a name of their own.
pub(super) const OWN_MAX: u16 = 4096;

impl Format {
    /// An event of the guest's own, or a probe, whose values are text. Readers want a name of letters and digits.
    pub fn own(number: u16, name: &str) -> Self {
        Self {
            name: name
                .replace(|char: char| !char.is_ascii_alphanumeric(), "_")
                .into(),
            id: FIRST_OWN.saturating_add(number),
            fields: &[("__data_loc char[] values", 4, false)],
            print: "\"%s\", __get_str(values)",
        }
    }

    /// As Linux writes it.
    pub fn text(&self) -> String {
        let mut text = format!("name: {}\nID: {}\nformat:\n", self.name, self.id);
        let mut offset = 0;
        let common = [
            ("unsigned short common_type", 2, false),
            ("unsigned char common_flags", 1, false),
            ("unsigned char common_preempt_count", 1, false),
            ("int common_pid", 4, true),
        ];
        for (number, (field, size, is_signed)) in common.iter().chain(self.fields).enumerate() {
            let end = if number + 1 == common.len() {
                "\n\n"
            } else {
                "\n"
            };
            let sign = u8::from(*is_signed);
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{sign};{end}"
            );
            offset += size;
        }
        text + &format!("\nprint fmt: {}\n", self.print)
    }

    /// The beginning of one: what all events of a thread have.
    pub fn begin(&self, pid: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend(self.id.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(pid.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_its_fields_where_they_are_written() {
        let text = EXIT.text();
        for expected in [
            "name: funcgraph_exit\nID: 10\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
            "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:unsigned long func;\toffset:8;\tsize:8;",
            "\tfield:int depth;\toffset:16;\tsize:4;\tsigned:1;\n",
            "\tfield:unsigned long long rettime;\toffset:32;\tsize:8;\tsigned:0;\n\nprint fmt: \"<--",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(EXIT.begin(0x0102_0304), [10, 0, 0, 0, 4, 3, 2, 1]);
    }
}
