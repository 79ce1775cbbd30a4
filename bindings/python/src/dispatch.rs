//! Messages to the handlers that the application registered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use nolag_core::event::{self, Topic};
use nolag_core::options::AckMode;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::core::Core;
use crate::meta::MessageMeta;
use crate::{events, value};

/// After how many handled messages the driver is told, so that it reads on while the rest is handled.
const REPORT_EVERY: usize = 256;

/// A handler failed: the owner tells. What ends a program is passed on.
pub(crate) fn failed(
    owner: &Bound<'_, PyAny>,
    fault: PyErr,
    message: Option<&event::Message>,
) -> PyResult<()> {
    let py = owner.py();
    if fault.is_instance_of::<PyException>(py) || is_cancelled(&fault, py) {
        let topic = message.map(|message| &*message.topic);
        let msg_id = message.and_then(|message| message.meta().msg_id);
        owner.call_method1("_handler_failed", (fault.into_value(py), topic, msg_id)).map(|_| ())
    } else {
        Err(fault)
    }
}

fn is_cancelled(fault: &PyErr, py: Python<'_>) -> bool {
    fault.get_type(py).name().is_ok_and(|name| name == "CancelledError")
}

/// Dispatches one batch of messages.
pub(crate) struct Dispatch<'a, 'py> {
    core: &'a Core,
    pub(crate) owner: &'a Bound<'py, PyAny>,
    by_topic: Bound<'py, PyDict>,
    any: Bound<'py, PyAny>,
    readers: Bound<'py, PyDict>,
    handlers: Vec<Bound<'py, PyAny>>,
    topic: Option<(Topic, Bound<'py, PyString>)>,
    received_at: f64,
    finished: Vec<(u64, bool)>,
    /// The broker waits for the acknowledgement of one of them.
    is_awaited: bool,
}

impl Drop for Dispatch<'_, '_> {
    fn drop(&mut self) {
        self.core.report(&mut self.finished, self.is_awaited);
    }
}

impl<'a, 'py> Dispatch<'a, 'py> {
    pub(crate) fn new(core: &'a Core, owner: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let py = owner.py();
        Ok(Self {
            core,
            owner,
            by_topic: owner.getattr(intern!(py, "_message_handlers"))?.cast_into()?,
            any: owner.getattr(intern!(py, "_any_handlers"))?,
            readers: owner.getattr(intern!(py, "_readers"))?.cast_into()?,
            handlers: Vec::new(),
            topic: None,
            received_at: events::unix(SystemTime::now()),
            finished: Vec::new(),
            is_awaited: false,
        })
    }

    /// Hands a message to the topic's handlers, then to those of any topic, then to iterators (client-api 8.2).
    pub(crate) fn message(&mut self, message: event::Message) -> PyResult<()> {
        let mut handlers = std::mem::take(&mut self.handlers);
        let result = self.dispatch(message, &mut handlers);
        handlers.clear();
        self.handlers = handlers;
        result
    }

    fn dispatch(&mut self, message: event::Message, handlers: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        let py = self.owner.py();
        let delivery = message.delivery;
        self.is_awaited |= message.requires_ack;
        let name = self.name(&message.topic);
        if let Some(registered) = self.by_topic.get_item(&name)? {
            snapshot(&registered, handlers)?;
        }
        let of_topic = handlers.len();
        snapshot(&self.any, handlers)?;
        let has_readers = !self.readers.is_empty() && self.readers.contains(&name)?;
        if message.is_replay {
            self.owner.call_method0(intern!(py, "_replayed"))?;
        }
        if handlers.is_empty() && !has_readers {
            // A message that waits for its handlers goes unacknowledged, for another member to handle.
            self.finish(delivery, message.ack_mode != AckMode::AfterHandler);
            return Ok(());
        }

        let data = match value::decode(py, &message.data) {
            Ok(data) => data,
            Err(fault) => {
                self.finish(delivery, false);
                return failed(self.owner, fault, Some(&message));
            }
        };
        let after_handler = message.ack_mode == AckMode::AfterHandler;
        let meta = Bound::new(py, MessageMeta::of(message, self.received_at))?;
        if after_handler {
            let any = PyTuple::new(py, handlers.drain(of_topic..))?;
            let of_topic = PyTuple::new(py, handlers.drain(..))?;
            self.owner.call_method1(intern!(py, "_handle"), (name, data, meta, delivery, of_topic, any))?;
            return Ok(());
        }
        for (index, handler) in handlers.iter().enumerate() {
            let result = if index < of_topic {
                handler.call1((&data, &meta))
            } else {
                handler.call1((&name, &data, &meta))
            };
            match result {
                Ok(result) if result.is_none() => {}
                // It may be a coroutine.
                Ok(result) => {
                    self.owner.call_method1(intern!(py, "_spawn"), (result, &meta))?;
                }
                Err(fault) => {
                    if let Err(fault) = failed(self.owner, fault, meta.get().message()) {
                        self.finish(delivery, true);
                        return Err(fault);
                    }
                }
            }
            if self.core.muted.load(Ordering::Relaxed) > 0 {
                return Ok(()); // a handler closed the client
            }
        }
        if has_readers {
            self.owner.call_method1(intern!(py, "_feed"), (name, data, meta, delivery))?;
        } else {
            self.finish(delivery, true);
        }
        Ok(())
    }

    fn name(&mut self, topic: &Topic) -> Bound<'py, PyString> {
        match &self.topic {
            Some((last, name)) if Arc::ptr_eq(last, topic) => name.clone(),
            _ => {
                let name = PyString::intern(self.owner.py(), topic);
                self.topic = Some((topic.clone(), name.clone()));
                name
            }
        }
    }

    fn finish(&mut self, delivery: u64, succeeded: bool) {
        self.finished.push((delivery, succeeded));
        if self.finished.len() >= REPORT_EVERY {
            self.core.report(&mut self.finished, true);
        }
    }
}

/// The handlers as they are now: what a handler changes counts from the next message on.
fn snapshot<'py>(registered: &Bound<'py, PyAny>, into: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    if let Ok(dict) = registered.cast::<PyDict>() {
        into.extend(dict.iter().map(|(handler, _)| handler));
        return Ok(());
    }
    for handler in registered.try_iter()? {
        into.push(handler?);
    }
    Ok(())
}
