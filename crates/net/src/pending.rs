//! A collective in flight, as its caller holds it: ask, wait, be called back, and get the memory back. How it gets done is the
//! [`Helm`]'s.

use crate::{
    buffer::Buffer,
    element::Element,
    error::Result,
    handle::{Completion, Outcome},
    metering::{Metering, now},
    runtime::{helm::Helm, trace::monotonic_nanoseconds},
};
use std::{sync::Arc, time::Instant};

/// A collective in flight on memory that the caller watches over.
#[derive(Clone, Debug)]
pub struct Handle {
    helm: Arc<Helm>,
    completion: Arc<Completion>,
    /// Who is told that the program waits for it.
    watch: Option<Watch>,
}

#[derive(Clone, Debug)]
struct Watch {
    metering: Arc<Metering>,
    /// Its number, if it is part of a step.
    tensor: Option<u32>,
}

impl Handle {
    pub(crate) fn new(helm: Arc<Helm>, completion: Arc<Completion>) -> Handle {
        Handle { helm, completion, watch: None }
    }

    /// Waits for it are told.
    pub(crate) fn watched(self, metering: Arc<Metering>, tensor: Option<u32>) -> Handle {
        Handle { watch: Some(Watch { metering, tensor }), ..self }
    }

    /// How it ended, if it has.
    pub fn poll(&self) -> Option<Outcome> {
        self.completion.ask()
    }

    /// Wait until it ends.
    pub fn wait(&self) -> Outcome {
        let wait = || self.helm.drive(None, || self.completion.outcome());
        self.watching(wait).expect("without a deadline it ends")
    }

    /// Wait until it ends or time is up; `None` means that it goes on.
    pub fn wait_until(&self, deadline: Instant) -> Option<Outcome> {
        self.watching(|| self.helm.drive(Some(deadline), || self.completion.outcome()))
    }

    /// Wait until one of several handles of one worker has ended, and say which; `None` if time is
    /// up first, or if there are none.
    pub fn wait_any(handles: &[&Handle], deadline: Instant) -> Option<usize> {
        let ended = || handles.iter().position(|handle| handle.completion.outcome().is_some());
        let first = handles.first()?;
        first.watching(|| first.helm.drive(Some(deadline), ended))
    }

    /// A wait is noted, unless the caller knew that there was nothing to wait for.
    fn watching<R>(&self, wait: impl FnOnce() -> R) -> R {
        let watch = self.watch.as_ref().filter(|_| !self.completion.is_known());
        let seen = self.helm.watching.is_on().then(monotonic_nanoseconds);
        let begin = watch.map(|_| now());
        let result = wait();
        if let Some(begin) = seen {
            self.helm.watching.waited(begin, monotonic_nanoseconds());
        }
        if let Some((watch, begin)) = watch.zip(begin) {
            watch.metering.waited(watch.tensor, begin);
        }
        result
    }

    /// Call back when it ends, which may be now; on whatever thread drives then. It must not wait.
    pub fn when_done(&self, callback: impl FnOnce(Outcome) + Send + 'static) {
        self.completion.when_done(Box::new(callback));
    }

    pub(crate) fn finish(self) -> Result<()> {
        Ok(self.wait()?)
    }
}

/// The memory of a collective that owns it.
#[derive(Debug)]
pub enum Buffers<T: Element> {
    /// Input and output are the same.
    InPlace(Buffer<T>),
    /// Input and output differ; either may be empty where the collective needs none.
    Pair(Buffer<T>, Buffer<T>),
}

impl<T: Element> Buffers<T> {
    pub(crate) fn pointers(&mut self) -> (*const T, *mut T) {
        match self {
            Buffers::InPlace(data) => {
                let data = data.as_mut_ptr();
                (data.cast_const(), data)
            }
            Buffers::Pair(input, output) => (input.as_ptr(), output.as_mut_ptr()),
        }
    }
}

/// A collective in flight that owns its memory. Dropping it waits until it ends.
#[derive(Debug)]
pub struct Pending<T: Element> {
    handle: Handle,
    buffers: Option<Buffers<T>>,
}

impl<T: Element> Pending<T> {
    pub(crate) fn new(handle: Handle, buffers: Buffers<T>) -> Pending<T> {
        Pending { handle, buffers: Some(buffers) }
    }

    /// To poll, wait with a deadline, or be called back.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Wait until it ends; the buffers come back.
    pub fn wait(mut self) -> Result<Buffers<T>> {
        self.handle.wait()?;
        Ok(self.buffers.take().expect("taken only here"))
    }
}

impl<T: Element> Drop for Pending<T> {
    fn drop(&mut self) {
        // The engine writes into the buffers until then. Bounded by the settings' timeout.
        let _ = self.handle.wait();
    }
}
