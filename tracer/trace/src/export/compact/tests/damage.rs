//! A file that is cut or damaged is read as far as it is whole.

use super::*;

#[test]
fn a_file_that_is_cut_anywhere_is_read_to_its_last_whole_block() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    small().compact(&store);
    let whole = fs::read(store.join(STORE_FILE)).unwrap();
    let borders = borders(&whole);
    let beginning = borders[2];
    let mut last = 0;
    for length in 0..whole.len() {
        fs::write(store.join(STORE_FILE), &whole[..length]).unwrap();
        let to = folder.path().join("to");
        let converted = convert(&store, &to, false, &Watch::default());
        if length < beginning {
            let message = converted.unwrap_err().to_string();
            assert!(
                message.ends_with("not a trace of ours, or a damaged one"),
                "{message}"
            );
            assert!(!to.exists());
            continue;
        }
        let converted = converted.unwrap();
        assert!(!converted.is_finished);
        assert_eq!(
            converted.remark.is_none(),
            borders.contains(&length),
            "{length}"
        );
        if let Some(remark) = converted.remark {
            let at = borders
                .iter()
                .rev()
                .find(|border| **border < length)
                .unwrap();
            let bytes = length - at;
            let expected = format!("the last {bytes} bytes, from {at} on, are not shown");
            assert!(remark.ends_with(&expected), "{remark}");
        }
        assert!(converted.tally.calls >= last, "{length}");
        last = converted.tally.calls;
        fs::remove_dir_all(to).unwrap();
    }
    assert!(last > 50, "{last}");
}

/// Where blocks begin, and the end.
fn borders(file: &[u8]) -> Vec<usize> {
    let mut borders = vec![16];
    while let Some(length) = file
        .get(borders[borders.len() - 1]..)
        .and_then(|rest| rest.first_chunk())
    {
        let length = u32::from_le_bytes(*length) as usize;
        borders.push(borders[borders.len() - 1] + 12 + length);
    }
    borders
}

#[test]
fn a_file_that_is_damaged_anywhere_is_read_to_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    small().compact(&store);
    let whole = fs::read(store.join(STORE_FILE)).unwrap();
    let borders = borders(&whole);
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(store.join(STORE_FILE), &bytes).unwrap();
        let to = folder.path().join("to");
        match convert(&store, &to, false, &Watch::default()) {
            // Zeros that nobody looks at.
            Ok(converted) if converted.is_finished => assert!((12..16).contains(&at), "{at}"),
            Ok(converted) => {
                let block = borders.iter().rev().find(|border| **border <= at).unwrap();
                let remark = converted.remark.unwrap();
                let is_said = remark.contains(&format!("the block at {block} is damaged"))
                    || remark.contains(&format!("from {block} on"));
                assert!(is_said, "{at}: {remark}");
            }
            Err(error) => assert!(at < borders[2], "{at}: {error}"),
        }
        let _ = fs::remove_dir_all(to);
    }
}

/// A run that is killed leaves the beginning of a block at most: what is not whole elsewhere was changed since.
#[test]
fn what_is_missing_is_said_in_reports_and_damage_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let kept = small().compact(&store);
    let read = TraceDirectory::open(&store).unwrap().records;
    assert_eq!(read, Some(kept.records), "as the run counts them");
    let whole = fs::read(store.join(STORE_FILE)).unwrap();
    let borders = borders(&whole);
    let middle = borders[borders.len() / 2] + 20;
    let read = |bytes: &[u8]| {
        fs::write(store.join(STORE_FILE), bytes).unwrap();
        let view = report::View {
            format: report::Format::Overview,
            notation: report::Notation::Json,
            ..report::View::default()
        };
        let mut out = Vec::new();
        let printed = report::print(&store, &view, &mut out).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let mut text = Vec::new();
        report::print(&store, &report::Format::Overview.into(), &mut text).unwrap();
        (printed, said, String::from_utf8(text).unwrap())
    };
    let (printed, said, text) = read(&whole);
    assert_eq!((printed.missing, said.get("incomplete")), (None, None));
    assert!(!text.contains("of what is there"), "{text}");

    let (printed, said, text) = read(&whole[..middle]);
    assert_eq!(printed.missing, None);
    let incomplete = said["incomplete"].as_str().unwrap().to_owned();
    assert!(
        incomplete.contains("in the middle of a block"),
        "{incomplete}"
    );
    assert!(
        said["remarks"]
            .as_array()
            .unwrap()
            .contains(&said["incomplete"])
    );
    assert_eq!(printed.notes, [&*incomplete]);
    assert!(text.contains(&format!("\n# {incomplete}\n")), "{text}");
    assert!(text.contains(" %), of what is there\n"), "{text}");
    // Who exports it to a uftrace directory has it said there as well.
    let to = folder.path().join("to");
    convert(&store, &to, false, &Watch::default()).unwrap();
    let exported = TraceDirectory::open(&to).unwrap();
    assert_eq!(exported.remark, Some(incomplete));
    let mut json = Vec::new();
    let mut calls = Calls::open(&exported, &Excerpt::default()).unwrap();
    crate::convert::chrome(&exported, &mut calls, |_| (), &mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(json.contains("the trace was not ended in order"), "{json}");

    let mut bytes = whole;
    bytes[middle] ^= 1;
    let (printed, said, text) = read(&bytes);
    let damage = printed.missing.unwrap().to_string();
    assert!(damage.contains("is damaged"), "{damage}");
    assert_eq!(said["incomplete"], damage.as_str());
    assert!(text.contains(&format!("\n# {damage}\n")), "{text}");
}

#[test]
fn another_version_is_named_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    small().compact(&store);
    let mut bytes = fs::read(store.join(STORE_FILE)).unwrap();
    bytes[8] = 9;
    fs::write(store.join(STORE_FILE), bytes).unwrap();
    let error = convert(&store, &folder.path().join("to"), false, &Watch::default()).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("version 9, this program reads version 1: convert it"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn a_trace_that_nobody_has_ended_is_there_up_to_its_last_round() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let mut writer = small().writer(&store);
    small().write(&mut writer);
    // As if the process were killed.
    std::mem::forget(writer);
    let converted = convert(&store, &to, false, &Watch::default()).unwrap();
    assert_eq!((converted.is_finished, converted.remark), (false, None));
    small().directly(&folder.path().join("direct"));
    let data = |of: &str| fs::read(folder.path().join(of).join("1000.dat")).unwrap();
    assert_eq!(data("to"), data("direct"));
}

/// Functions are numbered as they come: where a disk was full for a time, those of then come with the next ones, and no call
/// is shown as that of another function.
#[test]
fn functions_that_could_not_be_written_keep_their_numbers() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = made(3);
    let metadata = Metadata {
        vcpus: RINGS,
        tracer: "function".into(),
        ..Metadata::default()
    };
    let options = StreamOptions {
        rings: RINGS,
        ..StreamOptions::default()
    };
    let first = text_of(&functions[..1]);
    let writer = CompactWriter::create(&directory, first, metadata, &options, false);
    let mut writer = writer.unwrap();
    let unwritable = fs::File::open(directory.join(STORE_FILE)).unwrap();
    let good = std::mem::replace(writer.file(), unwritable);
    writer.learn(&News::Functions(text_of(&functions[..2])));
    assert!(writer.error().is_some());
    *writer.file() = good;
    writer.learn(&News::Functions(text_of(&functions)));
    let mut coder = Coder::new(1);
    for (time_ns, function) in (1..).zip([1, 2, 2]) {
        let kind = RecordKind::Entry(FunctionId(function));
        coder.record(&Record { time_ns, kind });
    }
    writer.append(Origin::Calls(0), coder.take(), 10, Some(10));
    writer.end_round();
    writer.finish(&[]).unwrap_err();
    let view = Format::Counts.into();
    let mut out = Vec::new();
    report::print(&directory, &view, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let rows: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for row in ["1 f1", "2 f2"] {
        assert!(rows.iter().any(|line| line == row), "{row}: {text}");
    }
}

/// It was made into structures that were ten times as large before anybody looked at what it said.
#[test]
fn a_beginning_that_says_more_than_a_session_has_to_say_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    small().compact(&store);
    let whole = fs::read(store.join(STORE_FILE)).unwrap();
    let first = borders(&whole)[1];
    let begin = &whole[16 + 12..first];
    let refused = |names: usize| {
        let names = vec!["\"\""; names].join(",");
        let text = format!("{{\"unknown\":[{names}],");
        let mut block = vec![0; 12];
        block.extend(text.bytes().chain(begin[1..].iter().copied()));
        let length = u32::try_from(block.len() - 12).unwrap().to_le_bytes();
        block[..4].copy_from_slice(&length);
        block[4] = 1;
        let checksum = crc32fast::hash(&[&block[..8], &block[12..]].concat());
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
        let file = [&whole[..16], &block, &whole[first..]].concat();
        fs::write(store.join(STORE_FILE), file).unwrap();
        let to = folder.path().join("to");
        let converted = convert(&store, &to, true, &Watch::default());
        converted.map_err(|error| error.to_string()).err()
    };
    assert_eq!(refused(100_000), None, "what is not known is passed over");
    let message = refused(200_000).unwrap();
    assert!(
        message.contains("it says more of how it was recorded than a session has"),
        "{message}"
    );
}
