//! Replayed jobs, and the file that keeps them: a line of JSON for each, appended as they come, so that a run that was
//! broken off is not lost. What a job is made of is not known here.

use anyhow::{Context, Result, bail};
use paceline_learn::metanet::Sample;
use paceline_tune::metanet::Generator;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A line longer than this is none of ours.
const LONGEST_LINE: usize = 4 << 20;
/// More lines than this are none of ours.
const MOST_LINES: usize = 1 << 20;

/// Replayed jobs by their number.
pub struct Data {
    seed: u64,
    known: BTreeMap<u64, Option<Sample>>,
    file: Option<File>,
}

/// A line.
#[derive(Serialize, Deserialize)]
struct Line {
    seed: u64,
    number: u64,
    /// None where nothing could be replayed.
    sample: Option<Sample>,
}

impl Data {
    /// With what a file has of this seed.
    pub fn open(path: Option<&Path>, seed: u64) -> Result<Data> {
        let Some(path) = path else {
            return Ok(Data { seed, known: BTreeMap::new(), file: None });
        };
        let name = path.display();
        let file = File::options().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("the file {name} cannot be opened"))?;
        let mut known = BTreeMap::new();
        for (place, line) in BufReader::new(&file).lines().enumerate() {
            let line = line.with_context(|| format!("the file {name} cannot be read"))?;
            if line.len() > LONGEST_LINE || place >= MOST_LINES {
                bail!("the file {name} holds no replayed jobs: give another to --data");
            }
            // The last line of a run that was broken off may be cut; its job is replayed again.
            match serde_json::from_str::<Line>(&line) {
                Ok(line) if line.seed == seed => {
                    if let Some(problem) = line.sample.as_ref().and_then(Sample::problem) {
                        let number = place + 1;
                        bail!(
                            "the file {name}, line {number}: {problem}; take the line out, and its job is replayed again"
                        );
                    }
                    known.insert(line.number, line.sample);
                }
                Ok(_) => {}
                Err(_) if place == 0 => {
                    bail!("the file {name} holds no replayed jobs: give another to --data")
                }
                Err(_) => {}
            }
        }
        Ok(Data { seed, known, file: Some(file) })
    }

    /// Replay what is missing of the first `count` jobs. `progress` hears how many there are.
    pub fn fill(
        &mut self,
        count: usize,
        threads: usize,
        generator: &Generator,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<()> {
        self.known.retain(|number, _| *number < count as u64);
        let missing: Vec<u64> =
            (0..count as u64).filter(|number| !self.known.contains_key(number)).collect();
        progress(self.known.len());
        let next = AtomicUsize::new(0);
        let (seed, known, file) = (self.seed, &mut self.known, &mut self.file);
        let state = Mutex::new((known, file, Ok(())));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(&number) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let sample = generator.sample(number);
                        // Nothing panics while it is held.
                        let Ok(mut state) = state.lock() else { return };
                        let (known, file, result) = &mut *state;
                        let line = Line { seed, number, sample };
                        if let Some(file) = file
                            && let Err(error) = append(file, &line)
                        {
                            *result = Err(error);
                            return;
                        }
                        known.insert(number, line.sample);
                        progress(known.len());
                    }
                });
            }
        });
        match state.into_inner() {
            Ok((_, _, result)) => result,
            Err(_) => bail!("a thread that replayed jobs failed"),
        }
    }

    /// All jobs, in order.
    pub fn samples(self) -> Vec<Sample> {
        self.known.into_values().flatten().collect()
    }
}

fn append(file: &mut File, line: &Line) -> Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    file.write_all(text.as_bytes()).context("a replayed job cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_replayed_is_not_replayed_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let generator = Generator::new(Vec::new(), 3);
        let fill = |count| {
            let mut data = Data::open(Some(file.path()), 3).unwrap();
            let before = data.known.len();
            data.fill(count, 2, &generator, &|_| {}).unwrap();
            (before, data.samples())
        };
        let (before, first) = fill(2);
        assert_eq!((before, first.len()), (0, 2));
        let (before, again) = fill(3);
        assert_eq!((before, again.len()), (2, 3));
        // What is read may differ from what was written in a number's last digit, so two readers are compared.
        let (before, once_more) = fill(3);
        assert_eq!((before, once_more.len()), (3, 3));
        assert!(again[..2] == once_more[..2]);
    }

    #[test]
    fn other_files_are_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"something else\n").unwrap();
        assert!(Data::open(Some(file.path()), 1).is_err());
    }

    #[test]
    fn a_job_that_cannot_be_is_refused_by_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut data = Data::open(Some(file.path()), 3).unwrap();
        data.fill(1, 1, &Generator::new(Vec::new(), 3), &|_| {}).unwrap();
        let good = data.samples().remove(0);
        type Change = fn(&mut Sample);
        let changes: [(Change, &str); 5] = [
            (|sample| sample.measured[0].seconds = 0.0, "no time"),
            (|sample| sample.measured[0].choice.strategy = 99, "strategy"),
            (|sample| sample.measured[0].choice.partition = 0.0, "partition"),
            (|sample| sample.conditions.workers[0].upload = -1.0, "below 0"),
            (|sample| sample.conditions.tensors.clear(), "nothing can be predicted"),
        ];
        let length = file.as_file().metadata().unwrap().len();
        let mut end = File::options().append(true).open(file.path()).unwrap();
        for (change, word) in changes {
            let mut sample = good.clone();
            change(&mut sample);
            file.as_file().set_len(length).unwrap();
            append(&mut end, &Line { seed: 3, number: 7, sample: Some(sample) }).unwrap();
            let error = Data::open(Some(file.path()), 3).err().unwrap().to_string();
            assert!(error.contains("line 2") && error.contains(word), "{error}");
            // Of another seed, nobody looks at it.
            assert!(Data::open(Some(file.path()), 4).is_ok());
        }
    }
}
