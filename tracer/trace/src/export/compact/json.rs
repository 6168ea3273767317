//! Blocks of JSON, which may come from anywhere. A string of three bytes is one of 24 in memory, and text around it: what is made of a
//! block is bounded by how many values it has, and these are counted before it is read.

use serde::de::DeserializeOwned;

/// Whether a block has more values than these.
pub(super) fn has_more_than(most: usize, block: &[u8]) -> bool {
    // Each takes a byte, at least.
    block.len() > most && values(block) > most
}

/// What a block says; none of what says something else, or has more values than these.
pub(super) fn read<T: DeserializeOwned>(block: &[u8], most: usize) -> Option<T> {
    if has_more_than(most, block) {
        return None;
    }
    serde_json::from_slice(block).ok()
}

/// How many values there are, about: as many as what begins or parts them, outside of strings.
fn values(text: &[u8]) -> usize {
    let (mut count, mut is_string, mut is_escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_string,
            b'"' => is_string = !is_string,
            b',' | b'[' | b'{' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        assert_eq!(values(b"[]"), 1);
        assert_eq!(values(br#"{"a":[1,2,{}],"b":"c"}"#), 6);
        assert_eq!(values(br#"["a,[{\"","\\",","]"#), 3);
    }

    #[test]
    fn a_block_of_more_values_than_it_may_have_is_not_read() {
        let read = |text: &str, most| read::<Vec<String>>(text.as_bytes(), most);
        let text = r#"["a","b","c,d"]"#;
        assert_eq!(read(text, 3).map(|all| all.len()), Some(3));
        assert_eq!(read(text, 2), None);
    }
}
