//! What is all-reduced: one buffer of a size, or the gradients of a whole model at once. Sizes and counts
//! only; this file knows neither contenders nor clocks.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use paceline_job::ByteSize;
use std::str::FromStr;

/// The most sizes a range may give: from 1 KiB by doubling, that is far past any memory.
const MAX_SIZES: usize = 64;

/// Sizes as the user wrote them; a range becomes a list when the step is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// `1KiB,1MiB`
    List(Vec<ByteSize>),
    /// `1KiB..256MiB`, both ends included.
    Range(ByteSize, ByteSize),
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sizes> {
        let size = |part: &str| -> Result<ByteSize> {
            let size: ByteSize = part.trim().parse()?;
            ensure!(
                size.0 > 0 && size.0.is_multiple_of(4) && size.0 <= 64 << 30,
                "{part}: a size is a whole number of f32 elements (4 bytes), at most 64GiB"
            );
            Ok(size)
        };
        match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (size(first)?, size(last)?);
                ensure!(first <= last, "{first} is more than {last}");
                Ok(Sizes::Range(first, last))
            }
            None => {
                let sizes = text.split(',').map(size).collect::<Result<Vec<_>>>()?;
                ensure!(sizes.len() <= MAX_SIZES, "more than {MAX_SIZES} sizes");
                Ok(Sizes::List(sizes))
            }
        }
    }
}

impl Sizes {
    /// The sizes, each `step` times the one before; a range always ends with its last size.
    pub fn expand(&self, step: u64) -> Result<Vec<ByteSize>> {
        match self {
            Sizes::List(sizes) => Ok(sizes.clone()),
            Sizes::Range(first, last) => {
                ensure!(step >= 2, "a step of {step} does not lead from {first} to {last}");
                let mut sizes = vec![*first];
                let mut size = *first;
                while size < *last {
                    let next = size.0.checked_mul(step).context("size too large")?;
                    size = ByteSize(next.min(last.0));
                    sizes.push(size);
                    ensure!(sizes.len() <= MAX_SIZES, "more than {MAX_SIZES} sizes");
                }
                Ok(sizes)
            }
        }
    }
}

/// A model whose gradients are all-reduced all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// 161 tensors, 25,557,032 parameters.
    Resnet50,
}

impl Model {
    /// Elements of each gradient, in the order in which the backward pass yields them.
    pub fn gradients(self) -> Vec<u64> {
        match self {
            Model::Resnet50 => resnet50(),
        }
    }

    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Model::Resnet50 => "resnet50",
        }
    }
}

/// Parameters of ResNet-50 (He et al., 2016, table 1), last layer first.
fn resnet50() -> Vec<u64> {
    fn convolution(into: &mut Vec<u64>, inputs: u64, outputs: u64, kernel: u64) {
        into.push(outputs * inputs * kernel * kernel);
        // The batch normalisation that follows it: weight and bias.
        into.extend([outputs, outputs]);
    }

    let mut sizes = Vec::new();
    convolution(&mut sizes, 3, 64, 7);
    let mut inputs = 64;
    for (width, blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        let outputs = 4 * width;
        for block in 0..blocks {
            convolution(&mut sizes, inputs, width, 1);
            convolution(&mut sizes, width, width, 3);
            convolution(&mut sizes, width, outputs, 1);
            if block == 0 {
                // The shortcut must change the number of channels as well.
                convolution(&mut sizes, inputs, outputs, 1);
            }
            inputs = outputs;
        }
    }
    sizes.extend([inputs * 1000, 1000]);
    sizes.reverse();
    sizes
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How the row is called.
    pub name: String,
    /// Bytes of each tensor.
    pub sizes: Vec<u64>,
    /// Timed iterations of one turn.
    pub iterations: u32,
    /// Iterations before them.
    pub warmup: u32,
}

impl Workload {
    /// A single buffer.
    pub fn single(size: ByteSize, iterations: Option<u32>) -> Workload {
        Workload::new(size.to_string(), vec![size.0], iterations)
    }

    /// All gradients of a model.
    pub fn model(model: Model, iterations: Option<u32>) -> Workload {
        let sizes: Vec<u64> = model.gradients().iter().map(|elements| elements * 4).collect();
        Workload::new(format!("{} ({} tensors)", model.name(), sizes.len()), sizes, iterations)
    }

    fn new(name: String, sizes: Vec<u64>, iterations: Option<u32>) -> Workload {
        let bytes: u64 = sizes.iter().sum();
        let iterations = iterations.unwrap_or_else(|| iterations_of_a_turn(bytes));
        Workload { name, sizes, iterations, warmup: (iterations / 10).clamp(1, 20) }
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }
}

/// Enough for a median, and at most about 128 MiB or 300 calls a turn, so that the slowest peer on the
/// largest size takes seconds and not minutes.
fn iterations_of_a_turn(bytes: u64) -> u32 {
    ((128 << 20) / bytes.max(1)).clamp(3, 300) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, step: u64) -> Vec<u64> {
        let sizes: Sizes = text.parse().unwrap();
        sizes.expand(step).unwrap().iter().map(|size| size.0).collect()
    }

    #[test]
    fn a_range_multiplies_by_the_step_and_includes_both_ends() {
        assert_eq!(bytes("1KiB..16KiB", 4), [1024, 4096, 16384]);
        assert_eq!(bytes("1KiB..5KiB", 2), [1024, 2048, 4096, 5120]);
        assert_eq!(bytes("4KiB..4KiB", 4), [4096]);
        assert_eq!(bytes("1KiB..256MiB", 4).len(), 10);
    }

    #[test]
    fn a_list_is_taken_as_it_is() {
        assert_eq!(bytes("1MiB, 4", 4), [1 << 20, 4]);
    }

    #[test]
    fn sizes_that_cannot_be_measured_are_refused() {
        for wrong in ["", "0", "3", "1KiB..", "4KiB..1KiB", "unlimited", "1KiB,,2KiB", "1TB"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
        assert!("1KiB..1MiB".parse::<Sizes>().unwrap().expand(1).is_err());
    }

    #[test]
    fn resnet50_has_its_161_tensors_and_25557032_parameters() {
        let gradients = Model::Resnet50.gradients();
        assert_eq!(gradients.len(), 161);
        assert_eq!(gradients.iter().sum::<u64>(), 25_557_032);
        assert_eq!(gradients[..2], [1000, 2_048_000], "the classifier's gradient comes first");
        assert_eq!(gradients[160], 64 * 3 * 7 * 7);
    }

    #[test]
    fn iterations_fall_with_size_and_never_below_three() {
        assert_eq!(iterations_of_a_turn(1 << 10), 300);
        assert_eq!(iterations_of_a_turn(4 << 20), 32);
        assert_eq!(iterations_of_a_turn(1 << 30), 3);
    }
}
