//! What comes beside a payload.

use nolag_core::event::{Meta, Topic};
use pyo3::prelude::*;

/// What came with a message. A field that the broker did not send is `None`; nothing is invented.
#[pyclass(frozen, eq, module = "nolag", name = "MessageMeta")]
#[derive(Clone, PartialEq)]
pub(crate) struct MessageMeta {
    meta: Meta,
    topic: Option<Topic>,
    received_at: Option<f64>,
}

impl MessageMeta {
    pub(crate) fn of(meta: Meta, topic: Topic, received_at: f64) -> Self {
        Self { meta, topic: Some(topic), received_at: Some(received_at) }
    }
}

#[pymethods]
impl MessageMeta {
    #[new]
    #[pyo3(signature = (sender=None, timestamp=None, is_replay=false, msg_id=None, filter=None))]
    fn new(
        sender: Option<String>,
        timestamp: Option<u64>,
        is_replay: bool,
        msg_id: Option<String>,
        filter: Option<String>,
    ) -> Self {
        let meta = Meta { from: sender, timestamp, is_replay, msg_id, filter, ..Meta::default() };
        Self { meta, topic: None, received_at: None }
    }

    /// The actor that published the message.
    #[getter]
    fn sender(&self) -> Option<&str> {
        self.meta.from.as_deref()
    }

    /// What kind of actor that is.
    #[getter]
    fn sender_type(&self) -> Option<&str> {
        self.meta.from_type.as_deref()
    }

    /// When the broker received it, in milliseconds since 1970.
    #[getter]
    fn timestamp(&self) -> Option<u64> {
        self.meta.timestamp
    }

    /// Whether it is replayed from the broker's history.
    #[getter]
    fn is_replay(&self) -> bool {
        self.meta.is_replay
    }

    /// The same for all who receive it; what `ack` takes.
    #[getter]
    fn msg_id(&self) -> Option<&str> {
        self.meta.msg_id.as_deref()
    }

    /// The filter value it was published with.
    #[getter]
    fn filter(&self) -> Option<&str> {
        self.meta.filter.as_deref()
    }

    /// The subscription that it came for.
    #[getter]
    fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// Whether the broker waits for an acknowledgement.
    #[getter]
    fn requires_ack(&self) -> bool {
        self.meta.requires_ack
    }

    /// Whether it was kept by the broker, and the subscribe brought it.
    #[getter]
    fn retained(&self) -> bool {
        self.meta.retained
    }

    /// Whether another member of the group had it before.
    #[getter]
    fn redelivered(&self) -> bool {
        self.meta.redelivered
    }

    /// Its number in the project.
    #[getter]
    fn seq(&self) -> Option<u64> {
        self.meta.seq
    }

    /// The topic that it was published to, where that is not the subscription.
    #[getter]
    fn source_topic(&self) -> Option<&str> {
        self.meta.source_topic.as_deref()
    }

    /// When this client handed it over, in seconds since 1970.
    #[getter]
    fn received_at(&self) -> Option<f64> {
        self.received_at
    }

    /// A W3C `traceparent`.
    #[getter]
    fn trace(&self) -> Option<&str> {
        self.meta.trace.as_deref()
    }

    fn __repr__(&self) -> String {
        let text =
            |value: Option<&str>| value.map_or_else(|| "None".to_owned(), |value| format!("{value:?}"));
        let Meta { from, timestamp, is_replay, msg_id, filter, .. } = &self.meta;
        format!(
            "MessageMeta(sender={}, timestamp={}, is_replay={}, msg_id={}, filter={})",
            text(from.as_deref()),
            timestamp.map_or_else(|| "None".to_owned(), |timestamp| timestamp.to_string()),
            if *is_replay { "True" } else { "False" },
            text(msg_id.as_deref()),
            text(filter.as_deref()),
        )
    }
}
