//! How an interface is held to a rate: the kernel's `htb` or `tbf`, as messages. Pure. Both shape what
//! leaves an interface, both let a burst through at once and queue the rest in order, up to a limit in
//! bytes; so that they differ in nothing but the kernel's code.

use crate::{interface::Index, message::Message};
use paceline_job::Rate;
use serde::Serialize;
use std::{fmt, str::FromStr};

/// Which of the kernel's shapers holds the links to their rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shaper {
    /// Hierarchical token bucket.
    Htb,
    /// Token bucket filter.
    Tbf,
}

impl Shaper {
    /// Every shaper, the preferred one first.
    pub const ALL: [Shaper; 2] = [Shaper::Htb, Shaper::Tbf];

    /// The kernel's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Shaper::Htb => "htb",
            Shaper::Tbf => "tbf",
        }
    }
}

impl fmt::Display for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Shaper {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Shaper::ALL
            .into_iter()
            .find(|shaper| shaper.name() == text)
            .ok_or_else(|| format!("unknown shaper `{text}`; known: htb, tbf"))
    }
}

/// Fewer bytes than this at once, and a segmented packet of 64 KiB would not pass.
const MIN_BURST_BYTES: f64 = 128.0 * 1024.0;
/// The burst of a fast link: the kernel's timers are not much finer.
const BURST_SECONDS: f64 = 0.001;
/// Room for the windows of eight reno flows that meet in the queue of one host.
const MIN_QUEUE_BYTES: f64 = 2.0 * 1024.0 * 1024.0;
/// The queue of a fast link.
const QUEUE_SECONDS: f64 = 0.010;
/// A switch's own: what meets there and does not fit is dropped, so that connections come to share the link.
const SHALLOW_SECONDS: f64 = 0.020;
const MIN_SHALLOW_BYTES: f64 = 192.0 * 1024.0;

/// How much waits before a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Whatever flows of so many hosts send.
    Deep(usize),
    /// As much as a switch has room for.
    Shallow,
}

/// The kernel counts shaping time in ticks of 64 ns (`PSCHED_SHIFT`).
const TICKS_PER_SECOND: f64 = 1e9 / 64.0;

/// The root of an interface's outgoing queues.
const ROOT: u32 = u32::MAX;
/// The shaper itself, `1:0`.
const SHAPER_HANDLE: u32 = 1 << 16;
/// The one class of `htb`, `1:1`, which carries everything.
const CLASS: u32 = SHAPER_HANDLE | 1;
/// The queue under that class, `2:0`.
const QUEUE_HANDLE: u32 = 2 << 16;

const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const HTB_PARAMETERS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEILING64: u16 = 7;

/// What `htb` lets a class send before the next one's turn. There is one class; this silences a warning.
const HTB_QUANTUM_BYTES: u32 = 64 * 1024;

/// The requests that shape what leaves `index`, in order.
pub fn install(shaper: Shaper, index: Index, rate: Rate, queue: Queue) -> Vec<Message> {
    let replace = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    match shaper {
        Shaper::Tbf => vec![token_bucket(index, rate, queue, replace)],
        Shaper::Htb => {
            // struct tc_htb_glob: version, rate-to-quantum divisor, default class, debug, counter.
            let global = words(&[3, 10, CLASS & 0xffff, 0, 0]);
            let root = discipline(index, SHAPER_HANDLE, ROOT, replace)
                .text(libc::TCA_KIND, Shaper::Htb.name())
                .nested(libc::TCA_OPTIONS, |options| options.attribute(HTB_INIT, &global));
            let leaf = discipline(index, QUEUE_HANDLE, CLASS, replace)
                .text(libc::TCA_KIND, "bfifo")
                .number(libc::TCA_OPTIONS, queue_bytes(rate, queue));
            vec![root, class(index, rate), leaf]
        }
    }
}

/// The requests that change the rate of a shaped interface. What is queued stays queued.
pub fn change(shaper: Shaper, index: Index, rate: Rate, queue: Queue) -> Vec<Message> {
    match shaper {
        Shaper::Tbf => vec![token_bucket(index, rate, queue, 0)],
        Shaper::Htb => vec![class(index, rate)],
    }
}

fn token_bucket(index: Index, rate: Rate, queue: Queue, flags: i32) -> Message {
    // struct tc_tbf_qopt: rate, peak rate (none), queue limit, burst in ticks, peak burst.
    let mut parameters = rate_specification(rate).to_vec();
    parameters.extend([0; 12]);
    parameters.extend(words(&[queue_bytes(rate, queue), burst_ticks(rate), 0]));
    discipline(index, SHAPER_HANDLE, ROOT, flags).text(libc::TCA_KIND, Shaper::Tbf.name()).nested(
        libc::TCA_OPTIONS,
        |options| {
            options
                .attribute(TBF_PARAMETERS, &parameters)
                .attribute(TBF_RATE64, &rate64(rate))
                .number(TBF_BURST, burst_bytes(rate))
        },
    )
}

fn class(index: Index, rate: Rate) -> Message {
    // struct tc_htb_opt: rate, ceiling, both bursts in ticks, quantum, level, priority.
    let mut parameters = rate_specification(rate).to_vec();
    parameters.extend(rate_specification(rate));
    parameters.extend(words(&[burst_ticks(rate), burst_ticks(rate), HTB_QUANTUM_BYTES, 0, 0]));
    let header = traffic_header(index, CLASS, SHAPER_HANDLE);
    Message::new(libc::RTM_NEWTCLASS, libc::NLM_F_CREATE, &header)
        .text(libc::TCA_KIND, Shaper::Htb.name())
        .nested(libc::TCA_OPTIONS, |options| {
            options
                .attribute(HTB_PARAMETERS, &parameters)
                .attribute(HTB_RATE64, &rate64(rate))
                .attribute(HTB_CEILING64, &rate64(rate))
        })
}

fn discipline(index: Index, handle: u32, parent: u32, flags: i32) -> Message {
    Message::new(libc::RTM_NEWQDISC, flags, &traffic_header(index, handle, parent))
}

/// `struct tcmsg`: family and padding, interface, handle, parent, information.
fn traffic_header(index: Index, handle: u32, parent: u32) -> Vec<u8> {
    words(&[0, index, handle, parent, 0])
}

/// `struct tc_ratespec`. The link layer is stated, so the kernel asks for no table of sizes; a rate
/// above 2³² bytes each second is in the 64-bit attribute.
fn rate_specification(rate: Rate) -> [u8; 12] {
    const LINK_LAYER_ETHERNET: u8 = 1;
    let mut bytes = [0; 12];
    bytes[1] = LINK_LAYER_ETHERNET;
    bytes[8..12].copy_from_slice(&(rate.bytes_per_second() as u32).to_ne_bytes());
    bytes
}

fn rate64(rate: Rate) -> [u8; 8] {
    (rate.bytes_per_second() as u64).to_ne_bytes()
}

/// What a link of this rate lets through at once after it stood idle.
pub fn burst_bytes(rate: Rate) -> u32 {
    (rate.bytes_per_second() * BURST_SECONDS).max(MIN_BURST_BYTES) as u32
}

fn burst_ticks(rate: Rate) -> u32 {
    (f64::from(burst_bytes(rate)) / rate.bytes_per_second() * TICKS_PER_SECOND) as u32
}

fn queue_bytes(rate: Rate, queue: Queue) -> u32 {
    let rate = rate.bytes_per_second();
    match queue {
        Queue::Deep(hosts) => (rate * QUEUE_SECONDS).max(hosts as f64 * MIN_QUEUE_BYTES) as u32,
        Queue::Shallow => (rate * SHALLOW_SECONDS).max(MIN_SHALLOW_BYTES) as u32,
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn slow_links_get_a_burst_that_a_segmented_packet_fits_in() {
        assert_eq!(burst_bytes(rate("100mbit")), 128 * 1024);
        assert_eq!(burst_bytes(rate("10gbit")), 1_250_000);
        assert_eq!(queue_bytes(rate("100mbit"), Queue::Deep(1)), 2 * 1024 * 1024);
        assert_eq!(queue_bytes(rate("100mbit"), Queue::Deep(12)), 24 * 1024 * 1024);
        assert_eq!(queue_bytes(rate("10gbit"), Queue::Deep(1)), 12_500_000);
        assert_eq!(queue_bytes(rate("100mbit"), Queue::Shallow), 250_000);
    }

    #[test]
    fn bursts_in_ticks_last_as_long_as_the_bytes_at_that_rate() {
        // 131072 bytes at 12.5 MB/s are 10.49 ms: 163840 ticks of 64 ns.
        assert_eq!(burst_ticks(rate("100mbit")), 163_840);
        assert_eq!(burst_ticks(rate("10gbit")), 15_625);
    }

    #[test]
    fn kernel_structures_have_the_sizes_of_the_kernel() {
        let bucket = token_bucket(1, rate("1gbit"), Queue::Deep(1), 0).finish(0);
        // Header 16, tcmsg 20, kind 8, options 4, parameters 4 + 36, rate 4 + 8, burst 4 + 4.
        assert_eq!(bucket.len(), 16 + 20 + 8 + 4 + 40 + 12 + 8);
        let class = class(1, rate("1gbit")).finish(0);
        // The same, with parameters of 44 bytes and two rates.
        assert_eq!(class.len(), 16 + 20 + 8 + 4 + 48 + 12 + 12);
    }

    #[test]
    fn a_rate_above_32_bits_is_stated_in_64() {
        let fast = rate("100gbit");
        assert_eq!(rate64(fast), 12_500_000_000u64.to_ne_bytes());
        assert_eq!(rate_specification(fast)[8..], u32::MAX.to_ne_bytes());
    }

    #[test]
    fn changing_a_rate_touches_only_what_holds_it() {
        assert_eq!(install(Shaper::Htb, 1, rate("1gbit"), Queue::Deep(1)).len(), 3);
        assert_eq!(change(Shaper::Htb, 1, rate("1gbit"), Queue::Deep(1)).len(), 1);
        assert_eq!(change(Shaper::Tbf, 1, rate("1gbit"), Queue::Deep(1)).len(), 1);
    }
}
