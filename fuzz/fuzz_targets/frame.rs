//! Headers of frames. What must hold is said in `entry/frame.rs`.

#![no_main]

#[path = "../entry/frame.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::run(bytes));
