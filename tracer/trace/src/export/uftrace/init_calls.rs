//! What a kernel lists as its init calls: by it a report tells them from what else is called while a kernel starts.

use std::num::ParseIntError;

use serde::{Deserialize, Serialize};

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

/// The address of a function, in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Address(u64);

impl From<Address> for String {
    fn from(address: Address) -> Self {
        Gva(address.0).to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, ParseIntError> {
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u64::from_str_radix(digits, 16).map(Self)
    }
}

/// All of them; none where they are not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitCallList {
    listed: Vec<Address>,
    /// The last function of the kernel itself: those after it came with modules, of which nothing is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel_ends_with: Option<Address>,
}

impl InitCallList {
    /// These of the functions of a guest: those of its kernel by address, and after them those of modules.
    #[must_use]
    pub fn new(functions: &[Function], listed: &[FunctionId]) -> Self {
        let address = |function: &Function| Address(function.address.0);
        let functions_of = |id: &FunctionId| functions.get(id.index());
        let listed: Vec<_> = listed
            .iter()
            .filter_map(functions_of)
            .map(address)
            .collect();
        let own = functions.partition_point(|one| one.module.is_none());
        let last = own.checked_sub(1).and_then(|last| functions.get(last));
        let last = last.map(address);
        Self {
            kernel_ends_with: last.filter(|_| !listed.is_empty()),
            listed,
        }
    }

    /// Whether they are not known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Where each begins.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.listed.iter().map(|one| one.0)
    }

    /// Where the kernel's last function begins.
    #[must_use]
    pub fn kernel_ends_with(&self) -> Option<u64> {
        self.kernel_ends_with.map(|one| one.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_and_read_as_digits() {
        let function = |address, module: Option<&str>| Function {
            address: Gva(address),
            module: module.map(Into::into),
            ..Function::default()
        };
        let functions = [
            function(0xffff_ffff_8100_0000, None),
            function(0xffff_ffff_8200_0000, None),
            function(0xffff_ffff_c000_0000, Some("module")),
        ];
        let list = InitCallList::new(&functions, &[FunctionId(0), FunctionId(9)]);
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(
            text,
            r#"{"listed":["0xffffffff81000000"],"kernel_ends_with":"0xffffffff82000000"}"#
        );
        assert_eq!(serde_json::from_str::<InitCallList>(&text).unwrap(), list);
        assert!(InitCallList::new(&functions, &[]).is_empty());
        assert!(InitCallList::new(&[], &[FunctionId(0)]).is_empty());
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [r#"{"listed":["0x"]}"#, r#"{"listed":["acpi_init"]}"#] {
            serde_json::from_str::<InitCallList>(text).unwrap_err();
        }
        let odd = r#"{"listed":["ffffffffffffffff"]}"#;
        let odd: InitCallList = serde_json::from_str(odd).unwrap();
        assert_eq!(odd.iter().collect::<Vec<_>>(), [u64::MAX]);
        assert_eq!(odd.kernel_ends_with(), None);
    }
}
