//! The coordinator's door: whoever connects proves that it holds the job's secret and asks to take part,
//! within a bounded time, before the coordinator's own thread hears of it. It decides about no seats.

use super::{
    CoordinatorConfig, CoordinatorMessage, Log, Refusal, Request, Shared, WORKER_MESSAGE_BYTES,
    decode_request, encode,
};
use crate::{
    error::Result,
    handshake::{self, Deadline, Encryption, MessageChannel, Privacy, Purpose, Terms},
    secret::Secret,
};
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::SyncSender,
    },
    time::Duration,
};

/// Lines about connections that proved nothing. A stranger must not be able to fill a disk.
const LINES_ABOUT_STRANGERS: usize = 1000;

/// A worker that has proved itself and wants something.
pub(super) struct Arrival {
    pub(super) channel: MessageChannel,
    pub(super) from: SocketAddr,
    pub(super) request: Request,
}

/// Greets each connection on its own thread, within a bounded time.
pub(super) struct Doorman {
    secret: Secret,
    timeout: Duration,
    log: Log,
    lines: AtomicUsize,
    arrivals: SyncSender<Arrival>,
    shared: Arc<Shared>,
}

impl Doorman {
    pub(super) fn new(
        config: &CoordinatorConfig,
        arrivals: SyncSender<Arrival>,
        shared: Arc<Shared>,
    ) -> Doorman {
        Doorman {
            secret: config.secret.clone(),
            timeout: config.handshake_timeout,
            log: config.log.clone(),
            lines: AtomicUsize::new(0),
            arrivals,
            shared,
        }
    }

    pub(super) fn greet(&self, stream: TcpStream, from: SocketAddr) {
        match self.admit(stream) {
            Ok((mut channel, Request::Ask(question))) => {
                let answer = CoordinatorMessage::Answer(Box::new(self.shared.answer(&question)));
                // Whoever leaves without an answer needs none.
                let _ = channel.send(&encode(&answer), Deadline::after(self.timeout));
                handshake::dismiss(channel.into_stream());
            }
            Ok((channel, request)) => {
                // If the coordinator has stopped, the connection closes here, which says so.
                if self.arrivals.send(Arrival { channel, from, request }).is_ok() {
                    self.shared.waker.wake();
                }
            }
            Err(error) => match self.lines.fetch_add(1, Ordering::Relaxed) {
                count if count < LINES_ABOUT_STRANGERS => {
                    self.log.line(&format!("refused {from}: {error}"));
                }
                LINES_ABOUT_STRANGERS => {
                    self.log.line("further connections that are refused are not reported");
                }
                _ => {}
            },
        }
    }

    fn admit(&self, stream: TcpStream) -> Result<(MessageChannel, Request)> {
        let deadline = Deadline::after(self.timeout);
        let terms = Terms {
            secret: &self.secret,
            purpose: Purpose::Coordinator,
            privacy: Privacy::for_stream(&stream, Encryption::BetweenMachines)?,
            timeout: self.timeout,
        };
        let connection = handshake::respond(stream, terms)?;
        let mut channel = MessageChannel::new(connection, WORKER_MESSAGE_BYTES)?;
        let request = channel.receive("a join", deadline).and_then(|it| decode_request(&it));
        match request {
            Ok(request) => Ok((channel, request)),
            Err(error) => {
                if let Some(refusal) = Refusal::of_unreadable(&error) {
                    let refused = encode(&CoordinatorMessage::Refused(refusal));
                    // The log has the reason, whether or not the worker can still be told.
                    let _ = channel.send(&refused, deadline);
                    handshake::dismiss(channel.into_stream());
                }
                Err(error)
            }
        }
    }
}
