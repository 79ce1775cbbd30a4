//! The one thread that does the I/O of all clients of a process. It starts with the first connect, and never holds up the
//! interpreter's end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle};

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
    static RUNNING: Mutex<Option<(u64, Handle)>> = Mutex::new(None);
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    match &*running {
        Some((generation, handle)) if *generation == self::generation() => Ok(handle.clone()),
        _ => {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            std::thread::Builder::new()
                .name("nolag".to_owned())
                .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
            // The parent's is left as it is: its thread does not exist here, its sockets are the parent's.
            std::mem::forget(running.replace((self::generation(), handle.clone())));
            Ok(handle)
        }
    }
}
