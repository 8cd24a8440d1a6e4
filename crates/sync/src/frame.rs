//! What travels between two workers: a fixed header, then at most `len` bytes of payload.
//!
//! Decoding is total: any 48 bytes give a header or a named error, and nothing is allocated before the
//! length was checked. This file does not know who sent the bytes or what they mean to the engine.

use crate::program::Slot;
use paceline_job::{Dtype, ReduceOp, ViewVersion};
use serde::{Deserialize, Serialize};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = 48;

/// The longest payload of a data frame; a partition is never larger.
pub const MAX_DATA_BYTES: u32 = 1 << 30;

/// The longest payload of any other frame: a name and a sentence.
pub const MAX_CONTROL_BYTES: u32 = 4096;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// Elements for one receive instruction.
    Data = 1,
    /// "I have data for this tensor, but no eager bytes left: tell me when you have posted it."
    Request = 2,
    /// "I have posted this tensor: send."
    Notice = 3,
    /// "You may send me `len_or_amount` more eager bytes."
    Grant = 4,
    /// "This tensor failed here"; the payload says why. If a worker that is gone is why, `chunk` is one more
    /// than its rank, and the payload says how it went; otherwise `chunk` is 0.
    Abort = 5,
    /// "I lost contact with a worker"; its rank is in `chunk`, the payload says how.
    Lost = 6,
    /// "I wait for this tensor without progress: have you posted it?"; the payload is its name.
    StallQuery = 7,
    /// The answer: one byte of status, then the name of the last operation posted.
    StallReply = 8,
    /// "Look into shared memory": means nothing to the engine.
    Wake = 9,
    /// "I am leaving in good order": what follows is the end of the stream.
    Goodbye = 10,
    /// "You sent data of this tensor, which ended well here": the two posted different things.
    Ended = 11,
    /// "A tensor failed here because a worker is gone, though I did not lose contact with it"; its rank is
    /// in `chunk`, the payload says how it went.
    Missed = 12,
}

impl Kind {
    fn from_wire(code: u8) -> Option<Kind> {
        use Kind::*;
        [
            Data, Request, Notice, Grant, Abort, Lost, StallQuery, StallReply, Wake, Goodbye,
            Ended, Missed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }
}

/// Which use of which tensor, in which view: equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpKey {
    /// Hash of the tensor's name and group.
    pub name: u64,
    /// The n-th use of the name on one rank meets the n-th on every other.
    pub uses: u32,
    /// The view the operation belongs to.
    pub view: ViewVersion,
}

impl OpKey {
    /// Which use of which tensor, whatever the view.
    pub(crate) fn tensor_use(&self) -> TensorUse {
        TensorUse { name: self.name, uses: self.uses }
    }
}

/// A worker posts each use of a tensor once. Operations are looked up by it and not by their whole key, so
/// that one that others posted in another view is seen to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TensorUse {
    name: u64,
    uses: u32,
}

/// The header of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Whether the payload was charged to the receiver's eager grant.
    pub charged: bool,
    /// Type of the tensor's elements.
    pub dtype: Dtype,
    /// How contributions are combined.
    pub reduce: ReduceOp,
    /// The operation.
    pub key: OpKey,
    /// Which chunk of the tensor.
    pub chunk: u32,
    /// Which of the receiver's instructions takes it.
    pub slot: Slot,
    /// Bytes of payload (for a grant: bytes granted, and no payload).
    pub len: u32,
    /// What must be equal on all ranks of the operation, hashed.
    pub signature: u32,
    /// Elements of the whole tensor, so that a mismatch can be explained; 0 where ranks may differ.
    pub elements: u64,
}

/// Bytes that are not a frame. The connection they came from is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not something this version sends.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// A field outside its range.
    #[error("frame with {field} = {value}, which no worker sends")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// A length above the limit for its kind; nothing was allocated for it.
    #[error("frame of kind {kind:?} announces {len} bytes; the limit is {limit}")]
    Length {
        /// Kind of the frame.
        kind: Kind,
        /// What it announced.
        len: u32,
        /// The limit.
        limit: u32,
    },
}

impl Header {
    /// A header for a frame about `key` that carries no elements.
    pub fn control(kind: Kind, key: OpKey) -> Header {
        Header {
            kind,
            charged: false,
            dtype: Dtype::U8,
            reduce: ReduceOp::Sum,
            key,
            chunk: 0,
            slot: Slot { lane: 0, pc: 0 },
            len: 0,
            signature: 0,
            elements: 0,
        }
    }

    /// Bytes that follow the header.
    pub fn payload_bytes(&self) -> usize {
        if self.kind == Kind::Grant { 0 } else { self.len as usize }
    }

    /// The wire form, little-endian.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.charged);
        bytes[2] = self.dtype as u8;
        bytes[3] = self.reduce as u8;
        bytes[4..8].copy_from_slice(&self.key.view.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.name.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.uses.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.slot.lane.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.slot.pc.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.len.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.signature.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.elements.to_le_bytes());
        bytes
    }

    /// Read a header, or say what is wrong with it.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let field = |field, code: u8| FrameError::Field { field, value: u64::from(code) };
        let kind = Kind::from_wire(bytes[0]).ok_or(FrameError::Kind(bytes[0]))?;
        if bytes[1] > 1 {
            return Err(field("charged", bytes[1]));
        }
        let header = Header {
            kind,
            charged: bytes[1] == 1,
            dtype: Dtype::from_wire(bytes[2]).ok_or_else(|| field("element type", bytes[2]))?,
            reduce: ReduceOp::from_wire(bytes[3]).ok_or_else(|| field("reduction", bytes[3]))?,
            key: OpKey { name: u64_at(8), uses: u32_at(16), view: ViewVersion(u32_at(4)) },
            chunk: u32_at(20),
            slot: Slot { lane: u32_at(24), pc: u32_at(28) },
            len: u32_at(32),
            signature: u32_at(36),
            elements: u64_at(40),
        };
        let limit = match kind {
            Kind::Data => MAX_DATA_BYTES,
            Kind::Grant => u32::MAX,
            _ => MAX_CONTROL_BYTES,
        };
        if header.len > limit {
            return Err(FrameError::Length { kind, len: header.len, limit });
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_give_a_header_that_encodes_back_or_an_error(
            noise in proptest::array::uniform32(any::<u8>()),
            tail in proptest::array::uniform16(any::<u8>()),
            kind in 0u8..14, small in 0u8..10,
        ) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..32].copy_from_slice(&noise);
            bytes[32..].copy_from_slice(&tail);
            bytes[0] = kind;
            bytes[1] &= 1;
            bytes[2] = small;
            bytes[3] = small / 2;
            bytes[35] &= 0x0f;
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.payload_bytes() <= MAX_DATA_BYTES as usize);
            }
        }
    }

    #[test]
    fn an_absurd_length_is_refused_by_name() {
        let key = OpKey { name: 1, uses: 0, view: ViewVersion(1) };
        let mut bytes = Header { len: MAX_DATA_BYTES, ..Header::control(Kind::Data, key) }.encode();
        assert!(Header::decode(&bytes).is_ok());
        bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = Header::decode(&bytes).unwrap_err();
        assert!(matches!(error, FrameError::Length { len: u32::MAX, .. }), "{error}");
    }
}
