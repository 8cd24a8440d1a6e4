//! How a driver sends and receives where its connections are paced: over one line for all of them in each direction, and what
//! waits to be sent the most urgently goes first. How fast lines are stands in `pace.rs`.

use super::{Driver, Link, receive_all};
use crate::runtime::{
    pace::{Line, Pace},
    tcp::TcpLink,
};
use paceline_job::Rank;
use std::time::Duration;

/// What all connections share, there and back.
#[derive(Debug)]
pub(super) struct Lines {
    out: Line,
    into: Line,
}

impl Driver {
    /// Send and receive over connections no faster than this says.
    pub(crate) fn paced(self, pace: Option<Pace>) -> Driver {
        let lines = |pace: Pace| Lines { out: Line::new(pace.clone()), into: Line::new(pace) };
        Driver { lines: pace.map(lines), ..self }
    }

    pub(super) fn is_paced(&self) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.out.is_limited())
    }

    /// How long connections have to wait before they send, and before they receive.
    pub(super) fn lines_are_busy(&self) -> [Option<Duration>; 2] {
        let now = self.core.now();
        let lines = self.lines.as_ref();
        [lines.and_then(|lines| lines.out.wait(now)), lines.and_then(|lines| lines.into.wait(now))]
    }

    /// Receive as much as the line carries. Each turn another connection is the first.
    pub(super) fn receive_over_line(&mut self) -> bool {
        let (now, size) = (self.core.now(), self.links.len());
        let mut any = false;
        self.first_to_receive = self.first_to_receive.wrapping_add(1);
        for place in 0..size {
            let Some(lines) = &mut self.lines else { break };
            let index = (self.first_to_receive.wrapping_add(place)) % size;
            let from = Rank(index as u32);
            let Some(Link::Tcp { connections, .. }) = &mut self.links[index] else { continue };
            let allowance = lines.into.allowance(now);
            if allowance == 0 {
                return any;
            }
            match receive_all(connections, from, &mut self.core, allowance) {
                Ok(bytes) => {
                    lines.into.carry(bytes);
                    any |= bytes > 0;
                }
                Err(end) => self.lose(from, end),
            }
            self.perform();
        }
        if !any && let Some(lines) = &mut self.lines {
            lines.into.rest();
        }
        any
    }

    /// Send as much as the line carries: a frame at a time, the most urgent of all connections. Says whether anything went out.
    pub(super) fn flush_line(&mut self) -> bool {
        let now = self.core.now();
        let Some(Lines { out: line, .. }) = &mut self.lines else { return false };
        let mut any = false;
        // Connections that take nothing now, or are at their end.
        let mut stuck = Vec::new();
        loop {
            let waiting = connections(&mut self.links)
                .filter(|(place, _)| !stuck.contains(place))
                .filter_map(|(place, connection)| Some((connection.urgency()?, place, connection)))
                .min_by_key(|(urgency, place, _)| (*urgency, *place));
            let Some((_, place, connection)) = waiting else { break };
            let allowance = line.allowance(now);
            if allowance == 0 {
                return any;
            }
            match connection.write(1, allowance, &mut self.delivered) {
                // After an error its last words may still be unread; `receive` finds the end.
                Ok(0) | Err(_) => stuck.push(place),
                Ok(bytes) => {
                    line.carry(bytes);
                    any = true;
                }
            }
        }
        if stuck.is_empty() {
            line.rest();
        }
        any
    }
}

/// All connections, each with its place.
fn connections(links: &mut [Option<Link>]) -> impl Iterator<Item = (usize, &mut TcpLink)> {
    let connections = links.iter_mut().flatten().flat_map(|link| match link {
        Link::Tcp { connections, .. } => connections.as_mut_slice(),
        Link::Shm(_) => &mut [],
    });
    connections.enumerate()
}
