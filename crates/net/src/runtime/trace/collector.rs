//! The thread behind a recording: it empties the rings into a temporary file while the program runs, and writes
//! the trace when that is over. It is in nobody's way: it sleeps most of the time, and it may fail.

use super::{
    event::{EVENT_BYTES, EVENT_WORDS, Event},
    file::{self, Names, TraceFile},
    recording::{Ending, Summary, monotonic_nanoseconds},
    source::{Introduction, Switch},
};
use crate::{
    error::{NetError, Result},
    runtime::helm::lock,
};
use paceline_job::{Rank, View};
use rtrb::Consumer;
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, atomic::Ordering, mpsc::Receiver},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long events may lie in a ring. A ring holds more than an engine makes in this time.
const NAP: Duration = Duration::from_millis(10);

/// For the temporary file.
const BUFFER_BYTES: usize = 256 << 10;

/// What a collector starts with.
#[derive(Debug)]
pub(crate) struct Collected {
    pub rank: Rank,
    pub view: Arc<View>,
    pub directory: PathBuf,
    pub limit_events: u64,
    pub switch: Arc<Switch>,
    pub ending: Arc<Ending>,
    pub introductions: Receiver<Introduction>,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Collector {
    given: Collected,
    rings: Vec<Consumer<Event>>,
    names: Names,
    events: BufWriter<File>,
    written: u64,
    /// The two clocks at the same moment.
    monotonic: u64,
    wall: u64,
}

impl Collector {
    /// `events` is the temporary file.
    pub(crate) fn new(given: Collected, events: File) -> Collector {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Collector {
            rings: Vec::new(),
            names: Names::default(),
            events: BufWriter::with_capacity(BUFFER_BYTES, events),
            written: 0,
            monotonic: monotonic_nanoseconds(),
            wall: wall.as_nanos() as u64,
            given,
        }
    }

    /// Until the recording ends.
    pub(crate) fn run(mut self) -> Result<Summary> {
        loop {
            let ending = self.given.ending.due.load(Ordering::Acquire);
            if let Err(source) = self.collect() {
                self.given.switch.on.store(false, Ordering::Relaxed);
                let path = self.path();
                let error = NetError::Trace { path: path.clone(), source };
                eprintln!("paceline: worker {}: {error}; training goes on", self.given.rank);
                // So that it is not said again.
                let source = io::Error::other("recording stopped earlier");
                return Err(NetError::Trace { path, source });
            }
            if ending {
                break;
            }
            std::thread::park_timeout(NAP);
        }
        let path = self.path();
        self.write().map_err(|source| NetError::Trace { path, source })
    }

    fn path(&self) -> PathBuf {
        self.given.directory.join(format!("worker-{}.json.gz", self.given.rank))
    }

    /// Empty all rings. Bounded by what they hold now, so that a busy one cannot keep us.
    fn collect(&mut self) -> io::Result<()> {
        while let Ok(introduction) = self.given.introductions.try_recv() {
            match introduction {
                Introduction::Ring(ring) => self.rings.push(ring),
                Introduction::Thread { number, name } => self.names.thread(number, name),
                Introduction::Name { hash, name, group } => {
                    self.names.tensor(hash, name, group);
                }
                Introduction::View(view) => self.given.view = view,
            }
        }
        for ring in &mut self.rings {
            for _ in 0..ring.slots() {
                let Ok(event) = ring.pop() else { break };
                if self.written == self.given.limit_events {
                    self.given.switch.dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                self.written += 1;
                for word in event.encode() {
                    self.events.write_all(&word.to_le_bytes())?;
                }
            }
        }
        self.rings.retain(|ring| !(ring.is_abandoned() && ring.is_empty()));
        Ok(())
    }

    /// Turn what was collected into the trace. The file appears whole or not at all.
    fn write(self) -> io::Result<Summary> {
        stand_back();
        let path = self.path();
        let mut events = self.events.into_inner().map_err(io::IntoInnerError::into_error)?;
        events.rewind()?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, events);
        let description = lock(&self.given.ending.description).clone();
        let dropped = self.given.switch.dropped.load(Ordering::Relaxed);
        let facts = TraceFile {
            rank: self.given.rank,
            view: &self.given.view,
            description: &description,
            names: &self.names,
            monotonic: self.monotonic,
            wall: self.wall,
            dropped,
        };
        let target = tempfile::Builder::new()
            .prefix(".worker-")
            .permissions(std::fs::Permissions::from_mode(0o644))
            .tempfile_in(&self.given.directory)?;
        let events = std::iter::from_fn(|| next(&mut reader).transpose());
        file::write(&facts, events, target)?.persist(&path).map_err(|error| error.error)?;
        Ok(Summary { path, events: self.written, dropped })
    }
}

/// The next event of the temporary file.
fn next(reader: &mut impl Read) -> io::Result<Option<Event>> {
    let mut bytes = [0; EVENT_BYTES];
    match reader.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut words = [0; EVENT_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
    }
    let event = Event::decode(words);
    event.map(Some).ok_or_else(|| io::Error::other("somebody else wrote to the temporary file"))
}

/// From here on the program's own threads go first: there is no hurry any more.
pub(crate) fn stand_back() {
    // SAFETY: a plain system call. On Linux, 0 means this thread alone; failure only costs politeness.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::trace::source::Source;
    use paceline_job::Settings;
    use std::sync::mpsc::channel;

    #[test]
    fn a_full_disk_ends_the_recording_with_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (to, introductions) = channel();
        let switch = Arc::new(Switch::default());
        let given = Collected {
            rank: Rank(3),
            view: Arc::new(View::local(4, Settings::default())),
            directory: folder.path().to_path_buf(),
            limit_events: u64::MAX,
            switch: switch.clone(),
            ending: Arc::new(Ending::default()),
            introductions,
        };
        switch.on.store(true, Ordering::Relaxed);
        let events = 2 * BUFFER_BYTES / EVENT_BYTES;
        let mut source = Source::new(events, switch.clone(), &to);
        (0..events as u64).for_each(|token| source.push(Event::Received { at: 0, token }));
        let error = Collector::new(given, full).run().unwrap_err();
        assert!(error.to_string().contains("worker-3.json.gz"), "{error}");
        assert!(!switch.on.load(Ordering::Relaxed), "nothing more is kept");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
