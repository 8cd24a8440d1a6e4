//! Bytes as a script: every byte sequence is a list of decisions, and a sequence that ends goes on with
//! zeros. It knows nothing of what is decided.

/// What is left of the bytes.
#[derive(Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// A script of at most `longest` decisions' bytes: the rest is ignored, so that a run is short.
    pub fn new(bytes: &'a [u8], longest: usize) -> Script<'a> {
        Script(&bytes[..bytes.len().min(longest)])
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        let byte = usize::from(self.byte());
        if bound <= 256 { byte % bound } else { (byte | usize::from(self.byte()) << 8) % bound }
    }

    /// Heads or tails, heads once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// A number of interest: near another one, near a limit, or any.
    pub fn near(&mut self, number: u64) -> u64 {
        match self.byte() % 8 {
            0 => number.wrapping_add(1),
            1 => number.wrapping_sub(1),
            2 => 0,
            3 => u64::from(u32::MAX),
            4 => u64::MAX,
            5 => u64::from(self.byte()),
            6 => number ^ (1 << (self.byte() % 64)),
            _ => self.u64(),
        }
    }

    pub fn pick<'b, T>(&mut self, choices: &'b [T]) -> &'b T {
        &choices[self.below(choices.len())]
    }

    /// At most `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let wanted = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(wanted);
        self.0 = rest;
        taken.to_vec()
    }
}
