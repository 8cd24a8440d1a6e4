//! A link to a worker of the same host: small frames through a ring in shared memory, large ones by
//! reference to memory the peer can read. Whoever is lent memory sends a receipt when done with it.
//!
//! The TCP connection to the same peer stays open beside it: its end is the peer's end, and a frame on
//! it wakes a peer that sleeps.

use super::{
    core::Core,
    memory::{self, Copying, Store},
    ring::{self, Reader, Writer},
    segment::Segment,
    tcp::{End, TcpLink},
};
use paceline_job::{Rank, ViewVersion};
use paceline_sync::{
    event::{Loc, Placement},
    frame::{HEADER_BYTES, Header, Kind, OpKey},
    program::Slot,
    scheduler::Urgency,
    slab::Key,
};
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering, fence},
    },
};

/// Payload up to this size travels inside the ring; beyond it a reference is cheaper than two copies.
const INLINE_BYTES: usize = 8 << 10;

/// Bytes of private memory copied for peers and not yet released. Small enough to stay in cache. Only those who have something
/// else to do keep to it: peers may hold what they have until they get what waits here.
const COPIES_BYTES: u64 = 4 << 20;

/// Records handled before other links get their turn.
const TURN_RECORDS: usize = 64;

/// Places a peer has announced and that were not used yet. They are hints: the oldest are forgotten.
const READY_KEPT: usize = 4096;

/// Where the rings begin in a segment; before them lies the word that says "asleep".
const RINGS_AT: u64 = 4096;

const FRAME: u8 = 1;
const REFERENCE: u8 = 2;
const RECEIPT: u8 = 3;
const READY: u8 = 4;
const PLACED: u8 = 5;
const WITHDRAW: u8 = 6;
const WITHDRAWN: u8 = 7;
const PREFIX_BYTES: usize = 8;

/// Bytes at the start of a segment that serve its links to `peers` local workers.
pub(crate) fn layout_bytes(peers: usize) -> u64 {
    RINGS_AT + peers as u64 * ring::RING_AREA_BYTES
}

/// The word by which a worker tells its peers that it must be woken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsleepWord(*const AtomicU32);

// SAFETY: an atomic in memory that outlives all users.
unsafe impl Send for AsleepWord {}
// SAFETY: as above.
unsafe impl Sync for AsleepWord {}

impl AsleepWord {
    pub(crate) fn of(segment: &Segment) -> AsleepWord {
        let at = segment.at(128, 4).expect("a segment has its first page");
        AsleepWord(at.cast())
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned, in the first page of a segment that the holder keeps mapped.
        unsafe { &*self.0 }
    }

    /// From now on peers ring the bell. Look into the rings once more after this.
    pub(crate) fn fall_asleep(&self) {
        self.word().store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn wake(&self) {
        self.word().store(0, Ordering::SeqCst);
    }

    /// Whether the bell must be rung; whoever asks first rings it.
    fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word().load(Ordering::SeqCst) == 1 && self.word().swap(0, Ordering::SeqCst) == 1
    }
}

#[derive(Debug)]
struct OutFrame {
    urgency: Urgency,
    header: Header,
    payload: Payload,
    token: Option<Key>,
}

#[derive(Debug)]
enum Payload {
    Inline(Box<[u8]>),
    /// Where it lies, its name, and how it is copied if the peer has announced a place for it.
    Memory(*const u8, Loc, Copying),
}

/// What a final value is for: operation, chunk, instruction, length.
type Target = (OpKey, u32, Slot, u32);

fn target(header: &Header) -> Target {
    (header.key, header.chunk, header.slot, header.len)
}

/// Memory a peer reads right now.
#[derive(Debug)]
struct Lent {
    token: Option<Key>,
    copy: Option<u32>,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct ShmLink {
    writer: Writer,
    reader: Reader,
    peer: Arc<Segment>,
    peer_asleep: AsleepWord,
    store: Arc<Store>,
    control: VecDeque<OutFrame>,
    /// The most urgent first.
    data: VecDeque<OutFrame>,
    receipts: VecDeque<u32>,
    /// Places in our memory that the peer may write, to be announced.
    announcements: VecDeque<(Header, u64)>,
    /// Announced places that the peer has not filled yet, by operation.
    outstanding: FxHashMap<OpKey, Vec<Target>>,
    /// Operations whose announcements are void, to be told; and the peer's that we have voided.
    withdrawals: VecDeque<(u8, OpKey)>,
    /// Withdrawals the peer has confirmed.
    pub withdrawn: Vec<OpKey>,
    /// Places in the peer's memory where it expects final values, and the order they came in.
    ready: FxHashMap<Target, u64>,
    ready_order: VecDeque<Target>,
    lent: Vec<Option<Lent>>,
    free_receipts: Vec<u32>,
    said_goodbye: bool,
    /// The connection beside the ring has ended.
    end: Option<End>,
    pub bell: TcpLink,
}

// SAFETY: payload pointers are covered by the engine's promise, whatever thread drives.
unsafe impl Send for ShmLink {}

impl ShmLink {
    /// `my_place` is this worker's place among the peer's local workers, `peer_place` the reverse.
    pub(crate) fn new(
        store: Arc<Store>,
        peer: Arc<Segment>,
        my_place: usize,
        peer_place: usize,
        bell: TcpLink,
    ) -> ShmLink {
        let ring_at = |segment: &Segment, place: usize| {
            let at = RINGS_AT + place as u64 * ring::RING_AREA_BYTES;
            segment.at(at, ring::RING_AREA_BYTES).expect("rings lie inside the segment")
        };
        // SAFETY: the ring for the peer in our segment is written by us alone, the ring for us in the
        // peer's segment is read by us alone; both segments are kept by this link, zeroed when made.
        let (writer, reader) = unsafe {
            (
                Writer::new(ring_at(&store.segment, peer_place)),
                Reader::new(ring_at(&peer, my_place)),
            )
        };
        ShmLink {
            writer,
            reader,
            peer_asleep: AsleepWord::of(&peer),
            peer,
            store,
            control: VecDeque::new(),
            data: VecDeque::new(),
            receipts: VecDeque::new(),
            announcements: VecDeque::new(),
            outstanding: FxHashMap::default(),
            withdrawals: VecDeque::new(),
            withdrawn: Vec::new(),
            ready: FxHashMap::default(),
            ready_order: VecDeque::new(),
            lent: Vec::new(),
            free_receipts: Vec::new(),
            said_goodbye: false,
            end: None,
            bell,
        }
    }

    pub(crate) fn segment(&self) -> Arc<Segment> {
        self.peer.clone()
    }

    pub(crate) fn send(
        &mut self,
        header: Header,
        urgency: Urgency,
        memory: *const u8,
        loc: Loc,
        copying: Copying,
        token: Option<Key>,
    ) {
        let payload = Payload::Memory(memory, loc, copying);
        let place = urgency.place(0, self.data.len(), |place| self.data[place].urgency);
        self.data.insert(place, OutFrame { urgency, header, payload, token });
    }

    pub(crate) fn send_control(&mut self, header: Header, payload: Box<[u8]>) {
        let payload = Payload::Inline(payload);
        self.control.push_back(OutFrame { urgency: Urgency::FIRST, header, payload, token: None });
    }

    pub(crate) fn send_receipt(&mut self, receipt: u32) {
        self.receipts.push_back(receipt);
    }

    /// The peer may write what it sends for this header straight to `place`, if it can reach it.
    pub(crate) fn announce(&mut self, header: Header, place: *const u8) {
        if header.payload_bytes() > INLINE_BYTES
            && let Some(offset) = self.store.segment.offset_of(place)
        {
            self.outstanding.entry(header.key).or_default().push(target(&header));
            self.announcements.push_back((header, offset));
        }
    }

    /// The operation failed: the peer must not write its places any more. False if it has none left;
    /// otherwise the peer's answer will be in `withdrawn`.
    pub(crate) fn withdraw(&mut self, key: OpKey) -> bool {
        self.announcements.retain(|(header, _)| header.key != key);
        let open = self.outstanding.remove(&key).is_some();
        if open {
            self.withdrawals.push_back((WITHDRAW, key));
        }
        open
    }

    /// A message came; if its place was announced, it is filled, whichever way the message took.
    fn filled(outstanding: &mut FxHashMap<OpKey, Vec<Target>>, header: &Header) {
        if let Some(places) = outstanding.get_mut(&header.key) {
            places.retain(|place| *place != target(header));
            if places.is_empty() {
                outstanding.remove(&header.key);
            }
        }
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !(self.control.is_empty()
            && self.data.is_empty()
            && self.receipts.is_empty()
            && self.announcements.is_empty()
            && self.withdrawals.is_empty())
    }

    pub(crate) fn has_record(&self) -> bool {
        self.reader.has_record()
    }

    /// Put into the ring what fits. `delivered` collects sends whose memory is free at once.
    pub(crate) fn flush(
        &mut self,
        copies: &mut Copies,
        delivered: &mut Vec<Key>,
    ) -> Result<bool, String> {
        let mut any = false;
        while let Some(receipt) = self.receipts.front() {
            if !self.writer.push(&[&prefix(RECEIPT, *receipt)]) {
                break;
            }
            self.receipts.pop_front();
            any = true;
        }
        while let Some((kind, key)) = self.withdrawals.front() {
            let header = Header::control(Kind::Abort, *key);
            if !self.writer.push(&[&prefix(*kind, 0), &header.encode()]) {
                break;
            }
            self.withdrawals.pop_front();
            any = true;
        }
        while let Some((header, offset)) = self.announcements.front() {
            if !self.writer.push(&[&prefix(READY, 0), &header.encode(), &offset.to_le_bytes()]) {
                break;
            }
            self.announcements.pop_front();
            any = true;
        }
        while let Some(frame) = self.control.front() {
            let Payload::Inline(bytes) = &frame.payload else { unreachable!("control is inline") };
            if !self.writer.push(&[&prefix(FRAME, 0), &frame.header.encode(), bytes]) {
                break;
            }
            self.control.pop_front();
            any = true;
        }
        while let Some(frame) = self.data.front() {
            let Payload::Memory(pointer, loc, copying) = frame.payload else {
                unreachable!("data lies in memory")
            };
            let header = frame.header.encode();
            let len = frame.header.payload_bytes();
            if len <= INLINE_BYTES {
                // SAFETY: the engine keeps the memory unchanged until `Delivered`.
                let bytes = unsafe { std::slice::from_raw_parts(pointer, len) };
                if !self.writer.push(&[&prefix(FRAME, 0), &header, bytes]) {
                    break;
                }
                delivered.extend(frame.token);
            } else if let Some(offset) = self.ready.remove(&target(&frame.header)) {
                let place = self
                    .peer
                    .at(offset, len as u64)
                    .ok_or("it announced a place outside its memory")?;
                // SAFETY: inside the peer's segment; the peer said that nobody else touches it, and
                // reads it only after the record below.
                unsafe { copying.copy(pointer, place, len) };
                if !self.writer.push(&[&prefix(PLACED, 0), &header]) {
                    self.ready.insert(target(&frame.header), offset);
                    break;
                }
                delivered.extend(frame.token);
            } else {
                let receipt = self.free_receipts.last().copied().unwrap_or(self.lent.len() as u32);
                let (offset, copy) = match self.store.segment.offset_of(pointer) {
                    Some(offset) => (offset, None),
                    None => match copies.of(&self.store, pointer, loc, len) {
                        Ok(Some((offset, copy))) => (offset, Some(copy)),
                        Ok(None) => break,
                        Err(error) => return Err(format!("no memory to reach it: {error}")),
                    },
                };
                let reference = offset.to_le_bytes();
                if !self.writer.push(&[&prefix(REFERENCE, receipt), &header, &reference]) {
                    if let Some(copy) = copy {
                        copies.release(&self.store, copy);
                    }
                    break;
                }
                let lent = Some(Lent { token: frame.token, copy });
                if self.free_receipts.pop().is_some() {
                    self.lent[receipt as usize] = lent;
                } else {
                    self.lent.push(lent);
                }
            }
            self.data.pop_front();
            any = true;
        }
        if any && self.peer_asleep.must_ring() {
            let key = OpKey { name: 0, uses: 0, view: ViewVersion(0) };
            self.bell.send_control(Header::control(Kind::Wake, key), Box::default());
            self.bell.flush(&mut Vec::new())?;
        }
        Ok(any)
    }

    /// Take what lies in the ring, up to a turn's worth.
    pub(crate) fn receive(
        &mut self,
        from: Rank,
        core: &mut Core,
        copies: &mut Copies,
    ) -> Result<bool, End> {
        match self.receive_records(from, core, copies) {
            Ok(any) => Ok(any),
            Err(violation) => Err(End::Broken(violation)),
        }
    }

    fn receive_records(
        &mut self,
        from: Rank,
        core: &mut Core,
        copies: &mut Copies,
    ) -> Result<bool, String> {
        for turn in 0..TURN_RECORDS {
            let Some(record) = self.reader.peek()? else { return Ok(turn > 0) };
            let len = record.len();
            let number = |at: usize| {
                record
                    .get(at..at + 4)
                    .and_then(|bytes| bytes.try_into().ok())
                    .map(u32::from_le_bytes)
            };
            match record.first() {
                Some(&RECEIPT) => {
                    let receipt = number(4).ok_or("it sent half a receipt")?;
                    let lent = self.lent.get_mut(receipt as usize).and_then(Option::take);
                    let lent = lent.ok_or("it sent a receipt for nothing it was lent")?;
                    self.free_receipts.push(receipt);
                    if let Some(copy) = lent.copy {
                        copies.release(&self.store, copy);
                    }
                    // At once: a final value behind it may be waiting for this delivery.
                    core.delivered(lent.token);
                }
                Some(&kind @ (FRAME | REFERENCE | READY | PLACED | WITHDRAW | WITHDRAWN)) => {
                    let body = record.get(PREFIX_BYTES..).unwrap_or_default();
                    let (header, payload) =
                        body.split_first_chunk::<HEADER_BYTES>().ok_or("it sent half a frame")?;
                    let header = Header::decode(header).map_err(|error| error.to_string())?;
                    if kind == WITHDRAW {
                        self.ready.retain(|(key, ..), _| *key != header.key);
                        self.withdrawals.push_back((WITHDRAWN, header.key));
                    } else if kind == WITHDRAWN {
                        self.withdrawn.push(header.key);
                    } else if kind == READY {
                        let offset = payload.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
                        let offset = offset.ok_or("it sent half an announcement")?;
                        if self.ready_order.len() == READY_KEPT
                            && let Some(oldest) = self.ready_order.pop_front()
                        {
                            self.ready.remove(&oldest);
                        }
                        self.ready_order.push_back(target(&header));
                        self.ready.insert(target(&header), offset);
                    } else if kind == PLACED {
                        if header.kind != Kind::Data || header.len == 0 {
                            return Err("it claims to have placed what has no place".to_string());
                        }
                        ShmLink::filled(&mut self.outstanding, &header);
                        let (token, placement) = core.incoming(from, header);
                        match placement {
                            Placement::Straight(_) => core.arrived(token),
                            Placement::Discard => {}
                            _ => {
                                return Err("it claims to have placed what was not due".to_string());
                            }
                        }
                    } else if header.kind != Kind::Data {
                        if kind != FRAME || payload.len() != header.payload_bytes() {
                            return Err("it sent a control frame of another length".to_string());
                        }
                        self.said_goodbye |= header.kind == Kind::Goodbye;
                        core.control(from, header, payload.into());
                    } else if kind == FRAME {
                        if payload.len() != header.payload_bytes() || payload.is_empty() {
                            return Err("it sent a data frame of another length".to_string());
                        }
                        place(from, header, payload.as_ptr(), None, core)?;
                    } else {
                        ShmLink::filled(&mut self.outstanding, &header);
                        let receipt = number(4).expect("a frame is longer than its prefix");
                        let offset = payload.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
                        let offset = offset.ok_or("it sent half a reference")?;
                        let pointer = self
                            .peer
                            .at(offset, u64::from(header.len))
                            .filter(|_| header.len > 0)
                            .ok_or("it sent a reference outside its memory")?;
                        if place(from, header, pointer, Some(receipt), core)? == Use::Done {
                            self.receipts.push_back(receipt);
                        }
                    }
                }
                _ => return Err("it sent a record of unknown kind".to_string()),
            }
            self.reader.pop(len);
        }
        Ok(true)
    }

    /// The peer is gone: what it was lent is ours again.
    pub(crate) fn take_back(&mut self, copies: &mut Copies) {
        for lent in self.lent.drain(..).flatten() {
            if let Some(copy) = lent.copy {
                copies.release(&self.store, copy);
            }
        }
    }

    /// Look whether the peer rang or is gone. What lies in the ring was sent before that and comes
    /// first: the end counts once the ring is empty.
    pub(crate) fn listen(&mut self, from: Rank, core: &mut Core) -> Result<bool, End> {
        if self.end.is_none() {
            match self.bell.receive(from, core, usize::MAX) {
                Ok(bytes) => return Ok(bytes > 0),
                Err(end) => self.end = Some(end),
            }
        }
        if self.has_record() {
            return Ok(true);
        }
        match self.end.take() {
            Some(_) if self.said_goodbye => Err(End::Left),
            Some(end) => Err(end),
            None => Ok(false),
        }
    }
}

/// Whether lent bytes are still needed.
#[derive(PartialEq, Eq)]
enum Use {
    Done,
    Kept,
}

/// Bring a payload that can be read at `source` to its place.
fn place(
    from: Rank,
    header: Header,
    source: *const u8,
    receipt: Option<u32>,
    core: &mut Core,
) -> Result<Use, String> {
    let bytes = u64::from(header.len);
    let (token, placement) = core.incoming(from, header);
    match placement {
        Placement::Discard => {}
        Placement::Straight(loc) => {
            let into = core.memory.write(loc, bytes);
            let copying = core.memory.copying(loc);
            // SAFETY: the engine gave `bytes` bytes to this frame; the source holds as many.
            unsafe { copying.copy(source, into, bytes as usize) };
        }
        Placement::Hold(buf) | Placement::Stow(buf) => {
            if let (Placement::Hold(_), Some(receipt)) = (placement, receipt) {
                core.memory.borrow(buf, source, from, receipt);
                core.arrived(token);
                return Ok(Use::Kept);
            }
            let into = core.memory.provide(buf, bytes);
            // SAFETY: as above, into scratch made for it.
            unsafe { std::ptr::copy_nonoverlapping(source, into, bytes as usize) };
        }
        Placement::Combine { with, into, recipe, .. } => {
            let with = core.memory.read(with);
            let into = core.memory.write(into, bytes);
            let elements = bytes as usize / recipe.dtype.size();
            // SAFETY: the engine checked the length against the instruction; all three hold as many.
            unsafe { memory::combine(recipe, into, source, Some(with), elements) };
        }
    }
    core.arrived(token);
    Ok(Use::Done)
}

fn prefix(kind: u8, number: u32) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, 0, 0, 0, a, b, c, d]
}

/// Copies of callers' private memory that peers read. One copy serves all peers that are sent the
/// same bytes.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    places: Vec<Copy>,
    free: Vec<u32>,
    by_source: FxHashMap<(Loc, usize), u32>,
    bytes: u64,
    /// Whether to copy whatever waits.
    pub unbounded: bool,
}

#[derive(Debug)]
struct Copy {
    source: (Loc, usize),
    offset: u64,
    readers: u32,
}

impl Copies {
    /// A copy of the bytes; `None` if too many are out and the sender must wait for receipts.
    fn of(
        &mut self,
        store: &Store,
        pointer: *const u8,
        loc: Loc,
        len: usize,
    ) -> std::io::Result<Option<(u64, u32)>> {
        // A copy that somebody still reads is up to date: its source may not change before that.
        if let Some(copy) = self.by_source.get(&(loc, len)) {
            let place = &mut self.places[*copy as usize];
            place.readers += 1;
            return Ok(Some((place.offset, *copy)));
        }
        let bytes = len as u64;
        if self.bytes > 0 && self.bytes + bytes > COPIES_BYTES && !self.unbounded {
            return Ok(None);
        }
        let offset = store.take(bytes)?;
        // SAFETY: the engine keeps the caller's memory as it is until `Delivered`; the block is ours.
        unsafe { std::ptr::copy_nonoverlapping(pointer, store.pointer(offset, bytes), len) };
        let place = Copy { source: (loc, len), offset, readers: 1 };
        let copy = match self.free.pop() {
            Some(copy) => {
                self.places[copy as usize] = place;
                copy
            }
            None => {
                self.places.push(place);
                self.places.len() as u32 - 1
            }
        };
        self.bytes += bytes;
        self.by_source.insert((loc, len), copy);
        Ok(Some((offset, copy)))
    }

    fn release(&mut self, store: &Store, copy: u32) {
        let place = &mut self.places[copy as usize];
        place.readers -= 1;
        if place.readers == 0 {
            let bytes = place.source.1 as u64;
            store.give(place.offset, bytes);
            self.bytes -= bytes;
            self.by_source.remove(&place.source);
            self.free.push(copy);
        }
    }
}
