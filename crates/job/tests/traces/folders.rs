//! Claims about folders with a file for each worker.

use crate::made::{Made, reported};
use paceline_job::{
    Rank, Settings, View,
    graph::{Clocks, Graph, Job, Role},
    trace::{
        Stamp, Trace, TraceError,
        chrome::{Event, Header},
        match_collectives,
        recorded::{About, words},
    },
};
use std::fs;

fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

#[test]
fn the_workers_of_a_folder_are_in_the_order_of_their_ranks_and_their_collectives_match() {
    let files = [
        ("a.json.gz", Made::training(1, 2, 3).bytes()),
        ("b.json", Made::training(0, 2, 3).bytes()),
    ];
    let trace = Trace::read(folder(&files).path()).unwrap();
    let ranks: Vec<_> = trace.workers.iter().map(|worker| worker.rank).collect();
    assert_eq!(ranks, [Rank(0), Rank(1)]);
    assert_ne!(trace.workers[0].host, trace.workers[1].host);
    let (matched, problems) = match_collectives(&trace);
    assert_eq!(problems, []);
    assert_eq!(matched.len(), 3);
    assert!(matched.iter().all(|it| it.parts.len() == 2 && &*it.operation == "all_reduce"));
}

#[test]
fn operations_of_all_workers_are_those_of_more_workers_too() {
    let files =
        [("a.json", Made::training(0, 2, 3).bytes()), ("b.json", Made::training(1, 2, 3).bytes())];
    let trace = Trace::read(folder(&files).path()).unwrap();
    let job = Job::from_trace(&trace, &Clocks::align(&trace).clocks).unwrap();
    let posts = |graph: &Graph| {
        graph.nodes.iter().filter(|node| matches!(node.role, Role::Post(_))).count()
    };
    assert!(posts(&job.graph) > 0);
    assert_eq!(posts(&job.graph.with_workers(4)), 2 * posts(&job.graph));
}

#[test]
fn files_of_a_folder_may_be_links_to_files_elsewhere() {
    let elsewhere = folder(&[("a.json", Made::training(0, 2, 3).bytes())]);
    let here = folder(&[("b.json", Made::training(1, 2, 3).bytes())]);
    let link = |to: &std::path::Path, name: &str| {
        std::os::unix::fs::symlink(to, here.path().join(name)).unwrap();
    };
    link(&elsewhere.path().join("a.json"), "a.json");
    link(&elsewhere.path().join("gone.json"), "gone.json");
    link(here.path(), "round.json");
    let trace = Trace::read(here.path()).unwrap();
    assert_eq!(trace.workers.len(), 2);
    reported(&trace.problems, "cannot be read", 1);
}

#[test]
fn files_of_a_folder_may_lie_in_a_folder_for_each_host() {
    let files = [
        ("one/node7_123.456.pt.trace.json", Made::training(0, 2, 1).bytes()),
        // As an archive has it that was packed with its path.
        ("tests/two/node8_99.456.pt.trace.json", Made::training(1, 2, 1).bytes()),
        ("notes.txt", b"not a trace".to_vec()),
    ];
    let trace = Trace::read(folder(&files).path()).unwrap();
    let hosts: Vec<_> = trace.workers.iter().map(|worker| worker.host.as_str()).collect();
    assert_eq!(hosts, ["node7", "node8"]);
}

#[test]
fn a_rank_that_is_there_twice_and_ranks_that_are_missing_are_reported() {
    let files = [
        ("a.json", Made::training(2, 4, 1).bytes()),
        ("b.json", Made::training(2, 4, 1).bytes()),
        ("c.json", b"{\"traceEvents\": [".to_vec()),
        ("d.json", b"{\"something\": \"else\"}".to_vec()),
    ];
    let trace = Trace::read(folder(&files).path()).unwrap();
    assert_eq!(trace.workers.len(), 1);
    reported(&trace.problems, "is of rank 2 again", 1);
    reported(&trace.problems, "3 of 4 workers are missing", 1);
    reported(&trace.problems, "nothing in it can be used", 1);
    reported(&trace.problems, "no format that is known", 1);
}

#[test]
fn a_rank_is_taken_from_the_name_of_the_file_or_given_out_and_reported() {
    let nameless = |steps| {
        let mut made = Made::training(0, 1, steps);
        made.header = Header::default();
        made.bytes()
    };
    let files = [("trace_rank-3.json", nameless(1)), ("other.json", nameless(2))];
    let trace = Trace::read(folder(&files).path()).unwrap();
    let found: Vec<_> = trace.workers.iter().map(|it| (it.rank.0, it.steps.len())).collect();
    assert_eq!(found, [(0, 2), (3, 1)]);
    reported(&trace.problems, "does not say its rank; it is taken for 0", 1);
}

#[test]
fn a_collective_that_one_worker_did_not_record_is_reported() {
    let mut late = Made::training(1, 2, 2);
    late.events.retain(|event| !(event.name.starts_with("nccl") && event.ts.0 > 1_000_000));
    let files = [("a.json", Made::training(0, 2, 2).bytes()), ("b.json", late.bytes())];
    let trace = Trace::read(folder(&files).path()).unwrap();
    reported(&trace.problems, "did not record an operation that others did", 1);
}

#[test]
fn a_file_of_another_job_in_the_folder_is_left_out() {
    let recorded = |rank: u32, port: u16| {
        let mut view = View::local(2, Settings::default());
        for worker in &mut view.workers {
            worker.address = format!("127.0.0.1:{port}");
        }
        let about = About {
            format: About::FORMAT,
            version: "0".into(),
            host: "one".into(),
            hosts: Vec::new(),
            view: Some(view),
            memory: None,
            layers: Vec::new(),
            crosses_step: false,
            dropped: 0,
            partial: false,
        };
        let mut made = Made::new(rank, 2);
        made.header = made.header.with(About::FIELD, serde_json::to_value(about).unwrap());
        let span = |name: &str| Event::complete(name, Stamp(0), 10).category(name);
        made.events.push(span(words::STEP).with(words::NUMBER, 0));
        made.events.push(span(words::FORWARD));
        made.bytes()
    };
    for (port, times) in [(1000, None), (2000, Some(1))] {
        let files = [("a.json", recorded(0, 1000)), ("b.json", recorded(1, port))];
        let trace = Trace::read(folder(&files).path()).unwrap();
        assert_eq!(trace.workers.len(), if times.is_none() { 2 } else { 1 });
        let found = trace.problems.iter().find(|it| it.text.contains("of another job"));
        assert_eq!(found.map(|problem| problem.times), times, "{:?}", trace.problems);
    }
}

#[test]
fn ranks_that_cannot_be_are_left_out_and_reported() {
    let with_rank = |rank: &str, world: &str| {
        let mut made = Made::new(0, 2);
        let about = format!(r#"{{"rank": {rank}, "world_size": {world}}}"#);
        let about: serde_json::Value = serde_json::from_str(&about).unwrap();
        made.header = made.header.with("distributedInfo", about);
        made.events.push(Event::complete("aten::add", Stamp(0), 10).category("cpu_op"));
        made.bytes()
    };
    for (rank, world, said) in [
        ("-1", "2", Some("`rank` of distributedInfo is -1")),
        ("1.5", "2", Some("`rank` of distributedInfo is 1.5")),
        ("5000000000", "2", Some("`rank` of distributedInfo is 5000000000")),
        ("2", "2", Some("rank 2 of 2 workers")),
        ("7", "2", Some("rank 7 of 2 workers")),
        ("1", "0", Some("`world_size` of distributedInfo is 0")),
        ("1", "-2", Some("`world_size` of distributedInfo is -2")),
        ("1", "null", None),
        ("1", "2", None),
    ] {
        let files = [("a.json", with_rank("0", "2")), ("b.json", with_rank(rank, world))];
        let trace = Trace::read(folder(&files).path()).unwrap();
        let ranks: Vec<Rank> = trace.workers.iter().map(|worker| worker.rank).collect();
        assert_eq!(ranks, [Rank(0), Rank(1)], "{rank} of {world}: {:?}", trace.problems);
        assert_eq!((trace.world(), trace.missing()), (2, 0));
        let odd = trace.problems.iter().find(|it| it.text.contains("cannot be"));
        match said {
            Some(said) => assert!(odd.unwrap().text.contains(said), "{:?}", trace.problems),
            None => assert_eq!(odd, None, "{rank} of {world}"),
        }
    }
}

#[test]
fn what_cannot_be_read_at_all_says_what_to_do() {
    let empty = folder(&[]);
    assert!(matches!(Trace::read(empty.path()), Err(TraceError::Empty { .. })));
    let absent = empty.path().join("absent.json");
    assert!(matches!(Trace::read(&absent), Err(TraceError::File { .. })));
    let useless = folder(&[("a.json", b"{}".to_vec()), ("b.csv", b"hello\n".to_vec())]);
    let error = Trace::read(useless.path()).unwrap_err().to_string();
    assert!(error.contains("no format that is known here"), "{error}");
    assert!(error.contains("a.json") && error.contains("b.csv"), "{error}");
}

#[test]
fn tables_and_chakra_files_are_known_by_what_they_hold() {
    let files = [("x.json", b"name,forward_ms,backward_ms\na,1,2\n".to_vec())];
    let trace = Trace::read(folder(&files).path()).unwrap();
    assert_eq!(trace.workers[0].layers.len(), 1);
    let json = br#"{"workload_graph": [{"Id": 1, "Name": "a", "NodeType": 4, "runtime": 5}]}"#;
    let trace = Trace::read_bytes("chakra.2.json", json.to_vec()).unwrap();
    assert_eq!((trace.workers[0].rank, trace.workers[0].spans.len()), (Rank(2), 1));
}
