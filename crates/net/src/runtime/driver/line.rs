//! How a driver sends where its connections are paced: over one line for all of them, whatever waits the most urgently first.
//! How fast the line is stands in `pace.rs`.

use super::{Driver, Link};
use crate::runtime::{
    pace::{Line, Pace},
    tcp::TcpLink,
};
use std::time::Duration;

impl Driver {
    /// Send over connections no faster than this says.
    pub(crate) fn paced(self, pace: Option<Pace>) -> Driver {
        Driver { line: pace.map(Line::new), ..self }
    }

    pub(super) fn is_paced(&self) -> bool {
        self.line.as_ref().is_some_and(Line::is_limited)
    }

    /// How long connections have to wait for the line.
    pub(super) fn line_is_busy(&self) -> Option<Duration> {
        self.line.as_ref()?.wait(self.core.now())
    }

    /// Send as much as the line carries: a frame at a time, the most urgent of all connections. Says whether anything went out.
    pub(super) fn flush_line(&mut self) -> bool {
        let now = self.core.now();
        let Some(line) = &mut self.line else { return false };
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
