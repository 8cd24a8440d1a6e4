//! Who may see a page and change the job: whoever has the token, which is in the link that the command prints.

use super::http::{Request, Response};
use crate::exit::UsageError;
use anyhow::Result;
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// A token of one's own, for pages that other programs read.
pub const VARIABLE: &str = "PACELINE_UI_TOKEN";

/// Of a token of one's own. One that is made has 32.
const LEAST: usize = 16;

/// See the file's first paragraph.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// That of the environment, or a fresh one.
    pub fn of_environment() -> Result<Token> {
        match std::env::var(VARIABLE) {
            Ok(text) => Token::checked(text),
            Err(_) => Token::fresh(),
        }
    }

    /// One that nobody else has: half of a secret is as good.
    pub fn fresh() -> Result<Token> {
        let secret = paceline_net::Secret::random()?.to_hex();
        Ok(Token(secret[..32].to_string()))
    }

    fn checked(text: String) -> Result<Token> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if text.len() >= LEAST && text.bytes().all(plain) {
            return Ok(Token(text));
        }
        let text = format!("{VARIABLE}: give {LEAST} or more letters, digits, `-` and `_`");
        Err(UsageError::new(text).into())
    }

    /// For a link.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Refuse whoever does not have it, and requests that some other site's page makes.
    pub fn check(&self, request: &Request) -> Result<(), Response> {
        if !request.header("host").is_some_and(is_no_name) {
            let text = "ask for it by its address, as in the link that the command printed";
            return Err(Response::refused(403, text));
        }
        let in_header = request.header("authorization");
        let in_header = in_header.and_then(|text| text.strip_prefix("Bearer "));
        let in_link = request.query.get("token").map(String::as_str);
        // A link can be followed by accident; what changes something cannot.
        let given = match request.method.as_str() {
            "GET" | "HEAD" => in_header.or(in_link),
            _ => in_header,
        };
        let right = given.is_some_and(|given| self.0.as_bytes().ct_eq(given.as_bytes()).into());
        match right {
            true => Ok(()),
            false => {
                let text =
                    "the token is missing or another job's: use the link that the command printed";
                Err(Response::refused(403, text))
            }
        }
    }
}

/// Whether a `Host` header names an address or this machine: a name of somebody else's may lead here without our knowing.
fn is_no_name(host: &str) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => bare,
        _ => host,
    };
    let address = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bare);
    bare.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, host: &str, header: &str, link: &str) -> Request {
        let mut request = Request { method: method.to_string(), ..Request::default() };
        for (name, value) in [("host", host), ("authorization", header)] {
            request.headers.insert(name.to_string(), value.to_string());
        }
        request.query.insert("token".to_string(), link.to_string());
        request
    }

    #[test]
    fn the_token_is_needed_and_changes_need_it_in_a_header() {
        let token = Token::checked("0123456789abcdef".to_string()).unwrap();
        let status = |method, header, link| {
            let answer = token.check(&request(method, "127.0.0.1:80", header, link));
            answer.map_err(|refusal| refusal.status)
        };
        assert_eq!(status("GET", "", "0123456789abcdef"), Ok(()));
        assert_eq!(status("GET", "Bearer 0123456789abcdef", ""), Ok(()));
        assert_eq!(status("POST", "Bearer 0123456789abcdef", ""), Ok(()));
        for (method, header, link) in [
            ("GET", "", ""),
            ("GET", "", "0123456789abcdeX"),
            ("GET", "", "0123456789abcdef0"),
            ("GET", "0123456789abcdef", ""),
            ("POST", "", "0123456789abcdef"),
            ("GET", "Bearer wrong", "0123456789abcdef"),
        ] {
            assert_eq!(status(method, header, link), Err(403), "{method} {header} {link}");
        }
    }

    #[test]
    fn only_addresses_and_this_machine_are_asked_for() {
        for host in ["127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:7", "10.0.0.1"] {
            assert!(is_no_name(host), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil:80", "a:b"] {
            assert!(!is_no_name(host), "{host}");
        }
    }

    #[test]
    fn a_token_of_ones_own_is_long_and_fits_into_a_link() {
        for text in ["", "short", "with spaces in it and long", "ümlaut-ümlaut-ümlaut"] {
            assert!(Token::checked(text.to_string()).is_err(), "{text}");
        }
        assert!(Token::checked(Token::fresh().unwrap().text().to_string()).is_ok());
    }
}
