//! Links and how the flows on them share them: max-min fairness, the steady state that many long
//! TCP streams of equal round-trip time approach. It knows nothing of frames.

use super::Connection;

/// The most links a message crosses.
pub(super) const MOST_HOPS: usize = paceline_job::Way::MOST_LINKS;

/// One direction of a wire, or of a worker's way to its neighbours' memory.
#[derive(Debug)]
pub(super) struct Link {
    /// Bytes per nanosecond; zero while it is cut.
    pub capacity: f64,
    /// What `capacity` was before anybody changed it.
    pub nominal: f64,
    /// Connections that have bytes to send over it.
    pub flows: Vec<u32>,
    /// For the fill below.
    remaining: f64,
    open: u32,
    mark: u32,
}

impl Link {
    pub(super) fn new(capacity: f64) -> Link {
        let flows = Vec::new();
        Link { capacity, nominal: capacity, flows, remaining: 0.0, open: 0, mark: 0 }
    }
}

/// The links a connection crosses, and its place in each link's list of flows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    links: [u32; MOST_HOPS],
    places: [u32; MOST_HOPS],
    hops: u8,
}

impl Path {
    pub(super) fn over(links: &[u32]) -> Path {
        let mut path = Path { hops: links.len() as u8, ..Path::default() };
        path.links[..links.len()].copy_from_slice(links);
        path
    }

    pub(super) fn links(&self) -> &[u32] {
        &self.links[..usize::from(self.hops)]
    }
}

/// All links, and those whose shares have to be computed anew before time goes on.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub all: Vec<Link>,
    dirty: Vec<u32>,
    mark: u32,
    component: Vec<u32>,
    flows: Vec<u32>,
}

impl Links {
    pub(super) fn new(all: Vec<Link>) -> Links {
        Links { all, ..Links::default() }
    }

    pub(super) fn touch(&mut self, link: u32) {
        self.dirty.push(link);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.dirty.is_empty()
    }

    /// What a flow gets that shares no link.
    pub(super) fn narrowest(&self, path: &Path) -> f64 {
        path.links()
            .iter()
            .map(|link| self.all[*link as usize].capacity)
            .fold(f64::INFINITY, f64::min)
    }

    /// Enter a connection in the lists of its links; whether it is alone on all of them.
    pub(super) fn join<P>(&mut self, connections: &mut [Connection<P>], index: u32) -> bool {
        let path = &mut connections[index as usize].path;
        let mut alone = true;
        for hop in 0..usize::from(path.hops) {
            let flows = &mut self.all[path.links[hop] as usize].flows;
            alone &= flows.is_empty();
            path.places[hop] = flows.len() as u32;
            flows.push(index);
        }
        if !alone {
            self.dirty.push(path.links[0]);
        }
        alone
    }

    /// Strike a connection from the lists of its links.
    pub(super) fn leave<P>(&mut self, connections: &mut [Connection<P>], index: u32) {
        let path = connections[index as usize].path;
        for (link, place) in path.links().iter().zip(path.places) {
            let flows = &mut self.all[*link as usize].flows;
            flows.swap_remove(place as usize);
            let Some(moved) = flows.get(place as usize).copied() else {
                if !flows.is_empty() {
                    self.dirty.push(*link);
                }
                continue;
            };
            self.dirty.push(*link);
            let theirs = &mut connections[moved as usize].path;
            // A path crosses a link once.
            if let Some(hop) = theirs.links().iter().position(|other| other == link) {
                theirs.places[hop] = place;
            }
        }
    }

    /// Compute the shares of every flow that can feel a touched link, and append (flow, share) to
    /// `shares`. Work is bounded by the flows and links connected to those, times the number of
    /// different shares among them.
    pub(super) fn settle<P>(
        &mut self,
        connections: &[Connection<P>],
        shares: &mut Vec<(u32, f64)>,
    ) {
        self.mark += 1;
        let mut marked = std::mem::take(&mut self.flows);
        marked.resize(connections.len(), 0);
        while let Some(start) = self.dirty.pop() {
            if self.all[start as usize].mark == self.mark {
                continue;
            }
            let first = shares.len();
            self.collect(connections, &mut marked, start, shares);
            self.fill(connections, &mut shares[first..], &mut marked);
        }
        self.flows = marked;
    }

    /// Gather the links and flows connected with `start`; `found` notes each flow's place in `shares`.
    fn collect<P>(
        &mut self,
        connections: &[Connection<P>],
        found: &mut [u32],
        start: u32,
        shares: &mut Vec<(u32, f64)>,
    ) {
        let first = shares.len();
        self.component.clear();
        self.component.push(start);
        self.all[start as usize].mark = self.mark;
        let mut next = 0;
        while let Some(link) = self.component.get(next).copied() {
            next += 1;
            let link = &mut self.all[link as usize];
            link.remaining = link.capacity;
            link.open = link.flows.len() as u32;
            // Taken out for the loop, which marks other links, and put back after it.
            let flows = std::mem::take(&mut link.flows);
            for flow in &flows {
                let place = found[*flow as usize] as usize;
                if shares.get(first + place).is_some_and(|share| share.0 == *flow) {
                    continue;
                }
                found[*flow as usize] = (shares.len() - first) as u32;
                shares.push((*flow, UNDECIDED));
                for other in connections[*flow as usize].path.links() {
                    if self.all[*other as usize].mark != self.mark {
                        self.all[*other as usize].mark = self.mark;
                        self.component.push(*other);
                    }
                }
            }
            let at = self.component[next - 1] as usize;
            self.all[at].flows = flows;
        }
    }

    /// Progressive filling: all flows grow alike until a link is full; its flows stop, the rest go on.
    fn fill<P>(
        &mut self,
        connections: &[Connection<P>],
        shares: &mut [(u32, f64)],
        places: &mut [u32],
    ) {
        let mut undecided = shares.len();
        while undecided > 0 {
            let level = self
                .component
                .iter()
                .map(|link| &self.all[*link as usize])
                .filter(|link| link.open > 0)
                .map(|link| link.remaining / f64::from(link.open))
                .fold(f64::INFINITY, f64::min)
                .max(0.0);
            // Links that are full at the same level are taken together; rounding must not part them.
            let full = level * (1.0 + 1e-9);
            for at in 0..self.component.len() {
                let index = self.component[at] as usize;
                let link = &mut self.all[index];
                if link.open == 0 || link.remaining > full * f64::from(link.open) {
                    continue;
                }
                let flows = std::mem::take(&mut link.flows);
                for flow in &flows {
                    let share = &mut shares[places[*flow as usize] as usize].1;
                    if *share != UNDECIDED {
                        continue;
                    }
                    *share = level;
                    undecided -= 1;
                    for crossed in connections[*flow as usize].path.links() {
                        let crossed = &mut self.all[*crossed as usize];
                        crossed.remaining -= level;
                        crossed.open -= 1;
                    }
                }
                self.all[index].flows = flows;
            }
        }
    }
}

/// No share is negative.
const UNDECIDED: f64 = -1.0;
