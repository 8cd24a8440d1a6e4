//! Tables of layers, for whoever has times and sizes but no trace: CSV or JSON in, one step out, with its layers.
//!
//! A row is a layer, in the order of the forward pass. Columns, in any order, of which `forward` and `backward` must be
//! there:
//!
//! | column | holds |
//! |---|---|
//! | `name` | the layer; else `layer 0`, `layer 1`, … |
//! | `forward`, `backward`, `update` | how long each part takes; the unit follows the name: `forward_ms`, `backward_us`; `s`, `ms`, `us` or `ns`, seconds without one |
//! | `tensors` | elements of each parameter: a list in JSON, numbers with spaces or `;` between them in CSV |
//! | `bytes` | instead of `tensors`: bytes of all parameters of the layer |
//! | `activation_bytes` | what the forward pass keeps for the backward pass |
//! | `dtype` | of the parameters: `f32` if it is not said |
//!
//! CSV has the names in its first line; lines that begin with `#` are skipped. JSON is a list of objects, or an object
//! whose `layers` is that list.

use super::{
    Kind, Lane, LaneId, LaneKind, Layer, Phase, Span, Stamp, Step, Tensor, WorkerTrace, assemble,
    items::{Items, Shape},
    problems::Problems,
};
use crate::Dtype;
use serde_json::{Map, Value};
use std::{collections::HashMap, sync::Arc};

/// Layers of a table.
const MOST_LAYERS: usize = 1_000_000;

/// No part of a step takes longer than a day: sums stay far from the ends of their range.
const LONGEST: f64 = 86_400e9;

/// How layers lie in a file of JSON.
pub(super) const SHAPE: Shape =
    Shape { list: "layers", one: "a layer", many: "layers", may_stay_open: false };

type Row = Map<String, Value>;

/// Whether this is the beginning of a table.
pub(super) fn recognises(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|it| !it.is_empty() && !it.starts_with('#'));
    let first = first.unwrap_or("");
    if first.starts_with(['[', '{']) {
        return text.contains("\"forward") && text.contains("\"backward");
    }
    let columns = cells(first);
    let has = |part: &str| columns.iter().any(|column| column.to_lowercase().starts_with(part));
    has("forward") && has("backward")
}

/// Read a whole file of comma-separated values.
pub(super) fn import(bytes: &[u8], problems: &mut Problems) -> WorkerTrace {
    let text = String::from_utf8_lossy(bytes);
    if !text.ends_with(['\n', '\r']) {
        problems.add("the last line has no line break; if the file was cut off there, its last number is too short");
    }
    let rows = csv(text.trim_start_matches('\u{feff}').trim_start(), problems);
    step(rows, problems)
}

/// Read a file of JSON as far as it goes.
pub(super) fn import_json(mut items: Items, problems: &mut Problems) -> WorkerTrace {
    let next = || items.next(|json| serde_json::from_slice(json));
    let rows = std::iter::from_fn(next).collect();
    problems.add_all(items.finish().1);
    step(rows, problems)
}

fn csv(text: &str, problems: &mut Problems) -> Vec<Row> {
    let mut lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let header: Vec<String> = lines.next().map(cells).unwrap_or_default();
    let mut rows = Vec::new();
    for line in lines {
        let values = cells(line);
        if values.len() != header.len() {
            problems.add("a line has more or fewer cells than the first; it is left out");
            continue;
        }
        let pairs = header
            .iter()
            .map(|name| name.to_lowercase())
            .zip(values.into_iter().map(Value::String));
        rows.push(pairs.collect());
    }
    rows
}

/// Cells of a line, out of their quotes.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            // The list is never empty.
            _ => cells.last_mut().expect("there is a first cell").push(character),
        }
    }
    cells.into_iter().map(|cell| cell.trim().to_owned()).collect()
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Nanoseconds of the part, in whatever unit its column has; none if there is no such column or cell.
fn length(row: &Row, part: &str, problems: &mut Problems) -> Option<u64> {
    const UNITS: [(&str, f64); 5] =
        [("", 1e9), ("_s", 1e9), ("_ms", 1e6), ("_us", 1e3), ("_ns", 1.0)];
    let column = |unit: &str| row.get(&format!("{part}{unit}"));
    let (value, unit) = UNITS.iter().find_map(|(unit, scale)| Some((column(unit)?, scale)))?;
    let nanoseconds = number(value).map(|value| value * unit);
    let fits = nanoseconds.filter(|length| (0.0..LONGEST).contains(length));
    if fits.is_none() {
        problems.add(format!(
            "a layer has a {part} time that is no length of time; it is taken to be nothing"
        ));
    }
    Some(fits.unwrap_or(0.0).round() as u64)
}

/// Elements of each parameter.
fn tensors(row: &Row, name: &str, problems: &mut Problems) -> Vec<Tensor> {
    let dtype = match row.get("dtype").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => super::words::dtype(text).unwrap_or_else(|| {
            problems.add(format!("`{text}` is no element type that is known here; f32 is taken"));
            Dtype::F32
        }),
        None => Dtype::F32,
    };
    let list: Vec<Option<f64>> = match row.get("tensors").or_else(|| row.get("elements")) {
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(Value::String(text)) => {
            let parts = text.split([' ', ';']).filter(|part| !part.is_empty());
            parts.map(|part| part.parse().ok()).collect()
        }
        Some(value) => vec![number(value)],
        None => match row.get("bytes").map(number) {
            Some(bytes) => {
                let elements = bytes.map(|bytes| bytes / dtype.size() as f64);
                elements.into_iter().filter(|it| *it != 0.0).map(Some).collect()
            }
            None => Vec::new(),
        },
    };
    let mut tensors = Vec::new();
    for elements in list {
        // Whole numbers up to 2^53 are exact.
        match elements.filter(|it| (1.0..9e15).contains(it)) {
            Some(elements) => tensors.push(Tensor {
                name: format!("{name}.{}", tensors.len()).into(),
                elements: elements.round() as u64,
                dtype,
            }),
            None => problems
                .add("a layer has a tensor whose size is no number of elements; it is left out"),
        }
    }
    tensors
}

/// One step: forward through the layers, backward, update.
fn step(mut rows: Vec<Row>, problems: &mut Problems) -> WorkerTrace {
    if rows.len() > MOST_LAYERS {
        problems.add(format!("only the first {MOST_LAYERS} layers are read"));
        rows.truncate(MOST_LAYERS);
    }
    let mut worker = WorkerTrace {
        world: Some(1),
        // A table says how long parts of a step take, not when they happened.
        laid_out: true,
        lanes: vec![Lane { name: "compute".into(), kind: LaneKind::Thread }],
        ..WorkerTrace::default()
    };
    let mut used: HashMap<String, u32> = HashMap::new();
    let mut parts = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let given = row.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let mut name = given.map_or_else(|| format!("layer {at}"), str::to_owned);
        let uses = used.entry(name.clone()).or_default();
        *uses += 1;
        if *uses > 1 {
            problems.add("layers have the same name; a number is added");
            name = format!("{name} #{uses}");
        }
        let mut required = |part: &str| {
            length(row, part, problems).unwrap_or_else(|| {
                problems.add(format!("a layer has no {part} time; it is taken to be nothing"));
                0
            })
        };
        let (forward, backward) = (required("forward"), required("backward"));
        let update = length(row, "update", problems);
        let kept = row.get("activation_bytes").and_then(number).unwrap_or(0.0);
        worker.layers.push(Layer {
            tensors: tensors(row, &name, problems),
            name: name.into(),
            // A cast of what is negative or too large saturates.
            activation_bytes: kept as u64,
        });
        parts.push((forward, backward, update));
    }
    let mut now = Stamp(0);
    let mut span = |name: &Arc<str>, length: u64, phase: Phase| {
        let begin = now;
        now = now.after(length);
        let kind = Kind::Work(phase);
        Span { name: name.clone(), lane: LaneId(0), begin, length, kind, after: Vec::new() }
    };
    let layers = || worker.layers.iter().zip(&parts);
    let mut spans: Vec<Span> = layers()
        .map(|(layer, (forward, ..))| span(&layer.name, *forward, Phase::Forward))
        .collect();
    let backward = layers().rev();
    spans.extend(
        backward.map(|(layer, (_, length, _))| span(&layer.name, *length, Phase::Backward)),
    );
    spans.extend(layers().filter_map(|(layer, (_, _, update))| {
        update.map(|length| span(&layer.name, length, Phase::Update))
    }));
    worker.spans = spans;
    if !worker.layers.is_empty() {
        worker.steps = vec![Step { number: 0, begin: Stamp(0), end: now }];
    }
    assemble::order(&mut worker);
    worker
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (WorkerTrace, Vec<crate::trace::Problem>) {
        assert!(recognises(text), "{text}");
        let mut problems = Problems::at("test");
        let worker = if text.starts_with(['[', '{']) {
            let input = std::io::Cursor::new(text.to_owned());
            import_json(Items::new(input, "test", SHAPE).unwrap(), &mut problems)
        } else {
            import(text.as_bytes(), &mut problems)
        };
        (worker, problems.into_list())
    }

    #[test]
    fn a_csv_table_becomes_one_step() {
        let (worker, problems) = read(
            "# two layers\nname, Forward_ms,backward_us,tensors,activation_bytes,update_ns\n\
             conv,1.5,2500,100 20,4096,7\n\"fc, last\",0.5,500,30;4,,3\n",
        );
        assert_eq!(problems, []);
        let times: Vec<_> =
            worker.spans.iter().map(|it| (&*it.name, it.begin.0, it.length)).collect();
        assert_eq!(
            times,
            [
                ("conv", 0, 1_500_000),
                ("fc, last", 1_500_000, 500_000),
                ("fc, last", 2_000_000, 500_000),
                ("conv", 2_500_000, 2_500_000),
                ("conv", 5_000_000, 7),
                ("fc, last", 5_000_007, 3),
            ]
        );
        assert_eq!(worker.steps[0].end, Stamp(5_000_010));
        let sizes: Vec<_> = worker.layers[1].tensors.iter().map(Tensor::bytes).collect();
        assert_eq!(sizes, [120, 16]);
        assert_eq!(worker.layers[0].activation_bytes, 4096);
    }

    #[test]
    fn json_says_the_same_in_seconds_without_a_unit() {
        let (worker, problems) = read(
            r#"{"name": "x", "layers": [
            {"name": "a", "tensors": [3, 4], "forward": 0.001, "backward": 2e-3},
            {"forward_ms": 1, "backward_ms": 2, "bytes": 8, "dtype": "f16"}]}"#,
        );
        assert_eq!(problems, []);
        assert_eq!(worker.spans.iter().map(|it| it.length).sum::<u64>(), 6_000_000);
        assert_eq!(&*worker.layers[1].name, "layer 1");
        let tensor = &worker.layers[1].tensors[0];
        assert_eq!((tensor.elements, tensor.bytes()), (4, 8));
    }

    #[test]
    fn json_that_is_cut_off_gives_the_layers_before_the_cut() {
        let text = r#"[{"name": "a", "forward": 1, "backward": 2}, {"name": "b", "forward": 3, "backward": 4}]"#;
        for (cut, layers) in [(1, 2), (10, 1), (text.len() - 50, 1)] {
            let (worker, problems) = read(&text[..text.len() - cut]);
            assert_eq!(worker.layers.len(), layers, "{cut}");
            assert!(problems[0].text.contains("the file ends"), "{problems:?}");
        }
    }

    #[test]
    fn a_last_line_without_its_end_may_have_been_cut_and_that_is_said() {
        let said = |text: &str| {
            let mut problems = Problems::at("test");
            import(text.as_bytes(), &mut problems);
            problems.into_list()
        };
        assert_eq!(said("name,forward_ms,backward_ms\na,1,2\nb,1,20\n"), []);
        let cut = said("name,forward_ms,backward_ms\na,1,2\nb,1,2");
        assert!(cut[0].text.contains("no line break"), "{cut:?}");
    }

    #[test]
    fn what_is_wrong_with_a_table_is_reported() {
        let (worker, problems) =
            read("name,forward_s,backward_s,tensors\na,-1,1,x 5\na,nan,1,0\nb,1\n");
        assert_eq!(worker.layers.len(), 2);
        assert_eq!(worker.layers[0].tensors.len(), 1);
        assert_eq!(problems.len(), 4, "{problems:?}");
        let (_, problems) = read(r#"[{"forwards": 1, "backward": 1}, 3]"#);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
