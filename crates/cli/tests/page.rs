//! The page of a real `paceline run`, asked for by hand: who gets it, what is wrong with a port or a folder, and that it is gone
//! when the job is. What it looks like is tested in a browser (`scripts/test-page`).

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

fn paceline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(arguments).env_remove("PACELINE_UI_TOKEN").stdin(Stdio::null());
    command
}

/// A job of two that lasts until it is told to end, with its page.
struct Served {
    child: Child,
    _said: BufReader<ChildStderr>,
    address: String,
    token: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        let mut command = paceline(arguments);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while said.read_line(&mut line).unwrap() > 0 && !line.contains("page at ") {
            line.clear();
        }
        let link = line.split("http://").nth(1).expect("a link was printed").trim();
        let (address, token) = link.split_once("/?token=").unwrap();
        let (address, token) = (address.to_string(), token.to_string());
        Served { child, _said: said, address, token }
    }

    /// Status and whole answer.
    fn ask(&self, method: &str, target: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let text = format!(
            "{method} {target} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    fn get(&self, target: &str) -> (u16, String) {
        self.ask("GET", target, &format!("Host: {}\r\n", self.address), "")
    }

    fn end(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        assert!(TcpStream::connect(&self.address).is_err(), "the page is gone with the job");
    }
}

fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_page_needs_its_token_and_an_address_to_be_asked_by() {
    let served = Served::start(&["run", "-n", "2", "--ui", "--", "sleep", "600"]);
    assert!(served.address.starts_with("127.0.0.1:"));
    let token = served.token.clone();
    for target in ["/", "/?token=", "/?token=0000", "/feed", "/metrics", "/trace", "/x"] {
        assert_eq!(served.get(target).0, 403, "{target}");
    }
    let (status, page) = served.get(&format!("/?token={token}"));
    assert_eq!(status, 200);
    assert!(page.contains("Content-Security-Policy: default-src 'none'"));
    assert!(page.contains("Referrer-Policy: no-referrer"));
    let (_, feed) = served.get(&format!("/feed?token={token}"));
    assert!(feed.contains("\"program\":\"sleep 600\""), "{feed}");
    let (_, metrics) = served.get(&format!("/metrics?token={token}"));
    assert!(metrics.contains("paceline_running 1"), "{metrics}");

    let with = |host: &str| format!("Host: {host}\r\nAuthorization: Bearer {token}\r\n");
    assert_eq!(served.ask("GET", "/", &with("evil.example"), "").0, 403, "a name that leads here");
    let body = r#"{"workers":3}"#;
    let (status, answer) = served.ask("POST", "/resize", &with(&served.address), body);
    assert_eq!(status, 409, "{answer}");
    assert_eq!(served.ask("POST", "/resize", &with(&served.address), "{}").0, 400);
    let no_header = format!("Host: {}\r\n", served.address);
    assert_eq!(served.ask("POST", &format!("/resize?token={token}"), &no_header, body).0, 403);
    assert_eq!(served.ask("PUT", "/", &with(&served.address), "").0, 405);
    served.end();
}

#[test]
fn what_is_wrong_is_said_before_anything_is_started() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ui = format!("--ui={}", taken.local_addr().unwrap());
    let said = failed(&paceline(&["run", "-n", "1", &ui, "--", "true"]).output().unwrap());
    assert!(said.contains("in use") && said.contains("another port"), "{said}");
    let short = paceline(&["run", "-n", "1", "--ui", "--", "true"])
        .env("PACELINE_UI_TOKEN", "short")
        .output()
        .unwrap();
    assert!(failed(&short).contains("PACELINE_UI_TOKEN"));
    let said = failed(&paceline(&["ui", "/no/such/folder"]).output().unwrap());
    assert!(said.contains("/no/such/folder") && said.contains("--ui-dir"), "{said}");
}

#[test]
fn a_run_that_is_over_is_kept_and_shown_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let kept = kept.to_str().unwrap();
    let run = ["run", "-n", "2", "--ui-dir", kept, "--", "true"];
    assert!(paceline(&run).output().unwrap().status.success());
    assert!(Path::new(kept).join("page.jsonl").exists());
    assert!(failed(&paceline(&run).output().unwrap()).contains("another run"));

    let mut child = paceline(&["ui", kept]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let (address, token) =
        line.trim().strip_prefix("page at http://").unwrap().split_once("/?token=").unwrap();
    let ask = || {
        let mut stream = TcpStream::connect(address).unwrap();
        let text = format!("GET /feed?token={token} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // What was kept is read before the link is printed, and told soon after.
    let told = (0..100).map(|_| ask()).find(|answer| answer.contains("\"kind\":\"end\""));
    assert!(told.is_some_and(|answer| answer.contains("finished")));
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
