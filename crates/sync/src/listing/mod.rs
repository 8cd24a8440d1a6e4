//! Programs for people: a text listing of one, and a space-time drawing of a whole set.
//!
//! It reads programs through the same interface as the engine and the checker, and knows nothing of
//! strategies.

mod drawing;

pub use drawing::svg;

use crate::program::{Dest, Instr, Program, Source};
use std::fmt::{self, Write};

/// A listing that is longer than this is cut off: nobody reads on.
const MOST_LINES: usize = 2000;

/// What one member does, instruction by instruction. Those of length zero are left out, but
/// counted.
pub fn describe(program: &dyn Program) -> String {
    let mut text = String::new();
    let mut lines = 0;
    for lane in 0..program.lanes() {
        line(&mut text, format_args!("lane {lane}"));
        for pc in 0.. {
            let Some(instr) = program.instr(lane, pc) else { break };
            if lines == MOST_LINES {
                line(&mut text, format_args!("  … and so on"));
                return text;
            }
            if !instr.is_empty() {
                lines += 1;
                line(&mut text, format_args!("  {pc:>4}  {}", Words(instr, program.divisor(lane))));
            }
        }
    }
    text
}

fn line(text: &mut String, words: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{words}");
}

/// An instruction, and by what its program divides averages.
struct Words(Instr, u32);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Instr::Send { to, slot, source, len } => {
                let source = Place::of(source, len);
                write!(f, "send     {source} to member {to} (lane {}, {})", slot.lane, slot.pc)
            }
            Instr::Recv { from, with, into, len } => {
                write!(f, "receive  {} = message", Place::to(into, len))?;
                if let Some(with) = with {
                    write!(f, " + {}", Place::of(with, len))?;
                    self.division(f, into)?;
                }
                write!(f, " from member {from}")
            }
            Instr::Local { source, with, into, len } => {
                write!(f, "local    {} = {}", Place::to(into, len), Place::of(source, len))?;
                if let Some(with) = with {
                    write!(f, " + {}", Place::of(with, len))?;
                }
                self.division(f, into)
            }
        }
    }
}

impl Words {
    /// Averages are divided where their final value is made.
    fn division(&self, f: &mut fmt::Formatter<'_>, into: Dest) -> fmt::Result {
        match into {
            Dest::Out(_) if self.1 > 1 => write!(f, " [average: / {}]", self.1),
            _ => Ok(()),
        }
    }
}

/// A range of some memory.
struct Place {
    memory: &'static str,
    register: Option<u8>,
    start: u64,
    len: u64,
}

impl Place {
    fn of(source: Source, len: u64) -> Place {
        let (memory, register, start) = match source {
            Source::Own(start) => ("own", None, start),
            Source::Out(start) => ("out", None, start),
            Source::Reg(register, start) => ("register", Some(register), start),
        };
        Place { memory, register, start, len }
    }

    fn to(into: Dest, len: u64) -> Place {
        Place::of(
            match into {
                Dest::Out(start) => Source::Out(start),
                Dest::Reg(register) => Source::Reg(register, 0),
            },
            len,
        )
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { memory, register, start, len } = self;
        f.write_str(memory)?;
        if let Some(register) = register {
            write!(f, " {register} ")?;
        }
        write!(f, "[{start}..{}]", start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{Site, Span, Strategy},
        strategy::{self, Ring},
    };

    #[test]
    fn a_listing_reads_as_the_program_runs() {
        let ring = Ring::default().program(&Site::flat(3, 1), Span { offset: 0, len: 30 });
        let expected = "\
lane 0
     0  send     own[10..20] to member 2 (lane 0, 1)
     1  receive  register 0 [0..10] = message + own[0..10] from member 0
     2  send     register 0 [0..10] to member 2 (lane 0, 3)
     3  receive  out[20..30] = message + own[20..30] [average: / 3] from member 0
     4  send     out[20..30] to member 2 (lane 0, 5)
     5  receive  out[10..20] = message from member 0
     6  send     out[10..20] to member 2 (lane 0, 7)
     7  receive  out[0..10] = message from member 0
";
        assert_eq!(describe(ring.as_ref()), expected);
    }

    #[test]
    fn a_drawing_has_a_line_for_each_member_and_an_arrow_for_each_message() {
        for strategy in strategy::all() {
            for members in [1, 2, 5, 8] {
                let span = Span { offset: 0, len: 80 };
                let programs: Vec<_> = (0..members)
                    .map(|me| strategy.program(&Site::flat(members, me), span))
                    .collect();
                let drawing = svg(&programs).unwrap();
                let count = |tag: &str| drawing.matches(tag).count();
                assert!(drawing.starts_with("<svg") && drawing.ends_with("</svg>\n"));
                assert_eq!(count("class=\"member\""), members as usize);
                let messages = crate::checker::trace(&programs).unwrap().len();
                assert_eq!(count("class=\"message"), messages);
            }
        }
    }
}
