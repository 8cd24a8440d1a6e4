//! The fuzzers' entries over their corpora and over seeded mutations of them, for all that this crate reads
//! from others.

#[path = "../../../fuzz/entry/frame.rs"]
mod frame;
#[path = "../../../fuzz/entry/ring.rs"]
mod lying_ring;
#[path = "../../../fuzz/entry/messages.rs"]
mod messages;
#[path = "../../../fuzz/entry/trial.rs"]
mod trial;

#[test]
fn any_bytes_are_a_header_or_an_error() {
    trial::try_all("frame", frame::run, 20_000);
}

#[test]
fn any_bytes_are_a_message_or_an_error() {
    trial::try_all("messages", messages::run, 20_000);
}

#[test]
fn a_ring_that_lies_harms_nobody() {
    trial::try_all("ring", lying_ring::run, 5_000);
}
