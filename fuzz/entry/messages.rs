//! What strangers and peers say outside the data path: every decoder takes any bytes, and what it accepts it
//! would say the same way again.

use paceline_net::{
    coordinator::{
        decode_coordinator_message, decode_introduction, decode_introduction_answer,
        decode_request, decode_worker_message,
    },
    handshake::decode_hello,
};

/// The first byte chooses the decoder.
pub fn run(bytes: &[u8]) {
    let Some((decoder, bytes)) = bytes.split_first() else { return };
    match decoder % 6 {
        0 => {
            if let Ok(hello) = decode_hello(bytes) {
                assert_eq!(hello.encode(), bytes);
            }
        }
        1 => drop(decode_request(bytes)),
        2 => again(decode_worker_message(bytes), decode_worker_message),
        3 => again(decode_coordinator_message(bytes), decode_coordinator_message),
        4 => again(decode_introduction(bytes), decode_introduction),
        _ => again(decode_introduction_answer(bytes), decode_introduction_answer),
    }
}

fn again<T: serde::Serialize + PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
    decoded: Result<T, E>,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) {
    if let Ok(message) = decoded {
        let said = serde_json::to_vec(&message).expect("what was read can be written");
        assert_eq!(decode(&said).expect("what was written can be read"), message);
    }
}
