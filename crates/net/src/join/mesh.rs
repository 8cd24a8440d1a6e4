//! Connects every worker of a view with every other: the lower rank accepts, the higher connects.
//! Each connection proves the secret and then says whose it is; one that is not expected is refused
//! by name and disturbs nobody. This file knows nothing of what the connections will carry.

use super::{
    JoinConfig,
    host::{is_loopback, tune},
};
use crate::{
    coordinator::{
        INTRODUCTION_BYTES, Introduction, IntroductionAnswer, JobId, Refusal, decode_introduction,
        decode_introduction_answer, encode,
    },
    error::{NetError, Result},
    handshake::{
        self, Acceptor, Connection, Deadline, Encryption, HANDSHAKE_TIMEOUT, MessageChannel,
        Privacy, Purpose, Terms,
    },
    secret::Secret,
};
use paceline_job::{Rank, View};
use paceline_sync::agreement::Ballot;
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// Results that wait to be put in their place; whoever has one more waits.
const EVENTS: usize = 64;

/// How often the control channel is asked for news while connections are awaited.
const NEWS_INTERVAL: Duration = Duration::from_millis(50);

/// One attempt to connect, so that a lost packet does not use up the whole deadline.
const CONNECT_ATTEMPT: Duration = Duration::from_secs(3);

/// The pause between attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Who we are to our peers.
pub(crate) struct Place {
    pub(crate) job: JobId,
    pub(crate) rank: Rank,
    pub(crate) view: View,
    /// What all gather for, where they do: connections of another attempt at the same view are not this one's.
    pub(crate) attempt: Ballot,
}

/// Connect with everybody; the result is indexed by rank, empty for ourselves. Again and again `watch` is told who is
/// missing, and may end it.
pub(crate) fn connect_all(
    place: &Place,
    listener: TcpListener,
    config: &JoinConfig,
    mut watch: impl FnMut(&dyn Fn(Rank) -> bool) -> Result<()>,
    deadline: Deadline,
) -> Result<Vec<Vec<Connection>>> {
    let size = place.view.size();
    let per_peer = config.connections;
    let mut peers: Vec<Vec<Option<Connection>>> = (0..size)
        .map(|rank| {
            let connections = if rank == place.rank.index() { 0 } else { per_peer };
            (0..connections).map(|_| None).collect()
        })
        .collect();
    let mut awaited = (size - 1) * per_peer;

    let (sender, events) = sync_channel(EVENTS);
    let host = Host {
        secret: config.secret.clone(),
        encryption: config.encryption,
        job: place.job.clone(),
        view: place.view.version,
        attempt: place.attempt,
        table: Mutex::new(Table::new(place.rank, size, per_peer)),
        events: sender.clone(),
    };
    let acceptor = Acceptor::start(listener, move |stream, from| host.greet(stream, from))?;
    let guest = Guest::new(place, config, deadline);
    // It ends with the deadline at the latest, or when nobody takes its results any more.
    thread::Builder::new()
        .name("paceline-connect".to_string())
        .spawn(move || guest.visit_all(&sender))?;

    let mut last_refusal = None;
    while awaited > 0 {
        match events.recv_timeout(NEWS_INTERVAL) {
            Ok(Event::Connected { rank, index, connection }) => {
                tune(&connection.stream, is_loopback(&connection.stream));
                // In range and once each: the table and the guest's loop see to that.
                peers[rank.index()][index as usize] = Some(connection);
                awaited -= 1;
            }
            Ok(Event::TurnedAway(reason)) => last_refusal = Some(reason),
            Ok(Event::Failed(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(NetError::CoordinatorGone),
        }
        let missing = |peers: &[Vec<Option<Connection>>], rank: usize| {
            peers[rank].iter().any(Option::is_none)
        };
        watch(&|rank: Rank| rank.index() < size && missing(&peers, rank.index()))?;
        if deadline.remaining().is_zero() && awaited > 0 {
            let ranks = (0..size).filter(|rank| missing(&peers, *rank));
            return Err(NetError::PeersMissing {
                waited: deadline.waited(),
                missing: ranks.map(|rank| Rank(rank as u32)).collect(),
                last_refusal,
            });
        }
    }
    drop(acceptor);
    Ok(peers.into_iter().map(|connections| connections.into_iter().flatten().collect()).collect())
}

enum Event {
    Connected {
        rank: Rank,
        index: u32,
        connection: Connection,
    },
    /// Somebody knocked and was refused. That alone is no reason to give up.
    TurnedAway(String),
    Failed(NetError),
}

/// Which connections are expected here, and which of them have come.
#[derive(Debug)]
struct Table {
    own_rank: Rank,
    /// Indexed by rank and connection.
    taken: Vec<Vec<bool>>,
}

impl Table {
    fn new(own_rank: Rank, size: usize, per_peer: usize) -> Table {
        Table { own_rank, taken: vec![vec![false; per_peer]; size] }
    }

    fn claim(&mut self, rank: Rank, index: u32, from: SocketAddr) -> Result<(), Refusal> {
        let place = self.taken.get_mut(rank.index()).and_then(|row| row.get_mut(index as usize));
        match place {
            // Only higher ranks connect.
            Some(taken) if rank > self.own_rank => {
                if *taken {
                    let holder = format!("another peer (this one came from {from})");
                    return Err(Refusal::DuplicateRank { rank, holder });
                }
                *taken = true;
                Ok(())
            }
            _ => Err(Refusal::UnknownPeer { rank, index }),
        }
    }
}

/// The accepting side; called on a thread for each connection.
struct Host {
    secret: Secret,
    encryption: Encryption,
    job: JobId,
    view: paceline_job::ViewVersion,
    attempt: Ballot,
    table: Mutex<Table>,
    events: SyncSender<Event>,
}

impl Host {
    fn greet(&self, stream: TcpStream, from: SocketAddr) {
        let event = match self.admit(stream, from) {
            Ok(event) => event,
            Err(error) => Event::TurnedAway(format!("{from}: {error}")),
        };
        // If nobody listens any more, the mesh is complete or was given up.
        let _ = self.events.send(event);
    }

    fn admit(&self, stream: TcpStream, from: SocketAddr) -> Result<Event> {
        let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
        let terms = Terms {
            secret: &self.secret,
            purpose: Purpose::Peer,
            privacy: Privacy::for_stream(&stream, self.encryption)?,
            timeout: HANDSHAKE_TIMEOUT,
        };
        let connection = handshake::respond(stream, terms)?;
        let mut channel = MessageChannel::new(connection, INTRODUCTION_BYTES)?;
        let introduction = channel
            .receive("an introduction", deadline)
            .and_then(|bytes| decode_introduction(&bytes));
        let refusal = match &introduction {
            Ok(introduction) => self.judge(introduction, from).err(),
            Err(error) => Refusal::of_unreadable(error),
        };
        if let Some(refusal) = refusal {
            let answer = IntroductionAnswer::Refused(refusal.clone());
            // The reason is reported here, whether or not the peer can still be told.
            let _ = channel.send(&encode(&answer), deadline);
            handshake::dismiss(channel.into_stream());
            return Err(refusal.into());
        }
        let Introduction { rank, index, .. } = introduction?;
        channel.send(&encode(&IntroductionAnswer::Accepted), deadline)?;
        Ok(Event::Connected { rank, index, connection: channel.into_connection()? })
    }

    fn judge(&self, introduction: &Introduction, from: SocketAddr) -> Result<(), Refusal> {
        if introduction.job != self.job {
            return Err(Refusal::OtherJob {
                ours: self.job.to_string(),
                theirs: introduction.job.to_string(),
            });
        }
        if (introduction.view, introduction.attempt) != (self.view, self.attempt) {
            return Err(Refusal::OtherView { ours: self.view, theirs: introduction.view });
        }
        // A table is changed by single assignments: a panic cannot leave half of one.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.claim(introduction.rank, introduction.index, from)
    }
}

/// The connecting side.
struct Guest {
    secret: Secret,
    encryption: Encryption,
    job: JobId,
    view: View,
    rank: Rank,
    attempt: Ballot,
    per_peer: usize,
    deadline: Deadline,
}

impl Guest {
    fn new(place: &Place, config: &JoinConfig, deadline: Deadline) -> Arc<Guest> {
        Arc::new(Guest {
            secret: config.secret.clone(),
            encryption: config.encryption,
            job: place.job.clone(),
            view: place.view.clone(),
            rank: place.rank,
            attempt: place.attempt,
            per_peer: config.connections,
            deadline,
        })
    }

    fn visit_all(&self, events: &SyncSender<Event>) {
        for rank in (0..self.rank.0).map(Rank) {
            for index in 0..self.per_peer as u32 {
                let address = &self.view.workers[rank.index()].address;
                let event = match self.visit(address, index) {
                    Ok(connection) => Event::Connected { rank, index, connection },
                    Err(error) => Event::Failed(error.with_peer(rank, address)),
                };
                let over = matches!(event, Event::Failed(_));
                if events.send(event).is_err() || over {
                    return;
                }
            }
        }
    }

    fn visit(&self, address: &str, index: u32) -> Result<Connection> {
        let address: SocketAddr = address.parse().map_err(|_| NetError::Malformed {
            what: "address of a worker",
            problem: address.to_string(),
        })?;
        // The peer learns of the view when we do, and accepts from then on: it is never silent for
        // longer than it takes to join.
        let connection =
            knock(&[address], &self.secret, Purpose::Peer, self.encryption, self.deadline)?;
        let mut channel = MessageChannel::new(connection, INTRODUCTION_BYTES)?;
        let introduction = Introduction {
            job: self.job.clone(),
            view: self.view.version,
            attempt: self.attempt,
            rank: self.rank,
            index,
        };
        channel.send(&encode(&introduction), self.deadline)?;
        let answer = channel.receive("an answer to our introduction", self.deadline)?;
        match decode_introduction_answer(&answer)? {
            IntroductionAnswer::Accepted => channel.into_connection(),
            IntroductionAnswer::Refused(refusal) => Err(refusal.into()),
        }
    }
}

/// Connect to any of `addresses` and prove ourselves, trying again while the other side is not up.
pub(super) fn knock(
    addresses: &[SocketAddr],
    secret: &Secret,
    purpose: Purpose,
    encryption: Encryption,
    deadline: Deadline,
) -> Result<Connection> {
    loop {
        match knock_once(addresses, secret, purpose, encryption, deadline) {
            Err(error) if error.is_passing() && deadline.remaining() > RETRY_PAUSE => {
                thread::sleep(RETRY_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

pub(crate) fn knock_once(
    addresses: &[SocketAddr],
    secret: &Secret,
    purpose: Purpose,
    encryption: Encryption,
    deadline: Deadline,
) -> Result<Connection> {
    let mut last = None;
    for address in addresses {
        let attempt = deadline.remaining().min(CONNECT_ATTEMPT).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, attempt) {
            Ok(stream) => {
                let privacy = Privacy::for_stream(&stream, encryption)?;
                // A coordinator that is up answers at once. A peer answers when it has the view.
                let timeout = match purpose {
                    Purpose::Coordinator => deadline.remaining().min(HANDSHAKE_TIMEOUT),
                    Purpose::Peer => deadline.remaining(),
                };
                let terms = Terms { secret, purpose, privacy, timeout };
                return handshake::initiate(stream, terms);
            }
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::Error::other("no address to connect to"));
    Err(NetError::Unreachable { waited: deadline.waited(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_higher_ranks_may_take_a_place_and_only_once() {
        let from: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let mut table = Table::new(Rank(1), 4, 2);
        let mut claim = |rank, index| table.claim(Rank(rank), index, from);
        assert_eq!(claim(2, 0), Ok(()));
        assert_eq!(claim(2, 1), Ok(()));
        assert!(matches!(claim(2, 1), Err(Refusal::DuplicateRank { rank: Rank(2), .. })));
        for (rank, index) in [(0, 0), (1, 0), (3, 2), (4, 0), (u32::MAX, u32::MAX)] {
            assert_eq!(claim(rank, index), Err(Refusal::UnknownPeer { rank: Rank(rank), index }));
        }
    }
}
