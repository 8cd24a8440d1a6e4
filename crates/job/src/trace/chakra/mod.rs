//! Chakra execution traces, as `.et` (Protocol Buffers) and as JSON: nodes with durations and dependencies, most often
//! without times of begin. Where there are none, nodes are laid out as early as their dependencies and lanes allow, and
//! that is reported.
//!
//! An `.et` file is a sequence of messages, each after its length: one `GlobalMetadata`, then `Node`s. Fields read of a
//! node: 1 id, 2 name, 3 type, 4 control dependencies, 5 data dependencies, 6 start and 7 duration (microseconds), 10
//! attributes. JSON files have `workload_graph`, a list of nodes with `Id`, `Name`, `NodeType`, `data_deps`, `ctrlDeps`,
//! `runtime` (microseconds), `is_cpu_op`.

mod layout;
mod protobuf;

use super::{
    Phase, WorkerTrace,
    items::{Items, Shape},
    problems::Problems,
};
use layout::{Node, NodeType};
use protobuf::{Fields, Value, delimited};
use serde::Deserialize;

/// Nodes of one file.
const MOST_NODES: usize = 50_000_000;

/// Whether these are the first bytes of an `.et` file.
pub(super) fn recognises(head: &[u8]) -> bool {
    let mut rest = head;
    let Some(metadata) = delimited(&mut rest) else { return false };
    let mut fields = Fields::of(metadata);
    let known = fields
        .by_ref()
        .all(|(number, value)| matches!(value, Value::Bytes(_)) && (1..=2).contains(&number));
    if !known || !fields.sound {
        return false;
    }
    match delimited(&mut rest) {
        Some(message) => node(message).is_some_and(|node| !node.name.is_empty()),
        // The first node may be longer than the head.
        None => !metadata.is_empty() && !rest.is_empty(),
    }
}

/// An `.et` file.
pub(super) fn import(bytes: &[u8], problems: &mut Problems) -> WorkerTrace {
    let mut rest = bytes;
    if delimited(&mut rest).is_none() {
        problems.add("the file ends in its first message");
    }
    let mut nodes = Vec::new();
    let mut whole = true;
    while !rest.is_empty() {
        if nodes.len() == MOST_NODES {
            problems.add(format!("only the first {MOST_NODES} nodes are read"));
            whole = false;
            break;
        }
        let Some(message) = delimited(&mut rest) else {
            problems.add(format!(
                "the file ends in the middle of a node; the {} nodes before are read",
                nodes.len()
            ));
            whole = false;
            break;
        };
        match node(message) {
            Some(node) => nodes.push(node),
            None => {
                problems.add("a node cannot be read; it is left out");
                whole = false;
            }
        }
    }
    let mut worker = layout::worker(nodes, problems);
    worker.lost.of_file = !whole;
    worker
}

fn node(message: &[u8]) -> Option<Node> {
    let mut node = Node::default();
    let mut fields = Fields::of(message);
    for (number, value) in fields.by_ref() {
        match number {
            1 => node.id = value.integer()? as u64,
            2 => node.name = value.text()?.into(),
            3 => node.kind = NodeType::of(value.integer()?),
            4 => value.integers(&mut node.control),
            5 => value.integers(&mut node.data),
            6 => node.start = u64::try_from(value.integer()?).ok(),
            7 => node.duration = u64::try_from(value.integer()?).unwrap_or(0),
            10 => attribute(value, &mut node),
            _ => {}
        }
    }
    fields.sound.then_some(node)
}

/// An attribute: 1 name, 29 text, 27 truth; whole numbers have a field for each type.
fn attribute(value: Value<'_>, node: &mut Node) {
    let Value::Bytes(message) = value else { return };
    let mut name = "";
    let (mut number, mut text) = (None, None);
    for (field, value) in Fields::of(message) {
        match field {
            1 => name = value.text().unwrap_or(""),
            7 | 9 | 11 | 13 | 27 => number = value.integer(),
            // Signed numbers that alternate between signs.
            15 | 17 => number = value.integer().map(|it| (it as u64 >> 1) as i64 ^ -(it & 1)),
            29 => text = value.text(),
            _ => {}
        }
    }
    match (name, number, text) {
        ("is_cpu_op", Some(number), _) => node.on_host = Some(number != 0),
        ("tid", Some(number), _) => node.thread = Some(number),
        ("stream", Some(number), _) => node.stream = Some(number),
        ("comm_type", Some(number), _) => node.collective = Some(number),
        ("comm_size", Some(number), _) => node.bytes = u64::try_from(number).ok(),
        ("comm_priority", Some(number), _) => node.priority = number,
        ("pg_name" | "comm_group", _, Some(text)) => node.group = text.into(),
        ("pg_name" | "comm_group", Some(number), _) => node.group = number.to_string(),
        ("seq_id", Some(number), _) if number >= 0 && node.phase == Phase::Other => {
            node.phase = Phase::Forward;
        }
        ("fw_tid", Some(number), _) if number > 0 => node.phase = Phase::Backward,
        _ => {}
    }
}

/// How nodes lie in a file of JSON.
pub(super) const SHAPE: Shape =
    Shape { list: "workload_graph", one: "a node", many: "nodes", may_stay_open: false };

#[derive(Deserialize)]
struct JsonNode {
    #[serde(alias = "Id")]
    id: u64,
    #[serde(alias = "Name", default)]
    name: String,
    #[serde(alias = "NodeType", alias = "node_type", alias = "type", default)]
    kind: i64,
    #[serde(alias = "ctrlDeps", default)]
    ctrl_deps: Vec<u64>,
    #[serde(alias = "dataDeps", default)]
    data_deps: Vec<u64>,
    #[serde(alias = "duration_micros", default)]
    runtime: f64,
    #[serde(alias = "start_time_micros", default)]
    start: Option<f64>,
    #[serde(default)]
    is_cpu_op: Option<bool>,
    #[serde(default)]
    comm_type: Option<i64>,
    #[serde(alias = "tensor_size", default)]
    comm_size: Option<u64>,
    #[serde(default)]
    comm_priority: i64,
}

/// A JSON file, as far as it goes.
pub(super) fn import_json(mut items: Items, problems: &mut Problems) -> WorkerTrace {
    let mut nodes = Vec::new();
    while let Some(node) = items.next(|json| serde_json::from_slice::<JsonNode>(json)) {
        if node.runtime.is_nan() || node.runtime < 0.0 {
            problems.add("a duration is negative or not a number; it is taken to be nothing");
        }
        nodes.push(Node {
            id: node.id,
            name: node.name.into(),
            kind: NodeType::of(node.kind),
            control: node.ctrl_deps,
            data: node.data_deps,
            // Casts of floats saturate.
            start: node.start.filter(|start| *start >= 0.0).map(|start| start as u64),
            duration: node.runtime as u64,
            on_host: node.is_cpu_op,
            collective: node.comm_type,
            bytes: node.comm_size,
            priority: node.comm_priority,
            ..Node::default()
        });
    }
    let whole = items.is_whole();
    let (fields, found) = items.finish();
    problems.add_all(found);
    let mut worker = layout::worker(nodes, problems);
    worker.lost.of_file = !whole;
    let world = fields.get("ngpus").and_then(serde_json::Value::as_u64);
    worker.world = world.and_then(|world| u32::try_from(world).ok()).filter(|world| *world > 0);
    worker
}

#[cfg(test)]
mod tests {
    use super::{protobuf::write, *};
    use crate::trace::{Kind, SpanId, Stamp};

    fn attribute(name: &str, field: u64, number: u64) -> Vec<u8> {
        let attribute = [write::bytes(1, name.as_bytes()), write::integer(field, number)].concat();
        write::bytes(10, &attribute)
    }

    fn node(id: u64, name: &str, kind: u64, data: &[u64], duration: u64, host: u64) -> Vec<u8> {
        let packed: Vec<u8> = data.iter().flat_map(|id| write::varint(*id)).collect();
        [
            write::integer(1, id),
            write::bytes(2, name.as_bytes()),
            write::integer(3, kind),
            write::bytes(5, &packed),
            write::integer(7, duration),
            attribute("is_cpu_op", 27, host),
        ]
        .concat()
    }

    fn file(nodes: &[Vec<u8>]) -> Vec<u8> {
        let metadata = write::bytes(1, b"0.0.4");
        let messages = std::iter::once(&metadata).chain(nodes);
        messages.flat_map(|message| write::delimited(message)).collect()
    }

    fn three() -> Vec<u8> {
        let mut reduce = node(5, "ncclKernel_AllReduce", 7, &[4], 30, 0);
        reduce.extend(attribute("comm_type", 9, 0));
        reduce.extend(attribute("comm_size", 9, 4096));
        // Out of order on purpose.
        file(&[reduce, node(3, "aten::mm", 4, &[], 10, 1), node(4, "gemm", 4, &[3], 20, 0)])
    }

    #[test]
    fn nodes_without_times_are_laid_out_by_their_dependencies() {
        let mut problems = Problems::at("test");
        let worker = import(&three(), &mut problems);
        let times: Vec<_> = worker
            .spans
            .iter()
            .map(|it| (&*it.name, it.begin, it.length, it.after.len()))
            .collect();
        let us = |micros: i64| Stamp(micros * 1000);
        assert_eq!(
            times,
            [
                ("aten::mm", us(0), 10_000, 0),
                ("gemm", us(10), 20_000, 1),
                ("ncclKernel_AllReduce", us(30), 30_000, 1)
            ]
        );
        assert_eq!(worker.spans[2].after, [SpanId(1)]);
        let Kind::Collective(collective) = &worker.spans[2].kind else { panic!("no collective") };
        assert_eq!((&*collective.operation, collective.bytes), ("all_reduce", 4096));
        let texts: Vec<_> = problems.into_list().into_iter().map(|it| it.text).collect();
        assert_eq!((texts.len(), worker.laid_out), (2, true), "{texts:?}");
        assert!(texts[1].ends_with("2 of 2 nodes are undecided"), "{texts:?}");
    }

    #[test]
    fn passes_are_told_by_name_and_number_and_that_is_reported() {
        let numbered = |node: Vec<u8>| [node, attribute("seq_id", 9, 7)].concat();
        let nodes = [
            numbered(node(1, "aten::conv2d", 4, &[], 1, 1)),
            node(2, "scudnn_128x128_nn", 4, &[1], 1, 0),
            numbered(node(3, "aten::convolution_backward(0)", 4, &[], 1, 1)),
            node(4, "winogradForwardData4x4", 4, &[3], 1, 0),
            node(5, "wgrad_alg0_engine", 4, &[1], 1, 0),
            node(6, "Memcpy DtoD", 4, &[], 1, 0),
        ];
        let mut problems = Problems::at("test");
        let worker = import(&file(&nodes), &mut problems);
        let phase = |name: &str| {
            let span = worker.spans.iter().find(|span| &*span.name == name).unwrap();
            let Kind::Work(phase) = span.kind else { panic!("{span:?}") };
            phase
        };
        assert_eq!(phase("aten::conv2d"), Phase::Forward);
        assert_eq!(phase("scudnn_128x128_nn"), Phase::Forward);
        for backward in
            ["aten::convolution_backward(0)", "winogradForwardData4x4", "wgrad_alg0_engine"]
        {
            assert_eq!(phase(backward), Phase::Backward, "{backward}");
        }
        assert_eq!(phase("Memcpy DtoD"), Phase::Other);
        let texts: Vec<_> = problems.into_list().into_iter().map(|it| it.text).collect();
        assert!(texts.iter().any(|it| it.ends_with("1 of 6 nodes are undecided")), "{texts:?}");
    }

    #[test]
    fn a_file_is_recognised_and_read_up_to_where_it_is_cut() {
        let whole = three();
        assert!(recognises(&whole));
        for length in 0..whole.len() {
            let mut problems = Problems::at("test");
            let worker = import(&whole[..length], &mut problems);
            assert!(worker.spans.len() < 3);
        }
        for other in [&b"{\"traceEvents\":[]}"[..], b"", b"name,forward_ms\n", &[0xff; 40]] {
            assert!(!recognises(other), "{other:?}");
        }
    }

    #[test]
    fn nodes_that_wait_for_each_other_are_reported_and_kept() {
        let nodes = [
            node(1, "a", 4, &[2], 1, 1),
            node(2, "b", 4, &[1, 9], 1, 1),
            node(2, "c", 4, &[], 1, 1),
        ];
        let mut problems = Problems::at("test");
        let worker = import(&file(&nodes), &mut problems);
        assert_eq!(worker.spans.len(), 2);
        let texts: Vec<_> = problems.into_list().into_iter().map(|it| it.text).collect();
        for part in ["wait for each other", "not in the file", "same id"] {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
    }

    #[test]
    fn the_json_form_says_the_same() {
        let json = r#"{"workload_graph": [
            {"Id": 5, "Name": "ncclKernel_AllReduce", "NodeType": 7, "data_deps": [4], "runtime": 30,
             "is_cpu_op": false, "comm_type": 0, "comm_size": 4096},
            {"Id": 3, "Name": "aten::mm", "NodeType": 4, "data_deps": [], "runtime": 10, "is_cpu_op": true},
            {"Id": 4, "Name": "gemm", "NodeType": 4, "data_deps": [3], "runtime": 20, "is_cpu_op": false}
        ], "ngpus": 8}"#;
        let [mut one, mut two] = [Problems::at("test"), Problems::at("test")];
        let (json, et) = (read_json(json, &mut one), import(&three(), &mut two));
        assert_eq!((json.spans, json.lanes), (et.spans, et.lanes));
        assert_eq!(json.world, Some(8));
    }

    fn read_json(json: &str, problems: &mut Problems) -> WorkerTrace {
        let input = std::io::Cursor::new(json.to_owned());
        import_json(Items::new(input, "test", SHAPE).unwrap(), problems)
    }

    #[test]
    fn json_that_is_cut_off_gives_the_nodes_before_the_cut() {
        let node = r#"{"Id": 3, "Name": "aten::mm", "NodeType": 4, "runtime": 10}"#;
        let mut problems = Problems::at("test");
        let text = format!("{{\"ngpus\": 2, \"workload_graph\": [{node}, {}", &node[..20]);
        let worker = read_json(&text, &mut problems);
        assert_eq!((worker.spans.len(), worker.world), (1, Some(2)));
        let problems = problems.into_list();
        assert!(problems[0].text.contains("in the middle of a node"), "{problems:?}");
    }
}
