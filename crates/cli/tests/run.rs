//! `paceline run` with real processes: what they write, how they end, and that nothing is left behind.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long anything here may take. It only bounds a failing test; none measures time.
const PATIENCE: Duration = Duration::from_secs(60);

fn paceline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments).stdin(Stdio::null());
    // Whoever runs the tests in the background may ignore these signals, and that would be inherited:
    // `paceline run` rightly leaves ignored signals ignored.
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
}

/// `paceline run OPTIONS -- sh -c SCRIPT`, to its end.
fn run(options: &[&str], script: &str) -> Output {
    let arguments = [&["run"], options, &["--", "sh", "-c", script]].concat();
    Job::start(paceline(&arguments)).finish()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// A running `paceline run`; killed if the test fails.
struct Job {
    child: Child,
    /// Nothing once a test has closed it.
    stdout: Box<dyn BufRead + Send>,
}

impl Job {
    fn start(mut command: Command) -> Job {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Box::new(BufReader::new(child.stdout.take().unwrap()));
        Job { child, stdout }
    }

    /// Its next `count` lines.
    fn lines(&mut self, count: usize) -> Vec<String> {
        self.stdout.by_ref().lines().take(count).map(Result::unwrap).collect()
    }

    fn close_stdout(&mut self) {
        self.stdout = Box::new(std::io::empty());
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the process is our child and not reaped.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Everything it writes from now on, and its exit status, within our patience.
    fn finish(mut self) -> Output {
        let mut out = std::mem::replace(&mut self.stdout, Box::new(std::io::empty()));
        let mut err = self.child.stderr.take().unwrap();
        let out = thread::spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).map(|_| bytes)
        });
        let err = thread::spawn(move || {
            let mut bytes = Vec::new();
            err.read_to_end(&mut bytes).map(|_| bytes)
        });
        let mut status = None;
        wait_until("paceline run has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        Output {
            status,
            stdout: out.join().unwrap().unwrap(),
            stderr: err.join().unwrap().unwrap(),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state letter of a process, as /proc shows it.
fn state(pid: u32) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process runs. A zombie does not: who reaps it is none of our business.
fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn wait_for_the_death_of(pids: &[u32]) {
    wait_until("everybody is dead", || !pids.iter().any(|pid| is_alive(*pid)));
}

/// The number in lines such as `[2] 4711`.
fn numbers(lines: &[String]) -> Vec<u32> {
    lines.iter().map(|line| line.split_once("] ").unwrap().1.parse().unwrap()).collect()
}

#[test]
fn every_rank_is_heard_with_its_rank_in_front() {
    let output = run(&["-n", "3"], "echo hello $RANK/$WORLD_SIZE; echo trouble >&2");
    assert_eq!(output.status.code(), Some(0));
    let lines = ["[0] hello 0/3", "[1] hello 1/3", "[2] hello 2/3"];
    assert_eq!(sorted_lines(&stdout(&output)), lines);
    assert_eq!(sorted_lines(&stderr(&output)), ["[0] trouble", "[1] trouble", "[2] trouble"]);
}

#[test]
fn workers_find_the_variables_of_torchrun() {
    let script =
        "echo $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT ${PACELINE_COORDINATOR##*:}";
    let output = run(&["-n", "2", "--no-prefix"], script);
    let text = stdout(&output);
    let words: Vec<Vec<&str>> =
        sorted_lines(&text).into_iter().map(|line| line.split(' ').collect()).collect();
    assert_eq!(words[0][..3], ["0", "2", "127.0.0.1"]);
    assert_eq!(words[1][..3], ["1", "2", "127.0.0.1"]);
    assert_eq!(words[0][3..], words[1][3..], "all meet at the same ports");
    assert_ne!(words[0][3], words[0][4], "PyTorch binds MASTER_PORT itself");
    assert!(words[0][3].parse::<u16>().unwrap() > 0);
}

/// Not a test by itself: what the workers of the next one do.
#[test]
fn a_worker_joins_if_it_is_one() {
    if std::env::var_os("PACELINE_COORDINATOR").is_none() {
        return;
    }
    let joined = paceline_net::join(paceline_net::JoinConfig::from_env().unwrap()).unwrap();
    println!("joined as {} of {}", joined.rank, joined.view.size());
    println!("with {} and {}", joined.view.settings.strategy, joined.view.settings.partition);
}

#[test]
fn workers_join_the_coordinator_and_get_the_settings() {
    let worker = std::env::current_exe().unwrap();
    let mut command = paceline(&["run", "-n", "2", "--strategy", "ring", "--partition", "64KiB"]);
    command.arg("--").arg(worker).args(["--exact", "--nocapture", "a_worker_joins_if_it_is_one"]);
    let output = Job::start(command).finish();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for rank in 0..2 {
        assert!(text.contains(&format!("[{rank}] joined as {rank} of 2\n")), "{text}");
        assert!(text.contains(&format!("[{rank}] with ring and 64KiB\n")), "{text}");
    }
}

#[test]
fn a_worker_that_fails_ends_the_others_and_is_reported() {
    let script = "if [ $RANK = 1 ]; then echo working; echo broken >&2; exit 7; fi; sleep 1000";
    let output = run(&["-n", "3"], script);
    assert_eq!(output.status.code(), Some(7));
    let text = stderr(&output);
    assert!(text.contains("exited with code 7; ending the other 2 workers\n"), "{text}");
    let (_, story) = text.split_once("the job failed: rank 1 (pid ").expect("a story");
    assert!(story.contains(") exited with code 7\n"), "{text}");
    assert!(story.contains("    working\n") && story.contains("    broken\n"), "{text}");
}

#[test]
fn only_the_last_lines_of_a_worker_are_repeated() {
    let output = run(&["-n", "1"], "seq 1 1000; exit 1");
    let text = stderr(&output);
    let (_, story) = text.split_once("Its last lines:\n").expect("last lines");
    let expected: String = (991..=1000).map(|number| format!("    {number}\n")).collect();
    assert_eq!(story, expected);
}

#[test]
fn death_by_a_signal_is_reported_by_name() {
    let output = run(&["-n", "2"], "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 1000");
    assert_eq!(output.status.code(), Some(128 + libc::SIGKILL));
    let text = stderr(&output);
    assert!(text.contains("the job failed: rank 0 (pid "), "{text}");
    assert!(text.contains(") was ended by SIGKILL\n") && text.contains("out of memory"), "{text}");
}

#[test]
fn a_worker_that_is_through_early_does_not_disturb_the_others() {
    let output = run(&["-n", "2"], "if [ $RANK = 1 ]; then sleep 0.3; echo late; fi");
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "[1] late\n"));
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let script =
        "if [ $RANK = 1 ]; then sleep 0.2; exit 3; fi; trap '' TERM; while :; do sleep 1; done";
    let output = run(&["-n", "2", "--grace", "0.2"], script);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("killing 1 worker\n"), "{}", stderr(&output));
}

#[test]
fn sigterm_ends_all_workers() {
    let mut job =
        Job::start(paceline(&["run", "-n", "3", "--", "sh", "-c", "echo $$; exec sleep 1000"]));
    let pids = numbers(&job.lines(3));
    job.signal(libc::SIGTERM);
    let output = job.finish();
    assert_eq!(output.status.code(), Some(128 + libc::SIGTERM));
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert!(stderr(&output).contains("ended by SIGTERM"), "{}", stderr(&output));
}

#[test]
fn workers_that_finish_well_when_asked_to_end_make_a_success() {
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start(paceline(&["run", "-n", "2", "--", "sh", "-c", script]));
    job.lines(2);
    job.signal(libc::SIGTERM);
    let output = job.finish();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(sorted_lines(&stdout(&output)), ["[0] saved", "[1] saved"]);
}

#[test]
fn a_second_sigint_kills_without_waiting() {
    let script = "trap 'echo no' INT; echo $$; while :; do sleep 0.05; done";
    let arguments = ["run", "-n", "2", "--grace", "1000", "--", "sh", "-c", script];
    let mut job = Job::start(paceline(&arguments));
    let pids = numbers(&job.lines(2));
    job.signal(libc::SIGINT);
    assert_eq!(sorted_lines(&job.lines(2).join("\n")), ["[0] no", "[1] no"]);
    job.signal(libc::SIGINT);
    assert_eq!(job.finish().status.code(), Some(128 + libc::SIGINT));
    wait_for_the_death_of(&pids);
}

#[test]
fn a_signal_for_the_program_is_passed_on() {
    let script = "trap 'echo caught; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start(paceline(&["run", "-n", "2", "--", "sh", "-c", script]));
    job.lines(2);
    job.signal(libc::SIGUSR1);
    let output = job.finish();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(sorted_lines(&stdout(&output)), ["[0] caught", "[1] caught"]);
}

#[test]
fn workers_stop_and_go_on_with_us() {
    let mut job =
        Job::start(paceline(&["run", "-n", "2", "--", "sh", "-c", "echo $$; exec sleep 1000"]));
    let mut pids = numbers(&job.lines(2));
    pids.push(job.child.id());
    job.signal(libc::SIGTSTP);
    wait_until("all are stopped", || pids.iter().all(|pid| state(*pid) == Some('T')));
    job.signal(libc::SIGCONT);
    wait_until("all go on", || pids.iter().all(|pid| state(*pid) != Some('T')));
    job.signal(libc::SIGTERM);
    assert_eq!(job.finish().status.code(), Some(128 + libc::SIGTERM));
}

#[test]
fn killing_paceline_leaves_nothing_behind() {
    // A worker, its child, and a child of that: only the first is known to the kernel as ours.
    let script = "echo $$; sh -c 'echo $$; sleep 1000 & echo $!; wait' & wait";
    let mut job = Job::start(paceline(&["run", "-n", "2", "--", "sh", "-c", script]));
    let pids = numbers(&job.lines(6));
    let paceline = job.child.id();
    let children =
        fs::read_to_string(format!("/proc/{paceline}/task/{paceline}/children")).unwrap();
    let children: Vec<u32> =
        children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.len(), 3, "two workers and the guard");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    job.signal(libc::SIGKILL);
    wait_for_the_death_of(&pids);
    wait_for_the_death_of(&children);
}

#[test]
fn what_workers_started_ends_with_the_job() {
    for ending in ["exit 0", "exit 1", "kill -KILL $$"] {
        let output = run(&["-n", "2"], &format!("sleep 1000 & echo $!; {ending}"));
        let lines: Vec<String> = stdout(&output).lines().map(str::to_string).collect();
        wait_for_the_death_of(&numbers(&lines));
    }
}

#[test]
fn a_daemon_that_holds_the_output_is_not_waited_for() {
    let output = run(&["-n", "1"], "setsid sleep 1000 & echo $!");
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<String> = stdout(&output).lines().map(str::to_string).collect();
    for pid in numbers(&lines) {
        // SAFETY: kill touches no memory; the process is the `sleep` above, which ends nowhere else.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

#[test]
fn a_number_of_workers_that_cannot_be_is_wrong_usage() {
    for (number, remedy) in
        [("0", "at least one worker"), ("100000", "at most 1024"), ("-1", "--"), ("x", "such as 4")]
    {
        let output = run(&["-n", number], "true");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(remedy), "{}", stderr(&output));
    }
}

#[test]
fn spares_and_restarts_are_for_elastic_jobs_that_meet_here() {
    let meeting = ["--elastic", "--rendezvous", "etcd://127.0.0.1:1/job"];
    for option in [["--spare", "1"], ["--restarts", "1"]] {
        for (others, word) in [(&[][..], "--elastic"), (&meeting, "--rendezvous")] {
            let output = run(&[&["-n", "1"], &option[..], others].concat(), "true");
            assert_eq!(output.status.code(), Some(2), "{option:?} {others:?}");
            assert!(stderr(&output).contains(word), "{}", stderr(&output));
        }
    }
}

#[test]
fn a_program_that_cannot_start_is_answered_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write("train.py", "print()", 0o644);
    write("orphan", "#!/no/such/interpreter\n", 0o755);
    let attempt = |program: &str| {
        let mut command = paceline(&["run", "-n", "2", "--", program]);
        let output = Job::start({
            command.current_dir(folder.path());
            command
        })
        .finish();
        assert_eq!(output.status.code(), Some(2), "{program}");
        stderr(&output)
    };
    assert!(attempt("no-such-program").contains("was not found in PATH"));
    assert!(attempt("./no-such-program").contains("was not found; check the path"));
    assert!(attempt("train.py").contains("write `./train.py` or `python train.py`"));
    assert!(attempt("./train.py").contains("chmod +x ./train.py"));
    assert!(attempt("./orphan").contains("#!"));
    assert!(attempt("/").contains("is a folder"));
}

#[test]
fn settings_that_cannot_work_are_wrong_usage() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (options, remedy) in [
        (["--strategy", "rong"], "known: auto, ring"),
        (["--partition", "1"], "at least 64 bytes"),
        (["--credit", "lots"], "256KiB"),
        (["--plan", "/no/such/plan.toml"], "the plan /no/such/plan.toml: No such file"),
        (["--port-range", "9-1"], "range of ports"),
        (["--listen", &taken], "in use"),
        (["--listen", "localhost"], "such as 127.0.0.1:29400"),
        (["--grace", "-1"], "--"),
    ] {
        let output = run(&[&["-n", "1"][..], &options].concat(), "true");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(remedy), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn lines_without_an_end_and_progress_bars_are_shown_whole() {
    let output = run(&["-n", "2"], "printf '\\r10%%\\r20%%\\rdone\\nno end'");
    let expected = ["[0] 10%", "[0] 20%", "[0] done", "[0] no end"];
    let text = stdout(&output);
    let of_rank_0: Vec<&str> = text.lines().filter(|line| line.starts_with("[0]")).collect();
    assert_eq!(of_rank_0, expected);
    let output = run(&["-n", "1", "--no-prefix"], "printf '\\r10%%\\rdone\\nno end'");
    assert_eq!(stdout(&output), "\r10%\rdone\nno end\n");
}

#[test]
fn ten_thousand_lines_of_each_of_four_ranks_arrive_complete_and_unmixed() {
    let script =
        "seq -f \"$RANK says %05.0f and a few more words, so that lines meet buffers\" 1 10000";
    let output = run(&["-n", "4"], script);
    let mut counts: HashMap<String, u32> = HashMap::new();
    for line in stdout(&output).lines() {
        let (prefix, text) = line.split_once("] ").unwrap();
        let rank = prefix.strip_prefix('[').unwrap();
        let next = counts.entry(rank.to_string()).or_default();
        *next += 1;
        let expected =
            format!("{rank} says {next:05} and a few more words, so that lines meet buffers");
        assert_eq!(text, expected);
    }
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|count| *count == 10_000), "{counts:?}");
}

#[test]
fn a_very_long_line_comes_in_pieces_and_loses_nothing() {
    let output = run(&["-n", "1"], "head -c 1000000 /dev/zero | tr '\\0' x");
    let text = stdout(&output);
    assert!(text.lines().all(|line| line.starts_with("[0] x") && line.len() < 100_000));
    assert_eq!(text.matches('x').count(), 1_000_000);
}

#[test]
fn rank_0_reads_what_we_are_given() {
    let mut command = paceline(&["run", "-n", "2", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut job = Job::start(command);
    job.child.stdin.take().unwrap().write_all(b"for whom it concerns\n").unwrap();
    assert_eq!(stdout(&job.finish()), "[0] for whom it concerns\n");
}

#[test]
fn the_job_goes_on_when_nobody_reads_its_output_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let script = format!("seq 1 100000; touch {}", done.display());
    let mut job = Job::start(paceline(&["run", "-n", "1", "--", "sh", "-c", &script]));
    job.close_stdout();
    assert_eq!(job.finish().status.code(), Some(0));
    assert!(done.exists());
}

#[test]
fn a_secret_that_is_too_short_is_refused() {
    let mut command = paceline(&["run", "-n", "1", "--", "true"]);
    command.env("PACELINE_SECRET", "short");
    let output = Job::start(command).finish();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("at least 16"), "{}", stderr(&output));
}

#[test]
fn help_and_version_are_there() {
    let output = paceline(&["--version"]).output().unwrap();
    assert_eq!(stdout(&output), format!("paceline {}\n", env!("CARGO_PKG_VERSION")));
    for arguments in
        [&["--help"][..], &["run", "--help"], &["coordinator", "--help"], &["strategies", "--help"]]
    {
        let output = paceline(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains("Exit codes:"), "{arguments:?}");
        assert!(stdout(&output).contains("Examples:"), "{arguments:?}");
        assert!(!stdout(&output).contains("guard"), "{arguments:?}");
    }
}

#[test]
fn jobs_that_do_not_run_cannot_be_asked_and_limits_are_for_elastic_ones() {
    let asked = paceline(&["status", "no-such-job"]).output().unwrap();
    assert!(stderr(&asked).contains("no job named `no-such-job` runs here"), "{asked:?}");
    let resized = paceline(&["resize", "../elsewhere", "3"]).output().unwrap();
    assert_eq!(resized.status.code(), Some(2), "{resized:?}");
    let limited = run(&["-n", "2", "--min", "2"], "true");
    assert_eq!(limited.status.code(), Some(2), "{limited:?}");
    let narrow = run(&["-n", "2", "--elastic", "--min", "3"], "true");
    assert!(stderr(&narrow).contains("3 to 1024"), "{narrow:?}");
}

#[test]
fn an_elastic_job_answers_by_its_name_while_its_workers_gather() {
    let name = format!("test-{}", std::process::id());
    let options = ["-n", "2", "--elastic", "--min", "1", "--name", &name];
    let mut arguments = vec!["run"];
    arguments.extend(options);
    arguments.extend(["--", "sh", "-c", "echo started; sleep 60"]);
    let mut job = Job::start(paceline(&arguments));
    job.lines(2);
    let status = paceline(&["status", &name]).output().unwrap();
    assert!(stdout(&status).contains("0 workers have come"), "{status:?}");
    let resize = paceline(&["resize", &name, "1"]).output().unwrap();
    assert!(stderr(&resize).contains("has not begun"), "{resize:?}");
    let again = run(&options, "true");
    assert!(stderr(&again).contains("runs already"), "{again:?}");
}

#[test]
fn a_program_that_records_nothing_is_told_from_one_that_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let said = |script: &str| stderr(&run(&["-n", "2", "--trace", path], script));
    fs::write(folder.path().join("worker-7.json.gz"), "of another run").unwrap();
    let nothing = said("true");
    assert!(
        nothing.contains("no trace was written to") && nothing.contains("three steps"),
        "{nothing}"
    );
    let something = said("echo x > \"$PACELINE_TRACE/worker-$PACELINE_RANK.json.gz\"");
    assert!(!something.contains("no trace was written"), "{something}");
    let failed = said("exit 3");
    assert!(!failed.contains("no trace was written"), "its failure says enough: {failed}");
}
