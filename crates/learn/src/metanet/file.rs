//! Weights as a file: a few words that say what follows, the numbers, a checksum. A file is not trusted: every length is
//! checked before anything is made of it, and numbers that no training gives are refused.

use super::{
    features::{CHOICE_FEATURES, JOB_FEATURES, SLOT_FEATURES, SLOTS},
    network::{MEMORY, MetaNetwork, WIDTH},
};
use crate::LearnError;
use std::{fs::File, io::Read, path::Path};

const MAGIC: &[u8; 8] = b"PACEMETA";
/// Raise it when features or layers change their meaning.
const VERSION: u32 = 1;
/// Sizes that must be those of this program.
const SIZES: [u32; 6] = [
    SLOTS as u32,
    SLOT_FEATURES as u32,
    JOB_FEATURES as u32,
    CHOICE_FEATURES as u32,
    MEMORY as u32,
    WIDTH as u32,
];
const HEAD: usize = MAGIC.len() + 4 + 4 * SIZES.len();
const CHECKSUM: usize = 8;
/// No file of weights is longer.
const LONGEST: u64 = 16 << 20;
/// No weight is larger.
const LARGEST: f32 = 1e4;

impl MetaNetwork {
    /// The network that comes with the program.
    pub fn shipped() -> MetaNetwork {
        let bytes = include_bytes!("../../weights/metanet.bin");
        // A test reads the same bytes.
        MetaNetwork::from_bytes(bytes).expect("weights that came with the program")
    }

    /// From a file, which is named where it cannot be used.
    pub fn read(file: &Path) -> Result<MetaNetwork, LearnError> {
        let refused = |reason| LearnError::WeightsFile { file: file.to_path_buf(), reason };
        let mut bytes = Vec::new();
        File::open(file)
            .and_then(|opened| opened.take(LONGEST).read_to_end(&mut bytes))
            .map_err(|error| refused(error.to_string()))?;
        MetaNetwork::from_bytes(&bytes).map_err(|error| match error {
            LearnError::Weights(reason) => refused(reason.to_string()),
            other => other,
        })
    }

    /// As a file has it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(SIZES.iter().flat_map(|size| size.to_le_bytes()));
        for parameter in self.parameters() {
            bytes.extend(parameter.value.values().iter().flat_map(|value| value.to_le_bytes()));
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Read what [`MetaNetwork::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<MetaNetwork, LearnError> {
        let mut network = MetaNetwork::new(0);
        let numbers: usize =
            network.parameters().iter().map(|parameter| parameter.value.values().len()).sum();
        if !bytes.starts_with(MAGIC) {
            return Err(LearnError::Weights("they do not begin as weights of a meta-network do"));
        }
        let mut words = bytes[MAGIC.len()..].chunks_exact(4).map(word);
        if words.next() != Some(VERSION) {
            return Err(LearnError::Weights("they are of another version of this program"));
        }
        if SIZES.iter().any(|size| words.next() != Some(*size)) {
            return Err(LearnError::Weights("they are of a network with other layers"));
        }
        if bytes.len() != HEAD + 4 * numbers + CHECKSUM {
            return Err(LearnError::Weights("their length is not what it should be"));
        }
        let (body, sum) = bytes.split_at(bytes.len() - CHECKSUM);
        if checksum(body).to_le_bytes() != sum {
            return Err(LearnError::Weights("their checksum is wrong: the file is damaged"));
        }
        let mut values = words.map(f32::from_bits);
        for parameter in network.parameters_mut() {
            for (place, value) in parameter.value.values_mut().iter_mut().zip(&mut values) {
                if !value.is_finite() || value.abs() > LARGEST {
                    return Err(LearnError::Weights("a weight is far too large, or no number"));
                }
                *place = value;
            }
        }
        Ok(network)
    }
}

fn word(bytes: &[u8]) -> u32 {
    // Chunks of four bytes have four.
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Fowler, Noll and Vo's: it finds damage, and does not stop anybody who means it.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn weights_are_read_as_they_were_written() {
        let network = MetaNetwork::new(7);
        assert_eq!(MetaNetwork::from_bytes(&network.to_bytes()), Ok(network));
    }

    #[test]
    fn a_file_is_read_or_named_with_what_is_wrong_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let network = MetaNetwork::new(7);
        let bytes = network.to_bytes();
        let mut other = bytes.clone();
        other[MAGIC.len()] += 1;
        let file = folder.path().join("metanet.bin");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            MetaNetwork::read(&file)
        };
        assert_eq!(read(&bytes), Ok(network));
        for (bytes, reason) in [
            (&bytes[..bytes.len() - 1], "length"),
            (b"text", "do not begin"),
            (&[], "do not begin"),
            (&other, "another version"),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("metanet.bin"), "{error}");
            assert!(error.contains("paceline learn metanet --out"), "{error}");
        }
        let error = MetaNetwork::read(&folder.path().join("none.bin")).unwrap_err().to_string();
        assert!(error.contains("none.bin") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn the_shipped_weights_are_readable_and_small() {
        assert!(MetaNetwork::shipped().to_bytes().len() < 300_000);
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let bytes = MetaNetwork::new(7).to_bytes();
        let mut random = Random::new(1);
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            damaged[random.place(bytes.len())] ^= 1 << random.below(8);
            assert!(MetaNetwork::from_bytes(&damaged).is_err());
            assert!(MetaNetwork::from_bytes(&bytes[..random.place(bytes.len())]).is_err());
        }
        let longer: Vec<u8> = bytes.iter().copied().chain([0; 4]).collect();
        assert!(MetaNetwork::from_bytes(&longer).is_err());
    }

    #[test]
    fn what_no_training_gives_is_refused_though_its_checksum_is_right() {
        for value in [f32::NAN, f32::INFINITY, -1e9] {
            let mut bytes = MetaNetwork::new(7).to_bytes();
            let end = bytes.len() - CHECKSUM;
            bytes[end - 4..end].copy_from_slice(&value.to_le_bytes());
            let sum = checksum(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
            assert!(MetaNetwork::from_bytes(&bytes).is_err(), "{value}");
        }
    }
}
