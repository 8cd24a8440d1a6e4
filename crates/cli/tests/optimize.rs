//! `paceline optimize` as people call it: a table of layers in, a plan out that `paceline run` takes.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const TABLE: &str = "\
name,forward_us,backward_us,tensors,activation_bytes
a,100,200,2000 64,40000
b,100,200,2000 64,30000
c,100,200,2000 64,20000
d,300,500,20000 64,10000
";

fn paceline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paceline")).args(arguments).output().unwrap()
}

fn table(folder: &Path) -> String {
    let path = folder.join("layers.csv");
    fs::write(&path, TABLE).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn a_plan_says_why_and_is_taken_by_run_and_replay() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let plan = folder.path().join("plan.toml").to_str().unwrap().to_string();
    let common = [&trace, "--workers", "4", "--bandwidth", "1gbit"];
    let rest = ["--least-gain", "0", "--json", "-o", &plan];
    let found = paceline(&[&["optimize"], &common[..], &rest[..]].concat());
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let (before, after) = (&report["before_ms"], &report["after_ms"]);
    assert!(after.as_f64().unwrap() < before.as_f64().unwrap(), "{report}");
    assert!(!report["decisions"].as_array().unwrap().is_empty());

    let text = fs::read_to_string(&plan).unwrap();
    assert!(text.starts_with("# By `paceline optimize`") && text.contains("[fusion]"), "{text}");
    let run = paceline(&["run", "-n", "2", "--quiet", "--plan", &plan, "--", "true"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    // What a replay says of the job and of the plan is what the planner said.
    let with_plan = format!("plan={plan}+workers=4");
    let asked = ["--json", "--what-if", "workers=4", "--what-if", &with_plan];
    let replay = paceline(&[&["replay", &trace, "--bandwidth", "1gbit"], &asked[..]].concat());
    assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    let replayed: serde_json::Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!(&replayed["what_if"][0]["step_ms"], before, "{replayed}");
    assert_eq!(&replayed["what_if"][1]["step_ms"], after, "{replayed}");
}

#[test]
fn workers_of_one_host_have_memory_and_no_wire() {
    let folder = tempfile::tempdir().unwrap();
    let event = |rank: u32, category: &str, name: &str, begin: u32, length: u32, args: &str| {
        format!(
            r#"{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {rank}, "tid": 1, "ts": {begin}, "dur": {length}, "args": {args}}}"#
        )
    };
    for rank in 0..2 {
        let mut events = Vec::new();
        for step in 0..4 {
            let at = step * 1000;
            events.push(event(rank, "step", "step", at, 1000, &format!(r#"{{"number": {step}}}"#)));
            events.push(event(rank, "forward", "fc", at, 200, r#"{"layer": 0}"#));
            events.push(event(rank, "backward", "fc", at + 200, 300, r#"{"layer": 0}"#));
        }
        let about = r#"{"format": 1, "version": "0", "host": "one", "view": null, "layers": [{"name": "fc", "tensors":
            [{"name": "fc.weight", "elements": 1000, "dtype": "f32"}]}]}"#;
        let text = format!(
            r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 2}}, "paceline": {about}, "traceEvents": [{}]}}"#,
            events.join(",")
        );
        fs::write(folder.path().join(format!("worker-{rank}.json")), text).unwrap();
    }
    let found = paceline(&["optimize", folder.path().to_str().unwrap(), "--json"]);
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(report["bandwidth"], serde_json::Value::Null, "{report}");
    assert!(!report["memory_rate"].is_null(), "{report}");
}

#[test]
fn memory_limits_are_kept_and_impossible_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    let limited = |limit: &str| {
        let common = ["optimize", &trace, "--workers", "2", "--bandwidth", "1gbit"];
        paceline(&[&common[..], &["--memory", limit]].concat())
    };
    let fits = limited("500000");
    let text = String::from_utf8_lossy(&fits.stdout).to_string();
    assert!(fits.status.success() && text.contains("to fit into memory"), "{text}");
    let refused = limited("100000");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("by themselves"));
}

#[test]
fn what_cannot_be_planned_is_said_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let trace = table(folder.path());
    for (arguments, part) in [
        (vec!["optimize", &trace], "--workers"),
        (vec!["optimize", &trace, "--workers", "2"], "--bandwidth"),
        (vec!["optimize", &trace, "--verify", "--", "true"], "--output"),
    ] {
        let output = paceline(&arguments);
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(text.contains(part), "{text}");
    }
}
