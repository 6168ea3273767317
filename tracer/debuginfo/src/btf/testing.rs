//! BTF for tests.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "what a test asks for that no section can hold is a failed test"
)]

/// Builds a `.BTF` type by type.
#[derive(Debug)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            count: 0,
        }
    }

    /// Offset of a string.
    pub fn string(&mut self, string: &str) -> u32 {
        if string.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.strings.len()).unwrap();
        self.strings.extend(string.bytes());
        self.strings.push(0);
        at
    }

    /// Any type: its number.
    pub fn add(&mut self, name: &str, kind: u32, entries: u32, size: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        let words = [name, kind << 24 | entries, size];
        for word in words.iter().chain(rest) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    /// An integer of so many bytes: its number.
    pub fn int(&mut self, name: &str, size: u32) -> u32 {
        self.add(name, 1, 0, size, &[size * 8])
    }

    /// A pointer: its number.
    pub fn pointer(&mut self, to: u32) -> u32 {
        self.add("", 2, 0, to, &[])
    }

    /// An array: its number.
    pub fn array(&mut self, of: u32, length: u32) -> u32 {
        self.add("", 3, 0, 0, &[of, of, length])
    }

    /// A struct, or a union as kind 5, of members with names, types and byte offsets.
    pub fn compound(
        &mut self,
        kind: u32,
        name: &str,
        size: u32,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let entries = u32::try_from(members.len()).unwrap();
        let rest: Vec<u32> = members
            .iter()
            .flat_map(|(name, of, offset)| [self.string(name), *of, offset * 8])
            .collect();
        self.add(name, kind, entries, size, &rest)
    }

    /// A struct: its number.
    pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        self.compound(4, name, size, members)
    }

    /// An enumeration: its number.
    pub fn enumeration(&mut self, name: &str, entries: &[(&str, u32)]) -> u32 {
        let count = u32::try_from(entries.len()).unwrap();
        let rest: Vec<u32> = entries
            .iter()
            .flat_map(|(name, value)| [self.string(name), *value])
            .collect();
        self.add(name, 6, count, 4, &rest)
    }

    /// The section.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let types = u32::try_from(self.types.len()).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut section = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            section.extend(word.to_le_bytes());
        }
        section.extend(&self.types);
        section.extend(&self.strings);
        section
    }
}
