//! One TCP connection to a peer: frames out in order of urgency, frames in straight into place.
//!
//! Non-blocking throughout. Sending gathers headers and payload from where they lie; receiving reads
//! payload into the place the engine gave it and combines it while it is in cache. A sealed connection
//! takes one more copy on each side, into and out of encrypted records.

use super::{core::Core, memory};
use crate::{
    error::NetError,
    handshake,
    sealed::{Opener, Seal, Sealer},
};
use paceline_job::Rank;
use paceline_sync::{
    event::{Placement, Recipe},
    frame::{HEADER_BYTES, Header, Kind},
    liveness::PATIENCE,
    scheduler::Urgency,
    slab::Key,
};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::TcpStream,
    os::fd::{AsRawFd, RawFd},
    time::Duration,
};

/// Bytes that the kernel may hold unsent. More would hide what is urgent behind what is not, and make
/// "delivered" mean less; less would let the link run dry between two looks.
const UNSENT_LOW_WATER: libc::c_int = 128 << 10;

/// Control frames that wait for a peer to read. In good order there are a few for each tensor in flight;
/// a peer that asks and never reads the answers must not fill our memory with them.
const WAITING_CONTROL_FRAMES: usize = 1 << 16;

/// Bytes read before other links get their turn.
const READ_TURN_BYTES: usize = 512 << 10;

/// Read at once into place, so that what is combined next is still in cache.
const BITE_BYTES: usize = 256 << 10;

/// Bytes of small frames read at once.
const INBOX_BYTES: usize = 64 << 10;

/// Plaintext sealed before it is written.
const SEAL_TURN_BYTES: usize = 256 << 10;

/// Frames gathered into one write.
const GATHERED_FRAMES: usize = 16;

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct TcpLink {
    stream: TcpStream,
    outgoing: Outgoing,
    sealing: Option<Sealing>,
    inbox: Box<[u8]>,
    opener: Option<Opener>,
    parser: Parser,
}

#[derive(Debug)]
struct Sealing {
    sealer: Sealer,
    records: Vec<u8>,
    written: usize,
}

#[derive(Debug)]
struct OutFrame {
    urgency: Urgency,
    header: [u8; HEADER_BYTES],
    payload: OutPayload,
    token: Option<Key>,
}

#[derive(Debug)]
enum OutPayload {
    Inline(Box<[u8]>),
    Memory(*const u8, usize),
}

impl OutFrame {
    fn payload(&self) -> &[u8] {
        match &self.payload {
            OutPayload::Inline(bytes) => bytes,
            // SAFETY: the engine keeps the memory unchanged until `Delivered`, which we have not sent.
            OutPayload::Memory(pointer, len) => unsafe {
                std::slice::from_raw_parts(*pointer, *len)
            },
        }
    }

    /// What is left of the frame after `sent` bytes of it.
    fn rest(&self, sent: usize) -> (&[u8], &[u8]) {
        let header = &self.header[sent.min(HEADER_BYTES)..];
        (header, &self.payload()[sent.saturating_sub(HEADER_BYTES)..])
    }

    fn len(&self) -> usize {
        HEADER_BYTES + self.payload().len()
    }
}

/// Frames that wait, and how much of the first was taken. Bounded by the engine (data by credit and what
/// it forwards) and by [`WAITING_CONTROL_FRAMES`].
#[derive(Debug, Default)]
struct Outgoing {
    /// The frame that was begun, and how much of it is out.
    begun: Option<(OutFrame, usize)>,
    control: VecDeque<OutFrame>,
    /// The most urgent first.
    data: VecDeque<OutFrame>,
}

// SAFETY: payload pointers are covered by the engine's promise, whatever thread drives.
unsafe impl Send for Outgoing {}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.begun.is_none() && self.control.is_empty() && self.data.is_empty()
    }

    /// Begun first, then control, then data; each with the bytes of it that are out.
    fn in_order(&self) -> impl Iterator<Item = (&OutFrame, usize)> {
        let begun = self.begun.as_ref().map(|(frame, sent)| (frame, *sent));
        begun.into_iter().chain(self.control.iter().chain(&self.data).map(|frame| (frame, 0)))
    }

    /// `bytes` more are out; finished frames' tokens go to `delivered`.
    fn advance(&mut self, mut bytes: usize, delivered: &mut Vec<Key>) {
        while bytes > 0 {
            let (frame, sent) = match self.begun.take() {
                Some(begun) => begun,
                None => {
                    let next = self.control.pop_front().or_else(|| self.data.pop_front());
                    (next.expect("no more bytes go out than were queued"), 0)
                }
            };
            let left = frame.len() - sent;
            if bytes < left {
                self.begun = Some((frame, sent + bytes));
                return;
            }
            bytes -= left;
            delivered.extend(frame.token);
        }
    }
}

impl TcpLink {
    pub(crate) fn new(stream: TcpStream, seal: Option<Seal>) -> io::Result<TcpLink> {
        stream.set_nonblocking(true)?;
        let socket = socket2::SockRef::from(&stream);
        handshake::keep_alive(&stream)?;
        socket.set_tcp_user_timeout(Some(PATIENCE))?;
        let low_water = UNSENT_LOW_WATER;
        // SAFETY: a plain socket option with a correctly sized value. Failure only costs urgency.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NOTSENT_LOWAT,
                (&raw const low_water).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
        let (sealer, opener) = seal.map(|seal| (seal.sender, seal.receiver)).unzip();
        Ok(TcpLink {
            stream,
            outgoing: Outgoing::default(),
            sealing: sealer.map(|sealer| Sealing { sealer, records: Vec::new(), written: 0 }),
            inbox: vec![0; INBOX_BYTES].into(),
            opener,
            parser: Parser::default(),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Queue a data frame.
    pub(crate) fn send(
        &mut self,
        header: Header,
        urgency: Urgency,
        memory: *const u8,
        token: Option<Key>,
    ) {
        let payload = OutPayload::Memory(memory, header.payload_bytes());
        let frame = OutFrame { urgency, header: header.encode(), payload, token };
        let data = &mut self.outgoing.data;
        let place = urgency.place(0, data.len(), |place| data[place].urgency);
        data.insert(place, frame);
    }

    /// Queue a control frame ahead of data.
    pub(crate) fn send_control(&mut self, header: Header, payload: Box<[u8]>) {
        let (header, payload) = (header.encode(), OutPayload::Inline(payload));
        let urgency = Urgency::FIRST;
        self.outgoing.control.push_back(OutFrame { urgency, header, payload, token: None });
    }

    /// Whether bytes wait for the kernel to take them.
    pub(crate) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty()
            || self.sealing.as_ref().is_some_and(|sealing| sealing.written < sealing.records.len())
    }

    /// How urgent what waits is: the frame that was begun, or what waits behind it.
    pub(crate) fn urgency(&self) -> Option<Urgency> {
        if !self.wants_to_write() {
            return None;
        }
        // Sealed bytes cannot be passed.
        let first = self.outgoing.in_order().take(2).map(|(frame, _)| frame.urgency).min();
        first.or(Some(Urgency::FIRST))
    }

    /// Give the kernel what it takes. `delivered` collects what left.
    pub(crate) fn flush(&mut self, delivered: &mut Vec<Key>) -> Result<bool, String> {
        let mut any = false;
        while self.wants_to_write() && self.write(GATHERED_FRAMES, usize::MAX, delivered)? > 0 {
            any = true;
        }
        Ok(any)
    }

    /// Give the kernel so many frames and bytes at most, which is how many it took: none if it takes none now.
    pub(crate) fn write(
        &mut self,
        frames: usize,
        most: usize,
        delivered: &mut Vec<Key>,
    ) -> Result<usize, String> {
        // Ends: a signal interrupts a call once.
        loop {
            let wrote = match &mut self.sealing {
                None => {
                    let mut slices = [IoSlice::new(&[]); 2 * GATHERED_FRAMES];
                    let mut used = 0;
                    for part in parts(&self.outgoing, frames, most) {
                        slices[used] = IoSlice::new(part);
                        used += 1;
                    }
                    self.stream.write_vectored(&slices[..used])
                }
                Some(sealing) => {
                    if sealing.written == sealing.records.len() {
                        sealing.records.clear();
                        sealing.written = 0;
                        let most = most.min(SEAL_TURN_BYTES);
                        seal_turn(&mut self.outgoing, sealing, frames, most, delivered);
                    }
                    let rest = &sealing.records[sealing.written..];
                    self.stream.write(&rest[..rest.len().min(most)])
                }
            };
            match wrote {
                Ok(0) => return Err("its connection takes no more bytes".to_string()),
                Ok(bytes) => {
                    match &mut self.sealing {
                        None => self.outgoing.advance(bytes, delivered),
                        Some(sealing) => sealing.written += bytes,
                    }
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(&error)),
            }
        }
    }

    /// Read what is there, up to a turn's worth and to `most` bytes, or little more where they are sealed: how many it was.
    pub(crate) fn receive(
        &mut self,
        from: Rank,
        core: &mut Core,
        most: usize,
    ) -> Result<usize, End> {
        if self.outgoing.control.len() > WAITING_CONTROL_FRAMES {
            return Err(End::Broken("it reads none of what it is answered".to_string()));
        }
        let mut turn = 0;
        let most = most.min(READ_TURN_BYTES);
        while turn < most {
            let read = match &mut self.opener {
                None => self.receive_plain(from, core, most - turn),
                Some(_) => self.receive_sealed(from, core),
            };
            match read {
                Ok(Ok((0, _))) => return Err(self.parser.end()),
                Ok(Ok((bytes, more))) => {
                    turn += bytes;
                    if !more {
                        break;
                    }
                }
                Ok(Err(violation)) => return Err(End::Broken(violation)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A peer that left may not have read our last words: that is no accident of its.
                Err(_) if self.parser.said_goodbye => return Err(self.parser.end()),
                Err(error) => return Err(End::Broken(broken(&error))),
            }
        }
        Ok(turn)
    }

    /// One read: the rest of a payload straight into place, and whatever follows into the inbox.
    fn receive_plain(&mut self, from: Rank, core: &mut Core, most: usize) -> io::Result<Received> {
        let Some(space) = self.parser.payload_space() else {
            let inbox = &mut self.inbox[..most.min(INBOX_BYTES)];
            let bytes = self.stream.read(inbox)?;
            let full = bytes == inbox.len();
            return Ok(self.parser.take(&self.inbox[..bytes], from, core).map(|()| (bytes, full)));
        };
        let wanted = space.len().min(BITE_BYTES).min(most);
        let whole = wanted == space.len();
        let inbox = &mut self.inbox[..(most - wanted).min(INBOX_BYTES)];
        let mut slices = [IoSliceMut::new(&mut space[..wanted]), IoSliceMut::new(inbox)];
        // Past a bite in the middle of a payload comes more payload, which belongs elsewhere.
        let used = if whole { 2 } else { 1 };
        let bytes = self.stream.read_vectored(&mut slices[..used])?;
        let straight = bytes.min(wanted);
        self.parser.filled(straight, core);
        let rest = &self.inbox[..bytes - straight];
        let full = straight == wanted;
        Ok(self.parser.take(rest, from, core).map(|()| (bytes, full)))
    }

    fn receive_sealed(&mut self, from: Rank, core: &mut Core) -> io::Result<Received> {
        let opener = self.opener.as_mut().expect("asked for by sealed links only");
        let bytes = opener.read_from(&mut self.stream)?;
        loop {
            match opener.next_record() {
                Ok(Some(record)) => {
                    if let Err(violation) = self.parser.take(record, from, core) {
                        return Ok(Err(violation));
                    }
                }
                Ok(None) => return Ok(Ok((bytes, true))),
                Err(error) => return Ok(Err(tampered(&error))),
            }
        }
    }

    /// Say goodbye, and give the kernel what is queued, within `patience`.
    pub(crate) fn close(&mut self, deadline: std::time::Instant) {
        let mut delivered = Vec::new();
        while self.wants_to_write() && std::time::Instant::now() < deadline {
            if self.flush(&mut delivered).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

/// Bytes read (0 is the end of the stream) and whether there may be more; or what the peer did wrong.
type Received = Result<(usize, bool), String>;

/// What is to leave next: headers and payload of so many frames, of so many bytes at most.
fn parts(outgoing: &Outgoing, frames: usize, most: usize) -> impl Iterator<Item = &[u8]> {
    let frames = outgoing.in_order().take(frames.min(GATHERED_FRAMES));
    let parts = frames.flat_map(|(frame, sent)| <[&[u8]; 2]>::from(frame.rest(sent)));
    parts.scan(most, |left, part| {
        let taken = part.len().min(*left);
        *left -= taken;
        Some(&part[..taken])
    })
}

fn seal_turn(
    outgoing: &mut Outgoing,
    sealing: &mut Sealing,
    frames: usize,
    most: usize,
    delivered: &mut Vec<Key>,
) {
    let mut gathered: [&[u8]; 2 * GATHERED_FRAMES] = [&[]; 2 * GATHERED_FRAMES];
    let (mut used, mut total) = (0, 0);
    for part in parts(outgoing, frames, most) {
        gathered[used] = part;
        used += 1;
        total += part.len();
    }
    sealing.sealer.seal_parts_into(&gathered[..used], &mut sealing.records);
    outgoing.advance(total, delivered);
}

fn broken(error: &io::Error) -> String {
    format!("its connection broke: {error}")
}

fn tampered(error: &NetError) -> String {
    error.to_string()
}

/// Cuts a stream of bytes into frames. One data frame at a time has its place.
#[derive(Debug, Default)]
struct Parser {
    state: State,
    said_goodbye: bool,
}

#[derive(Debug)]
enum State {
    Header { bytes: [u8; HEADER_BYTES], filled: usize },
    Control { header: Header, payload: Vec<u8> },
    Payload(Landing),
}

impl Default for State {
    fn default() -> State {
        State::Header { bytes: [0; HEADER_BYTES], filled: 0 }
    }
}

/// A payload on its way into place.
#[derive(Debug)]
struct Landing {
    token: Option<Key>,
    /// Null if the bytes are to be forgotten.
    target: *mut u8,
    len: usize,
    filled: usize,
    combine: Option<Combining>,
}

#[derive(Debug)]
struct Combining {
    with: *const u8,
    into: *mut u8,
    recipe: Recipe,
    elements_done: usize,
}

// SAFETY: targets are places the engine gave; they stay valid until `Arrived` or `PeerLost`.
unsafe impl Send for Parser {}

impl Landing {
    fn space(&mut self) -> &mut [u8] {
        // SAFETY: the engine gave `len` bytes at `target` to this frame alone.
        unsafe {
            std::slice::from_raw_parts_mut(self.target.add(self.filled), self.len - self.filled)
        }
    }

    /// `bytes` more are in place: combine the elements that became whole.
    fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
        if let Some(combining) = &mut self.combine {
            let size = combining.recipe.dtype.size();
            let (from, to) = (combining.elements_done, self.filled / size);
            let at = from * size;
            // SAFETY: operand, result and landing are `len` bytes each; elements `from..to` are whole.
            unsafe {
                memory::combine(
                    combining.recipe,
                    combining.into.add(at),
                    self.target.add(at),
                    Some(combining.with.add(at)),
                    to - from,
                );
            }
            combining.elements_done = to;
        }
    }
}

impl Parser {
    /// Where the rest of the payload in progress goes, if there is one that has a place.
    fn payload_space(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Payload(landing) if !landing.target.is_null() => Some(landing.space()),
            _ => None,
        }
    }

    /// `bytes` were put at the start of [`Parser::payload_space`].
    fn filled(&mut self, bytes: usize, core: &mut Core) {
        let State::Payload(landing) = &mut self.state else {
            unreachable!("space was given by a payload in progress")
        };
        landing.advance(bytes);
        if landing.filled == landing.len {
            let token = landing.token;
            self.state = State::default();
            core.arrived(token);
        }
    }

    /// Take bytes that were read elsewhere.
    fn take(&mut self, mut bytes: &[u8], from: Rank, core: &mut Core) -> Result<(), String> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Header { bytes: header, filled } => {
                    let taken = bytes.len().min(HEADER_BYTES - *filled);
                    header[*filled..*filled + taken].copy_from_slice(&bytes[..taken]);
                    *filled += taken;
                    bytes = &bytes[taken..];
                    if *filled == HEADER_BYTES {
                        let header = Header::decode(header).map_err(|error| error.to_string())?;
                        self.begin(header, from, core)?;
                    }
                }
                State::Control { header, payload } => {
                    let taken = bytes.len().min(header.payload_bytes() - payload.len());
                    payload.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if payload.len() == header.payload_bytes() {
                        let (header, payload) = (*header, std::mem::take(payload));
                        self.state = State::default();
                        self.control(header, payload, from, core);
                    }
                }
                State::Payload(landing) => {
                    let taken = bytes.len().min(landing.len - landing.filled);
                    if landing.target.is_null() {
                        landing.filled += taken;
                        if landing.filled == landing.len {
                            self.state = State::default();
                        }
                    } else {
                        landing.space()[..taken].copy_from_slice(&bytes[..taken]);
                        self.filled(taken, core);
                    }
                    bytes = &bytes[taken..];
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, header: Header, from: Rank, core: &mut Core) -> Result<(), String> {
        self.state = State::default();
        if header.kind != Kind::Data {
            if header.payload_bytes() == 0 {
                self.control(header, Vec::new(), from, core);
            } else {
                self.state = State::Control { header, payload: Vec::new() };
            }
            return Ok(());
        }
        if header.len == 0 {
            return Err("it sent a data frame without data".to_string());
        }
        let (token, placement) = core.incoming(from, header);
        let bytes = u64::from(header.len);
        let mut combine = None;
        let target = match placement {
            Placement::Straight(loc) => core.memory.write(loc, bytes),
            Placement::Hold(buf) | Placement::Stow(buf) => core.memory.provide(buf, bytes),
            Placement::Discard => std::ptr::null_mut(),
            Placement::Combine { landing, with, into, recipe } => {
                let target = core.memory.provide(landing, bytes);
                let with = core.memory.read(with);
                let into = core.memory.write(into, bytes);
                combine = Some(Combining { with, into, recipe, elements_done: 0 });
                target
            }
        };
        let len = header.payload_bytes();
        self.state = State::Payload(Landing { token, target, len, filled: 0, combine });
        Ok(())
    }

    fn control(&mut self, header: Header, payload: Vec<u8>, from: Rank, core: &mut Core) {
        self.said_goodbye |= header.kind == Kind::Goodbye;
        core.control(from, header, payload.into());
    }

    /// What the end of the stream means. In the middle of a frame it is no way to leave.
    fn end(&self) -> End {
        let between_frames = matches!(self.state, State::Header { filled: 0, .. });
        if self.said_goodbye && between_frames {
            End::Left
        } else {
            End::Broken("its connection closed".to_string())
        }
    }
}

/// How a link ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer said goodbye; everything it sent is here.
    Left,
    /// Anything else, in words.
    Broken(String),
}
