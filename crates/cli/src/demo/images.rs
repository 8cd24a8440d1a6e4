//! The images that the demo trains on: those that come with the command, or the four files of Fashion-MNIST or MNIST in a folder.
//! Every length is checked before it is believed. What is done with them is not known here.

use crate::exit::UsageError;
use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use paceline_learn::{matrix::Matrix, nn::ImageShape};
use std::{
    fs::File,
    io::{Read, Take},
    path::Path,
};

/// All images are like this.
pub const SHAPE: ImageShape = ImageShape { channels: 1, height: 28, width: 28 };

/// How many kinds of things are shown.
pub const CLASSES: u8 = 10;

/// Of one set. MNIST's largest variant has 280,000; four times that still fits into memory.
const MOST_IMAGES: u64 = 1 << 20;

/// Few enough for any subset that is worth its name, enough for every worker's batch.
const LEAST_IMAGES: usize = 256;

const IMAGES_MAGIC: u32 = 2051;
const LABELS_MAGIC: u32 = 2049;

/// Names of the original: images and labels to train on, and to test with.
const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// Built in, in the same order.
const SHIPPED: [&[u8]; 4] = [
    include_bytes!("../../data/fashion-mnist/train-images-idx3-ubyte.gz"),
    include_bytes!("../../data/fashion-mnist/train-labels-idx1-ubyte.gz"),
    include_bytes!("../../data/fashion-mnist/t10k-images-idx3-ubyte.gz"),
    include_bytes!("../../data/fashion-mnist/t10k-labels-idx1-ubyte.gz"),
];

/// Images with their labels.
#[derive(Debug)]
pub struct Images {
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

/// Those to train on, and those that nobody trains on.
#[derive(Debug)]
pub struct Data {
    pub train: Images,
    pub test: Images,
}

impl Data {
    /// What comes with the command, or what a folder holds.
    pub fn load(folder: Option<&Path>) -> Result<Data> {
        let Some(folder) = folder else {
            let [images, labels, test_images, test_labels] = SHIPPED;
            return Ok(Data {
                train: Images::of(GzDecoder::new(images), GzDecoder::new(labels))?,
                test: Images::of(GzDecoder::new(test_images), GzDecoder::new(test_labels))?,
            });
        };
        if !folder.is_dir() {
            let text = format!(
                "--data {}: there is no such folder; leave --data out to use the images that come with the command",
                folder.display()
            );
            return Err(UsageError::new(text).into());
        }
        let set = |images: &str, labels: &str| {
            let context = || format!("{}: {images} and {labels}", folder.display());
            Images::of(open(folder, images)?, open(folder, labels)?).with_context(context)
        };
        let [images, labels, test_images, test_labels] = NAMES;
        Ok(Data { train: set(images, labels)?, test: set(test_images, test_labels)? })
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> usize {
        self.train.pixels.len() + self.test.pixels.len()
    }
}

/// Compressed or not, as it is there.
fn open(folder: &Path, name: &str) -> Result<Box<dyn Read>> {
    let (plain, compressed) = (folder.join(name), folder.join(format!("{name}.gz")));
    let opened = |path: &Path| File::open(path).with_context(|| path.display().to_string());
    if compressed.is_file() {
        return Ok(Box::new(GzDecoder::new(opened(&compressed)?)));
    }
    if plain.is_file() {
        return Ok(Box::new(opened(&plain)?));
    }
    let text = format!(
        "{}: neither {name} nor {name}.gz is there; --data wants the four files of Fashion-MNIST or MNIST",
        folder.display()
    );
    Err(UsageError::new(text).into())
}

impl Images {
    fn of(images: impl Read, labels: impl Read) -> Result<Images> {
        let mut images = Source::begin(images, IMAGES_MAGIC, "images")?;
        let (rows, columns) = (images.number()?, images.number()?);
        let right = (rows as usize, columns as usize) == (SHAPE.height, SHAPE.width);
        ensure!(right, "images are {rows} by {columns} pixels; the demo wants 28 by 28");
        let mut labels = Source::begin(labels, LABELS_MAGIC, "labels")?;
        let (count, of_labels) = (images.count, labels.count);
        ensure!(count == of_labels, "there are {count} images and {of_labels} labels");
        ensure!(
            count as usize >= LEAST_IMAGES,
            "there are {count} images; the demo wants {LEAST_IMAGES} or more"
        );
        let images = Images { pixels: images.items(SHAPE.values())?, labels: labels.items(1)? };
        if let Some(label) = images.labels.iter().find(|label| **label >= CLASSES) {
            bail!("there is a label {label}; the demo knows 0 to 9");
        }
        Ok(images)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Some of them, a row for each, from black at -0.5 to white at 0.5; and their labels.
    pub fn batch(&self, places: impl Iterator<Item = usize>) -> (Matrix, Vec<u8>) {
        let (mut values, mut labels) = (Vec::new(), Vec::new());
        for place in places {
            let pixels = &self.pixels[place * SHAPE.values()..][..SHAPE.values()];
            values.extend(pixels.iter().map(|pixel| f32::from(*pixel) / 255.0 - 0.5));
            labels.push(self.labels[place]);
        }
        (Matrix::from_values(labels.len(), SHAPE.values(), values), labels)
    }
}

/// A file in IDX format, as far as it is read.
struct Source<R> {
    reader: Take<R>,
    what: &'static str,
    count: u32,
}

impl<R: Read> Source<R> {
    /// Read the magic number and how many items there are.
    fn begin(reader: R, magic: u32, what: &'static str) -> Result<Source<R>> {
        let bound = MOST_IMAGES * SHAPE.values() as u64 + 16;
        let mut source = Source { reader: reader.take(bound), what, count: 0 };
        let found = source.number()?;
        ensure!(
            found == magic,
            "it does not hold {what}: it begins with {found}, and {what} in IDX format with {magic}"
        );
        source.count = source.number()?;
        let count = u64::from(source.count);
        ensure!(
            count <= MOST_IMAGES,
            "it says that it has {count} {what}, at most {MOST_IMAGES} are read"
        );
        Ok(source)
    }

    fn number(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        let what = self.what;
        let read = self.reader.read_exact(&mut bytes);
        read.with_context(|| {
            format!("the file of {what} ends before its first lengths do, or is damaged")
        })?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// All items, of so many bytes each, and nothing behind them.
    fn items(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let (count, what) = (self.count, self.what);
        let wanted = count as usize * bytes;
        let mut items = Vec::new();
        // What is read is bounded, and memory grows with what is there, not with what the file says.
        let read = self.reader.by_ref().take(wanted as u64 + 1).read_to_end(&mut items);
        let found = items.len() / bytes;
        read.with_context(|| format!("the file of {what} is damaged after {found} of {count}"))?;
        ensure!(
            items.len() >= wanted,
            "it says that it has {count} {what}, and ends after {found}"
        );
        ensure!(items.len() == wanted, "there is more in it than the {count} {what} it says");
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, numbers: &[u32], items: usize) -> Vec<u8> {
        let head = [magic].into_iter().chain(numbers.iter().copied());
        head.flat_map(u32::to_be_bytes).chain(std::iter::repeat_n(7, items)).collect()
    }

    fn images(count: u32, items: usize) -> Vec<u8> {
        idx(IMAGES_MAGIC, &[count, 28, 28], items)
    }

    fn refusal(images: &[u8], labels: &[u8]) -> String {
        format!("{:#}", Images::of(images, labels).unwrap_err())
    }

    #[test]
    fn what_comes_with_the_command_can_be_read() {
        let data = Data::load(None).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (6000, 1000));
        let (batch, labels) = data.train.batch([0, 5999].into_iter());
        assert_eq!((batch.rows(), batch.columns(), labels.len()), (2, 784, 2));
        assert!(batch.values().iter().all(|value| (-0.5..=0.5).contains(value)));
        assert!(batch.row(0).iter().any(|value| *value > 0.3));
    }

    #[test]
    fn files_that_are_something_else_are_refused_with_what_they_are() {
        let labels = idx(LABELS_MAGIC, &[300], 300);
        let right = images(300, 300 * 784);
        assert!(Images::of(&right[..], &labels[..]).is_ok());
        let cases = [
            (vec![1, 2], "ends before"),
            (labels.clone(), "does not hold images: it begins with 2049"),
            (idx(IMAGES_MAGIC, &[300, 32, 32], 300 * 1024), "32 by 32"),
            (images(u32::MAX, 0), "at most"),
            (images(299, 299 * 784), "299 images and 300 labels"),
            (images(300, 211 * 784 + 5), "ends after 211"),
            (images(300, 300 * 784 + 1), "more in it"),
        ];
        for (given, said) in cases {
            let refusal = refusal(&given, &labels);
            assert!(refusal.contains(said), "{refusal}");
        }
        assert!(refusal(&images(3, 3 * 784), &idx(LABELS_MAGIC, &[3], 3)).contains("256 or more"));
        let mut odd = labels;
        odd[200] = 10;
        assert!(refusal(&right, &odd).contains("label 10"));
    }

    #[test]
    fn a_folder_is_read_compressed_or_not_and_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = || format!("{:#}", Data::load(Some(folder.path())).unwrap_err());
        assert!(refusal().contains("train-images-idx3-ubyte.gz"), "{}", refusal());
        for name in NAMES {
            let bytes = match name.contains("images") {
                true => images(300, 300 * 784),
                false => idx(LABELS_MAGIC, &[300], 300),
            };
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        assert_eq!(Data::load(Some(folder.path())).unwrap().train.len(), 300);
        std::fs::write(folder.path().join("t10k-labels-idx1-ubyte.gz"), &SHIPPED[3][..100])
            .unwrap();
        assert!(refusal().contains("t10k-labels-idx1-ubyte"), "{}", refusal());
    }
}
