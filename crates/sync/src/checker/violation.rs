//! What can be wrong with a set of programs, said so that the instruction can be found.

use crate::program::{Member, Slot, Span};
use std::fmt;

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// Whose.
    pub member: Member,
    /// In the program of which chunk.
    pub chunk: u32,
    /// In which lane.
    pub lane: u32,
    /// Its index there.
    pub pc: u32,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { member, chunk, lane, pc } = self;
        write!(f, "member {member}, chunk {chunk}, lane {lane}, instruction {pc}")
    }
}

/// A set of programs that must not run, and why. All of them are defects of the strategy or
/// collective that made it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Give one program and one expectation for each member, for every chunk.
    #[error("{programs} programs were given for {members} members")]
    Incomplete {
        /// Programs of a chunk.
        programs: usize,
        /// Members that something is expected of.
        members: usize,
    },
    /// The peer does not exist.
    #[error("{at}: there is no member {peer}")]
    NoSuchMember {
        /// Sender or receiver.
        at: At,
        /// Whom it names.
        peer: Member,
    },
    /// A member sends to itself: use a local instruction.
    #[error("{at}: a member sends to itself")]
    ToItself {
        /// Sender.
        at: At,
    },
    /// The message's slot is not a receive instruction (or one of length zero).
    #[error(
        "{at}: sends to member {to}, lane {}, instruction {}, which receives nothing",
        slot.lane,
        slot.pc
    )]
    NothingReceives {
        /// Sender.
        at: At,
        /// Receiver.
        to: Member,
        /// Named slot.
        slot: Slot,
    },
    /// The receive waits for somebody else.
    #[error("{at}: sends to {receive}, which waits for member {expected}")]
    WrongSender {
        /// Sender.
        at: At,
        /// Receive.
        receive: At,
        /// For whom it waits.
        expected: Member,
    },
    /// The two sides disagree about the length.
    #[error("{at}: sends {sent} elements to {receive}, which waits for {expected}")]
    WrongLength {
        /// Sender.
        at: At,
        /// Receive.
        receive: At,
        /// Elements sent.
        sent: u64,
        /// Elements awaited.
        expected: u64,
    },
    /// Two messages for one receive.
    #[error("{at}: sends to {receive}, which got a message already")]
    SentTwice {
        /// Second sender.
        at: At,
        /// Receive.
        receive: At,
    },
    /// Everything that can run has run, and this is left: a message that nobody sends, or a cycle
    /// of waits.
    #[error("{at}: waits for member {from} for ever, as do {others} other lanes")]
    Stuck {
        /// A waiting receive.
        at: At,
        /// For whom it waits.
        from: Member,
        /// How many others wait too.
        others: usize,
    },
    /// A lane longer than any sensible program.
    #[error("{at}: the lane does not end")]
    Endless {
        /// Where the patience ended.
        at: At,
    },
    /// Reads input that the caller did not give.
    #[error("{at}: reads input elements {}..{}, which are not given", span.offset, span.end())]
    OutsideInput {
        /// Reader.
        at: At,
        /// What it reads.
        span: Span,
    },
    /// Writes output that the caller did not offer.
    #[error(
        "{at}: writes output elements {}..{}, which are not asked for",
        span.offset,
        span.end()
    )]
    OutsideOutput {
        /// Writer.
        at: At,
        /// What it writes.
        span: Span,
    },
    /// Reads a register that does not exist, was never written, or is shorter.
    #[error("{at}: reads or writes register {register} up to element {end}, which holds {len}")]
    OutsideRegister {
        /// Reader or writer.
        at: At,
        /// Register.
        register: u8,
        /// End of what it reads.
        end: u64,
        /// What the register holds.
        len: u64,
    },
    /// Reads output that its lane has not written before.
    #[error(
        "{at}: reads output elements {}..{}, which its lane has not written",
        span.offset,
        span.end()
    )]
    OutsideWritten {
        /// Reader.
        at: At,
        /// What it reads.
        span: Span,
    },
    /// Writes output that was written before.
    #[error("{at}: writes output element {element}, as does {before}")]
    WrittenTwice {
        /// Second writer.
        at: At,
        /// First writer.
        before: At,
        /// An element that both write.
        element: u64,
    },
    /// In place, the input is gone, or may be, when it is read.
    #[error(
        "{read}: reads input element {element}, which in place may have been overwritten by {write}"
    )]
    Race {
        /// Reader.
        read: At,
        /// Writer.
        write: At,
        /// An element of both.
        element: u64,
    },
    /// Adds elements that do not belong together.
    #[error("{at}: adds element {left} to element {right}")]
    Misaligned {
        /// Adder.
        at: At,
        /// First operand's.
        left: u64,
        /// Second operand's.
        right: u64,
    },
    /// A contribution enters a sum twice.
    #[error("{at}: counts the contribution of member {contributor} twice")]
    CountedTwice {
        /// Adder.
        at: At,
        /// Who is counted twice.
        contributor: Member,
    },
    /// An average would be divided and then added to, or divided again.
    #[error("{at}: adds to or divides a value that was divided already")]
    DividedTwice {
        /// Where.
        at: At,
    },
    /// Output that nobody wrote.
    #[error("member {member} ends without output element {element}")]
    Unwritten {
        /// Whose.
        member: Member,
        /// First such element.
        element: u64,
    },
    /// A contribution that did not arrive.
    #[error(
        "member {member} ends without the contribution of member {contributor} in element {element}"
    )]
    Missing {
        /// Where it is missing.
        member: Member,
        /// Whose.
        contributor: Member,
        /// First such element.
        element: u64,
    },
    /// A sum that an average divides by the wrong number.
    #[error(
        "member {member} divides output element {element} by {divisor}; it has {contributions} contributions"
    )]
    WrongDivisor {
        /// Where.
        member: Member,
        /// First such element.
        element: u64,
        /// What it divides by.
        divisor: u32,
        /// What it should divide by.
        contributions: u32,
    },
    /// The output holds something else.
    #[error("member {member} ends with {found} in output element {element}; expected {expected}")]
    WrongContent {
        /// Where.
        member: Member,
        /// First such element.
        element: u64,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// The same contributions, added in another order: replicas would drift apart by rounding.
    #[error("element {element} is {ours} on member {member}, but {theirs} on member {other}")]
    Order {
        /// One member.
        member: Member,
        /// Another.
        other: Member,
        /// First such element.
        element: u64,
        /// One order.
        ours: String,
        /// Another.
        theirs: String,
    },
    /// A mixing that gives one member more weight than another moves the average.
    #[error(
        "member {contributor} has the weight {weight} in element {element}; a fair mixing gives 1"
    )]
    Unfair {
        /// Whose weight.
        contributor: Member,
        /// First such element.
        element: u64,
        /// Its sum over all members.
        weight: f64,
    },
}
