//! Processes and their forks: a client belongs to the process that made it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nolag_core::driver::native;
use pyo3::prelude::*;
use tokio::runtime::Handle;

/// How often this process was forked off another.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Called in a child after a fork: there is no I/O thread in it.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Tells a process from those that were forked off it.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Where clients of this process run.
pub(crate) fn handle() -> io::Result<Handle> {
    native::background(generation())
}
