//! What comes beside a payload.

use std::sync::OnceLock;

use nolag_core::event::{Message, Topic};
use pyo3::prelude::*;

/// What came with a message. A field that the broker did not send is `None`; nothing is invented.
#[pyclass(frozen, eq, module = "nolag")]
pub(crate) struct MessageMeta {
    message: Option<Message>,
    received_at: Option<f64>,
    /// Read when somebody asks.
    fields: OnceLock<Box<Fields>>,
}

#[derive(Default, PartialEq)]
struct Fields {
    sender: Option<String>,
    sender_type: Option<String>,
    timestamp: Option<u64>,
    is_replay: bool,
    msg_id: Option<String>,
    filter: Option<String>,
    topic: Option<Topic>,
    requires_ack: bool,
    retained: bool,
    redelivered: bool,
    seq: Option<u64>,
    source_topic: Option<String>,
    trace: Option<String>,
}

impl MessageMeta {
    pub(crate) fn of(message: Message, received_at: f64) -> Self {
        Self { message: Some(message), received_at: Some(received_at), fields: OnceLock::new() }
    }

    pub(crate) fn message(&self) -> Option<&Message> {
        self.message.as_ref()
    }

    fn fields(&self) -> &Fields {
        self.fields.get_or_init(|| {
            let Some(message) = &self.message else { return Box::default() };
            let meta = message.meta();
            let owned = |text: Option<&str>| text.map(str::to_owned);
            Box::new(Fields {
                sender: owned(meta.from),
                sender_type: owned(meta.from_type),
                timestamp: meta.timestamp,
                is_replay: message.is_replay,
                msg_id: owned(meta.msg_id),
                filter: owned(meta.filter),
                topic: Some(message.topic.clone()),
                requires_ack: message.requires_ack,
                retained: meta.retained,
                redelivered: meta.redelivered,
                seq: meta.seq,
                source_topic: owned(meta.source_topic),
                trace: owned(meta.trace),
            })
        })
    }
}

impl PartialEq for MessageMeta {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields()
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
        let fields = Fields { sender, timestamp, is_replay, msg_id, filter, ..Fields::default() };
        Self { message: None, received_at: None, fields: OnceLock::from(Box::new(fields)) }
    }

    /// The actor that published the message.
    #[getter]
    fn sender(&self) -> Option<&str> {
        self.fields().sender.as_deref()
    }

    /// What kind of actor that is.
    #[getter]
    fn sender_type(&self) -> Option<&str> {
        self.fields().sender_type.as_deref()
    }

    /// When the broker received it, in milliseconds since 1970.
    #[getter]
    fn timestamp(&self) -> Option<u64> {
        self.fields().timestamp
    }

    /// Whether it is replayed from the broker's history.
    #[getter]
    fn is_replay(&self) -> bool {
        self.fields().is_replay
    }

    /// The same for all who receive it; what `ack` takes.
    #[getter]
    fn msg_id(&self) -> Option<&str> {
        self.fields().msg_id.as_deref()
    }

    /// The filter value it was published with.
    #[getter]
    fn filter(&self) -> Option<&str> {
        self.fields().filter.as_deref()
    }

    /// The subscription that it came for.
    #[getter]
    fn topic(&self) -> Option<&str> {
        self.fields().topic.as_deref()
    }

    /// Whether the broker waits for an acknowledgement.
    #[getter]
    fn requires_ack(&self) -> bool {
        self.fields().requires_ack
    }

    /// Whether it was kept by the broker, and the subscribe brought it.
    #[getter]
    fn retained(&self) -> bool {
        self.fields().retained
    }

    /// Whether another member of the group had it before.
    #[getter]
    fn redelivered(&self) -> bool {
        self.fields().redelivered
    }

    /// Its number in the project.
    #[getter]
    fn seq(&self) -> Option<u64> {
        self.fields().seq
    }

    /// The topic that it was published to, where that is not the subscription.
    #[getter]
    fn source_topic(&self) -> Option<&str> {
        self.fields().source_topic.as_deref()
    }

    /// When this client handed it over, in seconds since 1970.
    #[getter]
    fn received_at(&self) -> Option<f64> {
        self.received_at
    }

    /// A W3C `traceparent`.
    #[getter]
    fn trace(&self) -> Option<&str> {
        self.fields().trace.as_deref()
    }

    fn __repr__(&self) -> String {
        let text =
            |value: Option<&str>| value.map_or_else(|| "None".to_owned(), |value| format!("{value:?}"));
        let Fields { sender, timestamp, is_replay, msg_id, filter, .. } = self.fields();
        format!(
            "MessageMeta(sender={}, timestamp={}, is_replay={}, msg_id={}, filter={})",
            text(sender.as_deref()),
            timestamp.map_or_else(|| "None".to_owned(), |timestamp| timestamp.to_string()),
            if *is_replay { "True" } else { "False" },
            text(msg_id.as_deref()),
            text(filter.as_deref()),
        )
    }
}
