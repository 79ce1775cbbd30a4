//! One event loop's end of the hop: what the loop watches, and which clients it serves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::core::Core;
use crate::queue::{Queue, Waker};

/// Serves the clients of one event loop, which calls `drain` whenever `fileno()` can be read.
#[pyclass(frozen, module = "nolag._native")]
pub(crate) struct Watcher {
    waker: Arc<Waker>,
    /// The clients by number, not kept alive by this.
    clients: Mutex<HashMap<u64, Py<PyWeakrefReference>>>,
}

impl Watcher {
    /// A queue for a client that is about to be made.
    pub(crate) fn queue(&self) -> Arc<Queue> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Queue::new(NEXT.fetch_add(1, Ordering::Relaxed), Arc::clone(&self.waker)))
    }

    pub(crate) fn enter(&self, number: u64, core: &Bound<'_, Core>) -> PyResult<()> {
        let reference = PyWeakrefReference::new(core)?.unbind();
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(number, reference);
        Ok(())
    }

    pub(crate) fn leave(&self, number: u64) {
        let reference = self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        drop(reference); // outside the lock: it may run Python
    }
}

#[pymethods]
impl Watcher {
    #[new]
    fn new() -> PyResult<Self> {
        let waker = Waker::new().map_err(|fault| PyOSError::new_err(fault.to_string()))?;
        Ok(Self { waker: Arc::new(waker), clients: Mutex::default() })
    }

    fn fileno(&self) -> i64 {
        self.waker.descriptor()
    }

    /// Hands over all that waits, to all clients of this loop.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let mut result = Ok(());
        for number in self.waker.take() {
            let client = {
                let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.get(&number).and_then(|reference| {
                    use pyo3::types::PyWeakrefMethods as _;
                    reference.bind(py).upgrade_as::<Core>().ok().flatten()
                })
            };
            if let Some(client) = client {
                // One that is interrupted leaves its rest for the next time, and the others are served all the same.
                result = result.and(Core::deliver(&client));
            }
        }
        result
    }
}
