//! Times in a trace, where the guest's counter has an offset to the host's.

use tests::Guest;

#[test]
fn times_lie_within_the_run() {
    let guest = Guest::new("workload=calls iterations=10").output();
    let (ended, trace) = guest.with(["--trace", "function"]).run();
    let _ = ended.good();
    let times: Vec<f64> = trace
        .report("function")
        .lines()
        .filter(|line| line.contains("<guest>-"))
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|time| time.trim_end_matches(':').parse().unwrap())
        .collect();
    assert!(times.len() > 100, "{} times", times.len());
    assert!(times[0] > 0.0 && times.is_sorted(), "{:?}", &times[..100]);
}
