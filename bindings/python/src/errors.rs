//! Errors of the core as exceptions of `nolag.errors`.

use nolag_core::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception for an error.
pub(crate) fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("topic", error.topic())?;
    fields.set_item("retryable", error.retryable())?;
    fields.set_item("fatal", error.fatal())?;
    fields.set_item("outcome_unknown", error.outcome_unknown())?;
    match error {
        Error::Server(server) => {
            fields.set_item("server_code", server.code)?;
            fields.set_item("hint", server.hint.as_deref().or(server.detail.as_deref()))?;
            fields.set_item("msg_ref", &server.msg_ref)?;
            fields.set_item("max_size_bytes", server.max_size_bytes)?;
            fields.set_item("local", server.local)?;
        }
        Error::Encode { op, .. } => fields.set_item("op", op)?,
        _ => {}
    }
    let message = match error {
        Error::Encode { message, .. } => message.clone(), // the class says of what
        _ => error.to_string(),
    };
    MAKE.import(py, "nolag.errors", "_from_native")?.call1((error.class(), error.code(), message, fields))
}

/// The error, to be raised.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failure) => failure,
    }
}

/// A mistake in the program or its settings.
pub(crate) fn config(py: Python<'_>, code: &'static str, message: impl Into<String>) -> PyErr {
    raised(py, &Error::Config { code, message: message.into() })
}

/// A payload that cannot be written; `cause` says what and why.
pub(crate) fn encode(py: Python<'_>, op: &'static str, topic: &str, cause: PyErr) -> PyErr {
    let message = cause.value(py).to_string();
    let error = raised(py, &Error::Encode { op, topic: Some(topic.to_owned()), message });
    error.set_cause(py, Some(cause));
    error
}
