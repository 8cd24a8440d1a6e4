//! Records: how bytes are encrypted and authenticated once a handshake has given both sides a key for
//! each direction. On the wire these are Noise transport messages, each behind its two-byte length:
//! AES-256-GCM, the nonce a counter, so that a record that was altered, dropped, repeated or moved
//! cannot be opened. This file knows nothing of sockets: bytes in, bytes out.
//!
//! The cipher is called directly rather than through the Noise library, because records are then
//! sealed and opened in place, the two directions can live on two threads, and keys can be renewed.

use crate::error::{NetError, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::{
    fmt,
    io::{self, Read},
};

/// Bytes of a direction's key.
pub(crate) const KEY_BYTES: usize = 32;

/// A record's length field.
const LENGTH_BYTES: usize = 2;

/// A record's authentication tag.
const TAG_BYTES: usize = 16;

/// The most plaintext in one record: its length, tag included, is 16 bits.
pub const RECORD_PLAIN_BYTES: usize = u16::MAX as usize - TAG_BYTES;

/// How much an [`Opener`] holds: four whole records, so that what is left of a record that came in
/// part is seldom moved.
pub const OPENER_BYTES: usize = 4 * (LENGTH_BYTES + u16::MAX as usize);

/// A key is replaced after this many records. At 64 KiB a record that is 64 GiB, well inside the
/// 2^34.5 blocks after which AES-GCM's advantage passes 2^-57 (RFC 8446, section 5.5).
const RECORDS_PER_KEY: u64 = 1 << 20;

/// Both directions of a sealed connection.
#[derive(Debug)]
pub struct Seal {
    /// Seals what this side sends.
    pub sender: Sealer,
    /// Opens what the other side sent.
    pub receiver: Opener,
}

impl Seal {
    pub(crate) fn new(send_key: [u8; KEY_BYTES], receive_key: [u8; KEY_BYTES]) -> Seal {
        Seal { sender: Sealer::new(send_key), receiver: Opener::new(receive_key) }
    }

    /// Seal `plain` into records at the end of `out`; see [`Sealer::seal_into`].
    pub fn seal_into(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.sender.seal_into(plain, out);
    }
}

/// The sending direction.
#[derive(Debug)]
pub struct Sealer {
    key: DirectionKey,
}

impl Sealer {
    fn new(key: [u8; KEY_BYTES]) -> Sealer {
        Sealer { key: DirectionKey::new(key) }
    }

    /// How many bytes `plain_bytes` become.
    pub const fn sealed_bytes(plain_bytes: usize) -> usize {
        plain_bytes + plain_bytes.div_ceil(RECORD_PLAIN_BYTES) * (LENGTH_BYTES + TAG_BYTES)
    }

    /// Seal `plain` into as few records as hold it, at the end of `out`. Nothing is written for
    /// nothing. Allocates only where `out` is too small, once.
    pub fn seal_into(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.seal_parts_into(&[plain], out);
    }

    /// The same for bytes that lie in several places, such as a header and its payload: they share
    /// records.
    pub fn seal_parts_into(&mut self, parts: &[&[u8]], out: &mut Vec<u8>) {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let records = total.div_ceil(RECORD_PLAIN_BYTES);
        if records == 0 {
            return;
        }
        out.reserve(Sealer::sealed_bytes(total));
        // Records of equal length: the receiver can open the first while the last is on its way.
        let even = total.div_ceil(records);
        let mut parts = parts.iter();
        let mut part: &[u8] = &[];
        let mut left = total;
        while left > 0 {
            let length = even.min(left);
            left -= length;
            // At most 65,535 by the choice of `records`.
            out.extend_from_slice(&((length + TAG_BYTES) as u16).to_be_bytes());
            let start = out.len();
            while out.len() - start < length {
                if part.is_empty() {
                    // The parts hold `total` bytes together, so there is a next one.
                    part = parts.next().copied().unwrap_or_default();
                    continue;
                }
                let take = part.len().min(length - (out.len() - start));
                out.extend_from_slice(&part[..take]);
                part = &part[take..];
            }
            let tag = self.key.seal(&mut out[start..]);
            out.extend_from_slice(&tag);
        }
    }
}

/// The receiving direction: give it bytes as they come, take plaintext out.
///
/// It holds at most [`OPENER_BYTES`] and never grows. Take records until there are none before
/// adding bytes again; then there is always room.
pub struct Opener {
    key: DirectionKey,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    broken: bool,
}

impl Opener {
    fn new(key: [u8; KEY_BYTES]) -> Opener {
        Opener {
            key: DirectionKey::new(key),
            buffer: vec![0; OPENER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            broken: false,
        }
    }

    /// Where the next bytes go. Follow it with [`Opener::advance`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < LENGTH_BYTES + usize::from(u16::MAX) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Say that `bytes` bytes were put at the start of [`Opener::space`].
    ///
    /// # Panics
    /// If that is more than the space there was.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.buffer.len() - self.end, "more bytes than the opener had room for");
        self.end += bytes;
    }

    /// One `read` into the free space; 0 is the end of the stream.
    pub fn read_from(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let bytes = source.read(self.space())?;
        self.advance(bytes);
        Ok(bytes)
    }

    /// Copy as much of `bytes` as there is room for, and say how much that was.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let space = self.space();
        let taken = bytes.len().min(space.len());
        space[..taken].copy_from_slice(&bytes[..taken]);
        self.advance(taken);
        taken
    }

    /// How many more bytes complete the record that comes next; 0 if it is whole.
    pub fn wanted(&self) -> usize {
        let held = self.end - self.start;
        match self.record_bytes() {
            Some(record) => (LENGTH_BYTES + record).saturating_sub(held),
            None => LENGTH_BYTES - held,
        }
    }

    /// Whether no part of a record is held: the only place where a stream may end.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The plaintext of the next record, if it is whole. After an error there is nothing more to
    /// trust: every further call gives the error again.
    pub fn next_record(&mut self) -> Result<Option<&[u8]>> {
        let tampered = NetError::Tampered { record: self.key.counter };
        if self.broken {
            return Err(tampered);
        }
        let Some(record) = self.record_bytes() else { return Ok(None) };
        // A record of nothing is never sent; taking it for one would let a peer feed us for ever.
        if record <= TAG_BYTES {
            self.broken = true;
            return Err(tampered);
        }
        let first = self.start + LENGTH_BYTES;
        if self.end < first + record {
            return Ok(None);
        }
        if !self.key.open(&mut self.buffer[first..first + record]) {
            self.broken = true;
            return Err(tampered);
        }
        self.start = first + record;
        Ok(Some(&self.buffer[first..first + record - TAG_BYTES]))
    }

    fn record_bytes(&self) -> Option<usize> {
        let held = &self.buffer[self.start..self.end];
        held.first_chunk().map(|length| usize::from(u16::from_be_bytes(*length)))
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("held", &(self.end - self.start))
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

/// One direction's cipher, its counter, and the renewal of its key.
struct DirectionKey {
    /// Apart, because it holds the key's expanded schedule: connections are moved about.
    cipher: Box<LessSafeKey>,
    /// The nonce of the next record. 2^64 records of one byte take longer than a job lives.
    counter: u64,
    records_per_key: u64,
}

impl DirectionKey {
    fn new(key: [u8; KEY_BYTES]) -> DirectionKey {
        DirectionKey {
            cipher: Box::new(cipher(&key)),
            counter: 0,
            records_per_key: RECORDS_PER_KEY,
        }
    }

    fn seal(&mut self, plain: &mut [u8]) -> [u8; TAG_BYTES] {
        let tag = self
            .cipher
            .seal_in_place_separate_tag(nonce(self.counter), Aad::empty(), plain)
            .expect("AES-GCM seals up to 64 GiB at once, a record is below 64 KiB");
        self.count();
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    fn open(&mut self, record: &mut [u8]) -> bool {
        let opened = self.cipher.open_in_place(nonce(self.counter), Aad::empty(), record).is_ok();
        if opened {
            self.count();
        }
        opened
    }

    /// Both sides count the same records, so both renew the key at the same one.
    fn count(&mut self) {
        self.counter += 1;
        if self.counter.is_multiple_of(self.records_per_key) {
            // Noise, section 4.2, REKEY: the encryption of zeros under the nonce that is never used.
            let mut key = [0; KEY_BYTES];
            let _tag = self
                .cipher
                .seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut key)
                .expect("AES-GCM seals up to 64 GiB at once, a key has 32 bytes");
            *self.cipher = cipher(&key);
        }
    }
}

impl fmt::Debug for DirectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectionKey").field("counter", &self.counter).finish_non_exhaustive()
    }
}

fn cipher(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("AES-256 takes 32 bytes of key"))
}

/// Noise, section 12.3: 32 bits of zeros, then the counter, big-endian.
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 31 % 251) as u8).collect()
    }

    fn open_all(opener: &mut Opener, mut bytes: &[u8], step: usize) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            let taken = opener.feed(&bytes[..step.min(bytes.len())]);
            assert!(taken > 0, "a drained opener always has room");
            bytes = &bytes[taken..];
            while let Some(record) = opener.next_record()? {
                plain.extend_from_slice(record);
            }
        }
        Ok(plain)
    }

    #[test]
    fn every_length_survives_whatever_the_pieces_it_arrives_in() {
        let lengths = [1, 2, 16, 65_518, 65_519, 65_520, 131_038, 131_039, 400_000];
        for step in [1, 7, 1_448, 65_537, usize::MAX] {
            let (mut sealer, mut opener) = (Sealer::new(KEY), Opener::new(KEY));
            for length in lengths {
                let plain = pattern(length);
                let mut sealed = Vec::new();
                sealer.seal_into(&plain, &mut sealed);
                assert_eq!(sealed.len(), Sealer::sealed_bytes(length));
                assert!(open_all(&mut opener, &sealed, step).unwrap() == plain, "{length} {step}");
                assert!(opener.is_empty());
            }
        }
    }

    #[test]
    fn parts_are_sealed_as_if_they_lay_together() {
        let plain = pattern(200_000);
        let mut whole = Vec::new();
        Sealer::new(KEY).seal_into(&plain, &mut whole);
        let mut parted = Vec::new();
        let parts = [&plain[..32], &[], &plain[32..70_000], &plain[70_000..]];
        Sealer::new(KEY).seal_parts_into(&parts, &mut parted);
        assert!(whole == parted);
        let mut nothing = Vec::new();
        Sealer::new(KEY).seal_parts_into(&[&[], &[]], &mut nothing);
        assert!(nothing.is_empty());
    }

    #[test]
    fn one_flipped_bit_anywhere_is_found() {
        let mut sealed = Vec::new();
        Sealer::new(KEY).seal_into(&pattern(40), &mut sealed);
        for bit in 0..sealed.len() * 8 {
            let mut altered = sealed.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let mut opener = Opener::new(KEY);
            let opened = open_all(&mut opener, &altered, usize::MAX);
            // A longer length leaves the record incomplete, which shows when the stream ends.
            let caught = matches!(opened, Err(NetError::Tampered { record: 0 }))
                || (opened.unwrap().is_empty() && !opener.is_empty());
            assert!(caught, "bit {bit}");
        }
    }

    #[test]
    fn records_cannot_be_reordered_repeated_or_left_out() {
        let mut sealer = Sealer::new(KEY);
        let records: Vec<Vec<u8>> = (0..3)
            .map(|index| {
                let mut out = Vec::new();
                sealer.seal_into(&[index; 10], &mut out);
                out
            })
            .collect();
        for (order, good) in [([0, 1, 2], 3), ([0, 2, 1], 1), ([1, 0, 2], 0), ([0, 0, 1], 1)] {
            let mut opener = Opener::new(KEY);
            let mut opened = 0;
            for index in order {
                opener.feed(&records[index]);
                match opener.next_record() {
                    Ok(Some(_)) => opened += 1,
                    Ok(None) => panic!("whole records were fed"),
                    Err(error) => assert!(matches!(error, NetError::Tampered { .. })),
                }
            }
            assert_eq!(opened, good, "{order:?}");
        }
    }

    #[test]
    fn a_record_of_nothing_is_refused() {
        for length in 0..=TAG_BYTES as u16 {
            let mut opener = Opener::new(KEY);
            opener.feed(&length.to_be_bytes());
            assert!(matches!(opener.next_record(), Err(NetError::Tampered { record: 0 })));
        }
    }

    #[test]
    fn keys_are_renewed_on_both_sides_at_the_same_record() {
        let (mut sealer, mut opener) = (Sealer::new(KEY), Opener::new(KEY));
        let mut never = Sealer::new(KEY);
        sealer.key.records_per_key = 3;
        opener.key.records_per_key = 3;
        for index in 0..10 {
            let (mut sealed, mut without) = (Vec::new(), Vec::new());
            sealer.seal_into(&[index; 100], &mut sealed);
            never.seal_into(&[index; 100], &mut without);
            assert_eq!(sealed == without, index < 3);
            assert_eq!(open_all(&mut opener, &sealed, usize::MAX).unwrap(), [index; 100]);
        }
    }

    #[test]
    fn the_wire_is_that_of_noise_transport_messages() {
        let build = || snow::Builder::new("Noise_NN_25519_AESGCM_SHA256".parse().unwrap());
        let mut initiator = build().build_initiator().unwrap();
        let mut responder = build().build_responder().unwrap();
        let (mut message, mut payload) = ([0; 256], [0; 256]);
        let length = initiator.write_message(&[], &mut message).unwrap();
        responder.read_message(&message[..length], &mut payload).unwrap();
        let length = responder.write_message(&[], &mut message).unwrap();
        initiator.read_message(&message[..length], &mut payload).unwrap();

        let (key, _) = initiator.dangerously_get_raw_split();
        let mut sealer = Sealer::new(key);
        sealer.key.records_per_key = 2;
        let mut transport = responder.into_transport_mode().unwrap();
        for index in 0..6 {
            if index > 0 && index % 2 == 0 {
                transport.rekey_incoming();
            }
            let mut sealed = Vec::new();
            sealer.seal_into(&[index; 50], &mut sealed);
            let length = transport.read_message(&sealed[LENGTH_BYTES..], &mut payload).unwrap();
            assert_eq!(payload[..length], [index; 50]);
        }
    }
}
