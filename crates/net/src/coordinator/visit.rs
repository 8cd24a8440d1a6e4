//! Words with a running job for whoever holds its secret, from anywhere: how it stands, and another number of workers. A
//! visitor is answered at the door and takes no part in the job.

use super::{
    COORDINATOR_MESSAGE_BYTES, Coordinator, CoordinatorMessage, Shared, Status, WorkerMessage,
    decode_coordinator_message,
    elastic::{ANSWER, Ask},
    encode,
};
use crate::{
    error::{NetError, Result},
    handshake::{Deadline, Encryption, HANDSHAKE_TIMEOUT, MessageChannel, Purpose},
    join::mesh,
    rendezvous::Rendezvous,
    secret::Secret,
};
use serde::{Deserialize, Serialize};

/// What a visitor wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// How the job stands.
    Status,
    /// Another number of workers.
    Resize(usize),
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// So it stands.
    Status(Status),
    /// It is begun.
    Begun,
    /// It is not, and why.
    Refused(String),
}

/// Ask the job whose coordinator is at `host:port`, or wherever `etcd://HOST:PORT/JOB` says that it is now.
pub fn ask(place: &str, secret: &Secret, question: Question) -> Result<Answer> {
    let at = |error: NetError| error.with_coordinator(place);
    let addresses = Rendezvous::parse(place)?.resolve().map_err(at)?;
    let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
    let encryption = Encryption::default();
    let connection =
        mesh::knock_once(&addresses, secret, Purpose::Coordinator, encryption, deadline)
            .map_err(at)?;
    let mut channel = MessageChannel::new(connection, COORDINATOR_MESSAGE_BYTES)?;
    channel.send(&encode(&WorkerMessage::Ask(question)), deadline).map_err(at)?;
    let answer = channel.receive("an answer", Deadline::after(2 * ANSWER)).map_err(at)?;
    match decode_coordinator_message(&answer)? {
        CoordinatorMessage::Answer(answer) => Ok(*answer),
        CoordinatorMessage::Refused(refusal) => Err(refusal.into()),
        _ => Err(NetError::Malformed {
            what: "coordinator's message",
            problem: "it does not answer the question".to_string(),
        }),
    }
}

impl Coordinator {
    /// What a visitor is told.
    pub fn answer(&self, question: &Question) -> Answer {
        self.shared.answer(question)
    }
}

impl Shared {
    /// Put a question to the coordinator's thread, and wait for the answer.
    pub(super) fn answer(&self, question: &Question) -> Answer {
        let answer = match question {
            Question::Status => self.ask(Ask::Status).map(Answer::Status),
            Question::Resize(size) => {
                let begun = self.ask(|answer| Ask::Resize(*size, answer)).flatten();
                begun.map(|()| Answer::Begun)
            }
        };
        answer.unwrap_or_else(|error| Answer::Refused(error.to_string()))
    }
}
