//! The modelled network: who is joined to whom over which links, and frames moving along them as
//! fluid flows. It knows nothing of engines or tensors: frames go in, and come out later elsewhere.

mod connection;
mod links;
mod queues;

use crate::{config::NetworkConfig, error::ReplayError, timeline::Timeline};
pub(crate) use connection::{Body, Frame};
use connection::{Connection, Surroundings};
use links::{Link, Links, Path};
use paceline_job::{LinkName, Random, Rank, Rate, Time, Topology, View};
use paceline_sync::{scheduler::turn_of, slab::Key};
use queues::{Queues, Wire};
use rustc_hash::FxHashSet;
use std::time::Duration;

/// See the file's first paragraph. Connections are made when first used and stay.
#[derive(Debug)]
pub(crate) struct Network<P> {
    config: NetworkConfig,
    places: Places,
    links: Links,
    queues: Option<Queues>,
    connections: Vec<Connection<P>>,
    /// For each sender its receivers, sorted, and the connections to them.
    peers: Vec<Vec<(u32, u32)>>,
    /// The entry of `peers` that each sender used last: most have one favourite.
    favourites: Vec<(u32, u32)>,
    /// Pairs, smaller rank first, that are not joined any more.
    severed: FxHashSet<(u32, u32)>,
    random: Random,
    shares: Vec<(u32, f64)>,
    /// Senders, and their data frames that were delivered and not yet told of.
    pub(crate) delivered: Vec<(u32, Key)>,
}

/// Where each rank sits, and the number of each link.
#[derive(Debug)]
struct Places {
    /// Per rank its host, as the topology numbers them.
    host_of: Vec<u32>,
    topology: Topology,
    /// Whether a host's traffic to others stands for that of others to it.
    mirrored: bool,
}

impl Places {
    /// Links are numbered hosts first, then racks, then workers, each out before in.
    fn number(&self, name: LinkName) -> Option<u32> {
        let (hosts, racks) = (self.topology.hosts.len() as u32, self.topology.uplinks.len() as u32);
        let ranks = self.host_of.len() as u32;
        let (base, index, count, inward) = match name {
            LinkName::HostOut(host) => (0, host, hosts, 0),
            LinkName::HostIn(host) => (0, host, hosts, 1),
            LinkName::RackUp(rack) => (2 * hosts, rack, racks, 0),
            LinkName::RackDown(rack) => (2 * hosts, rack, racks, 1),
            LinkName::MemoryOut(rank) => (2 * (hosts + racks), rank, ranks, 0),
            LinkName::MemoryIn(rank) => (2 * (hosts + racks), rank, ranks, 1),
        };
        (index < count).then_some(base + 2 * index + inward)
    }

    /// The latency and the links from one rank to another.
    fn way(&self, from: u32, to: u32) -> (u64, Path) {
        let (here, there) = (self.host_of[from as usize], self.host_of[to as usize]);
        let way = self.topology.way((from, here), (to, there));
        let mut numbers = [0; links::MOST_HOPS];
        for (number, name) in numbers.iter_mut().zip(way.links()) {
            let name = match *name {
                LinkName::HostIn(_) if self.mirrored => LinkName::HostIn(here),
                name => name,
            };
            *number = self.number(name).unwrap_or_default();
        }
        (nanos(way.latency), Path::over(&numbers[..way.links().len()]))
    }
}

impl<P> Network<P> {
    pub(crate) fn new(
        view: &View,
        topology: &Topology,
        config: NetworkConfig,
        mirrored: bool,
        seed: u64,
    ) -> Result<Network<P>, ReplayError> {
        let mut numbers = rustc_hash::FxHashMap::default();
        for (number, host) in topology.hosts.iter().enumerate() {
            numbers.insert(host.name.as_str(), number as u32);
        }
        let host_of = view
            .workers
            .iter()
            .map(|worker| {
                let number = numbers.get(worker.host.as_str()).copied();
                number.ok_or_else(|| ReplayError::UnknownHost(worker.host.clone()))
            })
            .collect::<Result<Vec<u32>, _>>()?;
        let racks = topology.uplinks.len() as u32;
        if let Some(host) = topology.hosts.iter().find(|host| racks > 0 && host.rack >= racks) {
            return Err(ReplayError::UnknownRack { host: host.name.clone(), rack: host.rack });
        }
        let wire = |rate: Rate| rate.bytes_per_second() * config.goodput / 1e9;
        let memory = topology.memory.rate.bytes_per_second() / 1e9;
        let hosts = topology.hosts.iter().map(|host| wire(host.link.rate));
        let uplinks = topology.uplinks.iter().map(|link| wire(link.rate));
        let ranks = host_of.iter().map(|_| memory);
        let capacities = hosts.chain(uplinks).chain(ranks);
        let both = capacities.flat_map(|capacity| [Link::new(capacity), Link::new(capacity)]);
        let links = Links::new(both.collect());
        let queues = config.shaping.map(|shaping| {
            let bucket = shaping.burst_bytes as f64 * config.goodput;
            let wires = links.all.iter().map(|link| Wire::new(link.capacity, bucket));
            Queues::new(shaping, wires.collect())
        });
        let places = Places { topology: topology.clone(), mirrored, host_of };
        Ok(Network {
            peers: vec![Vec::new(); view.size()],
            favourites: vec![(u32::MAX, 0); view.size()],
            config,
            places,
            links,
            queues,
            connections: Vec::new(),
            severed: FxHashSet::default(),
            random: Random::new(seed),
            shares: Vec::new(),
            delivered: Vec::new(),
        })
    }

    /// How long a byte is on the way.
    pub(crate) fn latency(&self, from: u32, to: u32) -> Duration {
        Duration::from_nanos(self.places.way(from, to).0)
    }

    /// How many nanoseconds a byte is on the way, and how many bytes leave in one where nobody else sends.
    pub(crate) fn way(&self, from: u32, to: u32) -> (u64, f64) {
        let (latency, path) = self.places.way(from, to);
        (latency, self.links.narrowest(&path))
    }

    /// Send a frame. If the two are not joined any more, it is lost.
    pub(crate) fn send(
        &mut self,
        now: Time,
        from: u32,
        to: u32,
        frame: Frame<P>,
        timeline: &mut Timeline,
    ) {
        let Some(index) = self.connection(from, to) else { return };
        self.catch_up(now, index);
        let (connection, mut around) = self.parts(index);
        connection.enqueue(now.0, frame, &mut around);
        if let Some(queues) = &mut self.queues {
            queues.pending.push(index);
            return;
        }
        self.enter(now, index);
        self.arm(index, timeline);
    }

    /// A timer of a connection went off; false if another one, set later, replaced it.
    pub(crate) fn wake(&mut self, now: Time, index: u32, timeline: &mut Timeline) -> bool {
        if let Some(queues) = &mut self.queues {
            let connection = &mut self.connections[index as usize];
            if !connection.open {
                return false;
            }
            let landed =
                queues.move_on(now.0, index, &connection.path, connection.latency, timeline);
            connection.land(now.0, landed);
            self.put(now, index, timeline);
            return true;
        }
        let connection = &mut self.connections[index as usize];
        if connection.armed != now.0 {
            return false;
        }
        connection.armed = u64::MAX;
        self.catch_up(now, index);
        true
    }

    /// After [`Self::wake`]: sender, receiver and the next frame that has arrived.
    pub(crate) fn arrived(&mut self, now: Time, index: u32) -> Option<(u32, u32, Frame<P>)> {
        let connection = &mut self.connections[index as usize];
        let frame = connection.arrived(now.0)?;
        Some((connection.from, connection.to, frame))
    }

    /// Put what its host's queue takes of a connection.
    fn put(&mut self, now: Time, index: u32, timeline: &mut Timeline) {
        loop {
            let connection = &self.connections[index as usize];
            let (unsent, path) = (connection.unsent(), connection.path);
            let Some(queues) = &mut self.queues else { return };
            let bytes = queues.put(now.0, index, &path, unsent, timeline);
            if bytes == 0 {
                return;
            }
            let (connection, mut around) = self.parts(index);
            connection.put(bytes, &mut around);
        }
    }

    /// Set the timer for what a connection does next, unless an earlier one is set.
    pub(crate) fn arm(&mut self, index: u32, timeline: &mut Timeline) {
        if self.queues.is_some() {
            return;
        }
        let connection = &mut self.connections[index as usize];
        let due = connection.due(self.config.queue_bytes);
        if due < connection.armed {
            connection.armed = due;
            timeline.push(Time(due), index);
        }
    }

    /// Share links anew among the flows that came, went or were changed since. To be called before
    /// time moves on.
    pub(crate) fn settle(&mut self, now: Time, timeline: &mut Timeline) {
        if let Some(queues) = &mut self.queues {
            // A worker's kernel is given what it has for its peers in turn.
            let mut pending = std::mem::take(&mut queues.pending);
            let size = self.peers.len();
            pending.sort_unstable_by_key(|index| {
                let Connection { from, to, .. } = self.connections[*index as usize];
                (from, turn_of(Rank(from), Rank(to), size))
            });
            pending.dedup();
            for index in pending {
                self.put(now, index, timeline);
            }
            return;
        }
        // Catching up below can end flows, which leaves links to settle again; each round ends some.
        while !self.links.is_settled() {
            let mut shares = std::mem::take(&mut self.shares);
            self.links.settle(&self.connections, &mut shares);
            for (index, share) in shares.drain(..) {
                let connection = &self.connections[index as usize];
                if connection.rate == share && share > 0.0 && !connection.alone {
                    // Nothing changes for it, and its timer is set: of thousands of flows that meet somewhere, most.
                    continue;
                }
                self.catch_up(now, index);
                let connection = &mut self.connections[index as usize];
                connection.set_rate(now.0, share);
                connection.alone = false;
                if connection.has_unsent() {
                    self.arm(index, timeline);
                } else {
                    self.leave(index);
                }
            }
            self.shares = shares;
        }
    }

    /// Give a link another rate, or none, or (with `None`) the one it had at first.
    pub(crate) fn set_rate(&mut self, name: LinkName, rate: Option<f64>) {
        // The border has refused links that do not exist.
        let Some(number) = self.places.number(name) else { return };
        let is_memory = matches!(name, LinkName::MemoryOut(_) | LinkName::MemoryIn(_));
        let goodput = if is_memory { 1.0 } else { self.config.goodput };
        let link = &mut self.links.all[number as usize];
        link.capacity = rate.map_or(link.nominal, |rate| rate * goodput / 1e9);
        self.links.touch(number);
    }

    /// Whether nothing waits for [`Self::settle`].
    pub(crate) fn is_settled(&self) -> bool {
        self.links.is_settled()
            && self.queues.as_ref().is_none_or(|queues| queues.pending.is_empty())
    }

    pub(crate) fn is_severed(&self, one: u32, other: u32) -> bool {
        self.severed.contains(&(one.min(other), one.max(other)))
    }

    pub(crate) fn has_link(&self, name: LinkName) -> bool {
        self.places.number(name).is_some()
    }

    /// End the connections between two workers; false if they were ended before.
    pub(crate) fn sever(&mut self, one: u32, other: u32) -> bool {
        if !self.severed.insert((one.min(other), one.max(other))) {
            return false;
        }
        for (from, to) in [(one, other), (other, one)] {
            let Ok(place) = self.peers[from as usize].binary_search_by_key(&to, |peer| peer.0)
            else {
                continue;
            };
            let index = self.peers[from as usize][place].1;
            self.connections[index as usize].close();
            self.leave(index);
        }
        true
    }

    fn connection(&mut self, from: u32, to: u32) -> Option<u32> {
        let (favourite, index) = self.favourites[from as usize];
        if favourite == to {
            return self.connections[index as usize].open.then_some(index);
        }
        let index = self.find_connection(from, to)?;
        self.favourites[from as usize] = (to, index);
        Some(index)
    }

    fn find_connection(&mut self, from: u32, to: u32) -> Option<u32> {
        let peers = &self.peers[from as usize];
        match peers.binary_search_by_key(&to, |peer| peer.0) {
            Ok(place) => {
                let index = peers[place].1;
                self.connections[index as usize].open.then_some(index)
            }
            Err(_) if self.is_severed(from, to) => None,
            Err(place) => {
                let (latency, path) = self.places.way(from, to);
                let index = self.connections.len() as u32;
                self.connections.push(Connection::new(from, to, latency, path));
                self.peers[from as usize].insert(place, (to, index));
                Some(index)
            }
        }
    }

    fn parts(&mut self, index: u32) -> (&mut Connection<P>, Surroundings<'_>) {
        let around = Surroundings {
            queue_bytes: self.config.queue_bytes,
            jitter: nanos(self.config.jitter),
            overtaking: self.config.overtaking,
            random: &mut self.random,
            delivered: &mut self.delivered,
        };
        (&mut self.connections[index as usize], around)
    }

    /// Bring a connection to `now`. When nothing is left to send, it leaves links that it shares.
    fn catch_up(&mut self, now: Time, index: u32) {
        if self.queues.is_some() {
            return;
        }
        let (connection, mut around) = self.parts(index);
        connection.catch_up(now.0, &mut around);
        if connection.entered && !connection.alone && !connection.has_unsent() {
            self.leave(index);
        }
    }

    /// Enter a connection that has something to send in its links.
    fn enter(&mut self, now: Time, index: u32) {
        let connection = &self.connections[index as usize];
        if connection.entered || !connection.has_unsent() {
            return;
        }
        // Whoever has a link for itself does not say when it is done: look.
        let path = connection.path;
        for link in path.links() {
            if let [other] = self.links.all[*link as usize].flows[..] {
                self.catch_up(now, other);
                if !self.connections[other as usize].has_unsent() {
                    self.leave(other);
                }
            }
        }
        let alone = self.links.join(&mut self.connections, index);
        let share = if alone { self.links.narrowest(&path) } else { 0.0 };
        let connection = &mut self.connections[index as usize];
        connection.entered = true;
        connection.alone = alone;
        connection.rate = share;
    }

    fn leave(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if std::mem::replace(&mut connection.entered, false) {
            connection.rate = 0.0;
            self.links.leave(&mut self.connections, index);
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
