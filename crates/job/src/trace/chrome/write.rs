//! Writing events one after another into a compressed file that Perfetto and the tools around PyTorch's profiler open.

use super::{Event, Header};
use flate2::{Compression, write::GzEncoder};
use std::io::{self, Write};

/// Writes a trace file, event by event. The file is complete only after [`Writer::finish`]; before that a reader gets the
/// events up to where it was cut off.
pub struct Writer<W: Write> {
    output: GzEncoder<W>,
    first: bool,
    /// One event: compressing it piece by piece would cost ten times as much.
    event: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begin a file. What is written goes to `output` compressed, in pieces of some kilobytes: no buffer is needed.
    pub fn new(output: W, header: &Header) -> io::Result<Writer<W>> {
        let mut output = GzEncoder::new(output, Compression::fast());
        output.write_all(b"{")?;
        for (name, value) in &header.fields {
            serde_json::to_writer(&mut output, name)?;
            output.write_all(b":")?;
            serde_json::to_writer(&mut output, value)?;
            output.write_all(b",\n")?;
        }
        output.write_all(b"\"traceEvents\":[")?;
        Ok(Writer { output, first: true, event: Vec::new() })
    }

    /// Write one event. Any order will do.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        self.event.clear();
        self.event.extend_from_slice(if self.first { b"\n" } else { b",\n" });
        self.first = false;
        serde_json::to_writer(&mut self.event, event)?;
        self.output.write_all(&self.event)
    }

    /// Name a process, as viewers show it.
    pub fn name_process(&mut self, pid: i64, name: &str) -> io::Result<()> {
        let event = Event::new('M', "process_name", crate::trace::Stamp(0)).on(pid, 0);
        self.write(&event.with("name", name))
    }

    /// Name a thread, as viewers show it, and say where among the others it is shown.
    pub fn name_thread(&mut self, pid: i64, tid: i64, name: &str, order: i64) -> io::Result<()> {
        let event = |kind| Event::new('M', kind, crate::trace::Stamp(0)).on(pid, tid);
        self.write(&event("thread_name").with("name", name))?;
        self.write(&event("thread_sort_index").with("sort_index", order))
    }

    /// Make what was written so far readable from the file even if nothing follows.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Complete the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.write_all(b"\n]}\n")?;
        self.output.finish()
    }
}
