//! A space-time diagram: members side by side, time downwards, an arrow for each message.
//!
//! Rounds come from the checker's execution, where every message takes one unit of time. The output
//! is a plain SVG that follows the reader's light or dark theme; it is meant for at most eight
//! members, and only gets wider beyond.

use crate::{
    checker::{Delivery, Violation, trace},
    program::Program,
};
use std::fmt::{self, Write};

/// Between the lines of two members.
const COLUMN: u64 = 130;
/// Around everything, and above the first round.
const MARGIN: u64 = 60;
/// Height of a round with one message per member.
const ROUND: u64 = 64;
/// Between the ends of arrows that leave or reach a member in one round.
const STEP: u64 = 14;

const STYLE: &str = "\
svg{color:#1b1f24;background:#fff;font:12px system-ui,sans-serif}
.time{stroke:currentColor;opacity:.35}.round{stroke:currentColor;opacity:.12}
text{fill:currentColor}.name{text-anchor:middle;font-weight:600}.quiet{opacity:.6}
.label{font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:3px}
.message line{stroke-width:1.6}.copied line{stroke-dasharray:5 3}
.part0{color:#0b6bcb}.part1{color:#c2410c}.part2{color:#15803d}.part3{color:#7e22ce}
.part4{color:#be185d}.part5{color:#0f766e}.part6{color:#a16207}.part7{color:#475569}
.message line{stroke:currentColor}.message polygon{fill:currentColor}
@media(prefers-color-scheme:dark){svg{color:#e6e8eb;background:#16181c}.label{stroke:#16181c}
.part0{color:#6cb6ff}.part1{color:#ffa36c}.part2{color:#6cd68d}.part3{color:#d2a8ff}
.part4{color:#ff9bcf}.part5{color:#5fd6c8}.part6{color:#e3c04f}.part7{color:#b6c2cf}}";

/// Colours in the style.
const COLOURS: usize = 8;

/// Draw a set of programs, one per member. Fails if the set cannot run to its end.
pub fn svg(programs: &[Box<dyn Program>]) -> Result<String, Violation> {
    let messages = trace(programs)?;
    let drawing = Drawing::new(programs.len() as u64, messages);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = drawing.write(&mut text);
    Ok(text)
}

/// Where everything goes.
struct Drawing {
    members: u64,
    arrows: Vec<Arrow>,
    /// The height at which each round begins, and the end of the last.
    rounds: Vec<u64>,
    /// Where the parts that travel begin, ascending; each has a colour.
    parts: Vec<u64>,
}

struct Arrow {
    message: Delivery,
    /// How many arrows of the same round leave its sender, or reach its receiver, above it.
    leaves: u64,
    arrives: u64,
}

impl Drawing {
    fn new(members: u64, messages: Vec<Delivery>) -> Drawing {
        let count = messages.iter().map(|message| message.arrives).max().unwrap_or(0) as usize;
        let mut rounds = vec![MARGIN];
        let mut arrows = Vec::with_capacity(messages.len());
        for round in 1..=count {
            let mut left = vec![0; members as usize];
            let mut reached = vec![0; members as usize];
            for message in messages.iter().filter(|message| message.arrives as usize == round) {
                let leaves = &mut left[message.send.member as usize];
                let arrives = &mut reached[message.receive.member as usize];
                arrows.push(Arrow { message: *message, leaves: *leaves, arrives: *arrives });
                (*leaves, *arrives) = (*leaves + 1, *arrives + 1);
            }
            let most = left.into_iter().chain(reached).max().unwrap_or(1);
            rounds.push(rounds[round - 1] + ROUND + 2 * STEP * (most.max(1) - 1));
        }
        let mut parts: Vec<u64> = messages.iter().map(|message| message.elements.0).collect();
        parts.sort_unstable();
        parts.dedup();
        Drawing { members, arrows, rounds, parts }
    }

    fn column(&self, member: u32) -> u64 {
        MARGIN + COLUMN / 2 + u64::from(member) * COLUMN
    }

    fn end(&self) -> u64 {
        // There is always the beginning.
        self.rounds[self.rounds.len() - 1]
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let width = 2 * MARGIN + self.members.max(1) * COLUMN;
        let height = self.end() + MARGIN;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\">"
        )?;
        writeln!(out, "<title>Messages of {} members</title>", self.members)?;
        writeln!(out, "<style>{STYLE}</style>")?;
        let rounds = self.rounds.len() - 1;
        for (round, y) in self.rounds.iter().enumerate() {
            let right = width - MARGIN / 2;
            writeln!(
                out,
                "<line class=\"round\" x1=\"{MARGIN}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>"
            )?;
            if round < rounds {
                let middle = (y + self.rounds[round + 1]) / 2;
                writeln!(
                    out,
                    "<text class=\"quiet\" x=\"12\" y=\"{middle}\">{}</text>",
                    round + 1
                )?;
            }
        }
        for member in 0..self.members as u32 {
            let (x, top) = (self.column(member), MARGIN - 10);
            writeln!(
                out,
                "<g class=\"member\"><text class=\"name\" x=\"{x}\" y=\"{}\">member {member}</text>\
                 <line class=\"time\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{}\"/></g>",
                top - 8,
                self.end() + 10
            )?;
        }
        for arrow in &self.arrows {
            self.write_arrow(out, arrow)?;
        }
        // Last, so that no arrow crosses a label.
        for arrow in &self.arrows {
            self.write_label(out, arrow)?;
        }
        let note = "solid: added by the receiver · dashed: stored · colours: parts of the chunk";
        writeln!(out, "<text class=\"quiet\" x=\"{MARGIN}\" y=\"{}\">{note}</text>", height - 20)?;
        writeln!(out, "</svg>")
    }

    /// Both ends of an arrow.
    fn ends(&self, arrow: &Arrow) -> [(f64, f64); 2] {
        let round = arrow.message.arrives as usize;
        let (top, bottom) = (self.rounds[round - 1], self.rounds[round]);
        // Arrows fall at least by the height of a plain round, less a gap at either end.
        let spread = (bottom - top - ROUND) / 2;
        let leave = top + 6 + (arrow.leaves * STEP).min(spread);
        let arrive = bottom - 12 - spread + (arrow.arrives * STEP).min(spread);
        let x = |member| self.column(member) as f64;
        [
            (x(arrow.message.send.member), leave as f64),
            (x(arrow.message.receive.member), arrive as f64),
        ]
    }

    fn write_arrow(&self, out: &mut String, arrow: &Arrow) -> fmt::Result {
        let message = &arrow.message;
        let [(x1, y1), (x2, y2)] = self.ends(arrow);
        let length = ((x2 - x1).powi(2) + (y2 - y1).powi(2)).sqrt();
        let (along_x, along_y) = ((x2 - x1) / length, (y2 - y1) / length);
        let (back_x, back_y) = (x2 - 9.0 * along_x, y2 - 9.0 * along_y);
        let part = self.parts.partition_point(|start| *start < message.elements.0) % COLOURS;
        let kind = if message.combined { "added" } else { "copied" };
        writeln!(
            out,
            "<g class=\"message {kind} part{part}\"><title>{} to {}: elements {}..{}</title>\
             <line x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{back_x:.1}\" y2=\"{back_y:.1}\"/>\
             <polygon points=\"{x2:.1},{y2:.1} {:.1},{:.1} {:.1},{:.1}\"/></g>",
            message.send,
            message.receive,
            message.elements.0,
            message.elements.1,
            back_x - 4.0 * along_y,
            back_y + 4.0 * along_x,
            back_x + 4.0 * along_y,
            back_y - 4.0 * along_x,
        )
    }

    fn write_label(&self, out: &mut String, arrow: &Arrow) -> fmt::Result {
        let [(x1, y1), (x2, y2)] = self.ends(arrow);
        // Close to the sender, on the side to which the arrow leaves: neighbours' labels do not
        // meet.
        let (gap, anchor) = if x2 > x1 { (10.0, "start") } else { (-10.0, "end") };
        let (x, y) = (x1 + gap, y1 + gap / (x2 - x1) * (y2 - y1));
        let (from, to) = arrow.message.elements;
        writeln!(
            out,
            "<text class=\"label\" text-anchor=\"{anchor}\" x=\"{x:.0}\" y=\"{:.0}\">{from}..{to}</text>",
            y + 5.0
        )
    }
}
