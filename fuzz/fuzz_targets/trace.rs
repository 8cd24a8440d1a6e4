//! Trace files of all formats. What must hold is said in `entry/trace.rs`.

#![no_main]

#[path = "../entry/trace.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::run(bytes));
