//! What the command says about itself: the reference in `docs/` is what it prints, and manual pages and completions know every
//! command that people call.

use std::{
    path::Path,
    process::{Command, Stdio},
};

fn paceline(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_paceline")).args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn the_reference_of_commands_is_what_the_command_prints() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let written = std::fs::read_to_string(file).unwrap();
    let remedy = "run `cargo run -p paceline -- manual --markdown > docs/commands.md`";
    assert!(written == paceline(&["manual", "--markdown"]), "docs/commands.md is old: {remedy}");
}

#[test]
fn every_command_has_a_page_and_none_that_is_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("man1");
    paceline(&["manual", made.to_str().unwrap()]);
    for name in ["paceline", "paceline-run", "paceline-bench-allreduce", "paceline-tune-explain"] {
        let page = std::fs::read_to_string(made.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH NAME"), "{name}");
    }
    let names = std::fs::read_dir(&made).unwrap().map(|it| it.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("worker")));
}

#[test]
fn shells_complete_commands_that_people_call() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = paceline(&["completions", shell]);
        assert!(script.contains("strategies") && script.contains("what-if"), "{shell}");
        assert!(!script.contains("demo-worker") && !script.contains("bench-worker"), "{shell}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_said_with_its_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let below = file.path().join("man1");
    let below = below.to_str().unwrap();
    let done =
        Command::new(env!("CARGO_BIN_EXE_paceline")).args(["manual", below]).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr).to_string();
    assert_eq!(done.status.code(), Some(1));
    assert!(error.contains(below), "{error}");
}

#[test]
fn a_report_that_nobody_reads_ends_without_a_word() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args(["strategies", "ring", "--ranks", "64"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert_ne!(done.status.code(), Some(101));
}
