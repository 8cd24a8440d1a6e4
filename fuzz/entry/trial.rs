//! Runs an entry function over the committed corpus and over seeded mutations of it, as an ordinary test. A
//! failure names the input, so that the same run can be repeated.

use std::{fs, panic, path::Path};

/// A small generator, so that a failing case is the same on every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// A few bytes changed, cut, added, or taken from elsewhere.
    fn spoil(&mut self, mut bytes: Vec<u8>, other: &[u8]) -> Vec<u8> {
        for _ in 0..1 + self.below(6) {
            match self.below(5) {
                0 | 1 if !bytes.is_empty() => {
                    let index = self.below(bytes.len());
                    bytes[index] = self.next() as u8;
                }
                2 => bytes.truncate(self.below(bytes.len() + 1)),
                3 => {
                    let from = self.below(other.len() + 1);
                    bytes.extend_from_slice(&other[from..]);
                }
                _ => {
                    let at = self.below(bytes.len() + 1);
                    let piece = self.bytes(8);
                    bytes.splice(at..at, piece);
                }
            }
        }
        bytes.truncate(4096);
        bytes
    }
}

/// Every file of `fuzz/corpus/<target>`, then `mutations` inputs made from them or of nothing.
pub fn try_all(target: &str, entry: fn(&[u8]), mutations: u64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|file| file.expect("a readable folder").path())
        .collect();
    paths.sort();
    let mut corpus = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).expect("a readable file");
        attempt(entry, &bytes, || path.display().to_string());
        corpus.push(bytes);
    }
    assert!(!corpus.is_empty(), "no corpus in {}", folder.display());
    for seed in 0..mutations {
        let mut random = Random::new(seed);
        let chosen = corpus[random.below(corpus.len())].clone();
        let other = corpus[random.below(corpus.len())].clone();
        let bytes = match random.below(4) {
            0 => random.bytes(600),
            _ => random.spoil(chosen, &other),
        };
        attempt(entry, &bytes, || format!("mutation {seed}: {bytes:?}"));
    }
}

fn attempt(entry: fn(&[u8]), bytes: &[u8], name: impl Fn() -> String) {
    if let Err(panic) = panic::catch_unwind(|| entry(bytes)) {
        eprintln!("{} fails on {}", module_path!(), name());
        panic::resume_unwind(panic);
    }
}
