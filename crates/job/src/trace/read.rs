//! Reading recorded runs: which format a file is in, by what it holds, and what the files of a folder make together. How a
//! format looks is known to the importers only.

use super::{
    Problem, Trace, WorkerTrace, chakra, chrome, execution, horovod,
    items::{self, Items, Shape},
    kineto,
    matching::match_collectives,
    problems::Problems,
    recorded, table,
};
use crate::Rank;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

/// Files of one folder; a job has one for each worker.
const MOST_FILES: usize = 100_000;

/// Levels of folders that are looked into: one holds hosts, and what was packed with its path has another.
const LEVELS: usize = 3;

/// Folders that are looked into.
const MOST_FOLDERS: usize = 10_000;

/// Bytes by which a format is recognised. The first event of a file lies in them, or it is a strange one.
const HEAD_BYTES: usize = 1 << 16;

/// Bytes of files that are read whole: those that are no JSON.
const MOST_WHOLE_BYTES: u64 = 4 << 30;

/// A trace that cannot be read at all. What is wrong with one that can is in [`Trace::problems`].
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The path is wrong, or its rights are: mend the one that is named.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder has no files that could be traces: name another, or the file itself.
    #[error("no trace in {path}: expected files of Kineto, Chakra, Horovod or a table of layers")]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Not one worker was found in what was read: see what was wrong, and name other files.
    #[error("nothing in {path} can be used: {}", listed(.problems))]
    Nothing {
        /// Which.
        path: PathBuf,
        /// What was wrong.
        problems: Vec<Problem>,
    },
}

fn listed(problems: &[Problem]) -> String {
    const MOST: usize = 5;
    let mut texts: Vec<String> = problems.iter().take(MOST).map(Problem::to_string).collect();
    match problems.len() {
        0 => return "it is empty".to_string(),
        many if many > MOST => texts.push(format!("and {} more", many - MOST)),
        _ => {}
    }
    texts.join("; ")
}

/// What a file gave.
struct Piece {
    place: String,
    worker: WorkerTrace,
    /// Where the file or its name says so.
    rank: Option<Rank>,
}

impl Trace {
    /// Read a file of one worker, or a folder with a file for each. What cannot be read is in [`Trace::problems`].
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let error = |source| TraceError::File { path: path.into(), source };
        let folder = fs::metadata(path).map_err(error)?.is_dir();
        let files = if folder { candidates(path).map_err(error)? } else { vec![path.into()] };
        if files.is_empty() {
            return Err(TraceError::Empty { path: path.into() });
        }
        let mut problems = Vec::new();
        let mut pieces = Vec::new();
        for file in files {
            let read = read_file(&file, &mut problems);
            match read {
                Ok(found) => pieces.extend(found),
                Err(source) if folder => problems.push(Problem {
                    place: file.display().to_string(),
                    text: format!("cannot be read ({source})"),
                    times: 1,
                }),
                Err(source) => return Err(TraceError::File { path: file, source }),
            }
        }
        if pieces.is_empty() {
            return Err(TraceError::Nothing { path: path.into(), problems });
        }
        Ok(assemble(pieces, problems, path))
    }

    /// Read one file's bytes, as if it had this name. For whoever has bytes and no file.
    pub fn read_bytes(name: &str, bytes: Vec<u8>) -> Result<Trace, TraceError> {
        let path = Path::new(name);
        let mut problems = Vec::new();
        let open = || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn Read>);
        let pieces = read_with(path, &open, &mut problems)
            .map_err(|source| TraceError::File { path: path.into(), source })?;
        if pieces.is_empty() {
            return Err(TraceError::Nothing { path: path.into(), problems });
        }
        Ok(assemble(pieces, problems, path))
    }
}

/// Files of a folder and of the folders further down that could be traces, by name.
fn candidates(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    // Links to files are followed, links to folders are not, so folders cannot contain each other.
    for level in 1..=LEVELS {
        for folder in std::mem::take(&mut folders) {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let (kind, path) = (entry.file_type()?, entry.path());
                let name = entry.file_name().to_string_lossy().to_lowercase();
                if kind.is_dir() && level < LEVELS && folders.len() < MOST_FOLDERS {
                    folders.push(path);
                } else if looks_like_a_trace(&name)
                    && (kind.is_file() || kind.is_symlink() && !path.is_dir())
                    && files.len() < MOST_FILES
                {
                    files.push(path);
                }
            }
        }
    }
    files.sort();
    Ok(files)
}

fn looks_like_a_trace(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    !name.starts_with('.')
        && [".json", ".et", ".csv", ".trace"].iter().any(|end| name.ends_with(end))
}

fn read_file(file: &Path, problems: &mut Vec<Problem>) -> io::Result<Vec<Piece>> {
    let open = || fs::File::open(file).map(|file| Box::new(file) as Box<dyn Read>);
    read_with(file, &open, problems)
}

fn read_with(
    path: &Path,
    open: &dyn Fn() -> io::Result<Box<dyn Read>>,
    problems: &mut Vec<Problem>,
) -> io::Result<Vec<Piece>> {
    let place = path.display().to_string();
    let mut head = Vec::new();
    // A file that is cut off in its first bytes has a head all the same.
    let begun = items::plain(open()?)?.take(HEAD_BYTES as u64).read_to_end(&mut head);
    if let Err(error) = begun
        && head.is_empty()
    {
        return Err(error);
    }
    let mut found = Problems::at(&place);
    let whole = |found: &mut Problems| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = items::plain(open()?)?.take(MOST_WHOLE_BYTES).read_to_end(&mut bytes);
        if let Err(error) = read {
            found.add(format!(
                "the file cannot be read to its end ({error}); what is before is read"
            ));
        }
        Ok(bytes)
    };
    let items = |shape: Shape| Items::new(open()?, &place, shape);
    let (worker, rank) = match Format::of(&head) {
        Some(Format::Recorded) => {
            let reader = chrome::Reader::new(open()?, &place)?;
            let (workers, more) = recorded::read(reader, &place);
            problems.extend(more);
            let piece = |worker: WorkerTrace| {
                let rank = Some(worker.rank);
                useful(Piece { place: place.clone(), worker, rank }, problems)
            };
            return Ok(workers.into_iter().filter_map(piece).collect());
        }
        Some(Format::Kineto) => {
            let imported = kineto::import(chrome::Reader::new(open()?, &place)?, &place);
            problems.extend(imported.problems);
            (imported.worker, imported.rank)
        }
        Some(Format::Horovod) => {
            let imported = horovod::import(chrome::Reader::new(open()?, &place)?, &place);
            problems.extend(imported.problems);
            (imported.worker, imported.rank)
        }
        Some(Format::Chakra) => (chakra::import(&whole(&mut found)?, &mut found), None),
        Some(Format::ChakraJson) => (chakra::import_json(items(chakra::SHAPE)?, &mut found), None),
        Some(Format::Execution) => (execution::import(items(execution::SHAPE)?, &mut found), None),
        Some(Format::JsonTable) => (table::import_json(items(table::SHAPE)?, &mut found), None),
        Some(Format::Table) => (table::import(&whole(&mut found)?, &mut found), None),
        None => {
            found.add("this is no format that is known here; it is left out");
            problems.extend(found.into_list());
            return Ok(Vec::new());
        }
    };
    problems.extend(found.into_list());
    let rank = rank.or_else(|| rank_in_name(&file_name(path)));
    Ok(useful(Piece { place, worker, rank }, problems).into_iter().collect())
}

/// A piece that holds something.
fn useful(piece: Piece, problems: &mut Vec<Problem>) -> Option<Piece> {
    let holds = !piece.worker.spans.is_empty() || !piece.worker.layers.is_empty();
    if !holds {
        let text = "nothing in it can be used; it is left out".into();
        problems.push(Problem { place: piece.place.clone(), text, times: 1 });
    }
    holds.then_some(piece)
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// By a worker of ours.
    Recorded,
    Kineto,
    Horovod,
    Chakra,
    ChakraJson,
    Execution,
    JsonTable,
    Table,
}

impl Format {
    /// By the first bytes, out of their compression.
    fn of(head: &[u8]) -> Option<Format> {
        let text = String::from_utf8_lossy(head);
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let holds = |key: &str| text.contains(&format!("\"{key}\""));
        match text.as_bytes().first()? {
            b'{' if recorded::recognises(text) => Some(Format::Recorded),
            b'[' if !holds("ph") => table::recognises(text).then_some(Format::JsonTable),
            b'[' | b'{' if horovod::recognises(text) => Some(Format::Horovod),
            b'[' => Some(Format::Kineto),
            b'{' if holds("workload_graph") => Some(Format::ChakraJson),
            b'{' if holds("traceEvents") || holds("ph") => Some(Format::Kineto),
            b'{' if holds("nodes") && holds("schema") => Some(Format::Execution),
            b'{' if holds("schemaVersion") || holds("distributedInfo") => Some(Format::Kineto),
            b'{' if holds("layers") => Some(Format::JsonTable),
            _ if chakra::recognises(head) => Some(Format::Chakra),
            _ => table::recognises(text).then_some(Format::Table),
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The number after `rank`, or before the ending as in `chakra.3.et`.
fn rank_in_name(name: &str) -> Option<Rank> {
    let lower = name.to_lowercase();
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    let after_word = lower.rfind("rank").map(|at| &lower[at + "rank".len()..]);
    let after_word = after_word.map(|rest| digits(rest.trim_start_matches(['_', '-', '.', '='])));
    let parts: Vec<&str> = lower.split('.').collect();
    let before_ending = parts.iter().rev().skip(1).find(|part| **part != "json").copied();
    let before_ending = before_ending.filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let number = after_word.filter(|it| !it.is_empty()).or(before_ending.map(str::to_owned))?;
    number.parse().ok().map(Rank)
}

/// The host in the names that PyTorch's handler gives: `host_pid.time.pt.trace.json`.
fn host_in_name(name: &str) -> Option<String> {
    let name = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".pt.trace.json")?;
    let worker = name.split_once('.').map_or(name, |(worker, _)| worker);
    let (host, pid) = worker.rsplit_once('_')?;
    let plausible = !host.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    plausible.then(|| host.to_owned())
}

/// Ranks for all, each once, in order; what is missing is reported.
fn assemble(pieces: Vec<Piece>, mut problems: Vec<Problem>, path: &Path) -> Trace {
    let mut place = Problems::at(path.display().to_string());
    let mut by_rank: BTreeMap<Rank, WorkerTrace> = BTreeMap::new();
    let believed = |piece: Piece| Piece { rank: believable(&piece, &mut place), ..piece };
    let pieces = pieces.into_iter().map(believed);
    let (mut named, nameless): (Vec<_>, Vec<_>) = pieces.partition(|it| it.rank.is_some());
    // What was predicted does not take the place of what was recorded.
    named.sort_by_key(|piece| piece.worker.common_clock.is_some());
    let alone = named.is_empty() && nameless.len() == 1;
    for piece in named.into_iter().chain(nameless) {
        // Bounded: among as many ranks as there are workers and one more, one is free.
        let free = (0..).map(Rank).find(|rank| !by_rank.contains_key(rank)).unwrap_or_default();
        let rank = piece.rank.unwrap_or(free);
        if by_rank.contains_key(&rank) {
            place.add(format!("{} is of rank {rank} again; it is left out", piece.place));
            continue;
        }
        if piece.rank.is_none() && !alone {
            place.add(format!("{} does not say its rank; it is taken for {rank}", piece.place));
        }
        let mut worker = piece.worker;
        worker.rank = rank;
        if worker.host.is_empty() {
            let host = host_in_name(&file_name(Path::new(&piece.place)));
            worker.host = host.unwrap_or_else(|| format!("worker-{rank}"));
        }
        by_rank.insert(rank, worker);
    }
    leave_out_other_jobs(&mut by_rank, &mut place);
    if by_rank.len() > 1 && by_rank.values().all(|worker| worker.world.is_none()) {
        place.add(format!(
            "no file says how many workers there were; these {} are taken for all",
            by_rank.len()
        ));
    }
    let worlds: BTreeSet<u32> = by_rank.values().filter_map(|worker| worker.world).collect();
    if worlds.len() > 1 {
        place.add(format!("workers disagree about how many they are: {worlds:?}"));
    }
    let mut trace = Trace { workers: by_rank.into_values().collect(), problems: Vec::new() };
    let (missing, world) = (trace.missing(), trace.world());
    if missing > 0 {
        place.add(format!("{missing} of {world} workers are missing"));
    }
    problems.extend(place.into_list());
    problems.extend(match_collectives(&trace).1);
    trace.problems = problems;
    trace
}

/// The rank that a piece says it has, unless that cannot be.
fn believable(piece: &Piece, place: &mut Problems) -> Option<Rank> {
    let (rank, world) = (piece.rank?, piece.worker.world.unwrap_or(u32::MAX));
    if rank.0 >= world {
        place.add(format!(
            "{} says that it is of rank {rank} of {world} workers, which cannot be; another is taken for it",
            piece.place
        ));
        return None;
    }
    Some(rank)
}

/// Workers of ours that name other peers than the first one does were in another job: an older one, as a rule, that had more
/// workers. Where those listen tells two runs of one program apart: views change what is in force, not who takes part.
fn leave_out_other_jobs(by_rank: &mut BTreeMap<Rank, WorkerTrace>, place: &mut Problems) {
    let mut ours = by_rank.values().filter_map(|worker| Some((worker.rank, worker.view.as_ref()?)));
    let Some((first, view)) = ours.next() else { return };
    let others = ours.filter(|(_, other)| other.workers != view.workers);
    let others: Vec<Rank> = others.map(|(rank, _)| rank).collect();
    for rank in others {
        by_rank.remove(&rank);
        place.add(format!(
            "the file of worker {rank} is of another job than that of worker {first}: it names other workers, and is left out"
        ));
    }
}
