//! `paceline strategies` as people and programs see it.

use std::process::{Command, Output};

fn strategies(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paceline")).arg("strategies").args(arguments).output().unwrap()
}

fn shown(arguments: &[&str]) -> String {
    let output = strategies(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&shown(&[arguments, &["--json"]].concat())).unwrap()
}

#[test]
fn every_strategy_is_listed_explained_and_proven() {
    let list = shown(&[]);
    let names = json(&[]);
    let names: Vec<&str> =
        names.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"ring"));
    for name in names {
        assert!(list.contains(&format!("{name} (leaves ")), "{name} in {list}");
        let one = shown(&[name, "--ranks", "6", "--hosts", "2", "--elements", "20"]);
        assert!(one.contains("Rank 5:"), "{one}");
        assert!(one.contains("Proven for 6 ranks on 2 hosts and 20 elements"), "{one}");
    }
}

#[test]
fn a_ring_of_four_is_known_to_the_last_message() {
    let ring = json(&["ring", "--ranks", "4", "--rank", "2"]);
    assert_eq!((ring["rounds"].as_u64(), ring["messages"].as_u64()), (Some(6), Some(24)));
    assert_eq!(ring["busiest_rank_elements"], 24, "2(n-1)/n of 16 elements");
    assert_eq!(ring["programs"].as_array().unwrap().len(), 1);
    assert_eq!(ring["programs"][0]["rank"], 2);
}

#[test]
fn a_strategy_is_shown_with_the_parameter_it_was_given() {
    let two = json(&["parameter_server:2"]);
    assert_eq!(two["strategy"], "parameter_server:2");
    assert!(shown(&["parameter_server:2"]).starts_with("parameter_server:2 (leaves"));
    assert_eq!(json(&["parameter_server"])["strategy"], "parameter_server");
    let apart = shown(&["parameter_server:1:apart", "--ranks", "4"]);
    assert!(apart.contains("contributions of the first 3 ranks,"), "{apart}");
}

#[test]
fn only_the_rank_asked_for_is_listed() {
    let one = shown(&["ring", "--rank", "2"]);
    assert!(one.contains("Rank 2:") && !one.contains("Rank 1:"), "{one}");
    let many = shown(&["ring", "--ranks", "64"]);
    assert!(!many.contains("Rank 0:") && many.contains("--rank"), "{many}");
}

#[test]
fn a_drawing_goes_to_the_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ring.svg");
    shown(&["ring", "--svg", file.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("<svg"));
    let nowhere = strategies(&["ring", "--svg", "/no/such/folder/ring.svg"]);
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn auto_says_what_it_chooses_and_why() {
    for arguments in [
        &["--auto", "--ranks", "8", "--hosts", "2"][..],
        &["auto", "--ranks", "8", "--bandwidth", "25gbit"],
    ] {
        let table = shown(arguments);
        assert!(table.contains("up to ") && table.contains("above "), "{table}");
        assert!(table.contains("would take"), "{table}");
    }
    let choices = json(&["--auto", "--ranks", "8", "--hosts", "2", "--bandwidth", "1gbit"]);
    let choices = choices["choices"].as_array().unwrap();
    assert!(choices.last().unwrap()["up_to_bytes"].is_null());
}

#[test]
fn what_cannot_be_shown_is_wrong_usage() {
    for (arguments, remedy) in [
        (&["rong"][..], "known: auto, ring"),
        (&["ring", "--rank", "4"], "ranks are 0 to 3"),
        (&["ring", "--ranks", "0"], "1..=1024"),
        (&["ring", "--ranks", "2", "--hosts", "3"], "lower --hosts"),
        (&["--svg", "x.svg"], "name one, or add --cost"),
        (&["--rank", "1"], "required"),
        (&["ring", "--auto"], "cannot be used with"),
        (&["auto", "--svg", "x.svg"], "name the strategy"),
        (&["auto", "--rank", "1"], "name the strategy"),
        (&["ring", "--bandwidth", "1gbit"], "add --auto"),
        (&["--auto", "--bandwidth", "fast"], "such as 100mbit"),
    ] {
        let output = strategies(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(remedy), "{arguments:?}: {error}");
    }
}
