//! What a browser shows of an exported page is what there is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::exact::{lossy, on_two_vcpus};
use tests::patient;

/// What Chromium makes of a page in which this script was the last one; it leaves its word in the title.
pub(super) fn browsed(page: &Path, script: &str) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("page.html");
    let script =
        format!("<script>document.title = JSON.stringify((() => {{ {script} }})());</script>");
    fs::write(&copy, text.replace("</body>", &format!("{script}</body>"))).unwrap();
    let said = patient("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        // That may be small: in a container it has 64 MiB.
        .arg("--disable-dev-shm-usage")
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("user").display()
        ))
        .arg(format!("file://{}", copy.display()))
        .output()
        .expect("chromium is installed");
    let dom = String::from_utf8_lossy(&said.stdout);
    let title = dom
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"));
    let (title, _) = title.unwrap_or_else(|| panic!("{said:?}"));
    let title = title
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&title).unwrap_or_else(|error| panic!("{error} in {title}: {said:?}"))
}

/// The rows that the page shows of its functions: calls by name.
const COUNTS: &str = "
const number = cell => Number(cell.textContent.replace(/,/g, ''));
const rows = () => [...document.querySelectorAll('#counts tbody tr')].map(row => [row.lastChild.textContent, number(row.firstChild)]);
const sum = (line, of) => line.at[of].reduce((a, b) => a + b, 0);
";

fn counts(rows: &Value) -> BTreeMap<String, u64> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| {
        (
            row[0].as_str().unwrap().to_owned(),
            row[1].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn a_page_shows_every_call_and_can_be_searched_sorted_and_zoomed() {
    let (printed, trace) = on_two_vcpus("graph");
    let called = printed.called();
    let script = format!(
        "{COUNTS}
        const all = rows();
        const sums = data.vcpus.concat(data.threads).map(line => sum(line, 'happened'));
        document.querySelector('#slowest tr.place').click();
        const slowest = data.slowest.reduce((a, b) => (b.duration_ns > a.duration_ns ? b : a));
        const at = (slowest.entered_ns - data.start_ns) / data.column_ns;
        // On a busy host it may be what took the time.
        const fills = 3 * slowest.duration_ns >= timeline.columns * data.column_ns;
        const zoomed = timeline.from <= at && at <= timeline.to && (fills || timeline.to - timeline.from < timeline.columns);
        document.getElementById('all').click();
        const whole = timeline.to - timeline.from === timeline.columns;
        const search = document.getElementById('search');
        search.value = 'SMP_L';
        search.dispatchEvent(new Event('input'));
        const found = rows().map(row => row[0]);
        search.value = '';
        search.dispatchEvent(new Event('input'));
        const sorted = () => {{
          [...document.querySelectorAll('#counts th')].find(cell => cell.textContent.startsWith('function')).click();
          return rows().map(row => row[0]);
        }};
        const [rising, falling] = [sorted(), sorted()];
        const flame = document.querySelector('iframe').src.startsWith('data:image/svg+xml,');
        const marks = timeline.marks.length === about.paused.length && timeline.marks.every(mark => mark.column <= timeline.columns);
        return {{ marks, all, sums, zoomed, whole, found, rising, falling, flame, lost: about.lost, pauses: about.pauses.count > 0 }};"
    );
    let said = browsed(&trace.exported("html"), &script);
    assert_eq!(counts(&said["all"]), called);
    let total: u64 = called.values().sum();
    let sums = said["sums"].as_array().unwrap().iter();
    let sums: Vec<u64> = sums.map(|sum| sum.as_u64().unwrap()).collect();
    assert_eq!(sums.iter().take(2).sum::<u64>(), total);
    assert_eq!(sums.iter().skip(2).sum::<u64>(), total);
    assert_eq!(said["found"], json!(["smp_leaf"]));
    let mut names: Vec<String> = called.into_keys().collect();
    assert_eq!(said["rising"], json!(names));
    names.reverse();
    assert_eq!(said["falling"], json!(names));
    for key in ["zoomed", "whole", "flame", "pauses", "marks"] {
        assert_eq!(said[key], json!(true), "{key}: {said}");
    }
    assert_eq!(said["lost"], json!(0));
}

#[test]
fn a_page_of_a_trace_without_returns_says_what_is_lost() {
    let (_, trace) = lossy();
    let script = format!(
        "{COUNTS}
        const lost = data.vcpus.map(line => sum(line, 'lost')).reduce((a, b) => a + b);
        const isHidden = name => document.getElementById(name).hidden;
        return {{ all: rows(), lost, said: document.querySelector('dd.lost').textContent, slowest: isHidden('slowest'),
          flame: document.querySelector('iframe') === null }};"
    );
    let said = browsed(&trace.exported("html"), &script);
    assert_eq!(counts(&said["all"]), trace.counts());
    let lost = trace.lost();
    assert!(lost > 0);
    assert_eq!(said["lost"], json!(lost));
    let digits: String = said["said"]
        .as_str()
        .unwrap()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    assert_eq!(digits, lost.to_string());
    assert_eq!(
        (&said["slowest"], &said["flame"]),
        (&json!(true), &json!(true))
    );
}
