//! Claims about real networks: bytes cross them, changes take effect, and nothing of them is left,
//! however they end. They need root; elsewhere they say so and pass.

use paceline_testbed::{Error, Flow, LinkChange, Seat, Spec, Target, Testbed};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const FORTH: Flow = Flow { from: 0, to: 1 };
const BACK: Flow = Flow { from: 1, to: 0 };

/// Nothing here takes this long; it only keeps a failing test from hanging.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that names its namespace and then leaves a process in the background, out of its
/// session, as a badly behaved program would.
const LINGER: &str = "readlink /proc/self/ns/net; setsid sleep 1000 & exec sleep 1000";

fn spec() -> Spec {
    Spec::new(2, "100mbit".parse().unwrap())
}

/// The network, or nothing where this machine does not allow one.
fn build(spec: &Spec) -> Option<Testbed> {
    match Testbed::build(spec) {
        Ok(testbed) => Some(testbed),
        Err(error @ (Error::Privilege { .. } | Error::Missing { .. })) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-testbed"));
    command.args(["run", "--hosts", "2", "--rate", "100mbit", "--"]).args(arguments);
    command.stdout(Stdio::piped());
    command
}

/// The namespaces that both hosts name in their first lines.
fn named_namespaces(tool: &mut Child) -> Vec<String> {
    let output = BufReader::new(tool.stdout.take().unwrap());
    let lines: Vec<String> = output.lines().take(2).map(Result::unwrap).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let names: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(names.iter().all(|name| name.starts_with("net:[")), "{lines:?}");
    assert_ne!(names[0], names[1]);
    names.into_iter().map(str::to_string).collect()
}

/// Every network namespace that a process is in or holds open.
fn held_namespaces() -> BTreeSet<String> {
    let link = |path: &Path| Some(fs::read_link(path).ok()?.to_str()?.to_string());
    let mut held = BTreeSet::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        held.extend(link(&process.path().join("ns/net")));
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        held.extend(
            open.filter_map(|file| link(&file.path())).filter(|to| to.starts_with("net:[")),
        );
    }
    held
}

fn assert_nothing_is_left(namespaces: &[String]) {
    let deadline = Instant::now() + PATIENCE;
    while namespaces.iter().any(|namespace| held_namespaces().contains(namespace)) {
        assert!(Instant::now() < deadline, "{namespaces:?} are still held");
        thread::sleep(Duration::from_millis(10));
    }
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap();
    for ours in ["port0", "port1", "rack0", "uplink0", "core"] {
        assert!(!interfaces.contains(&format!("{ours}:")), "{ours} in {interfaces}");
    }
}

fn wait(tool: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = tool.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the tool does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn bytes_cross_both_ways_and_nothing_is_left() {
    let Some(testbed) = build(&spec()) else { return };
    let seen = testbed.measure(&[FORTH, BACK], Duration::from_millis(200)).unwrap();
    assert!(seen.flows.iter().all(|flow| flow.mbit_per_second > 0.0), "{seen:?}");
    assert!(testbed.latency(FORTH).unwrap() > Duration::ZERO);

    let mut linger = Command::new("sh");
    linger.args(["-c", LINGER]).stdout(Stdio::piped());
    let mut child = testbed.spawn(1, linger).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let namespace = line.trim().to_string();
    assert!(held_namespaces().contains(&namespace));
    drop(testbed);
    assert!(!child.wait().unwrap().success(), "it was ended, it did not finish");
    assert_nothing_is_left(&[namespace]);
}

#[test]
fn racks_are_joined_and_a_cut_link_carries_nothing_until_it_is_restored() {
    let spec = Spec { racks: 2, uplink: Some("50mbit".parse().unwrap()), ..spec() };
    let Some(testbed) = build(&spec) else { return };
    let crosses = || testbed.measure(&[FORTH], Duration::from_millis(200));
    assert!(crosses().unwrap().flows[0].mbit_per_second > 0.0);
    for target in [Target::Rack(1), Target::Host(0)] {
        testbed.apply(target, LinkChange::Cut).unwrap();
        crosses().unwrap_err();
        testbed.apply(target, LinkChange::Restore).unwrap();
        assert!(crosses().unwrap().flows[0].mbit_per_second > 0.0);
    }
    testbed.set_rate(Target::Rack(1), "20mbit".parse().unwrap()).unwrap();
    assert_eq!(testbed.rate_between(0, 1).unwrap(), "20mbit".parse().unwrap());
    assert!(crosses().unwrap().flows[0].mbit_per_second > 0.0);
    testbed.set_rate(Target::Rack(2), "20mbit".parse().unwrap()).unwrap_err();
}

#[test]
fn neighbours_load_links_beside_the_hosts() {
    let neighbours = vec![Seat::Rack(1), Seat::Core];
    let spec = Spec { racks: 2, neighbours, ..spec() };
    let Some(testbed) = build(&spec) else { return };
    assert_eq!(testbed.rate_between(2, 3).unwrap(), "100mbit".parse().unwrap());
    let load = testbed.load((2, 3), "10mbit".parse().unwrap()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while load.carried() < 100_000 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(load.carried() >= 100_000);
    assert!(testbed.load((0, 4), "10mbit".parse().unwrap()).is_err());
}

#[test]
fn every_shaper_of_this_kernel_carries_bytes_and_changes_its_rate() {
    for shaper in paceline_testbed::Shaper::ALL {
        let Some(testbed) = build(&Spec { shaper: Some(shaper), ..spec() }) else { continue };
        assert_eq!(testbed.shaper(), shaper);
        testbed.set_rate(Target::Host(1), "10mbit".parse().unwrap()).unwrap();
        let seen = testbed.measure(&[FORTH], Duration::from_millis(200)).unwrap();
        assert!(seen.flows[0].mbit_per_second > 0.0, "{shaper}");
        assert_eq!(seen.flows[0].nominal_mbit_per_second, 10.0);
    }
}

#[test]
fn a_killed_tool_leaves_nothing() {
    if build(&spec()).is_none() {
        return;
    }
    let mut tool = run(&["sh", "-c", LINGER]).spawn().unwrap();
    let namespaces = named_namespaces(&mut tool);
    tool.kill().unwrap();
    tool.wait().unwrap();
    assert_nothing_is_left(&namespaces);
}

#[test]
fn a_tool_that_is_asked_to_stop_ends_its_commands_and_says_so() {
    if build(&spec()).is_none() {
        return;
    }
    let mut tool = run(&["sh", "-c", LINGER]).stderr(Stdio::null()).spawn().unwrap();
    let namespaces = named_namespaces(&mut tool);
    let signal = Command::new("kill").arg(tool.id().to_string()).status().unwrap();
    assert!(signal.success());
    assert_eq!(wait(&mut tool).code(), Some(128 + 15));
    assert_nothing_is_left(&namespaces);
}

#[test]
fn the_first_failure_ends_the_others_and_gives_the_exit_code() {
    if build(&spec()).is_none() {
        return;
    }
    let script = "if [ $TESTBED_HOST = 1 ]; then exit 3; else exec sleep 1000; fi";
    let mut tool = run(&["sh", "-c", script]).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(wait(&mut tool).code(), Some(3));
}

#[test]
fn each_host_is_told_where_it_is() {
    if build(&spec()).is_none() {
        return;
    }
    let script = "echo $TESTBED_HOST/$TESTBED_HOSTS $TESTBED_ADDRESS of $TESTBED_ADDRESSES";
    let output = run(&["sh", "-c", script]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    let expected = [
        "[host0] 0/2 198.51.100.1 of 198.51.100.1,198.51.100.2",
        "[host1] 1/2 198.51.100.2 of 198.51.100.1,198.51.100.2",
    ];
    assert_eq!(lines, BTreeSet::from(expected));
}
