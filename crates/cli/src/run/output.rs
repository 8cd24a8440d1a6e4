//! What workers write, on its way to our own streams: whole lines with the rank in front, never mixed. It
//! also remembers each worker's last lines. One thread does it all, so that no lock orders the lines and a
//! reader who is slow (`| less`) holds up the workers but never the supervision. It knows nothing of processes.

use super::lines::{End, Lines};
use anyhow::{Context, Result};
use paceline_job::Rank;
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// How many last lines of a worker are remembered.
const LAST_LINES: usize = 10;

/// Of a remembered line, at most so many bytes.
const LAST_LINE_BYTES: usize = 512;

/// Bytes taken from a stream before the next one has its turn.
const READ_BYTES: usize = 64 * 1024;

/// Turns of a stream after its worker has ended. A pipe holds at most 1 MiB unless root enlarges it;
/// more than that is written by somebody who outlives the worker, and not waited for.
const LAST_TURNS: usize = 16;

/// Colours that can be read on light and dark terminals alike.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// Which of our streams a line goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How lines begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// With the rank, in its colour where a terminal shows it.
    Rank,
    /// As the worker wrote them.
    None,
}

/// A worker's last lines, of both streams, oldest first.
pub type LastLines = VecDeque<String>;

/// Where our own remarks go: to standard error, between the workers' lines.
#[derive(Clone, Debug)]
pub struct Notes(Arc<PipeWriter>);

impl Notes {
    /// The notes, and what [`Output`] needs to show them.
    pub fn new() -> Result<(Notes, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        set_nonblocking(&writer)?;
        Ok((Notes(Arc::new(writer)), reader))
    }

    /// Say something. Never waits: if nobody reads what we write, the note is lost.
    pub fn say(&self, text: &str) {
        let _ = (&*self.0).write_all(format!("paceline: {text}\n").as_bytes());
    }
}

/// The thread that passes lines on.
pub struct Output {
    /// Closing it is the sign to finish; a byte says that there are more streams.
    stop: PipeWriter,
    more: Sender<(Rank, Channel, OwnedFd)>,
    thread: JoinHandle<Vec<LastLines>>,
}

impl Output {
    /// Pass on what comes from these streams. `size` is the number of workers.
    pub fn start(
        streams: Vec<(Rank, Channel, OwnedFd)>,
        notes: PipeReader,
        size: usize,
        prefix: Prefix,
    ) -> Result<Output> {
        let (stopped, stop) = io::pipe()?;
        let mut sources = vec![
            Source::new(None, Channel::Stderr, stopped.into())?,
            Source::new(None, Channel::Stderr, notes.into())?,
        ];
        for (rank, channel, stream) in streams {
            sources.push(Source::new(Some(rank), channel, stream)?);
        }
        let (more, added) = channel();
        let passing = Passing {
            sources,
            added,
            last_lines: vec![LastLines::new(); size],
            stdout: Sink::new(prefix, io::stdout().is_terminal()),
            stderr: Sink::new(prefix, io::stderr().is_terminal()),
        };
        let thread = thread::Builder::new()
            .name("output".to_string())
            .spawn(move || passing.run())
            .context("cannot start the output thread")?;
        Ok(Output { stop, more, thread })
    }

    /// Pass on these, too: of a worker that came later.
    pub fn add(&mut self, streams: Vec<(Rank, Channel, OwnedFd)>) {
        for stream in streams {
            // The thread lives until we say so.
            let _ = self.more.send(stream);
        }
        let _ = self.stop.write_all(&[0]);
    }

    /// All workers have ended: pass on what is left, and give back each worker's last lines.
    pub fn finish(self) -> Vec<LastLines> {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// Something that is read; what is not a worker's has no rank.
struct Source {
    rank: Option<Rank>,
    channel: Channel,
    stream: File,
    lines: Lines,
    open: bool,
}

enum Turn {
    /// There may be more.
    More,
    /// Nothing for now.
    Empty,
    /// It was the last.
    Over,
}

impl Source {
    fn new(rank: Option<Rank>, channel: Channel, stream: OwnedFd) -> Result<Source> {
        set_nonblocking(&stream)?;
        Ok(Source { rank, channel, stream: stream.into(), lines: Lines::default(), open: true })
    }
}

struct Passing {
    /// The end of the first is the sign to finish; a byte in it, that there are others to be added.
    sources: Vec<Source>,
    added: Receiver<(Rank, Channel, OwnedFd)>,
    last_lines: Vec<LastLines>,
    stdout: Sink,
    stderr: Sink,
}

impl Passing {
    fn run(mut self) -> Vec<LastLines> {
        let mut buffer = vec![0; READ_BYTES];
        while self.sources[0].open {
            // Interrupted or failed, the worst is a turn in which nothing can be read.
            let ready = readable(&self.sources).unwrap_or_default();
            for index in ready {
                self.turn(index, &mut buffer);
            }
            // Workers may come and go for as long as the job does.
            self.sources.retain(|source| source.open || source.rank.is_none());
        }
        self.take_added();
        for index in 0..self.sources.len() {
            for _ in 0..LAST_TURNS {
                if !matches!(self.turn(index, &mut buffer), Turn::More) {
                    break;
                }
            }
            self.close(index);
        }
        self.last_lines
    }

    fn turn(&mut self, index: usize, buffer: &mut [u8]) -> Turn {
        let source = &mut self.sources[index];
        if !source.open {
            return Turn::Over;
        }
        match source.stream.read(buffer) {
            Ok(0) => {
                self.close(index);
                Turn::Over
            }
            Ok(_) if index == 0 => {
                self.take_added();
                Turn::More
            }
            Ok(length) => {
                self.pass(index, |lines, emit| lines.feed(&buffer[..length], emit));
                Turn::More
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Turn::More,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Turn::Empty,
            Err(_) => {
                self.close(index);
                Turn::Over
            }
        }
    }

    fn take_added(&mut self) {
        for (rank, channel, stream) in self.added.try_iter() {
            // A stream that cannot be read without waiting would hold up all others.
            if let Ok(source) = Source::new(Some(rank), channel, stream) {
                self.sources.push(source);
                let lines = self.last_lines.len().max(rank.index() + 1);
                self.last_lines.resize(lines, LastLines::new());
            }
        }
    }

    fn close(&mut self, index: usize) {
        self.pass(index, |lines, emit| lines.finish(emit));
        self.sources[index].open = false;
    }

    fn pass(&mut self, index: usize, cut: impl FnOnce(&mut Lines, &mut dyn FnMut(&[u8], End))) {
        let Source { rank, channel, lines, .. } = &mut self.sources[index];
        let sink = match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
        };
        let mut last_lines = rank.and_then(|rank| self.last_lines.get_mut(rank.index()));
        cut(lines, &mut |line, end| {
            sink.push(*rank, line, end);
            if let Some(last_lines) = &mut last_lines {
                remember(last_lines, line);
            }
        });
        match channel {
            Channel::Stdout => sink.write_to(&mut io::stdout().lock()),
            Channel::Stderr => sink.write_to(&mut io::stderr().lock()),
        }
    }
}

/// One of our own streams.
struct Sink {
    prefix: Prefix,
    coloured: bool,
    batch: Vec<u8>,
    /// Nobody reads it any more. The job goes on: a broken `| tee` is no reason to lose a day's training.
    closed: bool,
}

impl Sink {
    fn new(prefix: Prefix, terminal: bool) -> Sink {
        let coloured =
            terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Sink { prefix, coloured, batch: Vec::new(), closed: false }
    }

    fn push(&mut self, rank: Option<Rank>, line: &[u8], end: End) {
        let rank = rank.filter(|_| self.prefix == Prefix::Rank);
        let ending: &[u8] = match (rank, end) {
            // A progress bar returns twice, or begins with a return.
            (Some(_), End::Return) if line.is_empty() => return,
            (None, End::Return) => b"\r",
            _ => b"\n",
        };
        if let Some(rank) = rank {
            let colour = COLOURS[rank.index() % COLOURS.len()];
            // Writing to a vector cannot fail.
            let _ = if self.coloured {
                write!(self.batch, "\x1b[{colour}m[{rank}]\x1b[0m ")
            } else {
                write!(self.batch, "[{rank}] ")
            };
        }
        self.batch.extend_from_slice(line);
        self.batch.extend_from_slice(ending);
    }

    fn write_to(&mut self, stream: &mut dyn Write) {
        if !self.closed {
            self.closed = stream.write_all(&self.batch).and_then(|()| stream.flush()).is_err();
        }
        self.batch.clear();
    }
}

fn remember(last_lines: &mut LastLines, line: &[u8]) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return;
    }
    if last_lines.len() == LAST_LINES {
        last_lines.pop_front();
    }
    let mut text = String::from_utf8_lossy(&line[..line.len().min(LAST_LINE_BYTES)]).into_owned();
    if line.len() > LAST_LINE_BYTES {
        text.push_str(" ...");
    }
    last_lines.push_back(text);
}

/// The indices of the sources that can be read; waits until there is one.
fn readable(sources: &[Source]) -> io::Result<Vec<usize>> {
    let (indices, mut polls): (Vec<usize>, Vec<libc::pollfd>) = sources
        .iter()
        .enumerate()
        .filter(|(_, source)| source.open)
        .map(|(index, source)| {
            let fd = source.stream.as_raw_fd();
            (index, libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
        })
        .unzip();
    // SAFETY: the pointer and the length are those of a vector that lives through the call.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
    if ready < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(indices
        .into_iter()
        .zip(polls)
        .filter(|(_, poll)| poll.revents != 0)
        .map(|(i, _)| i)
        .collect())
}

fn set_nonblocking(stream: &impl AsFd) -> io::Result<()> {
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: fcntl on a descriptor that `stream` keeps open; it touches no memory.
    let result = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(prefix: Prefix, coloured: bool) -> String {
        let mut sink = Sink { prefix, coloured, batch: Vec::new(), closed: false };
        sink.push(Some(Rank(7)), b"one", End::Newline);
        sink.push(Some(Rank(7)), b"", End::Return);
        sink.push(Some(Rank(7)), b"two", End::Return);
        sink.push(Some(Rank(7)), b"three", End::Cut);
        sink.push(None, b"note", End::Newline);
        let mut written = Vec::new();
        sink.write_to(&mut written);
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn lines_carry_their_rank_and_a_colour_only_where_it_shows() {
        assert_eq!(shown(Prefix::Rank, false), "[7] one\n[7] two\n[7] three\nnote\n");
        assert!(shown(Prefix::Rank, true).starts_with("\x1b[33m[7]\x1b[0m one\n"));
        assert_eq!(shown(Prefix::None, true), "one\n\rtwo\rthree\nnote\n");
    }

    #[test]
    fn only_the_last_lines_are_remembered_and_long_ones_are_cut() {
        let mut last_lines = LastLines::new();
        for index in 0..25 {
            remember(&mut last_lines, format!("line {index}\r").as_bytes());
            remember(&mut last_lines, b"");
        }
        assert_eq!(last_lines.len(), LAST_LINES);
        assert_eq!(last_lines.back().unwrap(), "line 24");
        remember(&mut last_lines, &[b'x'; 4096]);
        assert_eq!(last_lines.back().unwrap().len(), LAST_LINE_BYTES + " ...".len());
    }

    #[test]
    fn a_stream_that_nobody_reads_is_given_up_quietly() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Sink::new(Prefix::None, false);
        sink.push(None, b"lost", End::Newline);
        sink.write_to(&mut Broken);
        assert!(sink.closed && sink.batch.is_empty());
    }
}
