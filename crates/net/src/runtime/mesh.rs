//! From connections to links: workers of one host offer each other their segments, and where both
//! could map the other's, shared memory takes the place of the connection.

use super::{
    driver::Link,
    memory::Store,
    segment::Segment,
    shm::{self, ShmLink},
    tcp::TcpLink,
};
use crate::{
    error::{NetError, Result},
    handshake::Connection,
};
use paceline_job::{Rank, View};
use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

/// How long a peer of the same host may take to answer: it only has to map a file.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// magic, pid, descriptor, nonce
const OFFER_BYTES: usize = 8 + 4 + 4 + 16;
const OFFER_MAGIC: [u8; 8] = *b"plsegmt1";

/// Which way bytes take between workers of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where it works, TCP elsewhere.
    #[default]
    Auto,
    /// TCP everywhere.
    Tcp,
}

/// This worker's segment, laid out for its local peers.
pub(crate) fn create_store(view: &View, rank: Rank) -> Result<Arc<Store>> {
    let local = local_ranks(view, rank);
    let store = Store::create(shm::layout_bytes(local.len()))
        .map_err(|source| NetError::SharedMemory { source })?;
    let nonce: [u8; 16] = crate::secret::random_bytes()?;
    let at = store.segment.at(0, 16).expect("a segment has its first page");
    // SAFETY: the first page is reserved and nobody else knows the segment yet.
    unsafe { std::ptr::copy_nonoverlapping(nonce.as_ptr(), at, nonce.len()) };
    Ok(Arc::new(store))
}

fn local_ranks(view: &View, rank: Rank) -> Vec<usize> {
    let host = &view.workers[rank.index()].host;
    (0..view.size()).filter(|other| view.workers[*other].host == *host).collect()
}

/// Turn connections into links, by rank.
pub(crate) fn link(
    view: &View,
    rank: Rank,
    transport: Transport,
    mut peers: Vec<Vec<Connection>>,
    store: &Arc<Store>,
) -> Result<Vec<Option<Link>>> {
    let local = local_ranks(view, rank);
    let place = |of: usize| local.iter().position(|other| *other == of).expect("both are local");
    let others: Vec<usize> = local.iter().copied().filter(|peer| *peer != rank.index()).collect();
    let named = |peer: usize, error: NetError| {
        error.with_peer(Rank(peer as u32), &view.workers[peer].address)
    };

    // Everybody writes before anybody reads, in each of the two rounds, so no order can block.
    for peer in &others {
        let offer = own_offer(store, transport);
        say(&mut peers[*peer], &offer).map_err(|error| named(*peer, error))?;
    }
    let mut segments: Vec<Option<Segment>> = Vec::new();
    for peer in &others {
        let mut offer = [0; OFFER_BYTES];
        hear(&mut peers[*peer], &mut offer).map_err(|error| named(*peer, error))?;
        let segment = if transport == Transport::Auto { open_offer(&offer) } else { None };
        say(&mut peers[*peer], &[u8::from(segment.is_some())])
            .map_err(|error| named(*peer, error))?;
        segments.push(segment);
    }
    let mut mapped: Vec<Option<Segment>> = Vec::new();
    mapped.resize_with(view.size(), || None);
    for (peer, segment) in others.iter().zip(segments) {
        let mut answer = [0];
        hear(&mut peers[*peer], &mut answer).map_err(|error| named(*peer, error))?;
        mapped[*peer] = segment.filter(|_| answer == [1]);
    }

    let mut links = Vec::new();
    for (peer, connections) in peers.into_iter().enumerate() {
        if peer == rank.index() {
            links.push(None);
            continue;
        }
        let connections: io::Result<Vec<TcpLink>> = connections
            .into_iter()
            .map(|connection| TcpLink::new(connection.stream, connection.seal))
            .collect();
        let mut connections = connections.map_err(|error| named(peer, error.into()))?;
        links.push(Some(match mapped[peer].take() {
            None => Link::Tcp { connections, next: 0 },
            Some(segment) => Link::Shm(Box::new(ShmLink::new(
                store.clone(),
                Arc::new(segment),
                place(rank.index()),
                place(peer),
                connections.swap_remove(0),
            ))),
        }));
    }
    Ok(links)
}

fn own_offer(store: &Store, transport: Transport) -> [u8; OFFER_BYTES] {
    let mut offer = [0; OFFER_BYTES];
    offer[..8].copy_from_slice(&OFFER_MAGIC);
    if transport == Transport::Auto {
        offer[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        offer[12..16].copy_from_slice(&store.segment.descriptor().to_le_bytes());
        offer[16..].copy_from_slice(&nonce_of(&store.segment));
    }
    offer
}

/// The peer's segment, if it offered one and it can be reached. Another process namespace or a
/// hardened `/proc` is no error: the connection is there.
fn open_offer(offer: &[u8; OFFER_BYTES]) -> Option<Segment> {
    let (magic, rest) = offer.split_at(8);
    let pid = u32::from_le_bytes(rest[..4].try_into().ok()?);
    let fd = i32::from_le_bytes(rest[4..8].try_into().ok()?);
    if magic != OFFER_MAGIC || pid == 0 {
        return None;
    }
    let segment = Segment::open(pid, fd).ok()?;
    (nonce_of(&segment) == rest[8..]).then_some(segment)
}

fn nonce_of(segment: &Segment) -> [u8; 16] {
    let at = segment.at(0, 16).expect("a segment has its first page");
    // SAFETY: reserved when the segment was made, written once before it was offered.
    unsafe { at.cast::<[u8; 16]>().read_unaligned() }
}

fn say(connections: &mut [Connection], bytes: &[u8]) -> Result<()> {
    connections[0].stream.write_all(bytes).map_err(unheard)
}

fn hear(connections: &mut [Connection], bytes: &mut [u8]) -> Result<()> {
    let stream = &mut connections[0].stream;
    stream.set_read_timeout(Some(OFFER_TIMEOUT))?;
    stream.read_exact(bytes).map_err(unheard)?;
    Ok(stream.set_read_timeout(None)?)
}

/// What a failure of these few bytes means: the peer has ended, or hangs.
fn unheard(error: io::Error) -> NetError {
    use io::ErrorKind::*;
    let awaited = "what it says of its shared memory";
    match error.kind() {
        WouldBlock | TimedOut => NetError::Silent { awaited, waited: OFFER_TIMEOUT },
        UnexpectedEof | ConnectionReset | BrokenPipe => NetError::Closed { awaited },
        _ => error.into(),
    }
}
