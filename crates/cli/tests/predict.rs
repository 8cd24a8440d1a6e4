//! `paceline bench predict` on two hosts of a testbed. It needs root; elsewhere it says that it was skipped.

use serde_json::Value;
use std::process::{Command, Output};

fn predict(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_paceline");
    Command::new(program).args(["bench", "predict"]).args(arguments).output().unwrap()
}

#[test]
fn a_prediction_and_a_measurement_with_right_sums_come_out() {
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let cell = ["--hosts", "2", "--rate", "100mbit", "--strategies", "ring", "--sizes", "1MiB"];
    let output = predict(&[&cell[..], &["--repeat", "1", "--json", "-"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("this kernel has no") {
        eprintln!("skipped: {said}");
        return;
    }
    // A wrong sum is a failed cell, and a failed cell another exit code.
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let network = &report["networks"][0];
    let cell = &network["cells"][0];
    assert!(cell["predicted"].as_f64().unwrap() > 0.0, "{cell}");
    if network["faithful"] == Value::Bool(false) {
        eprintln!("skipped half: this machine is too busy to carry 100 Mbit/s");
        return;
    }
    assert!(cell["measured"]["median"].as_f64().unwrap() > 0.0, "{cell}");
    assert!(cell["turns"][0]["seconds"].as_array().is_some_and(|all| !all.is_empty()), "{cell}");
}

#[test]
fn what_cannot_be_measured_is_wrong_usage_before_anything_is_built() {
    for (wrong, word) in [
        (["--hosts", "1"], "two hosts or more"),
        (["--rate", "8kbit"], "8kbit"),
        (["--strategies", "rong"], "rong"),
        (["--credit", "0"], "credit"),
    ] {
        let output = predict(&wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(said.contains(word), "{wrong:?}: {said}");
    }
}
