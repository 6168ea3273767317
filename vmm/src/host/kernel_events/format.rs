//! Where the fields of the events are, which each kernel says of its own (`events/kvm/NAME/format`).

use std::fs;
use std::path::Path;

use terms::addr::Gva;
use trace::host::ExitReason;

use super::KernelEventsError;
use super::reason::reason;

/// `kvm_entry`.
#[derive(Debug)]
pub(super) struct Entry {
    head: Head,
    /// Only newer kernels say it.
    rip: Option<Field>,
}

/// `kvm_exit`.
#[derive(Debug)]
pub(super) struct Exit {
    head: Head,
    rip: Field,
    reason: Field,
    /// Whose numbers reasons are.
    isa: Field,
    /// What is known of some of them beside.
    info: Option<Field>,
}

/// What all events have.
#[derive(Debug)]
struct Head {
    id: u64,
    kind: Field,
    tid: Field,
}

/// Bytes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

impl Entry {
    pub fn read(path: &Path) -> Result<Self, KernelEventsError> {
        let format = Format::read(path)?;
        Ok(Self {
            head: format.head()?,
            rip: format.field("rip").ok(),
        })
    }

    /// The thread that enters the guest, and where that goes on.
    pub fn of(&self, event: &[u8]) -> Option<(u32, Option<Gva>)> {
        let tid = self.head.of(event)?;
        let rip = self.rip.and_then(|rip| rip.of(event));
        Some((tid, rip.map(Gva)))
    }
}

impl Exit {
    pub fn read(path: &Path) -> Result<Self, KernelEventsError> {
        let format = Format::read(path)?;
        Ok(Self {
            head: format.head()?,
            rip: format.field("guest_rip")?,
            reason: format.field("exit_reason")?,
            isa: format.field("isa")?,
            info: format.field("info1").ok(),
        })
    }

    /// The thread that is back, where the guest was, and why.
    pub fn of(&self, event: &[u8]) -> Option<(u32, Gva, ExitReason)> {
        let tid = self.head.of(event)?;
        let info = self.info.and_then(|info| info.of(event));
        let why = reason(
            self.isa.of(event)?,
            self.reason.of(event)?,
            info.unwrap_or_default(),
        );
        Some((tid, Gva(self.rip.of(event)?), why))
    }
}

impl Head {
    /// The thread of an event of this kind.
    fn of(&self, event: &[u8]) -> Option<u32> {
        let is_it = self.kind.of(event) == Some(self.id);
        let tid = is_it.then(|| self.tid.of(event))?;
        u32::try_from(tid?).ok()
    }
}

impl Field {
    /// The number there, without a sign.
    fn of(self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..)?.get(..self.size)?;
        let mut number = [0; 8];
        number.get_mut(..self.size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(number))
    }
}

/// The text about an event.
struct Format<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> Format<'a> {
    fn read(path: &'a Path) -> Result<Self, KernelEventsError> {
        let text = fs::read_to_string(path).map_err(|source| KernelEventsError::Refused {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path, text })
    }

    fn missing(&self, what: &'static str) -> KernelEventsError {
        KernelEventsError::Format {
            path: self.path.to_owned(),
            what,
        }
    }

    fn head(&self) -> Result<Head, KernelEventsError> {
        let ids = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("ID:"));
        let id = ids.filter_map(|id| id.trim().parse().ok()).next();
        Ok(Head {
            id: id.ok_or_else(|| self.missing("ID"))?,
            kind: self.field("common_type")?,
            tid: self.field("common_pid")?,
        })
    }

    /// `field:unsigned int exit_reason;  offset:8;  size:4;  signed:0;`
    fn field(&self, name: &'static str) -> Result<Field, KernelEventsError> {
        let found = self.text.lines().find_map(|line| {
            let mut parts = line
                .trim()
                .strip_prefix("field:")?
                .split(';')
                .map(str::trim);
            let declared = parts.next()?.rsplit([' ', '\t']).next()?;
            let mut numbers = parts.filter_map(|part| part.split_once(':'));
            let mut number = |wanted| {
                let (_, number) = numbers.find(|(name, _)| *name == wanted)?;
                number.parse().ok()
            };
            let field = Field {
                offset: number("offset")?,
                size: number("size")?,
            };
            (declared == name).then_some(field)
        });
        found
            .filter(|field| field.size <= 8)
            .ok_or_else(|| self.missing(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn event(id: u16, tid: u32, rest: &[u64]) -> Vec<u8> {
        let rest = rest.iter().flat_map(|word| word.to_le_bytes());
        let head = u32::from(id)
            .to_le_bytes()
            .into_iter()
            .chain(tid.to_le_bytes());
        head.chain(rest).collect()
    }

    #[test]
    fn fields_are_where_the_kernel_says() {
        let exit = file(&format!(
            "name: kvm_exit\nID: 103\nformat:\n{HEAD}\
             \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
             \tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;\n\
             \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\
             \tfield:u64 info1;\toffset:32;\tsize:8;\tsigned:0;\n"
        ));
        let exit = Exit::read(exit.path()).unwrap();
        let bytes = event(103, 77, &[0x7b, 0xffff_ffff_8100_0000, 2, 1]);
        let expected = (77, Gva(0xffff_ffff_8100_0000), ExitReason::PortRead);
        assert_eq!(exit.of(&bytes), Some(expected));
        assert_eq!(exit.of(&event(104, 77, &[0x7b, 0, 2, 1])), None);
        for end in 0..28 {
            assert_eq!(exit.of(&bytes[..end]), None, "{end}");
        }
        let old = file(&format!("ID: 9\n{HEAD}"));
        let old = Entry::read(old.path()).unwrap();
        assert_eq!(old.of(&event(9, 5, &[])), Some((5, None)));
        let new = "\tfield:unsigned long rip;\toffset:16;\tsize:8;\tsigned:0;\n";
        let new = file(&format!("ID: 9\n{HEAD}{new}"));
        let new = Entry::read(new.path()).unwrap();
        assert_eq!(new.of(&event(9, 5, &[1, 2])), Some((5, Some(Gva(2)))));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let none = file(&format!("ID: 103\n{HEAD}"));
        let error = Exit::read(none.path()).unwrap_err().to_string();
        assert!(error.contains("guest_rip"), "{error}");
        let large = HEAD.replace("size:4", "size:9");
        let error = Entry::read(file(&format!("ID: 1\n{large}")).path()).unwrap_err();
        assert!(error.to_string().contains("common_pid"), "{error}");
        let error = Entry::read(file(HEAD).path()).unwrap_err().to_string();
        assert!(error.contains("where ID is"), "{error}");
    }
}
