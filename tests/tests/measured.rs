//! What was measured once holds of what plans today: the data of `docs/measured` is planned for again.

use std::fs;
use std::path::Path;

use estream_tests::schedules::Schedules;
use estream_tests::sweep::{BUDGETS, Sweep};
use serde::de::DeserializeOwned;

/// The most that a plan may be slower than the best that was tried (paper §5.5), or twice what runs lie apart.
const REGRET: f64 = 0.0345;
/// How far a ceiling may lie above the memory that was taken. It has room for the head's 64 rows, of which a
/// prompt without `--all-positions` takes one: beside two layers and 64 tokens that is seen.
const ABOVE: f64 = 1.13;

fn measured<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/measured")
        .join(name);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn plans_are_as_good_as_the_best_that_was_tried() {
    let sweep: Sweep = measured("sweep.json");
    let models = sweep
        .models
        .iter()
        .map(|swept| swept.profile.services[0].record_bytes);
    let mut models: Vec<u64> = models.collect();
    models.sort_unstable();
    models.dedup();
    assert!(models.len() >= 3, "three shapes, not {models:?}");
    for (swept, length) in sweep.all() {
        for records in BUDGETS {
            let verdict = swept.verdict(length, records);
            let most = 1.0 + REGRET.max(2.0 * verdict.spread);
            assert!(
                verdict.regret() <= most,
                "{}, {} tokens, {records} records: {verdict:?}",
                swept.model,
                length.tokens
            );
        }
    }
}

#[test]
fn no_ceiling_was_exceeded_and_none_was_far_above() {
    let sweep: Sweep = measured("sweep.json");
    for (swept, length) in sweep.all() {
        for tried in length.tried.iter().chain(&length.hot) {
            let ratio = tried.ceiling_bytes as f64 / tried.peak_bytes as f64;
            assert!(
                (1.0..=ABOVE).contains(&ratio),
                "{}: {ratio}, {tried:?}",
                swept.model
            );
        }
    }
}

#[test]
fn earlier_reading_leaves_less_of_a_bubble() {
    let schedules: Schedules = measured("schedules.json");
    let bubble = |name: &str| {
        let shown = schedules.runs.iter().find(|shown| shown.schedule == name);
        shown
            .unwrap_or_else(|| panic!("{name} is missing"))
            .bubble()
    };
    let bubbles = ["on-demand", "prefetch", "early", "ahead"].map(bubble);
    assert!(bubbles.is_sorted_by(|a, b| a > b), "{bubbles:?}");
    // Paper Fig. 6.
    assert!((bubbles[0] - 0.344).abs() <= 0.01, "{bubbles:?}");
    // What a run says of itself is what its spans say.
    for shown in &schedules.runs {
        let mut times: Vec<_> = shown
            .spans
            .iter()
            .map(|span| (span.start_ns, span.end_ns))
            .collect();
        times.sort_unstable();
        assert!(
            times
                .iter()
                .all(|(start, end)| start <= end && *end <= shown.total_ns)
        );
        assert_eq!(times.is_empty(), shown.schedule == "resident");
    }
}
