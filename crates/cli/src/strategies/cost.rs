//! What each strategy costs on a topology, as a table, as JSON and as a drawing: by the formulas of the DS-Sync paper, and
//! by the strategies' own programs. The costs themselves are the strategies' crate's.

use super::{text, world::WorldSize};
use paceline_job::{ByteSize, Link, Rate, Settings, Topology, View};
use paceline_sync::{
    cost::{
        Roads, price,
        published::{Delay, Method, Symbols, delay},
    },
    groups::Terrain,
    strategy::{CostModel, find_on},
};
use serde::Serialize;
use std::{fmt::Write, sync::Arc, time::Duration};

/// Where nothing is said: today's usual wire, and what a message takes on it.
const USUAL_RATE: f64 = 10e9;
const LATENCY: Duration = Duration::from_micros(50);
/// Links on a way inside a rack, as the paper's L.
const HOPS: f64 = 2.0;

/// Ranks on hosts in racks; the uplinks carry a quarter of what their hosts do together if nothing else is said.
pub fn of_size(
    size: WorldSize,
    racks: u32,
    wire: Option<Rate>,
    uplink: Option<Rate>,
) -> (Arc<Topology>, View) {
    let rate = wire.unwrap_or(Rate::from_bits_per_second(USUAL_RATE));
    let together = f64::from(size.hosts) / f64::from(racks);
    let uplink = uplink.unwrap_or(rate.scaled(together / 4.0));
    let link = |rate| Link { rate, latency: LATENCY };
    let memory = CostModel::usual(&Settings::default()).memory;
    let topology = Topology::racked(size.hosts, racks, link(rate), link(uplink), memory);
    let names = size.host_of_each_rank().iter().map(|host| format!("host{host}")).collect();
    with_settings(topology, names)
}

/// One rank on each host of a file.
pub fn of_file(topology: Topology) -> (Arc<Topology>, View) {
    let names = topology.hosts.iter().map(|host| host.name.clone()).collect();
    with_settings(topology, names)
}

fn with_settings(topology: Topology, names: Vec<String>) -> (Arc<Topology>, View) {
    let topology = Arc::new(topology);
    let settings = Settings { topology: Some(topology.clone()), ..Settings::default() };
    (topology, View::on_hosts(names, settings))
}

/// All of it.
#[derive(Serialize)]
pub struct Costs {
    bytes: u64,
    symbols: Symbols,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    strategy: &'static str,
    /// Whether it leaves the same sum everywhere.
    sums: bool,
    /// As published, for those that the paper has.
    published: Option<Delay>,
    /// By its programs.
    seconds: f64,
    latency_seconds: f64,
    /// The link that carries longest, and how long it does.
    busiest: Option<String>,
    busiest_seconds: f64,
}

/// Those of the paper, and ours besides.
const OTHERS: [&str; 2] = ["recursive_doubling", "hierarchical"];

impl Costs {
    /// Price everything. `marks` say which links are contended, where they differ from the topology's.
    pub fn new(
        topology: &Arc<Topology>,
        view: &View,
        marks: Option<Terrain>,
        bytes: ByteSize,
    ) -> Costs {
        let symbols = symbols(topology, view, bytes);
        let published =
            Method::ALL.map(|method| (method.strategy(), Some(delay(method, &symbols))));
        let others = OTHERS.map(|name| (name, None));
        let terrain = marks.or_else(|| Terrain::of_view(view));
        let hosts: Arc<[u32]> = view.host_indices().into();
        let roads = Roads::of(view, topology);
        let row = |(name, published): (&'static str, Option<Delay>)| {
            let strategy = find_on(name, terrain.clone()).ok()?;
            let cost =
                price(strategy.as_ref(), &hosts, roads.as_ref()?, bytes, view.settings.partition);
            Some(Row {
                strategy: name,
                sums: strategy.semantics() == paceline_sync::program::Semantics::Reduce,
                published,
                seconds: cost.total.as_secs_f64(),
                latency_seconds: cost.latency.as_secs_f64(),
                busiest: cost.busiest.map(|link| link.to_string()),
                busiest_seconds: cost.busy.as_secs_f64(),
            })
        };
        let rows = published.into_iter().chain(others).filter_map(row).collect();
        Costs { bytes: bytes.0, symbols, rows }
    }

    /// For people.
    pub fn table(&self) -> String {
        let Symbols { workers, racks, beta_inside, beta_between, .. } = self.symbols;
        let rate = |beta: f64| Rate::from_bytes_per_second(beta.recip());
        let mut shown = format!(
            "{} among {} in {}, {} inside a rack and {} between\n\n",
            ByteSize(self.bytes),
            text::count(workers as u64, "rank"),
            text::count(racks as u64, "rack"),
            rate(beta_inside),
            rate(beta_between),
        );
        shown += &format!(
            "{:<20} {:>12} {:>12} {:>10}  {}\n",
            "strategy", "as published", "by programs", "latency", "busiest link"
        );
        for row in &self.rows {
            let published =
                row.published.map_or("–".to_string(), |delay| milliseconds(delay.seconds()));
            let busiest = row.busiest.as_deref().unwrap_or("–");
            shown += &format!(
                "{:<20} {published:>12} {:>12} {:>10}  {busiest}, {}\n",
                format!("{}{}", row.strategy, if row.sums { "" } else { " *" }),
                milliseconds(row.seconds),
                milliseconds(row.latency_seconds),
                milliseconds(row.busiest_seconds),
            );
        }
        shown + "\n* averages over steps; `auto` does not choose it.\n"
    }

    /// Two bars for each strategy: as published above, by its programs below.
    pub fn draw(&self) -> String {
        let seconds = |row: &Row| row.published.map_or(0.0, Delay::seconds).max(row.seconds);
        let longest = self.rows.iter().map(seconds).fold(f64::MIN_POSITIVE, f64::max);
        let scale = (WIDTH - LABEL - 90.0) / longest;
        let height = ROW * self.rows.len() as f64 + 40.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
             font-size=\"13\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LABEL}\" y=\"20\"><tspan fill=\"#999\">as published</tspan> and <tspan fill=\"#3b82c4\">by \
             programs</tspan>, {}</text>\n",
            ByteSize(self.bytes)
        );
        for (place, row) in self.rows.iter().enumerate() {
            let top = ROW * place as f64 + 32.0;
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
                LABEL - 8.0,
                top + 20.0,
                row.strategy
            );
            let bars =
                [(row.published.map(Delay::seconds), "#999"), (Some(row.seconds), "#3b82c4")];
            for (at, (seconds, colour)) in bars.into_iter().enumerate() {
                let Some(seconds) = seconds else { continue };
                let (y, width) = (top + 16.0 * at as f64, seconds * scale);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{LABEL}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"14\" fill=\"{colour}\"/><text \
                     x=\"{:.1}\" y=\"{:.0}\">{}</text>",
                    LABEL + width + 6.0,
                    y + 12.0,
                    milliseconds(seconds)
                );
            }
        }
        svg + "</svg>\n"
    }
}

/// Of the drawing: its width, that of names, and the height of a strategy.
const WIDTH: f64 = 900.0;
const LABEL: f64 = 180.0;
const ROW: f64 = 44.0;

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", 1e3 * seconds)
}

/// What the paper's letters stand for here.
fn symbols(topology: &Topology, view: &View, bytes: ByteSize) -> Symbols {
    let slowest = |rates: &mut dyn Iterator<Item = Rate>| {
        rates.map(Rate::bytes_per_second).fold(f64::INFINITY, f64::min)
    };
    let inside = slowest(&mut topology.hosts.iter().map(|host| host.link.rate));
    let between = slowest(&mut topology.uplinks.iter().map(|link| link.rate)).min(inside);
    let workers = view.size() as f64;
    let racks = topology.uplinks.len().max(1) as f64;
    Symbols {
        workers,
        racks,
        per_rack: workers / racks,
        alpha: topology.bottleneck().latency.as_secs_f64() / HOPS,
        beta_inside: inside.recip(),
        beta_between: between.recip(),
        hops: HOPS,
        bytes: bytes.0 as f64,
        pieces: (bytes.0 as f64 / view.settings.partition.0 as f64).max(1.0),
        servers: workers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_and_own_costs_stand_side_by_side() {
        let size = WorldSize { ranks: 12, hosts: 12 };
        let (topology, view) = of_size(size, 4, None, None);
        let costs = Costs::new(&topology, &view, None, ByteSize::mib(16));
        let of = |name: &str| costs.rows.iter().find(|row| row.strategy == name).unwrap();
        assert!(of("shuffle").seconds < of("ring").seconds);
        assert!(of("ring").published.is_some() && of("recursive_doubling").published.is_none());
        // A ring of 12 takes a little less than twice the tensor over an uplink that is as fast as the hosts' wires or slower.
        let ring = of("ring");
        assert!((ring.seconds / ring.published.unwrap().seconds() - 1.0).abs() < 0.05);
        let table = costs.table();
        assert!(table.contains("hierarchical:racks") && table.contains("shuffle *"), "{table}");
        let drawing = costs.draw();
        assert!(drawing.starts_with("<svg") && drawing.matches("<rect").count() > costs.rows.len());
    }
}
