//! `paceline replay` as people call it: a table of layers or a trace in; times, causes, drawings and answers out.

use paceline_job::{Link, Measured, Rate, Settings, View};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

const TABLE: &str = "\
name,forward_ms,backward_ms,tensors
a,1,2,200000
b,1,2,200000
c,1,2,4000000
";

fn paceline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paceline")).args(arguments).output().unwrap()
}

fn table(folder: &Path) -> String {
    let path = folder.join("layers.csv");
    fs::write(&path, TABLE).unwrap();
    path.to_str().unwrap().to_string()
}

fn report(arguments: &[&str]) -> Value {
    let output = paceline(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn answers(report: &Value) -> Vec<f64> {
    let answers = report["what_if"].as_array().unwrap();
    answers.iter().map(|answer| answer["step_ms"].as_f64().unwrap()).collect()
}

#[test]
fn a_faster_network_and_fewer_bytes_shorten_a_step_until_computation_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let sweep = "workers=4+bandwidth=1gbit,10gbit,1000gbit";
    let half = "workers=4+bandwidth=1gbit+precision=f16";
    let common = ["replay", &trace, "--bandwidth", "1gbit"];
    let found = report(&[&common[..], &["--what-if", sweep, "--what-if", half]].concat());
    let steps = answers(&found);
    assert_eq!(steps.len(), 4);
    assert!(steps[0] > 2.0 * steps[1] && steps[1] > steps[2], "{steps:?}");
    // 17.6 MB go one and a half times over a gigabit a second; nine milliseconds are computed.
    assert!(steps[0] > 200.0 && steps[2] < 11.0, "{steps:?}");
    assert!((0.45..0.6).contains(&(steps[3] / steps[0])), "{steps:?}");
    assert_eq!(found["step_ms"], found["compute_ms"], "one worker has nobody to wait for");
}

#[test]
fn one_worker_stands_for_all_where_all_are_alike() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let common = ["replay", &trace, "--bandwidth", "1gbit", "--what-if", "strategy=ring+workers=8"];
    let all = answers(&report(&common))[0];
    let one = answers(&report(&[&common[..], &["--alike"]].concat()))[0];
    // All lengths are whole multiples of eight.
    assert_eq!(all, one);
    let tree = ["replay", &trace, "--bandwidth", "1gbit", "--alike", "--what-if"];
    for (workers, exact) in [("strategy=ring+workers=8", true), ("strategy=ring+workers=7", false)]
    {
        let found = report(&[&tree[..], &[workers]].concat());
        assert_eq!(notes(&found).contains("equal parts"), !exact, "{found}");
    }
    let refused = paceline(&[&tree[..], &["strategy=double_tree+workers=8"]].concat());
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(!refused.status.success() && error.contains("`ring`"), "{error}");
}

#[test]
fn what_is_drawn_stands_alone_and_what_is_written_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (page, plot, written) = (path("p.html"), path("p.svg"), path("p.json.gz"));
    let common = ["replay", &trace, "--bandwidth", "1gbit", "--what-if", "workers=2,4"];
    let files = ["--html", &page, "--plot", &plot, "--trace-out", &written];
    let output = paceline(&[&common[..], &files[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("workers=4") && text.contains("Critical path"), "{text}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("http"), "nothing is fetched from elsewhere");
    // One worker sends nothing, so engines had nothing to predict; and no line of the report is longer than the window.
    assert!(page.contains("As replayed") && !page.contains("As predicted"), "{page}");
    assert!(page.contains("white-space:pre-wrap"), "{page}");
    assert!(fs::read_to_string(plot).unwrap().contains("workers=4"));
    is_the_same(&report(&["replay", &trace]), &report(&["replay", &written]));
}

/// A written prediction is the job again: as many operations, and the same step by all ways of playing it.
fn is_the_same(before: &Value, after: &Value) {
    assert_eq!(before["operations"], after["operations"], "{after}");
    for field in ["step_ms", "recorded_step_ms"] {
        // What was predicted is what was recorded in the file.
        let (one, other) = (before["step_ms"].as_f64().unwrap(), after[field].as_f64().unwrap());
        assert!((other / one - 1.0).abs() < 0.01, "{field}: {one} and {other} ms: {after}");
    }
    assert_eq!(after["problems"], json!([]));
}

#[test]
fn links_have_their_share_of_the_critical_path_in_text_and_data() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        fs::write(folder.path().join(format!("worker-{rank}.json")), recorded(rank)).unwrap();
    }
    let trace = folder.path().to_str().unwrap();
    let found = report(&["replay", trace, "--bandwidth", "1gbit"]);
    let milliseconds = |list: &Value| -> f64 {
        let parts = list.as_array().unwrap().iter();
        parts.map(|part| part["milliseconds"].as_f64().unwrap()).sum()
    };
    let path = found["critical_path"].as_array().unwrap();
    let work = path.iter().filter(|part| part["spent"] != "communication").cloned().collect();
    let rest = found["off_links_ms"].as_f64().unwrap();
    let sum = milliseconds(&Value::Array(work)) + milliseconds(&found["links"]) + rest;
    assert!((sum - found["step_ms"].as_f64().unwrap()).abs() < 1e-6, "{sum}: {found}");
    assert_ne!(found["links"][0]["from"], found["links"][0]["to"], "{found}");
    assert_eq!(rest, 0.0, "{found}");
    let text = paceline(&["replay", trace, "--bandwidth", "1gbit"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("Links of the critical path:") && text.contains("host-0 to host-1"),
        "{text}"
    );
}

/// Milliseconds that the steps of [`profiled`] take.
const STEPS: [u64; 3] = [70, 30, 20];

/// A file of PyTorch's profiler: steps of so many milliseconds, the last five of which are no computation. If there are
/// several workers, an all-reduce takes four of them.
fn profiled(path: &Path, rank: u32, world: u32) -> String {
    let mut events = Vec::new();
    let mut begin = 1_000_000;
    for (number, length) in STEPS.iter().map(|step| step * 1000).enumerate() {
        let mut event = |category: &str, name: &str, from: u64, length: u64, more: Value| {
            events.push(json!({
                "ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": begin + from, "dur": length,
                "args": more,
            }));
        };
        event("user_annotation", &format!("ProfilerStep#{number}"), 0, length, json!({}));
        event("cpu_op", "forward", 0, length - 5000, json!({}));
        if world > 1 {
            let about = json!({
                "Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": world,
            });
            event("user_annotation", "gloo:all_reduce", length - 5000, 4000, about);
        }
        begin += length;
    }
    let about = json!({ "rank": rank, "world_size": world });
    let file = json!({ "schemaVersion": 1, "distributedInfo": about, "traceEvents": events });
    fs::write(path, file.to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn the_last_step_is_compared_with_itself_where_all_others_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let trace = profiled(&folder.path().join("alone.json"), 0, 1);
    for (skip, step) in [("0", 25.0), ("1", 25.0), ("2", 20.0)] {
        let found = report(&["replay", &trace, "--skip", skip]);
        for field in ["measured_step_ms", "recorded_step_ms", "step_ms"] {
            assert_eq!(found[field].as_f64(), Some(step), "{field} with --skip {skip}: {found}");
        }
        let path = found["critical_path"].as_array().unwrap().iter();
        let sum: f64 = path.map(|share| share["share"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "--skip {skip}: {found}");
    }
}

#[test]
fn a_replay_of_steps_that_lost_events_does_not_claim_to_have_all() {
    let folder = tempfile::tempdir().unwrap();
    let trace = profiled(&folder.path().join("alone.json"), 0, 1);
    let whole = fs::read_to_string(&trace).unwrap();
    assert_eq!(report(&["replay", &trace])["lossy_steps"], 0);
    // The operator of one step has a length that none can have; and the file ends too early.
    let negative = whole.replacen("\"dur\":65000", "\"dur\":-65000", 1);
    let cut = whole[..whole.len() - 10].to_string();
    for (text, lossy) in [(negative, 1), (cut, 3)] {
        assert_ne!(text, whole);
        fs::write(&trace, text).unwrap();
        let found = report(&["replay", &trace]);
        assert_eq!(found["lossy_steps"], lossy, "{found}");
        assert!(notes(&found).contains(&format!("from {lossy} of 3 steps")), "{found}");
        let text = String::from_utf8(paceline(&["replay", &trace]).stdout).unwrap();
        assert!(text.contains("as recorded, events missing"), "{text}");
    }
}

#[test]
fn every_step_can_be_played_alone() {
    let folder = tempfile::tempdir().unwrap();
    let trace = profiled(&folder.path().join("alone.json"), 0, 1);
    for (number, length) in STEPS.iter().enumerate() {
        let found = report(&["replay", &trace, "--step", &number.to_string()]);
        for field in ["measured_step_ms", "recorded_step_ms", "step_ms"] {
            assert_eq!(found[field].as_f64(), Some(*length as f64), "{field} of step {number}");
        }
    }
    let refused = paceline(&["replay", &trace, "--step", "9"]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && error.contains("steps 0 to 2"), "{error}");
}

/// A timeline of one worker, with what ranks say of themselves while they negotiate, or without.
fn timeline(path: &Path, ranks: &[&str]) -> String {
    let mut events = Vec::new();
    for step in 0..4 {
        for tensor in [1, 2] {
            let mut event = |kind: &str, name: &str, at: u64, args: Value| {
                let time = step * 1000 + tensor * 100 + at;
                events.push(
                    json!({"ph": kind, "name": name, "ts": time, "pid": tensor, "args": args}),
                );
            };
            event("B", "NEGOTIATE_ALLREDUCE", 0, json!({}));
            for rank in ranks {
                event("X", rank, 1, json!({}));
            }
            event("E", "", 3, json!({}));
            event("B", "ALLREDUCE", 4, json!({}));
            event("E", "", 301, json!({"dtype": "float32", "shape": "[100]"}));
        }
    }
    fs::write(path, Value::Array(events).to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn a_timeline_of_horovod_has_operations_that_a_step_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = timeline(&folder.path().join("timeline.json"), &["0", "1"]);
    let found = report(&["replay", &path, "--what-if", "device=2x"]);
    assert_eq!(found["operations"], 6, "{found}");
    // The last operation is ready 100 microseconds after the first and takes 300; the rest is computed.
    for (field, step) in
        [("measured_step_ms", 1.0), ("recorded_step_ms", 1.0), ("exposed_comm_ms", 0.3)]
    {
        assert!((found[field].as_f64().unwrap() - step).abs() < 1e-9, "{field}: {found}");
    }
    // Half of what is computed before an operation is ready, and all of what it takes.
    assert!((answers(&found)[0] - 0.65).abs() < 1e-9, "{found}");
    assert!(notes(&found).contains("of 2 workers, of whom the trace has 1"), "{found}");
}

#[test]
fn a_worker_that_does_not_say_how_many_others_there_were_is_not_alone() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [&[][..], &["0", "1", "2"]] {
        let recorded = timeline(&folder.path().join("timeline.json"), ranks);
        let written = folder.path().join("predicted.json.gz");
        let written = written.to_str().unwrap();
        let said = if ranks.is_empty() { "more workers than the 1" } else { "of 3 workers" };
        let found = report(&["replay", &recorded, "--trace-out", written]);
        assert!(notes(&found).contains(said), "{found}");
        let text = String::from_utf8(paceline(&["replay", &recorded]).stdout).unwrap();
        let head =
            if ranks.is_empty() { "1 worker (of how many is not said)" } else { "1 of 3 workers" };
        assert!(text.contains(head), "{text}");
        // What is written of it says no more than it does.
        for trace in [&recorded, written] {
            for asked in
                ["bandwidth=1gbit", "workers=8", "strategy=ring", "bandwidth=1gbit+workers=8"]
            {
                let refused =
                    paceline(&["replay", trace, "--bandwidth", "1gbit", "--what-if", asked]);
                let error = String::from_utf8_lossy(&refused.stderr).to_string();
                assert_eq!(refused.status.code(), Some(2), "{trace}, {asked}: {error}");
                assert!(error.contains(said), "{trace}, {asked}: {error}");
            }
        }
        let answered = report(&["replay", &recorded, "--what-if", "device=2x"]);
        assert!((answers(&answered)[0] - 0.65).abs() < 1e-3, "{answered}");
    }
}

#[test]
fn groups_without_all_of_their_members_stay_so_when_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    for rank in [0, 2] {
        let path = folder.path().join(format!("rank{rank}.json"));
        profiled(&path, rank, 4);
        let text = fs::read_to_string(&path).unwrap();
        let group = format!(r#""Group size":2,"Process Group Ranks":"[{rank}, {}]""#, rank + 1);
        fs::write(&path, text.replace(r#""Group size":4"#, &group)).unwrap();
    }
    let recorded = folder.path().to_str().unwrap().to_string();
    let elsewhere = tempfile::tempdir().unwrap();
    let written = elsewhere.path().join("predicted.json.gz");
    let written = written.to_str().unwrap();
    report(&["replay", &recorded, "--trace-out", written]);
    for trace in [recorded.as_str(), written] {
        for command in [&["replay", "--what-if", "strategy=ring"][..], &["optimize"]] {
            let arguments = [command, &[trace, "--bandwidth", "1gbit"]].concat();
            let refused = paceline(&arguments);
            let error = String::from_utf8_lossy(&refused.stderr).to_string();
            assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {error}");
            assert!(error.contains("traces of all workers"), "{arguments:?}: {error}");
        }
    }
}

#[test]
fn one_worker_stands_for_all_also_where_they_do_more_than_sum() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let path = folder.path().join(format!("worker-{rank}.json"));
        let mut file: Value = serde_json::from_str(&recorded(rank)).unwrap();
        let events = file["traceEvents"].as_array_mut().unwrap();
        let sums = events.iter().filter(|event| event["cat"] == "operation").cloned();
        let gathers: Vec<Value> = sums
            .map(|mut event| {
                event["name"] = "counts".into();
                event["args"]["operation"] = "all_gather".into();
                event
            })
            .collect();
        events.extend(gathers);
        fs::write(path, file.to_string()).unwrap();
    }
    let trace = folder.path().to_str().unwrap();
    let common = ["replay", trace, "--bandwidth", "1gbit"];
    let asked = ["--alike", "--what-if", "strategy=ring+workers=4,1000"];
    let found = report(&[&common[..], &asked].concat());
    assert_eq!(answers(&found).len(), 2, "{found}");
    assert!(notes(&found).contains("1 operations a step are no all-reduces"), "{found}");
}

#[test]
fn what_was_predicted_does_not_take_the_place_of_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        fs::write(folder.path().join(format!("worker-{rank}.json")), recorded(rank)).unwrap();
    }
    let trace = folder.path().to_str().unwrap();
    let common = ["replay", trace, "--bandwidth", "1gbit"];
    let written = folder.path().join("a-prediction.json.gz");
    let before = report(&[&common[..], &["--trace-out", written.to_str().unwrap()]].concat());
    let after = report(&common);
    assert_eq!(after["measured_step_ms"], before["measured_step_ms"], "{after}");
    assert!(after["problems"].to_string().contains("is of rank 0 again"), "{after}");
}

#[test]
fn tensors_of_impossible_sizes_are_refused_and_not_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layers.csv");
    fs::write(&path, "name,forward_ms,backward_ms,tensors\na,1,2,944294967295800\n").unwrap();
    for asked in ["batch=2x", "workers=2"] {
        let refused = paceline(&[
            "replay",
            path.to_str().unwrap(),
            "--bandwidth",
            "1gbit",
            "--what-if",
            asked,
        ]);
        let error = String::from_utf8_lossy(&refused.stderr).to_string();
        assert!(refused.status.code() == Some(1) && error.contains("pieces"), "{asked}: {error}");
    }
}

#[test]
fn company_for_a_worker_that_sends_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = profiled(&folder.path().join("alone.json"), 0, 1);
    let refused = paceline(&["replay", &trace, "--bandwidth", "1gbit", "--what-if", "workers=8"]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && error.contains("was alone"), "{error}");
    assert_eq!(answers(&report(&["replay", &trace, "--what-if", "workers=1"])), [25.0]);
}

/// All that is said about what can be asked.
fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

#[test]
fn workers_of_one_host_need_no_bandwidth_for_what_no_wire_carries() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        profiled(&folder.path().join(format!("one_{rank}.5.pt.trace.json")), rank, 2);
    }
    let trace = folder.path().to_str().unwrap();
    let found = report(&["replay", trace]);
    assert_eq!((&found["hosts"], &found["simulated"]), (&json!(1), &json!(false)), "{found}");
    assert!(notes(&found).contains("no wire"), "{found}");
    let asked = ["--what-if", "straggler=none", "--what-if", "bandwidth=1gbit"];
    let found = report(&[&["replay", trace], &asked[..]].concat());
    assert_eq!(answers(&found), [25.0, 25.0], "{found}");
    assert!(notes(&found).contains("change nothing"), "{found}");
    let refused = paceline(&["replay", trace, "--what-if", "partition=1MiB"]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && error.contains("memory"), "{error}");
}

#[test]
fn operations_whose_other_workers_are_missing_take_as_long_as_recorded_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let trace = profiled(&folder.path().join("first.json"), 0, 8);
    let second = folder.path().join("two");
    fs::create_dir(&second).unwrap();
    for rank in 0..2 {
        profiled(&second.join(format!("rank{rank}.json")), rank, 8);
    }
    for (trace, there) in [(&*trace, 1), (second.to_str().unwrap(), 2)] {
        let given = ["replay", trace, "--bandwidth", "1gbit"];
        let found = report(&[&given[..], &["--what-if", "batch=1x"]].concat());
        assert_eq!((answers(&found), &found["simulated"]), (vec![25.0], &json!(false)), "{found}");
        assert_eq!(found["exposed_comm_ms"], json!(4.0), "{found}");
        assert_eq!(found["missing_workers"], 8 - there, "{found}");
        let said = format!("of 8 workers, of whom the trace has {there}");
        assert!(notes(&found).contains(&said), "{found}");
        let text = String::from_utf8(paceline(&given).stdout).unwrap();
        let head = format!("{there} of 8 workers ({} missing) on", 8 - there);
        assert!(text.starts_with(&head), "{text}");
        for asked in ["workers=16", "precision=f16", "strategy=ring", "bandwidth=1gbit+batch=2x"] {
            let refused = paceline(&[&given[..], &["--what-if", asked]].concat());
            let error = String::from_utf8_lossy(&refused.stderr).to_string();
            assert_eq!(refused.status.code(), Some(2), "{asked}: {error}");
            assert!(error.contains(&said) && error.contains("Give the traces"), "{error}");
        }
        for more in [&[][..], &["--workers", "4"]] {
            let refused = paceline(&[&["optimize", trace], more].concat());
            let error = String::from_utf8_lossy(&refused.stderr).to_string();
            assert!(error.contains("give the traces of all workers"), "{more:?}: {error}");
            assert!(!error.contains("give --workers"), "{more:?}: {error}");
        }
    }
}

#[test]
fn missing_workers_are_taken_to_be_like_the_others_only_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("worker-1.json");
    fs::write(&trace, recorded(1)).unwrap();
    let given = ["replay", trace.to_str().unwrap(), "--bandwidth", "1gbit"];
    let found = report(&given);
    assert_eq!((&found["simulated"], &found["missing_workers"]), (&json!(false), &json!(1)));
    assert!(notes(&found).contains("--what-if workers=2"), "{found}");
    let refused = paceline(&[&given[..], &["--what-if", "partition=1MiB"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    fs::write(folder.path().join("worker-0.json"), recorded(0)).unwrap();
    let whole = report(&["replay", folder.path().to_str().unwrap(), "--bandwidth", "1gbit"]);
    let asked = report(&[&given[..], &["--what-if", "workers=2"]].concat());
    assert_eq!(answers(&asked)[0], whole["step_ms"].as_f64().unwrap(), "both workers do the same");
    let now = asked["step_ms"].as_f64().unwrap();
    let speed = asked["what_if"][0]["speed"].as_f64().unwrap();
    assert!((speed - now / answers(&asked)[0]).abs() < 1e-9, "as many samples as in the job");
    let plan = ["optimize", given[1], "--bandwidth", "1gbit"];
    let refused = paceline(&plan);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && error.contains("--workers 2"), "{error}");
    assert!(paceline(&[&plan[..], &["--workers", "2"]].concat()).status.success());
}

#[test]
fn the_same_is_said_about_a_trace_whoever_looks_at_it() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        // Two hosts without messages, which says something about clocks; layers that are not alike.
        let text = recorded(rank).replacen("fc.weight", &format!("of worker {rank}"), 1);
        fs::write(folder.path().join(format!("worker-{rank}.json")), text).unwrap();
    }
    let trace = folder.path().to_str().unwrap();
    let of_replay = report(&["replay", trace])["problems"].clone();
    let shown = report(&["trace", trace])["problems"].clone();
    let text = |one: &Value| {
        let (place, text) = (one["place"].as_str().unwrap(), one["text"].as_str().unwrap());
        format!("{place}: {text}")
    };
    let shown: Vec<String> = shown.as_array().unwrap().iter().map(text).collect();
    let of_replay: Vec<&str> =
        of_replay.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(shown.iter().any(|it| it.starts_with("clocks: ")), "{shown:?}");
    assert!(shown.iter().any(|it| it.starts_with("worker 1: ")), "{shown:?}");
    assert_eq!(shown.len(), of_replay.len(), "{shown:?} {of_replay:?}");
    for (one, other) in shown.iter().zip(of_replay) {
        assert!(other.starts_with(one.as_str()), "{one} {other}");
    }
}

#[test]
fn operations_that_do_not_say_their_size_take_as_long_as_recorded_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let path = folder.path().join(format!("rank{rank}.json"));
        profiled(&path, rank, 2);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("In msg nelems", "nothing")).unwrap();
    }
    let trace = folder.path().to_str().unwrap();
    let found = report(&["replay", trace, "--bandwidth", "1gbit", "--what-if", "device=2x"]);
    assert_eq!((&found["hosts"], &found["simulated"]), (&json!(2), &json!(false)), "{found}");
    assert!(notes(&found).contains("record_shapes=True"), "{found}");
    assert!(found["problems"].to_string().contains("does not say how much it carries"), "{found}");
    let refused = paceline(&["replay", trace, "--what-if", "bandwidth=1gbit"]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(2) && error.contains("record_shapes"), "{error}");
}

/// The file of a worker as our own runtime writes it: five steps, one layer, one operation in each.
fn recorded(rank: u32) -> String {
    recorded_steps(rank, 5, 0)
}

/// The same of more steps, of which each has a longer forward pass than the one before.
fn recorded_steps(rank: u32, steps: u32, longer: u32) -> String {
    let mut events = Vec::new();
    let mut event = |category: &str, name: &str, row: u32, begin: u32, length: u32, args: Value| {
        events.push(json!({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": row,
            "ts": begin, "dur": length, "args": args}));
    };
    let mut at = 0;
    for step in 0..steps {
        let more = step * longer;
        event("step", &format!("step {step}"), 0, at, 1000 + more, json!({"number": step}));
        event("forward", "fc", 1, at, 200 + more, json!({"layer": 0}));
        at += more;
        event("backward", "fc", 1, at + 200, 300, json!({"layer": 0}));
        let args = json!({"operation": "all_reduce", "use": step, "bytes": 4000, "dtype": "f32"});
        event("operation", "fc.weight", 2, at + 500, 400, args);
        event("wait", "wait", 1, at + 500, 400, json!({}));
        event("post", "post", 1, at + 490, 10, json!({}));
        at += 1000;
    }
    let tensors = json!([{"name": "fc.weight", "elements": 1000, "dtype": "f32"}]);
    let about = json!({"format": 1, "version": "0", "host": format!("host-{rank}"), "view": null,
        "layers": [{"name": "fc", "tensors": tensors}]});
    json!({"distributedInfo": {"rank": rank, "world_size": 2}, "paceline": about,
        "traceEvents": events})
    .to_string()
}

#[test]
fn a_program_that_ended_before_a_step_was_recorded_shows_none() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let text = recorded(rank).replace(r#""cat":"step""#, r#""cat":"begun""#);
        fs::write(folder.path().join(format!("worker-{rank}.json")), text).unwrap();
    }
    let refused = paceline(&["replay", folder.path().to_str().unwrap()]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(!refused.status.success() && error.contains("record several steps"), "{error}");
}

#[test]
fn a_replay_and_a_planner_agree_about_a_step_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let text = recorded_steps(rank, 12, 30);
        fs::write(folder.path().join(format!("worker-{rank}.json")), text).unwrap();
    }
    let common = [folder.path().to_str().unwrap(), "--bandwidth", "1gbit"];
    let replayed = report(&[&["replay"], &common[..]].concat());
    let planned = report(&[&["optimize"], &common[..]].concat());
    assert_eq!(planned["post"], "recorded", "{planned}");
    assert_eq!(replayed["step_ms"], planned["before_ms"]);
}

#[test]
fn a_plan_that_was_in_force_is_told_from_one_that_is_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let plan = folder.path().join("plan.toml");
    fs::write(
        &plan,
        "[settings]\nstrategy = \"ring\"\npartition = \"1MiB\"\n\n[batch]\naccumulate = 2\n",
    )
    .unwrap();
    let plan = plan.to_str().unwrap();
    let common = ["replay", &trace, "--bandwidth", "1gbit"];
    let settings = "strategy=ring+partition=1MiB+workers=4";
    let with_plan = format!("plan={plan}+workers=4");
    let asked = report(
        &[&common[..], &["--plan", plan, "--what-if", &with_plan, "--what-if", settings]].concat(),
    );
    let steps = answers(&asked);
    assert_eq!(steps[1], steps[2], "{asked}");
    assert_eq!(asked["strategy"], "auto", "what is in force stays: {asked}");
    assert!(notes(&asked).contains("passes over parts of the batch are not played"), "{asked}");
    let told = report(&[&common[..], &["--in-force", plan]].concat());
    assert_eq!((&told["strategy"], &told["what_if"]), (&json!("ring"), &json!([])));
    assert!(notes(&told).contains("taken to have been in force"), "{told}");
}

#[test]
fn speed_counts_the_samples_of_larger_batches_and_of_more_workers() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let common = ["replay", &trace, "--bandwidth", "1gbit", "--what-if", "batch=2x"];
    let found = report(&[&common[..], &["--what-if", "workers=4"]].concat());
    let now = found["step_ms"].as_f64().unwrap();
    for (answer, samples) in found["what_if"].as_array().unwrap().iter().zip([2.0, 4.0]) {
        let (step, speed) =
            (answer["step_ms"].as_f64().unwrap(), answer["speed"].as_f64().unwrap());
        assert!((speed - samples * now / step).abs() < 1e-9, "{found}");
    }
}

#[test]
fn what_is_written_of_several_workers_has_all_of_them_when_it_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    fs::create_dir(&traces).unwrap();
    for rank in 0..2 {
        fs::write(traces.join(format!("worker-{rank}.json")), recorded(rank)).unwrap();
    }
    let written = folder.path().join("predicted.json.gz").to_str().unwrap().to_string();
    let common = ["replay", traces.to_str().unwrap(), "--bandwidth", "1gbit"];
    let before = report(&[&common[..], &["--trace-out", &written]].concat());
    let found = report(&["trace", &written]);
    assert_eq!(found["problems"], json!([]));
    let workers = found["workers"].as_array().unwrap();
    let hosts: Vec<&Value> = workers.iter().map(|worker| &worker["host"]).collect();
    assert_eq!(hosts, ["host-0", "host-1"]);
    for worker in workers {
        assert_eq!(worker["steps"].as_array().unwrap().len(), 5);
        assert_eq!(worker["collectives"][0]["count"], 5);
        assert_eq!(worker["collectives"][0]["bytes"], 20_000);
    }
    is_the_same(&before, &report(&["replay", &written]));
}

#[test]
fn what_is_written_of_a_job_whose_updates_cross_the_step_is_that_job_again() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    fs::create_dir(&traces).unwrap();
    for rank in 0..2 {
        let mut file: Value = serde_json::from_str(&recorded(rank)).unwrap();
        file["paceline"]["crosses_step"] = json!(true);
        fs::write(traces.join(format!("worker-{rank}.json")), file.to_string()).unwrap();
    }
    let written = folder.path().join("predicted.json.gz").to_str().unwrap().to_string();
    let common = ["replay", traces.to_str().unwrap(), "--bandwidth", "10mbit"];
    let before = report(&[&common[..], &["--trace-out", &written]].concat());
    is_the_same(&before, &report(&["replay", &written]));
}

#[test]
fn a_written_prediction_of_one_host_is_played_with_the_memory_that_it_was_made_with() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    fs::create_dir(&traces).unwrap();
    let view = View::on_hosts(vec!["one".to_string(); 2], Settings::default());
    for rank in 0..2 {
        let mut file: Value = serde_json::from_str(&recorded_steps(rank, 12, 0)).unwrap();
        file["paceline"]["host"] = json!("one");
        file["paceline"]["view"] = json!(view);
        fs::write(traces.join(format!("worker-{rank}.json")), file.to_string()).unwrap();
    }
    let written = folder.path().join("predicted.json.gz").to_str().unwrap().to_string();
    let before = report(&["replay", traces.to_str().unwrap(), "--trace-out", &written]);
    assert!(!before["memory"].is_null(), "{before}");
    let after = report(&["replay", &written]);
    assert_eq!((&before["memory"], &before["step_ms"]), (&after["memory"], &after["step_ms"]));
    let text = String::from_utf8(paceline(&["replay", &written]).stdout).unwrap();
    assert!(text.contains("as it was predicted with"), "{text}");
}

#[test]
fn workers_of_one_host_are_predicted_by_the_memory_that_they_measured() {
    let step = |rate: f64| -> (Value, String) {
        let folder = tempfile::tempdir().unwrap();
        let rate = Rate::from_bytes_per_second(rate);
        let memory = Some(Link { rate, latency: Duration::from_micros(1) });
        let view = View::on_hosts(vec!["one".to_string(); 2], Settings::default());
        let view = View { measured: Measured { memory, wire: None }, ..view };
        for rank in 0..2 {
            let mut file: Value = serde_json::from_str(&recorded(rank)).unwrap();
            file["paceline"]["host"] = json!("one");
            file["paceline"]["view"] = json!(view);
            fs::write(folder.path().join(format!("{rank}.json")), file.to_string()).unwrap();
        }
        let trace = folder.path().to_str().unwrap();
        let text = String::from_utf8(paceline(&["replay", trace]).stdout).unwrap();
        (report(&["replay", trace, "--what-if", "workers=4,8"]), text)
    };
    let ((slow, text), (fast, _)) = (step(1e6), step(1e9));
    assert_eq!((&slow["hosts"], &slow["simulated"]), (&json!(1), &json!(true)), "{slow}");
    assert!(text.contains("as measured when workers met"), "{text}");
    // Two kilobytes each way, twice, at a thousand bytes a millisecond; half a millisecond is computed, a tenth left over.
    let steps = [&slow, &fast].map(|found| found["step_ms"].as_f64().unwrap());
    assert!((4.0..5.5).contains(&steps[0]) && (0.6..0.7).contains(&steps[1]), "{steps:?}");
    // Whoever sees that a step of one millisecond is predicted so is told not to rely on it.
    assert!(notes(&slow).contains("% more than was measured"), "{slow}");
    assert!(notes(&fast).contains("% less than was measured"), "{fast}");
    // Nothing is known of wires, so more workers are on the same host.
    let more = answers(&slow);
    assert!(steps[0] < more[0] && more[0] < more[1], "{more:?}");
    assert!(notes(&slow).contains("on the same host"), "{slow}");
    assert_eq!(
        (&fast["links"][0]["from"], &fast["links"][0]["to"]),
        (&json!("one"), &json!("one"))
    );
}

#[test]
fn what_cannot_be_played_is_said_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let text = folder.path().join("text.json");
    fs::write(&text, "no trace").unwrap();
    let timeless = folder.path().join("et.json");
    let nodes = r#"[{"id": 2, "name": "aten::mul", "ctrl_deps": 1}, {"id": 3, "name": "aten::add", "ctrl_deps": 1}]"#;
    fs::write(&timeless, format!(r#"{{"schema": "1.1.0", "nodes": {nodes}}}"#)).unwrap();
    let timeless = timeless.to_str().unwrap();
    for (arguments, code, part) in [
        (vec!["replay", "/nowhere"], 1, "/nowhere"),
        (vec!["replay", text.to_str().unwrap()], 1, "text.json"),
        (vec!["replay", &trace, "--what-if", "workers=4"], 2, "--bandwidth"),
        (vec!["replay", &trace, "--what-if", "speed=4"], 2, "bandwidth=25gbit"),
        (vec!["replay", &trace, "--skip", "9"], 2, "--skip 9"),
        (vec!["replay", timeless], 1, "torch.profiler"),
        (vec!["optimize", timeless], 1, "torch.profiler"),
    ] {
        let output = paceline(&arguments);
        let error = String::from_utf8_lossy(&output.stderr).to_string();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
        assert!(error.matches("No such file").count() < 2, "said once is enough: {error}");
    }
}
