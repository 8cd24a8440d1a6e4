//! A ring in shared memory whose other side writes what it likes into it: the reader gets records that lie
//! inside the ring, or an error; the writer writes inside the ring, or nothing. Neither panics.

#[path = "../../crates/net/src/runtime/ring.rs"]
#[allow(dead_code)]
mod ring;
#[path = "script.rs"]
#[allow(dead_code)]
mod script;

use ring::{RECORD_LIMIT, RING_AREA_BYTES, Reader, Writer};
use script::Script;

#[repr(align(128))]
struct Area([u8; RING_AREA_BYTES as usize]);

/// Run one script.
pub fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes, 2048);
    let mut area = Box::new(Area([0; RING_AREA_BYTES as usize]));
    let base: *mut u8 = (&raw mut *area).cast();
    // SAFETY: zeroed, aligned, and dropped after the ends.
    let (mut writer, mut reader) = unsafe { (Writer::new(base), Reader::new(base)) };
    let record = [7; RECORD_LIMIT];
    while !script.is_over() {
        match script.byte() % 4 {
            0 => {
                let len = script.below(RECORD_LIMIT + 1);
                let cut = script.below(len + 1);
                writer.push(&[&record[..cut], &record[cut..len]]);
            }
            1 => {
                // The counters, a place where a record begins, or any.
                let places = [0, 128, 256, 8 * script.below(RING_AREA_BYTES as usize / 8)];
                let place = *script.pick(&places);
                let old = u64::from_le_bytes(area.0[place..place + 8].try_into().expect("eight"));
                let new = script.near(old);
                area.0[place..place + 8].copy_from_slice(&new.to_le_bytes());
            }
            _ => {
                reader.has_record();
                match reader.peek() {
                    Ok(None) => {}
                    Ok(Some(record)) => {
                        let inside = area.0.as_ptr_range();
                        let range = record.as_ptr_range();
                        assert!(inside.start <= range.start && range.end <= inside.end);
                        let len = record.len();
                        reader.pop(len);
                    }
                    // The link is closed for this.
                    Err(_) => return,
                }
            }
        }
    }
}
