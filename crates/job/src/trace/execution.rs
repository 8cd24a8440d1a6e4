//! Execution traces of PyTorch (`ExecutionTraceObserver`): operators with their shapes and who called whom, without times.
//! Read for what they have: the order of operators, and what collectives carry.

use super::{
    Collective, Kind, LaneId, LaneKind, Phase, Span, Stamp, WorkerTrace,
    assemble::{self, Lanes, Names},
    items::{Items, Shape},
    problems::Problems,
    words,
};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::HashMap, sync::Arc};

/// How nodes lie in a file.
pub(super) const SHAPE: Shape =
    Shape { list: "nodes", one: "a node", many: "nodes", may_stay_open: false };

#[derive(Deserialize)]
struct Node {
    id: u64,
    #[serde(default)]
    name: String,
    /// Who called it; older files say `parent`.
    #[serde(alias = "parent", default)]
    ctrl_deps: Value,
    #[serde(default)]
    inputs: Value,
    /// Where older files keep the shapes and types of inputs.
    #[serde(default)]
    input_shapes: Value,
    #[serde(default)]
    input_types: Value,
    #[serde(default)]
    attrs: Vec<Attribute>,
    /// Where older files keep attributes.
    #[serde(default)]
    tid: Option<i64>,
    #[serde(default)]
    seq_id: Option<i64>,
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    #[serde(default)]
    value: Value,
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&Value> {
        self.attrs.iter().find(|attribute| attribute.name == name).map(|it| &it.value)
    }

    fn parent(&self) -> Option<u64> {
        let parent = match &self.ctrl_deps {
            Value::Array(list) => list.first()?.as_u64(),
            value => value.as_u64(),
        };
        parent.filter(|parent| *parent != self.id)
    }

    fn thread(&self) -> i64 {
        self.attribute("tid").and_then(Value::as_i64).or(self.tid).unwrap_or(0)
    }

    fn phase(&self) -> Phase {
        let sequence = self.attribute("seq_id").and_then(Value::as_i64).or(self.seq_id);
        match words::phase(&self.name) {
            Phase::Other if sequence.is_some_and(|number| number >= 0) => Phase::Forward,
            phase => phase,
        }
    }

    /// Only the annotation that the backend leaves: `record_param_comms` and `c10d::` are around it.
    fn collective(&self, problems: &mut Problems) -> Option<Collective> {
        let backend = self.name.split_once(':').map(|(backend, _)| backend);
        let operation = words::operation(&self.name)
            .filter(|_| matches!(backend, Some("nccl" | "gloo")) && !self.name.contains("::"))?;
        let part = |key: &str, older: &Value| match self.inputs.get(key) {
            Some(value) => value.clone(),
            None => older.clone(),
        };
        let shapes = part("shapes", &self.input_shapes);
        let types = part("types", &self.input_types);
        let dtype = types.get(0).and_then(Value::as_str).and_then(words::dtype);
        let elements = shapes.get(0).and_then(elements);
        let size = dtype.map(|dtype| dtype.size() as u64);
        let bytes = elements.zip(size).and_then(|(elements, size)| elements.checked_mul(size));
        if bytes.is_none() && operation != "barrier" {
            problems.add("a collective does not say how much it carries");
        }
        let group = self.attribute("pg_name").and_then(Value::as_str).unwrap_or("");
        Some(Collective {
            operation: operation.into(),
            group: group.into(),
            members: Vec::new(),
            sequence: None,
            tensor: None,
            bytes: bytes.unwrap_or(0),
            dtype,
            priority: 0,
        })
    }
}

/// Of a shape.
fn elements(shape: &Value) -> Option<u64> {
    shape.as_array()?.iter().try_fold(1_u64, |product, it| product.checked_mul(it.as_u64()?))
}

/// Read a file as far as it goes.
pub(super) fn import(mut items: Items, problems: &mut Problems) -> WorkerTrace {
    let next = || items.next(|json| serde_json::from_slice(json));
    let mut nodes: Vec<Node> = std::iter::from_fn(next).collect();
    problems.add_all(items.finish().1);
    nodes.sort_by_key(|node| node.id);
    let before = nodes.len();
    nodes.dedup_by_key(|node| node.id);
    let again = before - nodes.len();
    problems.add_times("two nodes have the same id; the first is kept", again as u64);
    problems.add(
        "an execution trace has no times: operators are in the order of their ids and take none",
    );
    let worker = spans(&nodes, problems);
    let index: HashMap<u64, ()> = nodes.iter().map(|node| (node.id, ())).collect();
    // The first node's caller is the process, which has no node.
    let orphans =
        nodes.iter().filter_map(Node::parent).filter(|it| !index.contains_key(it) && *it > 1);
    problems.add_times("the caller of an operator is not in the file", orphans.count() as u64);
    worker
}

fn spans(nodes: &[Node], problems: &mut Problems) -> WorkerTrace {
    let mut lanes = Lanes::default();
    let mut names = Names::default();
    let index: HashMap<u64, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
    let mut encloses = vec![false; nodes.len()];
    let mut phases = vec![Phase::Other; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        // A caller has a smaller id, so its phase is known.
        let caller = node.parent().and_then(|id| index.get(&id).copied()).filter(|it| *it < at);
        let outside = caller.map_or(Phase::Other, |it| phases[it]);
        phases[at] = match (outside, node.phase()) {
            (Phase::Backward | Phase::Update, _) | (_, Phase::Other) => outside,
            (_, own) => own,
        };
        if let Some(caller) = caller {
            encloses[caller] = true;
        }
    }
    let mut spans = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let thread = node.thread();
        let lane: LaneId = lanes.of(thread, LaneKind::Thread, |_| format!("thread {thread}"));
        let name: Arc<str> = names.keep(&node.name);
        let kind = match node.collective(problems) {
            Some(collective) => Kind::Collective(Box::new(collective)),
            None if encloses[at] => Kind::Scope,
            None => Kind::Work(phases[at]),
        };
        let begin = Stamp(at as i64);
        spans.push(Span { name, lane, begin, length: 0, kind, after: Vec::new() });
    }
    let mut worker = WorkerTrace { lanes: lanes.list, spans, ..WorkerTrace::default() };
    assemble::order(&mut worker);
    worker
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> (WorkerTrace, Vec<crate::trace::Problem>) {
        let mut problems = Problems::at("test");
        let input = std::io::Cursor::new(json.to_owned());
        let worker = import(Items::new(input, "test", SHAPE).unwrap(), &mut problems);
        (worker, problems.into_list())
    }

    #[test]
    fn a_file_that_is_cut_off_gives_the_operators_before_the_cut() {
        let (worker, problems) = read(
            r#"{"schema": "1.1.0", "nodes": [{"id": 2, "name": "aten::mul", "ctrl_deps": 1},
            {"id": 3, "name": "aten::a"#,
        );
        assert_eq!(worker.spans.len(), 1);
        assert!(problems[0].text.contains("in the middle of a node"), "{problems:?}");
    }

    #[test]
    fn operators_keep_their_order_and_collectives_their_size() {
        let json = r#"{"schema": "1.1.0", "nodes": [
            {"id": 9, "name": "nccl:all_reduce", "ctrl_deps": 8,
             "inputs": {"values": [], "shapes": [[10, 20]], "types": ["Tensor(float)"]},
             "attrs": [{"name": "tid", "type": "uint64", "value": 2}]},
            {"id": 8, "name": "autograd::engine::evaluate_function: X", "ctrl_deps": 1, "attrs": []},
            {"id": 10, "name": "aten::mul", "ctrl_deps": 8, "attrs": []},
            {"id": 10, "name": "again"}, {"name": "no id"}]}"#;
        let (worker, problems) = read(json);
        let kinds: Vec<_> = worker.spans.iter().map(|span| &span.kind).collect();
        assert_eq!(kinds[0], &Kind::Scope);
        let Kind::Collective(collective) = kinds[1] else { panic!("{kinds:?}") };
        assert_eq!((&*collective.operation, collective.bytes), ("all_reduce", 800));
        assert_eq!(kinds[2], &Kind::Work(Phase::Backward));
        assert_eq!(worker.lanes.len(), 2);
        assert_eq!(problems.len(), 3);
    }
}
