//! What is known of a publish.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nolag_core::Error;
use nolag_core::event;
use nolag_core::options::Qos;
use nolag_core::session::RequestId;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;

use crate::errors;

/// What is known of a publish, which may not be answered yet: then `outcome` is `"queued"`.
#[pyclass(frozen, module = "nolag")]
pub(crate) struct Receipt {
    pub(crate) request: RequestId,
    topic: String,
    qos: Qos,
    loop_: Py<PyAny>,
    /// Of `emit`, whose failures are events too.
    pub(crate) is_emit: bool,
    state: Mutex<State>,
}

/// What is left to do when a publish is complete.
#[derive(Default)]
pub(crate) struct Completion {
    /// Somebody waits for it.
    pub(crate) is_awaited: bool,
    /// To be called with the error or `None`.
    pub(crate) callback: Option<Py<PyAny>>,
    pub(crate) error: Option<Py<PyAny>>,
}

enum State {
    Open { callback: Option<Py<PyAny>>, waiting: Vec<Py<PyAny>> },
    Done(Box<event::Receipt>),
    Failed { error: Py<PyAny>, msg_ref: Option<String> },
}

impl Receipt {
    pub(crate) fn new(
        request: RequestId,
        topic: &str,
        qos: Qos,
        loop_: Py<PyAny>,
        is_emit: bool,
        callback: Option<Py<PyAny>>,
    ) -> Self {
        let state = Mutex::new(State::Open { callback, waiting: Vec::new() });
        Self { request, topic: topic.to_owned(), qos, loop_, is_emit, state }
    }

    /// Notes the outcome and tells those who wait.
    pub(crate) fn complete(
        this: &Bound<'_, Self>,
        result: Result<Box<event::Receipt>, Error>,
    ) -> PyResult<Completion> {
        let py = this.py();
        let (state, error) = match result {
            Ok(receipt) => (State::Done(receipt), None),
            Err(error) => {
                let msg_ref = match &error {
                    Error::Server(server) => server.msg_ref.clone(),
                    _ => None,
                };
                let error = errors::exception(py, &error)?.unbind();
                (State::Failed { error: error.clone_ref(py), msg_ref }, Some(error))
            }
        };
        let before = std::mem::replace(&mut *this.get().lock(), state);
        let State::Open { callback, waiting } = before else { return Ok(Completion::default()) };
        let is_awaited = !waiting.is_empty();
        for future in waiting {
            let future = future.bind(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (this,))?;
            }
        }
        Ok(Completion { is_awaited, callback, error })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done<T>(&self, of: impl FnOnce(&event::Receipt) -> T) -> Option<T> {
        match &*self.lock() {
            State::Done(receipt) => Some(of(receipt)),
            _ => None,
        }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[pymethods]
impl Receipt {
    /// Of a publish that failed before it was begun.
    #[staticmethod]
    fn failed(loop_: Py<PyAny>, topic: &str, error: Py<PyAny>) -> Self {
        let state = Mutex::new(State::Failed { error, msg_ref: None });
        Self {
            request: RequestId(0),
            topic: topic.to_owned(),
            qos: Qos::AtLeastOnce,
            loop_,
            is_emit: true,
            state,
        }
    }

    /// The topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The reference that it was published under.
    #[getter]
    fn msg_ref(&self) -> Option<String> {
        match &*self.lock() {
            State::Done(receipt) => receipt.msg_ref.clone(),
            State::Failed { msg_ref, .. } => msg_ref.clone(),
            State::Open { .. } => None,
        }
    }

    /// The quality of service that was asked for: 0, 1 or 2.
    #[getter]
    fn qos(&self) -> u8 {
        self.qos as u8
    }

    /// The quality of service that the broker gave; `None` until it has answered.
    #[getter]
    fn effective_qos(&self) -> Option<u8> {
        self.done(|receipt| receipt.effective_qos as u8)
    }

    /// `"queued"` until it is known; `"written"`, `"accepted"`, `"duplicate"` or `"failed"` then.
    #[getter]
    fn outcome(&self) -> &'static str {
        match &*self.lock() {
            State::Open { .. } => "queued",
            State::Failed { .. } => "failed",
            State::Done(receipt) => receipt.outcome.name(),
        }
    }

    /// How well the broker keeps it: `"memory"`, `"disk"` or `"replicated"`; `None` where it does not tell.
    #[getter]
    fn level(&self) -> Option<String> {
        self.done(|receipt| receipt.level.clone()).flatten()
    }

    /// How often it was written; 0 until it is answered.
    #[getter]
    fn attempts(&self) -> u32 {
        self.done(|receipt| receipt.attempts).unwrap_or(0)
    }

    /// Seconds from the call to the first writing; `None` until it is answered.
    #[getter]
    fn queued(&self) -> Option<f64> {
        self.done(|receipt| seconds(receipt.queued))
    }

    /// Seconds from the last writing to the answer; `None` until it is answered.
    #[getter]
    fn latency(&self) -> Option<f64> {
        self.done(|receipt| seconds(receipt.latency))
    }

    /// Why it failed; `None` while it did not.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.lock() {
            State::Failed { error, .. } => Some(error.clone_ref(py)),
            _ => None,
        }
    }

    /// Waits until the outcome is known, and gives this receipt. A failure is in `error`, and not raised.
    fn wait<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let future = this.loop_.bind(py).call_method0(intern!(py, "create_future"))?;
        if let State::Open { waiting, .. } = &mut *this.lock() {
            waiting.push(future.clone().unbind());
            return Ok(future);
        }
        future.call_method1("set_result", (slf,))?;
        Ok(future)
    }

    fn __repr__(&self) -> String {
        format!("<Receipt {} {:?}>", self.outcome(), self.topic)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.loop_)?;
        // Nothing runs beside a traversal, so the lock is free unless this very thread holds it.
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        match &*state {
            State::Open { callback, waiting } => {
                callback.iter().chain(waiting).try_for_each(|object| visit.call(object))
            }
            State::Failed { error, .. } => visit.call(error),
            State::Done(_) => Ok(()),
        }
    }
}
