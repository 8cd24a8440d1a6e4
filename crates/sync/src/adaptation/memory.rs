//! What policies' host remembers, as text for workers that come later.

use super::{Adaptation, talk::Remembered};
use crate::policy::StateError;
use serde::{Deserialize, Serialize};

/// What is to be gone on from cannot be used: give all workers the same program and policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// It is not what another worker wrote.
    #[error(
        "what another worker's policies remember cannot be read ({0}); start the same program everywhere"
    )]
    Unreadable(String),
    /// There are others here.
    #[error(
        "another worker has {theirs} policies, and this one {ours}; attach the same everywhere"
    )]
    Others {
        /// So many here.
        ours: usize,
        /// So many there.
        theirs: usize,
    },
    /// One of them refuses.
    #[error(transparent)]
    Refused(#[from] StateError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    talk: Remembered,
    policies: Vec<Option<String>>,
}

impl Remembered {
    /// As text, for [`Remembered::read`].
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From text of another worker, or of this one before.
    pub fn read(text: &str) -> Result<Remembered, MemoryError> {
        serde_json::from_str(text).map_err(|error| MemoryError::Unreadable(error.to_string()))
    }
}

impl Adaptation {
    /// For a worker that comes later; `said` is the sum that is to be heard at the end of this step.
    pub fn remember(&self, said: Option<&[f64]>) -> String {
        let policies = self.policies.iter().map(|policy| policy.state()).collect();
        let memory = Memory { talk: self.talk.remember(said), policies };
        serde_json::to_string(&memory).unwrap_or_default()
    }

    /// Go on as the others do, `size` of them with this one; the sum that they are about to hear.
    pub fn resume(&mut self, text: &str, size: usize) -> Result<Option<Vec<f64>>, MemoryError> {
        let read = serde_json::from_str(text);
        let memory: Memory = read.map_err(|error| MemoryError::Unreadable(error.to_string()))?;
        let (ours, theirs) = (self.policies.len(), memory.policies.len());
        if ours != theirs {
            return Err(MemoryError::Others { ours, theirs });
        }
        for (policy, state) in self.policies.iter_mut().zip(&memory.policies) {
            state.as_ref().map_or(Ok(()), |state| policy.restore(state))?;
        }
        Ok(self.talk.resume(memory.talk, size))
    }
}
