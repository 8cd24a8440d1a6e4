//! A coordinator inside a Python process: rank 0 runs one where the launcher is not ours. It listens
//! on a port that the system chooses, so that its address can be told to the others before anybody
//! joins.

use crate::error;
use paceline_job::Settings;
use paceline_net::{Coordinator as Running, CoordinatorConfig, Secret};
use pyo3::prelude::*;
use std::{
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A coordinator that waits for its workers. The worker that hosts it takes it over when it joins.
#[pyclass(frozen, module = "paceline._native")]
pub(crate) struct Coordinator {
    address: SocketAddr,
    running: Mutex<Option<Running>>,
}

#[pymethods]
impl Coordinator {
    /// Listen at the address `listen`, on any port, for `size` workers that hold `secret`, or the
    /// secret that the environment gives. An operation fails after `operation_timeout` seconds
    /// without progress.
    #[new]
    #[pyo3(signature = (listen, size, secret=None, join_timeout=None, operation_timeout=None))]
    fn new(
        py: Python<'_>,
        listen: &str,
        size: usize,
        secret: Option<&str>,
        join_timeout: Option<f64>,
        operation_timeout: Option<f64>,
    ) -> PyResult<Coordinator> {
        let listen: IpAddr = listen.parse().map_err(|problem| {
            error::JoinError::new_err(format!("cannot listen at `{listen}`: {problem}"))
        })?;
        let secret = match secret {
            Some(text) => Secret::from_text(text, "the secret given"),
            None => Secret::from_variables(&|name| std::env::var(name).ok(), &mut |warning| {
                eprintln!("paceline: {warning}");
            }),
        };
        let secret = secret.map_err(error::joining)?;
        let mut config = CoordinatorConfig::new(SocketAddr::new(listen, 0), size, secret);
        if let Some(seconds) = join_timeout {
            config.join_timeout = seconds_from(seconds);
        }
        if let Some(seconds) = operation_timeout {
            config.settings = Settings { timeout: seconds_from(seconds), ..Settings::default() };
        }
        let running = py.detach(|| Running::start(config)).map_err(error::joining)?;
        Ok(Coordinator { address: running.address(), running: Mutex::new(Some(running)) })
    }

    /// `host:port`, for the other workers.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Coordinator {
    /// Hand it to the worker that hosts it; once.
    pub(crate) fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A fresh secret for a job, as text.
#[pyfunction]
pub(crate) fn fresh_secret() -> PyResult<String> {
    Ok(Secret::random().map_err(error::joining)?.to_hex())
}

/// The address that `name` is, or that the network interface of that name has.
#[pyfunction]
pub(crate) fn interface_address(name: &str) -> PyResult<String> {
    let address = paceline_net::join::interface_address(name).map_err(error::joining)?;
    Ok(address.to_string())
}

/// Python's seconds; what is negative, infinite or not a number becomes a bound all the same.
pub(crate) fn seconds_from(seconds: f64) -> Duration {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or(LONGEST, |given| given.min(LONGEST))
}
