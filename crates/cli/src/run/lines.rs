//! Cuts a stream of bytes into lines, whatever the sizes of the pieces it comes in. It knows nothing of
//! workers, prefixes or where lines go.

/// A line longer than this is passed on in pieces, so that a worker that never ends its line cannot
/// fill our memory.
pub const LONGEST_LINE: usize = 64 * 1024;

/// How a line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By a newline. A carriage return just before it is still part of the text.
    Newline,
    /// By a carriage return alone: a progress bar is about to overwrite it.
    Return,
    /// It did not end: it is too long, or the stream is over.
    Cut,
}

/// One stream's unfinished line, at most [`LONGEST_LINE`] bytes.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Take the next bytes and hand every line they complete, without its end, to `emit`.
    pub fn feed(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(&[u8], End)) {
        while let Some(&first) = bytes.first() {
            // A carriage return is kept back until the next byte tells what it meant.
            if self.partial.last() == Some(&b'\r') && first != b'\n' {
                self.partial.pop();
                self.emit(End::Return, emit);
            }
            let room = LONGEST_LINE - self.partial.len();
            let window = &bytes[..bytes.len().min(room)];
            let taken = match window.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                Some(end) if window[end] == b'\n' => {
                    self.partial.extend_from_slice(&window[..end]);
                    self.emit(End::Newline, emit);
                    end + 1
                }
                Some(end) => {
                    self.partial.extend_from_slice(&window[..=end]);
                    end + 1
                }
                None => {
                    self.partial.extend_from_slice(window);
                    window.len()
                }
            };
            if self.partial.len() == LONGEST_LINE && self.partial.last() != Some(&b'\r') {
                self.emit(End::Cut, emit);
            } else if self.partial.len() == LONGEST_LINE {
                self.partial.pop();
                self.emit(End::Return, emit);
            }
            bytes = &bytes[taken..];
        }
    }

    /// The stream is over: hand out what was never ended.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&[u8], End)) {
        if self.partial.last() == Some(&b'\r') {
            self.partial.pop();
            self.emit(End::Return, emit);
        } else if !self.partial.is_empty() {
            self.emit(End::Cut, emit);
        }
    }

    fn emit(&mut self, end: End, emit: &mut dyn FnMut(&[u8], End)) {
        emit(&self.partial, end);
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8], piece: usize) -> Vec<(Vec<u8>, End)> {
        let mut found = Vec::new();
        let mut emit = |line: &[u8], end| found.push((line.to_vec(), end));
        let mut lines = Lines::default();
        for piece in text.chunks(piece) {
            lines.feed(piece, &mut emit);
        }
        lines.finish(&mut emit);
        found
    }

    fn line(text: &str, end: End) -> (Vec<u8>, End) {
        (text.as_bytes().to_vec(), end)
    }

    #[test]
    fn lines_do_not_depend_on_the_pieces_they_come_in() {
        let text = b"one\n\ntwo\r\n 10%\r 20%\r\rdone\nrest";
        let expected = [
            line("one", End::Newline),
            line("", End::Newline),
            line("two\r", End::Newline),
            line(" 10%", End::Return),
            line(" 20%", End::Return),
            line("", End::Return),
            line("done", End::Newline),
            line("rest", End::Cut),
        ];
        for piece in 1..=text.len() {
            assert_eq!(cut(text, piece), expected, "in pieces of {piece}");
        }
        assert_eq!(cut(b"bar\r", 1), [line("bar", End::Return)]);
        assert_eq!(cut(b"", 1), []);
    }

    #[test]
    fn a_line_without_end_comes_in_bounded_pieces_and_whole() {
        for last in [&b""[..], b"\n", b"\r"] {
            for length in [LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 3 * LONGEST_LINE] {
                let mut text: Vec<u8> =
                    (0..length).map(|index| b'a' + (index % 26) as u8).collect();
                let letters = text.clone();
                text.extend_from_slice(last);
                let found = cut(&text, 4096);
                assert!(found.iter().all(|(line, _)| line.len() <= LONGEST_LINE));
                let joined: Vec<u8> = found.into_iter().flat_map(|(line, _)| line).collect();
                assert!(joined == letters, "{length} letters and {last:?}");
            }
        }
    }
}
