//! `paceline tune` and `paceline learn` as people call them: what cannot be done is refused before the work, and by name.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const TABLE: &str = "\
name,forward_us,backward_us,tensors,activation_bytes
a,100,200,2000 64,40000
b,300,500,20000 64,10000
";
const SMALL: [&str; 6] = ["--workers", "2", "--bandwidth", "1gbit", "--strategies", "ring"];

fn paceline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paceline")).args(arguments).output().unwrap()
}

/// `paceline tune` of a small job.
fn tune(folder: &Path, more: &[&str]) -> Output {
    let trace = write(folder, "layers.csv", TABLE.as_bytes());
    paceline(&[&["tune", &trace, "--coarse"], &SMALL[..], more].concat())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_string()
}

/// What was said of a command that was refused with this code.
fn refused(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

#[test]
fn weights_are_used_by_those_who_predict_and_refused_where_they_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shipped = paceline_learn::metanet::MetaNetwork::shipped().to_bytes();
    let good = write(folder, "good.bin", &shipped);
    let damaged = write(folder, "damaged.bin", &shipped[1..]);
    let missing = folder.join("missing.bin").to_str().unwrap().to_string();
    let run = tune(folder, &["--method", "autobyte", "--weights", &good, "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for file in [&damaged, &missing] {
        let said = refused(&tune(folder, &["--method", "autobyte", "--weights", file]), 2);
        assert!(said.contains(file) && said.contains("paceline learn metanet"), "{said}");
        let run = ["run", "-n", "2", "--tune", "autobyte", "--tune-weights", file, "--", "true"];
        let said = refused(&paceline(&run), 2);
        assert!(said.contains("--tune-weights") && said.contains(file), "{said}");
        let said = refused(&paceline(&["learn", "metanet", "--judge", file]), 1);
        assert!(said.contains(file), "{said}");
    }
    let said = refused(&tune(folder, &["--weights", &good]), 2);
    assert!(said.contains("method `autobyte`"), "{said}");
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(&tune(folder.path(), &["--script", "steps", "--length", "10s"]), 2);
    assert!(said.contains("--phase N"), "{said}");
    let script = write(folder.path(), "script.txt", b"1 host0 10mbit\n");
    let said = refused(&tune(folder.path(), &["--script", &script, "--phase", "10"]), 2);
    assert!(said.contains("--length TIME"), "{said}");
}

#[test]
fn files_that_cannot_be_written_are_named_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let lost = folder.path().join("no/file").to_str().unwrap().to_string();
    for option in ["--plot", "--log"] {
        // Of a trace that is not there, so that nothing else can come first.
        let said = refused(&paceline(&["tune", "/no/such/trace", option, &lost]), 1);
        assert!(said.contains(&lost) && said.contains("make the folder"), "{said}");
    }
    for option in ["--out", "--data"] {
        let model = ["--model", "/no/such/model"];
        let said =
            refused(&paceline(&[&["learn", "metanet", option, &lost], &model[..]].concat()), 1);
        assert!(said.contains(&lost), "{said}");
    }
}

#[test]
fn a_script_that_lets_the_job_stand_still_is_named_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let script = write(folder.path(), "script.txt", b"# slower\n1 host0 10mbit\n2 host1 1bit\n");
    let said = refused(&tune(folder.path(), &["--script", &script]), 1);
    assert!(said.contains("script, line 3") && said.contains("higher rate"), "{said}");
    assert!(!said.contains("Post the tensor"), "{said}");
}

#[test]
fn a_report_has_speeds_over_time_and_what_all_phases_cost() {
    let folder = tempfile::tempdir().unwrap();
    let few = ["--script", "slow-host", "--phase", "20", "--method", "default"];
    let run = tune(folder.path(), &[&few[..], &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let oracle = report["oracle"].as_array().unwrap();
    assert_eq!(oracle.len(), 2 * 3);
    let run = &report["runs"][0];
    let series = run["series"].as_array().unwrap();
    assert!((3..=240).contains(&series.len()), "{report}");
    let end = number(&oracle[5][0]);
    assert!(series.iter().all(|point| number(&point[0]) < end && number(&point[1]) > 0.0));
    let phases = run["phases"].as_array().unwrap();
    let sum = |name: &str| -> f64 { phases.iter().map(|phase| number(&phase[name])).sum() };
    assert_eq!(number(&run["search"]["steps"]), sum("steps_until_near"));
    assert!((number(&run["search"]["seconds_lost"]) - sum("seconds_lost")).abs() < 1e-9);
    let never = phases.iter().filter(|phase| phase["found"] == false).count();
    assert_eq!(run["search"]["never"], never);
}

#[test]
fn a_log_is_explained_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.jsonl").to_str().unwrap().to_string();
    let few = ["--script", "slow-host", "--phase", "20", "--log", &log];
    assert!(tune(folder.path(), &few).status.success());
    let whole = fs::read_to_string(&log).unwrap();
    let decisions = whole.lines().count();
    assert!(decisions > 0);
    let explained = |text: String| {
        fs::write(&log, text).unwrap();
        paceline(&["tune", "explain", "--json", &log])
    };
    let cut = explained(format!("{whole}{}", &whole[..20]));
    assert!(cut.status.success(), "{cut:?}");
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(said.contains(&format!("line {} is not finished", decisions + 1)), "{said}");
    let read: serde_json::Value = serde_json::from_slice(&cut.stdout).unwrap();
    assert_eq!(read["decisions"].as_array().unwrap().len(), decisions);
    let said = refused(&explained(format!("nothing\n{whole}")), 1);
    assert!(said.contains("line 1: no decision"), "{said}");
}
