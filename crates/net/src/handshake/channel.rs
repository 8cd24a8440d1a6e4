//! Messages over a connection that has proved itself: a four-byte length, then that many bytes. It
//! reads exactly as much as the message at hand needs, so that the connection can be handed on
//! afterwards. This file does not know what a message means.

use super::{Connection, Deadline, is_closed, is_timeout, readiness};
use crate::error::{NetError, Result};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::{AsRawFd, RawFd},
};

const LENGTH_BYTES: usize = 4;

/// The most that waits to be written. A reader that lets more pile up is as good as dead.
const MAXIMUM_OUTGOING: usize = 8 * 1024 * 1024;

/// One read of a plain connection.
const PIECE_BYTES: usize = 16 * 1024;

/// A connection that carries messages of at most `limit` bytes, and never blocks.
#[derive(Debug)]
pub(crate) struct MessageChannel {
    connection: Connection,
    limit: usize,
    /// The plaintext of the message that is arriving: at most `limit`, and one record.
    incoming: Vec<u8>,
    /// Not yet written: at most [`MAXIMUM_OUTGOING`].
    outgoing: Vec<u8>,
}

impl MessageChannel {
    pub(crate) fn new(connection: Connection, limit: usize) -> Result<MessageChannel> {
        connection.stream.set_nonblocking(true)?;
        Ok(MessageChannel { connection, limit, incoming: Vec::new(), outgoing: Vec::new() })
    }

    /// The connection, for other use. Nothing may be under way.
    pub(crate) fn into_connection(self) -> Result<Connection> {
        if !self.incoming.is_empty() || !self.outgoing.is_empty() {
            return Err(NetError::Malformed {
                what: "message",
                problem: "more came than was asked for".to_string(),
            });
        }
        self.connection.stream.set_nonblocking(false)?;
        Ok(self.connection)
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.connection.stream
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.connection.stream
    }

    /// Cut the connection; both sides then read its end.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // It fails only where the connection is gone already.
        let _ = self.connection.stream.shutdown(how);
    }

    /// Whether [`MessageChannel::flush`] has something to do.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Put a message behind those that wait to be written.
    pub(crate) fn queue(&mut self, body: &[u8]) -> Result<()> {
        if self.outgoing.len() + body.len() > MAXIMUM_OUTGOING {
            return Err(NetError::Oversized {
                what: "backlog of messages",
                bytes: (self.outgoing.len() + body.len()) as u64,
                limit: MAXIMUM_OUTGOING,
            });
        }
        // Fits: a body is at most MAXIMUM_OUTGOING.
        let length = (body.len() as u32).to_le_bytes();
        match &mut self.connection.seal {
            Some(seal) => seal.sender.seal_parts_into(&[&length, body], &mut self.outgoing),
            None => {
                self.outgoing.extend_from_slice(&length);
                self.outgoing.extend_from_slice(body);
            }
        }
        Ok(())
    }

    /// Write what the socket takes now.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let mut written = 0;
        let outcome = loop {
            if written == self.outgoing.len() {
                break Ok(());
            }
            match self.connection.stream.write(&self.outgoing[written..]) {
                Ok(0) => break Err(NetError::Closed { awaited: "room to send" }),
                Ok(bytes) => written += bytes,
                Err(error) if is_timeout(&error) => break Ok(()),
                Err(error) if is_closed(&error) => {
                    break Err(NetError::Closed { awaited: "room to send" });
                }
                Err(error) => break Err(error.into()),
            }
        };
        self.outgoing.drain(..written);
        outcome
    }

    /// The next message, if all of it is here.
    pub(crate) fn try_receive(&mut self, awaited: &'static str) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.take_message(awaited)? {
                return Ok(Some(message));
            }
            match self.read_some() {
                Ok(0) => return Err(NetError::Closed { awaited }),
                Ok(_) => {}
                Err(NetError::Io(error)) if is_timeout(&error) => return Ok(None),
                Err(NetError::Io(error)) if is_closed(&error) => {
                    return Err(NetError::Closed { awaited });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Send one message, waiting for the socket if need be.
    pub(crate) fn send(&mut self, body: &[u8], deadline: Deadline) -> Result<()> {
        self.queue(body)?;
        loop {
            self.flush()?;
            if !self.has_outgoing() {
                return Ok(());
            }
            self.wait("room to send", deadline)?;
        }
    }

    /// Receive one message, waiting for it.
    pub(crate) fn receive(&mut self, awaited: &'static str, deadline: Deadline) -> Result<Vec<u8>> {
        loop {
            if let Some(message) = self.try_receive(awaited)? {
                return Ok(message);
            }
            self.wait(awaited, deadline)?;
        }
    }

    fn wait(&self, awaited: &'static str, deadline: Deadline) -> Result<()> {
        if deadline.remaining().is_zero() {
            return Err(NetError::Silent { awaited, waited: deadline.waited() });
        }
        let mut entries = [readiness::entry(self, self.has_outgoing())];
        Ok(readiness::wait(&mut entries, Some(deadline.remaining()))?)
    }

    /// Bytes of the arriving message's body, once they are known to be few enough.
    fn body_bytes(&self, what: &'static str) -> Result<Option<usize>> {
        let Some(length) = self.incoming.first_chunk() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length);
        if bytes as usize > self.limit {
            return Err(NetError::Oversized { what, bytes: bytes.into(), limit: self.limit });
        }
        Ok(Some(bytes as usize))
    }

    fn take_message(&mut self, what: &'static str) -> Result<Option<Vec<u8>>> {
        let Some(body) = self.body_bytes(what)? else { return Ok(None) };
        if self.incoming.len() < LENGTH_BYTES + body {
            return Ok(None);
        }
        let message = self.incoming[LENGTH_BYTES..LENGTH_BYTES + body].to_vec();
        self.incoming.drain(..LENGTH_BYTES + body);
        Ok(Some(message))
    }

    /// One read of no more than the message at hand (or the record at hand) still needs. Memory
    /// grows with what has come, not with what was announced.
    fn read_some(&mut self) -> Result<usize> {
        let Connection { stream, seal } = &mut self.connection;
        let Some(seal) = seal else {
            let needed = match self.incoming.first_chunk() {
                Some(length) => LENGTH_BYTES + u32::from_le_bytes(*length) as usize,
                None => LENGTH_BYTES,
            };
            let mut piece = [0; PIECE_BYTES];
            let wanted = (needed - self.incoming.len()).min(PIECE_BYTES);
            let bytes = stream.read(&mut piece[..wanted])?;
            self.incoming.extend_from_slice(&piece[..bytes]);
            return Ok(bytes);
        };
        let opener = &mut seal.receiver;
        let wanted = opener.wanted();
        let bytes = stream.read(&mut opener.space()[..wanted])?;
        opener.advance(bytes);
        while let Some(plain) = opener.next_record()? {
            self.incoming.extend_from_slice(plain);
        }
        Ok(bytes)
    }
}

impl AsRawFd for MessageChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.stream.as_raw_fd()
    }
}
