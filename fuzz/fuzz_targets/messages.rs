//! Messages of the handshake and of the coordinator. What must hold is said in `entry/messages.rs`.

#![no_main]

#[path = "../entry/messages.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::run(bytes));
