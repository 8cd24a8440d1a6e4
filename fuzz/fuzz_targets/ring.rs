//! A ring in shared memory whose other side lies. What must hold is said in `entry/ring.rs`.

#![no_main]

#[path = "../entry/ring.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::run(bytes));
