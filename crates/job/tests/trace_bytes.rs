//! The fuzzer's entry for trace files over its corpus and over seeded mutations of it.

#[path = "../../../fuzz/entry/trace.rs"]
mod trace;
#[path = "../../../fuzz/entry/trial.rs"]
mod trial;

#[test]
fn no_bytes_make_a_trace_that_does_not_hold_together() {
    trial::try_all("trace", trace::run, 20_000);
}
