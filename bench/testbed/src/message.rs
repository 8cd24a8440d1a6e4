//! Netlink messages as bytes: a fixed header, then attributes that may nest. Pure: nothing here opens
//! a socket, and the reader of replies treats every length as untrusted.

/// Bytes of `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;

/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;

/// The kernel's text in an acknowledgement (`NLMSGERR_ATTR_MSG`).
const EXPLANATION: u16 = 1;

/// A message under construction. Lengths are filled in as parts are closed.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A request of `kind` (`RTM_…`) with extra `flags` (`NLM_F_…`) and the family's own fixed header.
    /// An acknowledgement is always asked for: without it a refusal would go unseen.
    pub fn new(kind: u16, flags: i32, family_header: &[u8]) -> Message {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes()); // the length, once it is known
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence and port
        Message { bytes }.raw(family_header)
    }

    /// Bytes without an attribute around them: a header inside a nested attribute.
    pub fn raw(mut self, value: &[u8]) -> Message {
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    /// One attribute. The length stated leaves out the padding.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Message {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value)
    }

    /// One attribute that holds a text, ended by a zero as the kernel expects.
    pub fn text(self, kind: u16, text: &str) -> Message {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        self.attribute(kind, &value)
    }

    /// One attribute that holds a 32-bit number.
    pub fn number(self, kind: u16, value: u32) -> Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// One attribute that holds what `fill` adds.
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]); // the length, once it is known
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        let mut filled = fill(self);
        let length = (filled.bytes.len() - start) as u16;
        filled.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    /// The finished message.
    pub fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

/// What the kernel said to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Of the request that is answered.
    pub sequence: u32,
    /// Zero, or an error number.
    pub code: i32,
    /// The kernel's own words, or nothing.
    pub explanation: String,
}

/// The acknowledgements in a datagram; other messages, and whatever is malformed, are passed over.
pub fn acknowledgements(mut datagram: &[u8]) -> Vec<Acknowledgement> {
    let mut found = Vec::new();
    // Each turn consumes at least a header, so a datagram bounds the loop.
    while let Some(length) = u32_at(datagram, 0).map(|length| length as usize) {
        if length < HEADER_BYTES || length > datagram.len() {
            break;
        }
        let message = &datagram[..length];
        if u16_at(message, 4) == Some(libc::NLMSG_ERROR as u16)
            && let (Some(sequence), Some(code)) = (u32_at(message, 8), u32_at(message, 16))
        {
            // The error number is followed by the header of the request (nothing more of the request
            // is echoed: the socket asks for that), then by attributes.
            let attributes = message.get(HEADER_BYTES + 4 + HEADER_BYTES..).unwrap_or_default();
            found.push(Acknowledgement {
                sequence,
                code: (code as i32).wrapping_neg(),
                explanation: explanation(attributes),
            });
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn explanation(mut attributes: &[u8]) -> String {
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        if length < 4 || length > attributes.len() {
            break;
        }
        if kind & !NESTED == EXPLANATION {
            let text = String::from_utf8_lossy(&attributes[4..length]);
            return text.trim_end_matches('\0').to_string();
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    String::new()
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn attributes_are_padded_and_nested_lengths_cover_their_content() {
        let bytes = Message::new(16, 0, &[7; 4])
            .text(3, "ab")
            .nested(18, |inner| inner.text(1, "veth").number(2, 9))
            .finish(5);
        assert_eq!(
            bytes,
            [
                52, 0, 0, 0, 16, 0, 5, 0, 5, 0, 0, 0, 0, 0, 0,
                0, // length, kind, flags, sequence
                7, 7, 7, 7, // the family's header
                7, 0, 3, 0, b'a', b'b', 0, 0, // a text of three bytes, padded to four
                24, 0, 18, 0x80, // nested: itself and both parts
                9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0, //
                8, 0, 2, 0, 9, 0, 0, 0,
            ]
        );
    }

    #[test]
    fn a_refusal_is_read_with_its_explanation() {
        let mut bytes = Message::new(libc::NLMSG_ERROR as u16, 0, &(-2i32).to_ne_bytes())
            .raw(&[0; HEADER_BYTES])
            .number(2, 12)
            .text(EXPLANATION, "Specified qdisc kind is unknown")
            .finish(8);
        let expected = Acknowledgement {
            sequence: 8,
            code: libc::ENOENT,
            explanation: "Specified qdisc kind is unknown".to_string(),
        };
        assert_eq!(acknowledgements(&bytes), std::slice::from_ref(&expected));
        bytes.extend(bytes.clone());
        assert_eq!(acknowledgements(&bytes), [expected.clone(), expected]);
    }

    #[test]
    fn a_malformed_reply_yields_nothing_rather_than_a_panic() {
        let whole = Message::new(libc::NLMSG_ERROR as u16, 0, &0i32.to_ne_bytes())
            .raw(&[0; HEADER_BYTES])
            .text(EXPLANATION, "fine")
            .finish(1);
        assert_eq!(acknowledgements(&whole).len(), 1);
        for cut in 0..whole.len() {
            assert_eq!(acknowledgements(&whole[..cut]), [], "cut at {cut}");
        }
        let mut lying = whole.clone();
        lying[HEADER_BYTES + 4 + HEADER_BYTES] = 0xff; // an attribute longer than its message
        assert_eq!(acknowledgements(&lying)[0].explanation, "");
    }
}
