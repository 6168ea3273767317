use super::*;

#[test]
fn a_name_is_compared_with_its_end_or_only_its_beginning() {
    let matches = |of: NameWords, comm: &str, rest: u8| {
        // What lies after the 0 is whatever was there before.
        let mut bytes = [rest; NAME_BYTES];
        bytes[..comm.len()].copy_from_slice(comm.as_bytes());
        bytes[comm.len()] = 0;
        let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let halves = [half(0), half(8)];
        (0..2).all(|half| halves[half] & of.masks[half] == of.words[half])
    };
    let all = NameWords::new("make", true).unwrap();
    let beginning = NameWords::new("make", false).unwrap();
    for rest in [0, 0xff] {
        assert!(matches(all, "make", rest));
        assert!(!matches(all, "makeinfo", rest));
        assert!(!matches(all, "mak", rest));
        assert!(matches(beginning, "make", rest) && matches(beginning, "makeinfo", rest));
        assert!(!matches(beginning, "mak", rest) && !matches(beginning, "cmake", rest));
    }
    let long = NameWords::new("a-name-of-more-than-15-bytes", true).unwrap();
    assert!(matches(long, "a-name-of-more-", 0));
    assert!(!matches(long, "a-name-of-more", 0));
    assert_eq!(NameWords::new("", true), None);
}
