//! A small server of HTTP/1.1 for one person's browser: bounded connections, requests and waits, one answer for each connection.
//! Heads are read by `httparse`. What is answered is not known here, nor who may ask.

use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Connections at a time. More wait for the system to tire of them.
const CONNECTIONS: usize = 32;

/// The longest head and body of a request.
const HEAD_BYTES: usize = 16 << 10;
const BODY_BYTES: usize = 4 << 10;
const HEADERS: usize = 64;

/// How long a request may take to come, and each part of an answer to leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a browser asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Without what follows the question mark.
    pub path: String,
    /// What follows it.
    pub query: BTreeMap<String, String>,
    /// By their names in small letters.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    /// A header, by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub kind: &'static str,
    /// Besides those that every answer has.
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// Something of this kind.
    pub fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status: 200, kind, headers: Vec::new(), body: body.into() }
    }

    /// JSON.
    pub fn json(body: impl Into<Vec<u8>>) -> Response {
        Response::new("application/json", body)
    }

    /// Words that say what went wrong.
    pub fn refused(status: u16, text: &str) -> Response {
        let body = format!("{text}\n");
        Response { status, ..Response::new("text/plain; charset=utf-8", body) }
    }
}

/// Answers requests, on threads of the server's.
pub type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// A running server. Dropping it ends it; answers that are on their way are finished or cut within a few seconds.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answer what comes at the listener from now on.
    pub fn start(listener: TcpListener, handler: Handler) -> Result<Server> {
        let address = listener.local_addr()?;
        let stopping = Arc::<AtomicBool>::default();
        let stop = stopping.clone();
        let thread = thread::Builder::new()
            .name("page".to_string())
            .spawn(move || accept(&listener, &handler, &stop))
            .context("cannot start the page's thread")?;
        Ok(Server { address, stopping, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Whoever accepts is waked by a last visitor.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, handler: &Handler, stopping: &Arc<AtomicBool>) {
    let open = Arc::<AtomicUsize>::default();
    for visitor in listener.incoming() {
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = visitor else {
            // Too many files are open, for example: that passes.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if open.load(Ordering::Acquire) >= CONNECTIONS {
            continue;
        }
        open.fetch_add(1, Ordering::AcqRel);
        let (handler, ours) = (handler.clone(), open.clone());
        let started = thread::Builder::new().name("page-visitor".to_string()).spawn(move || {
            // Whoever leaves without an answer needs none.
            let _ = serve(stream, &handler);
            ours.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(mut stream: TcpStream, handler: &Handler) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let (response, head_only) = match read_request(&mut stream) {
        Ok(None) => return Ok(()),
        Ok(Some(request)) => (handler(&request), request.method == "HEAD"),
        Err(refusal) => (refusal, false),
    };
    let mut head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\n",
        response.status,
        reason(response.status),
        response.kind,
        response.body.len()
    );
    for (name, value) in &response.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes())?;
    if !head_only {
        stream.write_all(&response.body)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // What was sent and not read would make the system cut the answer off.
    let mut rest = [0; 4096];
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && stream.read(&mut rest)? > 0 {}
    Ok(())
}

/// A whole request, nothing if nobody asks, or how it is refused.
fn read_request(stream: &mut impl Read) -> Result<Option<Request>, Response> {
    let until = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some((mut request, length)) = parse_head(&bytes)? {
            let wanted = body_length(&request)?;
            let rest = bytes.split_off(length);
            request.body = rest;
            while request.body.len() < wanted {
                let read = read_some(stream, &mut piece, until)?;
                if read == 0 {
                    return Err(Response::refused(400, "the request ends early"));
                }
                request.body.extend_from_slice(&piece[..read]);
            }
            request.body.truncate(wanted);
            return Ok(Some(request));
        }
        if bytes.len() > HEAD_BYTES {
            return Err(Response::refused(431, "the request's head is too long"));
        }
        match read_some(stream, &mut piece, until)? {
            0 if bytes.is_empty() => return Ok(None),
            0 => return Err(Response::refused(400, "the request ends early")),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

fn read_some(stream: &mut impl Read, into: &mut [u8], until: Instant) -> Result<usize, Response> {
    let late = || Response::refused(408, "the request takes too long");
    if Instant::now() >= until {
        return Err(late());
    }
    stream.read(into).map_err(|_| late())
}

/// The head, if it is whole, and its length.
fn parse_head(bytes: &[u8]) -> Result<Option<(Request, usize)>, Response> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(Response::refused(400, &format!("no request: {error}"))),
    };
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let request = Request {
        method: parsed.method.unwrap_or_default().to_string(),
        path: path.to_string(),
        query: query.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        headers: parsed
            .headers
            .iter()
            .map(|header| {
                let value = String::from_utf8_lossy(header.value);
                (header.name.to_ascii_lowercase(), value.trim().to_string())
            })
            .collect(),
        body: Vec::new(),
    };
    Ok(Some((request, length)))
}

fn body_length(request: &Request) -> Result<usize, Response> {
    if request.header("transfer-encoding").is_some() {
        return Err(Response::refused(411, "say how long the body is"));
    }
    let Some(text) = request.header("content-length") else { return Ok(0) };
    match text.parse() {
        Ok(length) if length <= BODY_BYTES => Ok(length),
        Ok(_) => Err(Response::refused(413, "the body is too long")),
        Err(_) => Err(Response::refused(400, "no length of a body")),
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Request>, u16> {
        read_request(&mut text.as_bytes()).map_err(|refusal| refusal.status)
    }

    #[test]
    fn a_request_is_read_with_its_query_headers_and_body() {
        let text =
            "POST /resize?token=ab&x= HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{1}more";
        let request = read(text).unwrap().unwrap();
        assert_eq!((&*request.method, &*request.path), ("POST", "/resize"));
        assert_eq!(request.query["token"], "ab");
        assert_eq!((request.header("host"), &*request.body), (Some("a"), &b"{1}"[..]));
        assert_eq!(read(""), Ok(None));
    }

    #[test]
    fn what_is_no_request_or_too_long_is_refused() {
        assert_eq!(read("hello\r\n\r\n"), Err(400));
        assert_eq!(read("GET / HTTP/1.1\r\nHost: a"), Err(400));
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEAD_BYTES));
        assert_eq!(read(&long), Err(431));
        let body = |length: &str| read(&format!("POST / HTTP/1.1\r\n{length}\r\n\r\n"));
        assert_eq!(body("Content-Length: 99999"), Err(413));
        assert_eq!(body("Content-Length: many"), Err(400));
        assert_eq!(body("Content-Length: 9"), Err(400));
        assert_eq!(body("Transfer-Encoding: chunked"), Err(411));
        let many = "a: b\r\n".repeat(HEADERS + 1);
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Err(400));
    }

    #[test]
    fn a_server_answers_and_ends_when_it_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handler: Handler = Arc::new(|request| Response::json(request.path.clone()));
        let server = Server::start(listener, handler).unwrap();
        let address = server.address();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("/a"), "{answer}");
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
