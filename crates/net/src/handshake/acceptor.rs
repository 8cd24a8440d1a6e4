//! Accepts connections and gives each a thread of its own for as long as it has not proved anything,
//! so that one that says nothing delays nobody. How many such threads there are is bounded. This
//! file does not know what the proof is.

use super::readiness::{Waker, entry, wait};
use crate::error::{NetError, Result};
use socket2::{Domain, Socket, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Connections that have proved nothing yet. One more is closed at once, without a word; whoever
/// belongs here tries again.
const MAXIMUM_UNPROVEN: usize = 256;

/// Enough for a handshake in a debug build; the default of 2 MiB times 256 would not be.
const STACK_BYTES: usize = 256 * 1024;

/// The pause after a failed `accept`, which is most often a lack of descriptors.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// A thread that accepts until it is dropped.
pub(crate) struct Acceptor {
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Call `greet` for each connection, on a thread of its own. It must end within a bounded time.
    pub(crate) fn start(
        listener: TcpListener,
        greet: impl Fn(TcpStream, SocketAddr) + Send + Sync + 'static,
    ) -> Result<Acceptor> {
        listener.set_nonblocking(true)?;
        let (waker, wakened) = Waker::pair()?;
        let greet = Arc::new(greet);
        let unproven = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            loop {
                let mut entries = [entry(&listener, false), entry(&wakened, false)];
                if wait(&mut entries, None).is_err() || entries[1].revents != 0 {
                    return;
                }
                match listener.accept() {
                    Ok((stream, address)) => greet_apart(stream, address, &greet, &unproven),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => thread::sleep(PAUSE_AFTER_ERROR),
                }
            }
        };
        let thread = thread::Builder::new()
            .name("paceline-accept".to_string())
            .spawn(accept)
            .map_err(NetError::Io)?;
        Ok(Acceptor { waker: Some(waker), thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(self.waker.take());
        if let Some(thread) = self.thread.take() {
            // The thread runs nothing that panics; if it did, there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn greet_apart<F>(
    stream: TcpStream,
    address: SocketAddr,
    greet: &Arc<F>,
    unproven: &Arc<AtomicUsize>,
) where
    F: Fn(TcpStream, SocketAddr) + Send + Sync + 'static,
{
    let place = Place::take(unproven);
    if place.number > MAXIMUM_UNPROVEN {
        return;
    }
    let greet = Arc::clone(greet);
    let greeting = move || {
        greet(stream, address);
        drop(place);
    };
    // Without a thread the connection is closed, and whoever belongs here tries again.
    let _ = thread::Builder::new()
        .name("paceline-greet".to_string())
        .stack_size(STACK_BYTES)
        .spawn(greeting);
}

/// Counts a connection while it lives, even if its greeting panics.
struct Place {
    number: usize,
    count: Arc<AtomicUsize>,
}

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Place {
        // Only the count matters; no other memory is published through it.
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        Place { number, count: Arc::clone(count) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections that the system holds until they are accepted.
const BACKLOG: i32 = 1024;

/// A socket that listens on `address`.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bind = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // A job that starts again at once must not wait for the old connections to expire.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bind().map_err(|error| NetError::listening(address, error))
}
