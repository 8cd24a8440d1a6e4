//! How two processes prove to each other that they belong to one job, before either reads anything
//! else: a fixed hello each, then the Noise handshake `NNpsk0` with the job's secret as its key and
//! the two hellos as its prologue, so that nobody in between can change what they agreed on. This
//! file knows nothing of ranks or views.
//!
//! ```text
//! initiator  ── hello (48) ──►  ◄── hello (48) ──  responder
//!            ── Noise: psk, e (48) ─────────────►
//!            ◄── verdict (1) ── Noise: e, ee (48) ──
//! ```
//!
//! Both hellos are sent at once. The verdict is there so that a wrong secret is called that on both
//! sides. Every read has a fixed length and ends with the deadline.

mod acceptor;
mod channel;
mod readiness;

pub(crate) use acceptor::{Acceptor, listen};
pub(crate) use channel::MessageChannel;
pub(crate) use readiness::{Wakened, Waker, entry, wait};

use crate::{
    error::{NetError, Result},
    sealed::Seal,
    secret::{Secret, random_bytes},
};
use paceline_sync::liveness::PATIENCE;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

/// Both sides of a connection must speak this version.
pub const PROTOCOL_VERSION: u32 = 14;

/// How long a stranger may take to prove that it holds the secret.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"PACELINE";
/// Magic and version: these never change, so that any two versions can name each other.
const PREFIX_BYTES: usize = 12;
const NONCE_BYTES: usize = 32;
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Either Noise message: a public key and a tag, with no payload.
const NOISE_BYTES: usize = 48;
/// The responder's verdict on the initiator's secret.
const WELCOME: u8 = 0;
const WRONG_SECRET: u8 = 1;
/// How much and how long a refused connection is still listened to, so that the refusal arrives
/// before the reset that closing on unread bytes would cause.
const LINGER_BYTES: usize = 128 * 1024;
const LINGER: Duration = Duration::from_millis(500);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A worker speaks to the coordinator.
    Coordinator = 0,
    /// Two workers speak.
    Peer = 1,
}

impl Purpose {
    const fn name(self) -> &'static str {
        match self {
            Purpose::Coordinator => "coordinator",
            Purpose::Peer => "peer",
        }
    }
}

/// When a worker encrypts. Workers prove themselves all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Wherever a wire may be crossed.
    #[default]
    BetweenMachines,
    /// Also on one machine: to measure what it costs, or where others may read its traffic.
    Always,
    /// Nowhere, because the user said so.
    Never,
}

/// What a side asks for after the handshake. The stricter wish holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Privacy {
    /// Nothing is encrypted: no wire is crossed, or the user said so.
    Plain = 0,
    /// Every byte is encrypted and authenticated.
    Sealed = 1,
}

impl Privacy {
    /// Plain where both ends are on one machine, or where the user gave up encryption.
    ///
    /// Ends are on one machine if both addresses are loopback or they are the same address. That is
    /// decided by the socket and not by what the other side says of itself.
    pub fn for_stream(stream: &TcpStream, encryption: Encryption) -> io::Result<Privacy> {
        let (here, there) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
        let same_machine = here == there || (here.is_loopback() && there.is_loopback());
        Ok(match encryption {
            Encryption::Always => Privacy::Sealed,
            Encryption::BetweenMachines if !same_machine => Privacy::Sealed,
            Encryption::BetweenMachines | Encryption::Never => Privacy::Plain,
        })
    }
}

/// The first bytes either side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// What this side asks for.
    pub privacy: Privacy,
    /// Fresh for each connection, so that no handshake can be replayed.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..PREFIX_BYTES].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[12] = self.purpose as u8;
        bytes[13] = self.privacy as u8;
        bytes[HELLO_BYTES - NONCE_BYTES..].copy_from_slice(&self.nonce);
        bytes
    }
}

/// Read a hello, refusing another protocol or another version of this one by name.
pub fn decode_hello(bytes: &[u8]) -> Result<Hello> {
    let malformed =
        |problem: &str| NetError::Malformed { what: "hello", problem: problem.to_string() };
    check_prefix(bytes.first_chunk().ok_or_else(|| malformed("too short"))?)?;
    let bytes: &[u8; HELLO_BYTES] =
        bytes.try_into().map_err(|_| malformed("not of a hello's length"))?;
    let purpose = match bytes[12] {
        0 => Purpose::Coordinator,
        1 => Purpose::Peer,
        _ => return Err(malformed("unknown purpose")),
    };
    let privacy = match bytes[13] {
        0 => Privacy::Plain,
        1 => Privacy::Sealed,
        _ => return Err(malformed("unknown privacy")),
    };
    if bytes[14..16] != [0, 0] {
        return Err(malformed("reserved bytes in use"));
    }
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&bytes[HELLO_BYTES - NONCE_BYTES..]);
    Ok(Hello { purpose, privacy, nonce })
}

fn check_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<()> {
    let [magic @ .., v0, v1, v2, v3] = *prefix;
    if magic != MAGIC {
        return Err(NetError::NotPaceline);
    }
    match u32::from_le_bytes([v0, v1, v2, v3]) {
        PROTOCOL_VERSION => Ok(()),
        theirs => Err(NetError::OtherVersion { ours: PROTOCOL_VERSION, theirs }),
    }
}

/// A connection whose other end holds the job's secret.
#[derive(Debug)]
pub struct Connection {
    /// In blocking mode, without timeouts.
    pub stream: TcpStream,
    /// Present where what follows is encrypted. Both sides agree on that.
    pub seal: Option<Seal>,
}

/// What one side brings to a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The job's secret.
    pub secret: &'a Secret,
    /// What this side offers or wants.
    pub purpose: Purpose,
    /// What this side asks for.
    pub privacy: Privacy,
    /// The bound on the whole handshake.
    pub timeout: Duration,
}

/// The handshake of the side that connected.
pub fn initiate(mut stream: TcpStream, terms: Terms<'_>) -> Result<Connection> {
    let deadline = Deadline::after(terms.timeout);
    let (prologue, privacy) = exchange_hellos(&mut stream, &terms, Side::Initiator, deadline)?;
    let mut noise = noise(&terms, &prologue, Side::Initiator)?;
    let mut message = [0; NOISE_BYTES];
    noise.write_message(&[], &mut message).map_err(broken_noise)?;
    write_until(&mut stream, &message, deadline)?;

    let mut verdict = [0];
    read_until(&mut stream, &mut verdict, "the verdict on our secret", deadline)?;
    if verdict != [WELCOME] {
        return Err(NetError::WrongSecret);
    }
    read_until(&mut stream, &mut message, "proof of the secret", deadline)?;
    noise.read_message(&message, &mut []).map_err(|_| NetError::WrongSecret)?;
    finish(stream, noise, privacy, Side::Initiator)
}

/// The handshake of the side that accepted.
pub fn respond(mut stream: TcpStream, terms: Terms<'_>) -> Result<Connection> {
    let deadline = Deadline::after(terms.timeout);
    let (prologue, privacy) = match exchange_hellos(&mut stream, &terms, Side::Responder, deadline)
    {
        Ok(agreed) => agreed,
        Err(error) => {
            dismiss(stream);
            return Err(error);
        }
    };
    let mut noise = noise(&terms, &prologue, Side::Responder)?;
    let mut message = [0; NOISE_BYTES];
    read_until(&mut stream, &mut message, "proof of the secret", deadline)?;
    if noise.read_message(&message, &mut []).is_err() {
        write_until(&mut stream, &[WRONG_SECRET], deadline)?;
        dismiss(stream);
        return Err(NetError::WrongSecret);
    }
    let mut answer = [WELCOME; 1 + NOISE_BYTES];
    noise.write_message(&[], &mut answer[1..]).map_err(broken_noise)?;
    write_until(&mut stream, &answer, deadline)?;
    finish(stream, noise, privacy, Side::Responder)
}

/// End a connection so that what was written to it arrives.
pub(crate) fn dismiss(mut stream: TcpStream) {
    let deadline = Deadline::after(LINGER);
    // Nothing is owed to a connection that is being refused: a failure only ends it sooner.
    let _ = stream.set_nonblocking(false);
    let _ = stream.shutdown(Shutdown::Write);
    let mut sink = [0; 4096];
    let mut seen = 0;
    while seen < LINGER_BYTES && !deadline.remaining().is_zero() {
        if stream.set_read_timeout(Some(deadline.remaining_or_tick())).is_err() {
            return;
        }
        match stream.read(&mut sink) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => seen += bytes,
        }
    }
}

/// A point in time that bounds a wait, and how long the wait was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Deadline {
        Deadline { start: Instant::now(), limit }
    }

    pub(crate) fn remaining(self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    pub(crate) fn waited(self) -> Duration {
        self.start.elapsed()
    }

    /// A socket's timeout must not be zero.
    fn remaining_or_tick(self) -> Duration {
        self.remaining().max(Duration::from_millis(1))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Initiator,
    Responder,
}

fn exchange_hellos(
    stream: &mut TcpStream,
    terms: &Terms<'_>,
    side: Side,
    deadline: Deadline,
) -> Result<([u8; 2 * HELLO_BYTES], Privacy)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let ours = Hello { purpose: terms.purpose, privacy: terms.privacy, nonce: random_bytes()? };
    let ours_bytes = ours.encode();
    // If this fails, what the other side has said already explains why.
    let written = write_until(stream, &ours_bytes, deadline);

    let mut theirs_bytes = [0; HELLO_BYTES];
    let (prefix, rest) = theirs_bytes.split_at_mut(PREFIX_BYTES);
    match read_until(stream, prefix, "a hello", deadline) {
        Err(NetError::Closed { .. }) => return Err(NetError::TurnedAway),
        other => other?,
    }
    // Another version's hello may have another length: stop at what all versions share.
    check_prefix(prefix.first_chunk().expect("the prefix was cut to its length"))?;
    read_until(stream, rest, "the rest of a hello", deadline)?;
    let theirs = decode_hello(&theirs_bytes)?;
    written?;
    if theirs.purpose != ours.purpose {
        return Err(NetError::OtherPurpose {
            ours: ours.purpose.name(),
            theirs: theirs.purpose.name(),
        });
    }

    let (first, second) = match side {
        Side::Initiator => (ours_bytes, theirs_bytes),
        Side::Responder => (theirs_bytes, ours_bytes),
    };
    let mut prologue = [0; 2 * HELLO_BYTES];
    prologue[..HELLO_BYTES].copy_from_slice(&first);
    prologue[HELLO_BYTES..].copy_from_slice(&second);
    let privacy = match (ours.privacy, theirs.privacy) {
        (Privacy::Plain, Privacy::Plain) => Privacy::Plain,
        _ => Privacy::Sealed,
    };
    Ok((prologue, privacy))
}

fn noise(terms: &Terms<'_>, prologue: &[u8], side: Side) -> Result<snow::HandshakeState> {
    let parameters = PATTERN.parse().map_err(broken_noise)?;
    snow::Builder::new(parameters)
        .psk(0, terms.secret.bytes())
        .and_then(|builder| builder.prologue(prologue))
        .and_then(|builder| match side {
            Side::Initiator => builder.build_initiator(),
            Side::Responder => builder.build_responder(),
        })
        .map_err(broken_noise)
}

fn finish(
    stream: TcpStream,
    mut noise: snow::HandshakeState,
    privacy: Privacy,
    side: Side,
) -> Result<Connection> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let seal = (privacy == Privacy::Sealed).then(|| {
        let (from_initiator, from_responder) = noise.dangerously_get_raw_split();
        match side {
            Side::Initiator => Seal::new(from_initiator, from_responder),
            Side::Responder => Seal::new(from_responder, from_initiator),
        }
    });
    Ok(Connection { stream, seal })
}

/// Failures of the library that no message of the other side can cause.
fn broken_noise(error: snow::Error) -> NetError {
    NetError::Io(io::Error::other(format!("Noise: {error}")))
}

fn read_until(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    awaited: &'static str,
    deadline: Deadline,
) -> Result<()> {
    while !buffer.is_empty() {
        if deadline.remaining().is_zero() {
            return Err(NetError::Silent { awaited, waited: deadline.waited() });
        }
        stream.set_read_timeout(Some(deadline.remaining_or_tick()))?;
        match stream.read(buffer) {
            Ok(0) => return Err(NetError::Closed { awaited }),
            Ok(bytes) => buffer = &mut buffer[bytes..],
            Err(error) if is_timeout(&error) => {}
            Err(error) if is_closed(&error) => return Err(NetError::Closed { awaited }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], deadline: Deadline) -> Result<()> {
    let awaited = "room to send a handshake";
    while !bytes.is_empty() {
        if deadline.remaining().is_zero() {
            return Err(NetError::Silent { awaited, waited: deadline.waited() });
        }
        stream.set_write_timeout(Some(deadline.remaining_or_tick()))?;
        match stream.write(bytes) {
            Ok(0) => return Err(NetError::Closed { awaited }),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_timeout(&error) => {}
            Err(error) if is_closed(&error) => return Err(NetError::Closed { awaited }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A socket says "would block" both when a timeout passed and when it is in non-blocking mode.
/// Let the kernel ask a silent peer's kernel: a machine that vanished shows as a closed connection within
/// [`PATIENCE`]. A process that is merely slow or stopped still answers; see [`paceline_sync::liveness`].
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    const QUESTIONS: u32 = 3;
    let interval = PATIENCE / (1 + QUESTIONS);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(interval)
        .with_interval(interval)
        .with_retries(QUESTIONS);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

pub(crate) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { purpose: Purpose::Peer, privacy: Privacy::Sealed, nonce: [9; NONCE_BYTES] }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        assert_eq!(decode_hello(&hello().encode()).unwrap(), hello());
    }

    #[test]
    fn what_is_not_a_hello_is_refused_by_name() {
        let with = |index: usize, value: u8| {
            let mut bytes = hello().encode();
            bytes[index] = value;
            decode_hello(&bytes)
        };
        assert!(matches!(with(0, b'Q'), Err(NetError::NotPaceline)));
        assert!(matches!(
            with(8, 77),
            Err(NetError::OtherVersion { ours: PROTOCOL_VERSION, theirs: 77 })
        ));
        for (index, value) in [(12, 2), (13, 2), (14, 1)] {
            assert!(matches!(with(index, value), Err(NetError::Malformed { .. })), "{index}");
        }
        for length in 0..HELLO_BYTES {
            assert!(decode_hello(&hello().encode()[..length]).is_err());
        }
    }
}
