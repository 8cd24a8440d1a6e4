//! A predicted run as a trace file, so that whatever opens recorded traces opens it too.

use super::bars::{self, Row};
use paceline_job::{
    Rank, Time,
    graph::Graph,
    trace::{
        Stamp,
        chrome::{Event, Header, Writer},
    },
};
use paceline_replay::graph::Played;
use std::io;

/// The bytes of the file: one process for each worker.
pub fn trace(graph: &Graph, played: &Played) -> io::Result<Vec<u8>> {
    let world = graph.workers.len();
    let header = Header::of_worker(Rank(0), world as u32).with("predicted", true);
    let mut writer = Writer::new(Vec::new(), &header)?;
    for (rank, worker) in graph.workers.iter().enumerate() {
        let name = format!("worker {rank} on {} (predicted)", worker.host);
        writer.name_process(rank as i64, &name)?;
    }
    let mut begins = vec![Time::ZERO; world];
    for (number, ends) in played.steps.iter().enumerate() {
        for (rank, (begin, end)) in begins.iter_mut().zip(ends).enumerate() {
            let stamp = Stamp(i64::try_from(begin.0).unwrap_or(i64::MAX));
            // The name that PyTorch's profiler gives to a step.
            let event = Event::complete(format!("ProfilerStep#{number}"), stamp, end.0 - begin.0);
            writer.write(&event.category("user_annotation").on(rank as i64, 0))?;
            *begin = *end;
        }
    }
    let mut lane = 0;
    let end = Time(u64::MAX);
    for Row { rank, name, bars } in bars::rows(graph, played, world, Time::ZERO, end) {
        lane += 1;
        writer.name_thread(i64::from(rank.0), lane, &name, lane)?;
        for bar in bars {
            let begin = Stamp(i64::try_from(bar.from).unwrap_or(i64::MAX));
            let event = Event::complete(bar.name, begin, bar.to - bar.from);
            let event = event.category(bar.look.name()).on(i64::from(rank.0), lane);
            writer.write(&if bar.critical { event.with("critical", 1) } else { event })?;
        }
    }
    writer.finish()
}
