//! What the server answers: the page, what has happened, metrics, a trace, and the few things that may be changed. The rules of
//! who may ask are `token`'s, what is known the feed's.

use super::{
    feed::{Feed, now},
    http::{Request, Response},
    prometheus,
    record::{ASK, SeenDecision, What},
    token::Token,
    trace,
};
use paceline_job::{ByteSize, Settings};
use paceline_net::Secret;
use serde::Deserialize;
use std::sync::Arc;

/// What whoever watches may do besides looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hands {
    /// Resize, change settings, pause tuning, as far as the job can.
    On,
    /// Nothing: the job is directed by somebody else, or over.
    Off,
}

/// See the file's first paragraph.
pub struct Site {
    pub token: Token,
    pub feed: Arc<Feed>,
    pub hands: Hands,
}

/// The page: one document with all that it needs. Scripts share one scope, in this order.
const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPTS: [&str; 9] = [
    include_str!("page/format.js"),
    include_str!("page/model.js"),
    include_str!("page/canvas.js"),
    include_str!("page/chart.js"),
    include_str!("page/timeline.js"),
    include_str!("page/topology.js"),
    include_str!("page/lists.js"),
    include_str!("page/controls.js"),
    include_str!("page/main.js"),
];

/// A wish for another number of workers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    workers: usize,
}

/// Whether tuners are to rest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tuning {
    paused: bool,
}

/// Other settings; those that are left out stay.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    partition: Option<ByteSize>,
    credit: Option<ByteSize>,
}

impl Site {
    /// Answer.
    pub fn answer(&self, request: &Request) -> Response {
        if let Err(refusal) = self.token.check(request) {
            return refusal;
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET" | "HEAD", "/") => self.page(),
            ("GET", "/feed") => self.feed(request),
            ("GET", "/metrics") => {
                let text = self.feed.read(|history| prometheus::text(&history.now));
                Response::new(prometheus::KIND, text)
            }
            ("GET", "/trace") => {
                let text = self.feed.read(|history| trace::text(history.details()));
                let save = "attachment; filename=\"paceline-trace.json\"".to_string();
                let headers = vec![("Content-Disposition", save)];
                Response { headers, ..Response::json(text) }
            }
            ("POST", "/resize" | "/tuning" | "/settings") => self.act(request),
            ("GET" | "HEAD" | "POST", _) => Response::refused(404, "there is no such page"),
            _ => Response::refused(405, "that cannot be done here"),
        }
    }

    fn page(&self) -> Response {
        // What is in the page runs, and nothing that comes into it otherwise.
        let Ok(nonce) = Secret::random().map(|secret| secret.to_hex()) else {
            return Response::refused(500, "no random numbers are to be had");
        };
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let script = SCRIPTS.concat();
        let document = DOCUMENT
            .replace("@NONCE@", &nonce)
            .replace("/*@STYLE@*/", STYLE)
            .replace("/*@SCRIPT@*/", &script);
        let headers = vec![("Content-Security-Policy", policy)];
        Response { headers, ..Response::new("text/html; charset=utf-8", document) }
    }

    fn feed(&self, request: &Request) -> Response {
        let after = request.query.get("after").and_then(|text| text.parse().ok()).unwrap_or(0);
        let (records, last, more) = self.feed.read(|history| history.after(after));
        let hands = self.hands == Hands::On && self.feed.coordinator().is_some();
        let body = format!(
            "{{\"last\":{last},\"more\":{more},\"now\":{},\"hands\":{hands},\"records\":{records}}}",
            now()
        );
        Response::json(body)
    }

    fn act(&self, request: &Request) -> Response {
        let coordinator = self.feed.coordinator().filter(|_| self.hands == Hands::On);
        let Some(coordinator) = coordinator else {
            return Response::refused(
                409,
                "nothing can be changed here: the job is over, or directs itself",
            );
        };
        let unreadable = |error: serde_json::Error| Response::refused(400, &error.to_string());
        let said = match request.path.as_str() {
            "/resize" => match serde_json::from_slice::<Resize>(&request.body) {
                Err(error) => return unreadable(error),
                Ok(Resize { workers }) => {
                    coordinator.resize(workers).map(|()| format!("asked for {workers} workers"))
                }
            },
            "/tuning" => match serde_json::from_slice::<Tuning>(&request.body) {
                Err(error) => return unreadable(error),
                Ok(Tuning { paused }) => coordinator.pause_tuning(paused).map(|()| {
                    self.feed.add(What::Tuning { paused });
                    let done = if paused { "tuning rests" } else { "tuning goes on" };
                    done.to_string()
                }),
            },
            _ => match serde_json::from_slice::<Change>(&request.body) {
                Err(error) => return unreadable(error),
                Ok(change) => match coordinator.settings() {
                    Ok(Some(before)) => {
                        let settings = Settings {
                            partition: change.partition.unwrap_or(before.partition),
                            credit: change.credit.unwrap_or(before.credit),
                            ..before
                        };
                        let (partition, credit) = (settings.partition, settings.credit);
                        let asked = format!("asked for partition {partition}, credit {credit}");
                        coordinator.change(settings).map(|()| asked)
                    }
                    Ok(None) => return Response::refused(409, "the job has not begun"),
                    Err(error) => Err(error),
                },
            },
        };
        match said {
            Err(error) => Response::refused(409, &error.to_string()),
            Ok(text) => {
                self.feed.add(What::Decision(SeenDecision {
                    by: "you".to_string(),
                    action: ASK.to_string(),
                    text: text.clone(),
                    ..SeenDecision::default()
                }));
                Response::json(serde_json::json!({ "said": text }).to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> (Site, String) {
        let token = Token::fresh().unwrap();
        let text = token.text().to_string();
        (Site { token, feed: Feed::new(None), hands: Hands::On }, text)
    }

    fn request(method: &str, path: &str, token: &str) -> Request {
        let mut request =
            Request { method: method.to_string(), path: path.to_string(), ..Request::default() };
        request.headers.insert("host".to_string(), "127.0.0.1:1".to_string());
        request.headers.insert("authorization".to_string(), format!("Bearer {token}"));
        request
    }

    #[test]
    fn everything_needs_the_token() {
        let (site, token) = site();
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/feed"),
            ("GET", "/metrics"),
            ("GET", "/trace"),
            ("POST", "/resize"),
            ("GET", "/nowhere"),
            ("DELETE", "/"),
        ] {
            assert_eq!(site.answer(&request(method, path, "x")).status, 403, "{path}");
            assert_ne!(site.answer(&request(method, path, &token)).status, 403, "{path}");
        }
    }

    #[test]
    fn the_page_asks_nobody_else_for_anything_and_runs_only_what_is_its_own() {
        let (site, token) = site();
        let page = site.answer(&request("GET", "/", &token));
        let text = String::from_utf8(page.body).unwrap();
        let policy = &page.headers[0].1;
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert!(!text.contains("http://") && !text.contains("https://"));
        assert!(!text.contains('@') || !text.contains("@NONCE@"));
        assert!(text.contains("<style nonce=") && text.contains("<script nonce="));
        assert!(
            !text.contains(" style=") && !text.contains(" onclick="),
            "the policy forbids them"
        );
        let again = site.answer(&request("GET", "/", &token));
        assert_ne!(&again.headers[0].1, policy, "a nonce is used once");
    }

    #[test]
    fn nothing_can_be_changed_of_a_job_that_is_over() {
        let (site, token) = site();
        let mut resize = request("POST", "/resize", &token);
        resize.body = br#"{"workers":3}"#.to_vec();
        assert_eq!(site.answer(&resize).status, 409);
    }

    #[test]
    fn what_happened_is_told_from_where_the_page_was() {
        let (site, token) = site();
        site.feed.add(What::Note { text: "a".to_string() });
        let told = |after: &str| {
            let mut request = request("GET", "/feed", &token);
            request.query.insert("after".to_string(), after.to_string());
            serde_json::from_slice::<serde_json::Value>(&site.answer(&request).body).unwrap()
        };
        assert_eq!(told("0")["records"][0]["text"], "a");
        assert_eq!(told("1")["records"].as_array().unwrap().len(), 0);
        assert_eq!(told("nonsense")["last"], 1);
    }
}
