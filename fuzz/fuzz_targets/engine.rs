//! The engines of a small job under a script of events and broken frames. What must hold is said in `entry/engine.rs`.

#![no_main]

#[path = "../entry/engine.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::run(bytes));
