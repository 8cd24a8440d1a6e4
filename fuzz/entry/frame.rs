//! Headers: any bytes give one that encodes to the same bytes, or a named error; no length is above its
//! limit.

use paceline_sync::frame::{HEADER_BYTES, Header, Kind, MAX_CONTROL_BYTES, MAX_DATA_BYTES};

/// As many headers as the bytes hold.
pub fn run(bytes: &[u8]) {
    for chunk in bytes.chunks(HEADER_BYTES) {
        let mut header = [0; HEADER_BYTES];
        header[..chunk.len()].copy_from_slice(chunk);
        match Header::decode(&header) {
            Ok(decoded) => {
                assert_eq!(decoded.encode(), header);
                let limit = match decoded.kind {
                    Kind::Data => MAX_DATA_BYTES,
                    Kind::Grant => 0,
                    _ => MAX_CONTROL_BYTES,
                };
                assert!(decoded.payload_bytes() <= limit as usize);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
