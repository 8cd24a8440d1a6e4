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
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// Layers of a table.
const MOST_LAYERS: usize = 1_000_000;

/// No part of a step takes longer than a day: sums stay far from the ends of their range.
const LONGEST: f64 = 86_400e9;

/// Parts of a step that have a time.
const PARTS: [&str; 3] = ["forward", "backward", "update"];

/// What may follow the name of such a part, and how many nanoseconds it is.
const UNITS: [(&str, f64); 5] = [("", 1e9), ("_s", 1e9), ("_ms", 1e6), ("_us", 1e3), ("_ns", 1.0)];

/// The other columns; `elements` is another word for `tensors`.
const OTHERS: [&str; 6] = ["name", "tensors", "elements", "bytes", "activation_bytes", "dtype"];

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
    let header: Vec<String> = header.iter().map(|name| name.to_lowercase()).collect();
    for (place, name) in header.iter().enumerate() {
        if header[..place].contains(name) {
            problems.add(format!("there are several columns `{name}`; the last one is read"));
        }
    }
    let mut rows = Vec::new();
    for line in lines {
        let values = cells(line);
        if values.len() != header.len() {
            problems.add("a line has more or fewer cells than the first; it is left out");
            continue;
        }
        rows.push(header.iter().cloned().zip(values.into_iter().map(Value::String)).collect());
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

/// What a column holds in this row, unless that is nothing.
fn cell<'r>(row: &'r Row, name: &str) -> Option<&'r Value> {
    row.get(name).filter(|value| !value.is_null() && value.as_str() != Some(""))
}

/// Columns whose names are none that are read: nobody knows what their writer meant by them.
fn report_unknown(rows: &[Row], problems: &mut Problems) {
    let timed = |name: &str| {
        let unit = PARTS.iter().find_map(|part| name.strip_prefix(part));
        unit.is_some_and(|unit| UNITS.iter().any(|(known, _)| *known == unit))
    };
    let names: BTreeSet<&String> = rows.iter().flat_map(Row::keys).collect();
    for name in names {
        if !timed(name) && !OTHERS.contains(&name.as_str()) {
            problems.add(format!("nothing is known of a column `{name}`; it is left out"));
        }
    }
}

/// Nanoseconds of the part, in whatever unit its column has; none if there is no such column or cell.
fn length(row: &Row, part: &str, problems: &mut Problems) -> Option<u64> {
    let column = |unit: &str| cell(row, &format!("{part}{unit}"));
    let mut given = UNITS.iter().filter_map(|(unit, scale)| Some((column(unit)?, scale)));
    let (value, unit) = given.next()?;
    if given.next().is_some() {
        problems.add(format!(
            "a layer has its {part} time in several units; the first of s, ms, us, ns is read"
        ));
    }
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
    let known = |value: &Value| super::words::dtype(value.as_str()?);
    let dtype = cell(row, "dtype").map_or(Dtype::F32, |value| {
        known(value).unwrap_or_else(|| {
            let text = format!("{value} is no element type that is known here; f32 is taken");
            problems.add(text);
            Dtype::F32
        })
    });
    let (sizes, bytes) =
        (cell(row, "tensors").or_else(|| cell(row, "elements")), cell(row, "bytes"));
    if sizes.is_some() && bytes.is_some() {
        problems.add("a layer has both `tensors` and `bytes`; `bytes` is left out");
    }
    let list: Vec<Option<f64>> = match sizes {
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(Value::String(text)) => {
            let parts = text.split([' ', ';']).filter(|part| !part.is_empty());
            parts.map(|part| part.parse().ok()).collect()
        }
        Some(value) => vec![number(value)],
        None => {
            let elements = bytes.map(|value| Some(number(value)? / dtype.size() as f64));
            elements.into_iter().filter(|it| *it != Some(0.0)).collect()
        }
    };
    let mut tensors = Vec::new();
    for elements in list {
        // Whole numbers up to 2^53 are exact.
        let Some(elements) = elements.filter(|it| (1.0..9e15).contains(it)) else {
            problems
                .add("a layer has a tensor whose size is no number of elements; it is left out");
            continue;
        };
        if elements.fract() != 0.0 {
            problems.add("a layer has a tensor of a fraction of an element; its size is rounded");
        }
        let (name, elements) =
            (format!("{name}.{}", tensors.len()).into(), elements.round() as u64);
        tensors.push(Tensor { name, elements, dtype });
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
    report_unknown(&rows, problems);
    let mut used: HashMap<String, u32> = HashMap::new();
    let mut parts = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let mut name = match cell(row, "name") {
            Some(Value::String(name)) => name.clone(),
            // A number, as a rule.
            Some(value) => value.to_string(),
            None => format!("layer {at}"),
        };
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
        let kept = cell(row, "activation_bytes").map(|value| number(value).unwrap_or(-1.0));
        let kept = kept.unwrap_or(0.0);
        if !(0.0..9e15).contains(&kept) || kept.fract() != 0.0 {
            problems.add(
                "a layer has `activation_bytes` that are no number of bytes; the nearest is taken",
            );
        }
        worker.layers.push(Layer {
            tensors: tensors(row, &name, problems),
            name: name.into(),
            // A cast of what is negative or too large saturates.
            activation_bytes: kept.round() as u64,
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
    fn columns_that_are_not_known_and_sizes_that_are_not_whole_are_reported() {
        let said = |text: &str| -> Vec<String> {
            read(text).1.into_iter().map(|problem| problem.text).collect()
        };
        let table = |column: &str, cell: &str| {
            said(&format!("name,forward_ms,backward_ms,{column}\na,1,2,{cell}\nb,1,2,\n"))
        };
        for (column, cell) in [("tensors", "10 20"), ("bytes", "8"), ("update_us", "1")] {
            assert_eq!(table(column, cell), [] as [&str; 0], "{column}; an empty cell is none");
        }
        for (column, cell, expected) in [
            ("backwards_ms", "1", "nothing is known of a column `backwards_ms`"),
            ("update_min", "1", "nothing is known of a column `update_min`"),
            ("backward_us", "1", "its backward time in several units"),
            ("Backward_ms", "1", "several columns `backward_ms`"),
            ("tensors", "10.5", "a fraction of an element"),
            ("bytes", "10", "a fraction of an element"),
            ("bytes", "many", "no number of elements"),
            ("activation_bytes", "-1", "no number of bytes"),
            ("activation_bytes", "some", "no number of bytes"),
        ] {
            let found = table(column, cell);
            assert!(found[0].contains(expected), "{column} {cell}: {found:?}");
        }
        let json =
            r#"[{"forward": 1, "backward": 1, "tensors": [1], "bytes": 4, "lr": 1, "dtype": 3}]"#;
        let found = said(json);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn what_is_wrong_with_a_table_is_reported() {
        let (worker, problems) =
            read("name,forward_s,backward_s,tensors\na,-1,1,x 5\na,nan,1,0\nb,1\n");
        assert_eq!(worker.layers.len(), 2);
        assert_eq!(worker.layers[0].tensors.len(), 1);
        assert_eq!(problems.len(), 4, "{problems:?}");
        let (_, problems) = read(r#"[{"forwards": 1, "backward": 1}, 3]"#);
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
