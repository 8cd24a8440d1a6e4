//! What is recorded, in a fixed size: as it travels through a ring, and as seven words of a temporary file. Begin
//! and end of what the engine does come as two events, which are put together when the trace is written.

use paceline_job::{CollectiveKind, Dtype, trace::recorded::words};
use paceline_sync::frame::Header;

/// Words of an encoded event.
pub(crate) const EVENT_WORDS: usize = 7;

/// Bytes of an encoded event.
pub(crate) const EVENT_BYTES: usize = EVENT_WORDS * 8;

/// What a program spends time on, as it tells the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Activity {
    /// From inputs to the loss.
    Forward = 0,
    /// From the loss to gradients.
    Backward = 1,
    /// From gradients to parameters.
    Update = 2,
    /// Other work.
    Other = 3,
    /// Standing still until operations are over.
    Wait = 4,
    /// Handing an operation over, which happens inside other activities.
    Post = 5,
}

impl Activity {
    /// All of them, by their codes.
    pub const ALL: [Activity; 6] = [
        Activity::Forward,
        Activity::Backward,
        Activity::Update,
        Activity::Other,
        Activity::Wait,
        Activity::Post,
    ];

    /// Its name in files.
    pub const fn word(self) -> &'static str {
        match self {
            Activity::Forward => words::FORWARD,
            Activity::Backward => words::BACKWARD,
            Activity::Update => words::UPDATE,
            Activity::Other => words::OTHER,
            Activity::Wait => words::WAIT,
            Activity::Post => words::POST,
        }
    }
}

/// Where a program did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// On a thread of the host, numbered as they came.
    Thread(u32),
    /// On a device, by its number.
    Device(u32),
}

/// Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The program handed an operation over.
    Posted {
        at: u64,
        /// The driver's number for it, until it is over.
        op: u32,
        name: u64,
        uses: u32,
        operation: CollectiveKind,
        dtype: Dtype,
        bytes: u64,
        priority: i64,
    },
    /// It ended.
    Over { at: u64, op: u32, well: bool },
    /// A message was handed to the transport.
    Sending { at: u64, token: u64, message: MessageKey },
    /// The transport has done with it.
    Delivered { at: u64, token: u64 },
    /// The first bytes of a message came.
    Receiving { at: u64, token: u64, message: MessageKey },
    /// All of it is there.
    Received { at: u64, token: u64 },
    /// Received bytes were combined with our own.
    Reduced {
        begin: u64,
        nanoseconds: u64,
        bytes: u64,
        /// The driver's number for the operation, and which of its chunks.
        part: Option<(u32, u32)>,
    },
    /// The program did something.
    Span { begin: u64, nanoseconds: u64, activity: Activity, place: Place, layer: Option<u32> },
    /// A step of the program.
    Step { begin: u64, nanoseconds: u64, number: u64 },
}

/// What tells a message from all others, on both of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageKey {
    pub peer: u32,
    pub name: u64,
    pub uses: u32,
    pub chunk: u32,
    /// Which of the receiver's instructions takes it.
    pub part: u32,
    pub bytes: u32,
}

impl MessageKey {
    pub(crate) fn new(peer: u32, header: &Header) -> MessageKey {
        MessageKey {
            peer,
            name: header.key.name,
            uses: header.key.uses,
            chunk: header.chunk,
            // Programs have few lanes, and lanes far fewer than 2^20 instructions.
            part: header.slot.lane << 20 | (header.slot.pc & 0xf_ffff),
            bytes: header.len,
        }
    }
}

const NO_LAYER: u32 = u32::MAX;
const DEVICE: u32 = 1 << 31;

/// Two halves in a word.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Event {
    /// As the temporary file holds it.
    pub(crate) fn encode(self) -> [u64; EVENT_WORDS] {
        let message = |tag: u64, at, token, message: MessageKey| {
            let MessageKey { peer, name, uses, chunk, part, bytes } = message;
            [tag, at, token, name, pair(peer, uses), pair(chunk, part), u64::from(bytes)]
        };
        match self {
            Event::Posted { at, op, name, uses, operation, dtype, bytes, priority } => {
                let kinds = (operation as u64) << 8 | (dtype as u64) << 16;
                [1 | kinds, at, pair(op, uses), name, bytes, priority as u64, 0]
            }
            Event::Over { at, op, well } => [2, at, pair(op, u32::from(well)), 0, 0, 0, 0],
            Event::Sending { at, token, message: key } => message(3, at, token, key),
            Event::Delivered { at, token } => [4, at, token, 0, 0, 0, 0],
            Event::Receiving { at, token, message: key } => message(5, at, token, key),
            Event::Received { at, token } => [6, at, token, 0, 0, 0, 0],
            Event::Reduced { begin, nanoseconds, bytes, part } => {
                let (op, chunk) = part.unwrap_or_default();
                let known = u64::from(part.is_some());
                [7, begin, nanoseconds, bytes, pair(op, chunk), known, 0]
            }
            Event::Span { begin, nanoseconds, activity, place, layer } => {
                let place = match place {
                    Place::Thread(number) => number & !DEVICE,
                    Place::Device(number) => number | DEVICE,
                };
                let layer = pair(layer.unwrap_or(NO_LAYER), place);
                [8 | (activity as u64) << 8, begin, nanoseconds, layer, 0, 0, 0]
            }
            Event::Step { begin, nanoseconds, number } => [9, begin, nanoseconds, number, 0, 0, 0],
        }
    }

    /// What [`Event::encode`] made; none for anything else.
    pub(crate) fn decode(words: [u64; EVENT_WORDS]) -> Option<Event> {
        let [first, at, second, third, ..] = words;
        let message = || {
            let ((peer, uses), (chunk, part)) = (halves(words[4]), halves(words[5]));
            MessageKey { peer, name: third, uses, chunk, part, bytes: words[6] as u32 }
        };
        Some(match first as u8 {
            1 => {
                let (op, uses) = halves(second);
                let operation = CollectiveKind::from_number((first >> 8) as u8)?;
                let dtype = Dtype::from_wire((first >> 16) as u8)?;
                let (bytes, priority) = (words[4], words[5] as i64);
                Event::Posted { at, op, name: third, uses, operation, dtype, bytes, priority }
            }
            2 => Event::Over { at, op: halves(second).0, well: halves(second).1 != 0 },
            3 => Event::Sending { at, token: second, message: message() },
            4 => Event::Delivered { at, token: second },
            5 => Event::Receiving { at, token: second, message: message() },
            6 => Event::Received { at, token: second },
            7 => {
                let part = (words[5] != 0).then(|| halves(words[4]));
                Event::Reduced { begin: at, nanoseconds: second, bytes: third, part }
            }
            8 => {
                let (layer, place) = halves(third);
                Event::Span {
                    begin: at,
                    nanoseconds: second,
                    activity: *Activity::ALL.get((first >> 8) as usize)?,
                    place: match place & DEVICE {
                        0 => Place::Thread(place),
                        _ => Place::Device(place & !DEVICE),
                    },
                    layer: (layer != NO_LAYER).then_some(layer),
                }
            }
            9 => Event::Step { begin: at, nanoseconds: second, number: third },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = MessageKey> {
        let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
        (any::<u64>(), numbers).prop_map(|(name, (peer, uses, chunk, part, bytes))| MessageKey {
            peer,
            name,
            uses,
            chunk,
            part,
            bytes,
        })
    }

    fn event() -> impl Strategy<Value = Event> {
        let word = || any::<u64>();
        prop_oneof![
            (
                word(),
                any::<u32>(),
                word(),
                any::<u32>(),
                0..CollectiveKind::ALL.len(),
                word(),
                any::<i64>()
            )
                .prop_map(|(at, op, name, uses, operation, bytes, priority)| {
                    Event::Posted {
                        at,
                        op,
                        name,
                        uses,
                        operation: CollectiveKind::ALL[operation],
                        dtype: Dtype::F32,
                        bytes,
                        priority,
                    }
                }),
            (word(), any::<u32>(), any::<bool>()).prop_map(|(at, op, well)| Event::Over {
                at,
                op,
                well
            }),
            (word(), word(), message()).prop_map(|(at, token, message)| Event::Sending {
                at,
                token,
                message
            }),
            (word(), word(), message()).prop_map(|(at, token, message)| Event::Receiving {
                at,
                token,
                message
            }),
            (word(), word()).prop_map(|(at, token)| Event::Delivered { at, token }),
            (word(), word()).prop_map(|(at, token)| Event::Received { at, token }),
            (word(), word(), word(), any::<Option<(u32, u32)>>()).prop_map(
                |(begin, nanoseconds, bytes, part)| Event::Reduced {
                    begin,
                    nanoseconds,
                    bytes,
                    part
                }
            ),
            (word(), word(), 0..Activity::ALL.len(), 0..1_u32 << 31, any::<bool>(), 0..NO_LAYER)
                .prop_map(|(begin, nanoseconds, activity, place, device, layer)| Event::Span {
                    begin,
                    nanoseconds,
                    activity: Activity::ALL[activity],
                    place: if device { Place::Device(place) } else { Place::Thread(place) },
                    layer: (layer % 3 != 0).then_some(layer),
                }),
        ]
    }

    proptest! {
        #[test]
        fn events_come_back_from_their_words(event in event()) {
            prop_assert_eq!(Event::decode(event.encode()), Some(event));
        }

        #[test]
        fn any_words_are_an_event_or_none(words in any::<[u64; EVENT_WORDS]>()) {
            let _ = Event::decode(words);
        }
    }
}
