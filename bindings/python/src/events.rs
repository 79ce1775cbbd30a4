//! Events and replies of the core as Python objects: plain tuples and dicts, from which `nolag.client` makes its own classes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nolag_core::Event;
use nolag_core::event::{Actor, Gap, LobbyChange, LobbySnapshot, Ready, Warning};
use nolag_core::session::Reply;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::{errors, value};

/// The name of an event and what it carries; `None` for messages, which go another way. `started` is when the session's clock
/// began.
pub(crate) fn event<'py>(
    py: Python<'py>,
    event: &Event,
    started: SystemTime,
) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
    let nothing = || py.None().into_bound(py);
    Ok(Some(match event {
        Event::State { from, to, reason, close_code } => {
            ("state", (from.name(), to.name(), reason, close_code).into_bound_py_any(py)?)
        }
        Event::Connecting => ("connecting", nothing()),
        Event::Connected { actor_id, actor_type, project_id, protocol_version, features } => {
            let told = (actor_id, actor_type, project_id, protocol_version, features.names());
            ("connect", told.into_bound_py_any(py)?)
        }
        Event::Disconnected { reason, .. } => ("disconnect", reason.into_bound_py_any(py)?),
        Event::Reconnecting { attempt, delay, reason } => {
            ("reconnecting", (attempt, delay.as_secs_f64(), reason).into_bound_py_any(py)?)
        }
        Event::Ready(report) => ("ready", ready(py, report, started)?),
        Event::Reconnected => ("reconnect", nothing()),
        Event::Error(error) => ("error", errors::exception(py, error)?),
        Event::Failed(error) => ("failed", errors::exception(py, error)?),
        Event::Warning(warning) => ("warning", self::warning(*warning).into_bound_py_any(py)?),
        Event::ReplayStart { topic, count, oldest_timestamp, newest_timestamp } => {
            let report = PyDict::new(py);
            report.set_item("topic", topic.as_deref())?;
            report.set_item("count", count)?;
            report.set_item("oldest_timestamp", oldest_timestamp)?;
            report.set_item("newest_timestamp", newest_timestamp)?;
            ("replay:start", report.into_any())
        }
        Event::ReplayEnd { topic, replayed } => {
            let report = PyDict::new(py);
            report.set_item("topic", topic.as_deref())?;
            report.set_item("replayed", replayed)?;
            ("replay:end", report.into_any())
        }
        Event::Hydration { topic, data, .. } => {
            ("hydration", (topic, value::decode(py, data)?).into_bound_py_any(py)?)
        }
        Event::Gap(gap) => ("gap", self::gap(py, gap, started)?),
        Event::Presence(change, actor) => {
            ("presence", (change.name(), self::actor(py, actor)?).into_bound_py_any(py)?)
        }
        Event::PresenceReplaced(room) => {
            let report = PyDict::new(py);
            report.set_item("app", &room.app)?;
            report.set_item("room", &room.room)?;
            ("presence:replaced", report.into_any())
        }
        Event::Lobby(change) => ("lobby", lobby(py, change)?),
        _ => return Ok(None),
    }))
}

/// What a call is answered with.
pub(crate) fn reply(py: Python<'_>, reply: &Reply) -> PyResult<Py<PyAny>> {
    Ok(match reply {
        Reply::Presence(actors) => {
            let list = PyList::empty(py);
            for actor in actors {
                list.append(self::actor(py, actor)?)?;
            }
            list.into_any().unbind()
        }
        Reply::Lobby(rooms) => snapshot(py, rooms)?.into_any().unbind(),
        Reply::Done | Reply::Receipt(_) => py.None(),
    })
}

fn warning(warning: Warning) -> String {
    match warning {
        Warning::HeartbeatCut => {
            "heartbeat_interval is cut to 45 s: brokers close connections that are silent for 60 s".to_owned()
        }
        Warning::QosReduced => {
            "this broker has no quality of service 2: messages are published with 1".to_owned()
        }
        Warning::PresenceWithoutRoom => {
            "presence without a room is announced to nobody: use set_app(…).set_room(…).set_presence"
                .to_owned()
        }
        Warning::AcksDropped => {
            "acknowledgements were dropped: more than 10,000 waited for a connection".to_owned()
        }
        other => format!("{other:?}"),
    }
}

fn ready<'py>(py: Python<'py>, ready: &Ready, started: SystemTime) -> PyResult<Bound<'py, PyAny>> {
    let report = PyDict::new(py);
    let resubscribed: Vec<&str> = ready.resubscribed.iter().map(|topic| &**topic).collect();
    report.set_item("resubscribed", resubscribed)?;
    let refused = PyList::empty(py);
    for (topic, error) in &ready.refused {
        let refusal = PyDict::new(py);
        refusal.set_item("topic", &**topic)?;
        refusal.set_item("error", errors::exception(py, error)?)?;
        refused.append(refusal)?;
    }
    report.set_item("refused", refused)?;
    report.set_item("resumed", ready.resumed)?;
    let gaps = PyList::empty(py);
    for gap in &ready.gaps {
        gaps.append(self::gap(py, gap, started)?)?;
    }
    report.set_item("gaps", gaps)?;
    Ok(report.into_any())
}

fn gap<'py>(py: Python<'py>, gap: &Gap, started: SystemTime) -> PyResult<Bound<'py, PyAny>> {
    let report = PyDict::new(py);
    report.set_item("topic", &*gap.topic)?;
    report.set_item("reason", &gap.reason)?;
    report.set_item("since", gap.since.map(|since| unix(started + since)))?;
    Ok(report.into_any())
}

/// Seconds since 1970.
pub(crate) fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

fn actor<'py>(py: Python<'py>, actor: &Actor) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("actor_token_id", &actor.actor_id)?;
    fields.set_item("actor_type", &actor.actor_type)?;
    fields.set_item("presence", value::decode(py, &actor.presence)?)?;
    fields.set_item("joined_at", actor.joined_at)?;
    fields.set_item("status", &actor.status)?;
    fields.set_item("advertisement_version", actor.advertisement_version)?;
    fields.set_item("connections", values(py, &actor.connections)?)?;
    fields.set_item("app", actor.room.as_ref().and_then(|room| room.app.as_deref()))?;
    fields.set_item("room_id", actor.room.as_ref().map(|room| room.room.as_str()))?;
    Ok(fields.into_any())
}

fn values<'py>(py: Python<'py>, values: &[Bytes]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for bytes in values {
        list.append(value::decode(py, bytes)?)?;
    }
    Ok(list)
}

fn lobby<'py>(py: Python<'py>, change: &LobbyChange) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("lobby", &change.lobby)?;
    fields.set_item("lobby_id", &change.lobby_id)?;
    fields.set_item("room", &change.room)?;
    fields.set_item("app", &change.app)?;
    fields.set_item("actor_id", &change.actor_id)?;
    fields.set_item("change", change.change.name())?;
    fields.set_item("data", value::decode(py, &change.data)?)?;
    Ok(fields.into_any())
}

fn snapshot<'py>(py: Python<'py>, rooms: &LobbySnapshot) -> PyResult<Bound<'py, PyDict>> {
    let snapshot = PyDict::new(py);
    for (room, actors) in rooms {
        let records = PyDict::new(py);
        for (actor, record) in actors {
            records.set_item(actor, value::decode(py, record)?)?;
        }
        snapshot.set_item(room, records)?;
    }
    Ok(snapshot)
}
