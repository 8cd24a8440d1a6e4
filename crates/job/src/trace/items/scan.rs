//! Cutting a stream of JSON into values without holding more than one of them. It checks quotes and brackets only: what is
//! between them is for a parser.

use std::io::{BufRead, BufReader, ErrorKind, Read};

/// How taking a value from the stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was taken.
    Whole,
    /// It was skipped: it is longer than allowed.
    TooLong,
    /// The stream ended inside it.
    Cut,
}

/// A stream of bytes that ends where it cannot be read any further.
pub(super) struct Scanner<R> {
    input: BufReader<R>,
    /// Why the stream ended, if it did not just end.
    pub failure: Option<std::io::Error>,
}

impl<R: Read> Scanner<R> {
    pub fn new(input: R) -> Scanner<R> {
        Scanner { input: BufReader::with_capacity(1 << 16, input), failure: None }
    }

    /// The next byte that is not white space, left where it is.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let buffer = self.fill();
            let space = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let next = buffer.get(space).copied();
            let over = buffer.is_empty();
            self.input.consume(space);
            if next.is_some() || over {
                return next;
            }
        }
    }

    /// Step over the byte that [`Scanner::peek`] showed.
    pub fn skip(&mut self) {
        self.input.consume(1);
    }

    /// Take one value into `value`, at most `most` bytes of it.
    pub fn take(&mut self, value: &mut Vec<u8>, most: usize) -> Taken {
        value.clear();
        let Some(first) = self.peek() else { return Taken::Cut };
        let nests = matches!(first, b'{' | b'[' | b'"');
        let (mut depth, mut in_string, mut escaped, mut too_long) = (0_u64, false, false, false);
        loop {
            let buffer = self.fill();
            if buffer.is_empty() {
                // A number or a word may end with the stream.
                return if nests || value.is_empty() { Taken::Cut } else { Taken::Whole };
            }
            let mut over = None;
            for (place, byte) in buffer.iter().enumerate() {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_string => escaped = true,
                    b'"' => in_string = !in_string,
                    _ if in_string => continue,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' if depth > 0 => depth -= 1,
                    b'}' | b']' | b',' | b':' if !nests => {
                        over = Some(place);
                        break;
                    }
                    byte if !nests && byte.is_ascii_whitespace() => {
                        over = Some(place);
                        break;
                    }
                    _ => continue,
                }
                if nests && depth == 0 && !in_string {
                    over = Some(place + 1);
                    break;
                }
            }
            let used = over.unwrap_or(buffer.len());
            too_long |= value.len() + used > most;
            if too_long {
                value.clear();
            } else {
                value.extend_from_slice(&buffer[..used]);
            }
            self.input.consume(used);
            match over {
                Some(_) if too_long => return Taken::TooLong,
                Some(_) => return Taken::Whole,
                None => {}
            }
        }
    }

    /// What is buffered, refilled if that was nothing; empty at the end.
    fn fill(&mut self) -> &[u8] {
        while self.failure.is_none() {
            match self.input.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.failure = Some(error),
            }
        }
        // After a failure the buffer is what was read before it, which has been used up.
        if self.failure.is_some() { &[] } else { self.input.buffer() }
    }
}
