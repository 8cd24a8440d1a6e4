//! The engine in real time. `driver` performs what the engine asks for, and `helm` says on whose thread; `tcp` and `shm` are the two
//! ways to a peer; `memory` and `segment` hold the bytes; `mesh` sets the links up; `record` writes a
//! run down for the engine, `trace` for people; `carried` counts what wires carry, and `pace` slows them
//! down. Nothing here decides what to send or when.

pub(crate) mod carried;
pub(crate) mod core;
pub(crate) mod crew;
pub(crate) mod driver;
pub(crate) mod helm;
pub(crate) mod memory;
pub(crate) mod mesh;
pub(crate) mod pace;
pub(crate) mod record;
mod ring;
mod segment;
mod shm;
mod tcp;
pub(crate) mod trace;
