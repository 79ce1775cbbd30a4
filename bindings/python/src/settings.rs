//! Options of the Python class as those of the core.

use std::time::Duration;

use nolag_core::Options;
use nolag_core::options::{
    AckMode, Backoff, Credentials, Dedupe, Feature, Features, Filter, Group, InitialConnect, Overflow, Qos,
    Qos0, Queue, Secret,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors;

/// The longest time that any option may name: more would overflow clocks, and nobody waits for ten years.
const LONGEST: f64 = 315_360_000.0;

/// Options by name, times in seconds, as `nolag.client` hands them over. What has no name here keeps its default.
pub(crate) fn options(token: Option<String>, given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let credentials = token.map_or(Credentials::Provider, |token| Credentials::Static(Secret::new(token)));
    let mut options = Options::new(credentials);
    options.initial_connect = InitialConnect::Once;
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        set(&mut options, &name, &value).map_err(|fault| unfit(&name, &value, fault))?;
    }
    Ok(options)
}

fn set(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "reconnect" => options.reconnect = value.extract()?,
        "max_reconnect_attempts" => {
            let attempts: u32 = value.extract()?;
            options.max_attempts = (attempts > 0).then_some(attempts);
        }
        "backoff.base" => options.backoff.base = positive(value)?,
        "backoff.factor" => {
            let factor: f64 = value.extract()?;
            if !(1.0..=1_000.0).contains(&factor) {
                return Err(wrong("a number from 1 to 1000 is expected"));
            }
            options.backoff = Backoff { factor, ..options.backoff };
        }
        "backoff.max" => options.backoff.max = positive(value)?,
        "initial_connect" => {
            options.initial_connect = one_of(
                value,
                &[
                    ("once", InitialConnect::Once),
                    ("background", InitialConnect::Background),
                    ("wait", InitialConnect::Wait),
                ],
            )?;
        }
        "connect_timeout" => options.connect_timeout = positive(value)?,
        "auth_timeout" => options.auth_timeout = positive(value)?,
        "ack_timeout" => options.ack_timeout = positive(value)?,
        "presence_timeout" => options.presence_timeout = positive(value)?,
        "heartbeat_interval" => options.heartbeat_interval = seconds(value)?,
        "heartbeat_timeout" => options.heartbeat_timeout = positive(value)?,
        "qos" => options.qos = qos(value)?,
        "group" => options.group = Some(group(value)?),
        "ack_mode" => {
            options.ack_mode = one_of(
                value,
                &[
                    ("auto", AckMode::Auto),
                    ("after_handler", AckMode::AfterHandler),
                    ("afterHandler", AckMode::AfterHandler),
                    ("manual", AckMode::Manual),
                ],
            )?;
        }
        "ack_batch_interval" => options.ack_batch_interval = seconds(value)?,
        "project_id" => options.project_id = Some(value.extract()?),
        "client_id" => options.client_id = Some(value.extract()?),
        "features" => options.features = features(value)?,
        "max_in_flight" => options.max_in_flight = at_least_one(value)?,
        "max_message_size" => options.max_message_size = at_least_one(value)?,
        "receive_buffer" => options.receive_buffer = at_least_one(value)?,
        "token_refresh_margin" => options.token_refresh_margin = seconds(value)?,
        "dedupe.enabled" => options.dedupe.enabled = value.extract()?,
        "dedupe.max_ids" => options.dedupe = Dedupe { max_ids: at_least_one(value)?, ..options.dedupe },
        "dedupe.window" => options.dedupe.window = positive(value)?,
        other => match other.strip_prefix("offline_queue.") {
            Some(name) => set_queue(&mut options.queue, name, value)?,
            None => return Err(wrong("there is no such option")),
        },
    }
    Ok(())
}

fn set_queue(queue: &mut Queue, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "enabled" => queue.enabled = value.extract()?,
        "max_messages" => queue.max_messages = at_least_one(value)?,
        "max_bytes" => queue.max_bytes = at_least_one(value)?,
        "ttl" => queue.ttl = positive(value)?,
        "overflow" => {
            queue.overflow = one_of(
                value,
                &[
                    ("reject", Overflow::Reject),
                    ("drop_oldest", Overflow::DropOldest),
                    ("dropOldest", Overflow::DropOldest),
                    ("block", Overflow::Block),
                ],
            )?;
        }
        "qos0" => queue.qos0 = one_of(value, &[("drop", Qos0::Drop), ("queue", Qos0::Queue)])?,
        "flush_rate" => {
            let rate: u32 = value.extract()?;
            queue.flush_rate = Some(rate).filter(|rate| *rate > 0);
            if queue.flush_rate.is_none() {
                return Err(wrong("messages a second, at least 1, are expected"));
            }
        }
        _ => return Err(wrong("there is no such option")),
    }
    Ok(())
}

/// An option of a wrong type or out of range.
fn unfit(name: &str, value: &Bound<'_, PyAny>, fault: PyErr) -> PyErr {
    let py = value.py();
    if fault.is_instance_of::<PyTypeError>(py)
        || fault.is_instance_of::<PyValueError>(py)
        || fault.is_instance_of::<PyOverflowError>(py)
    {
        let got = value.repr().map_or_else(|_| "something else".to_owned(), |repr| repr.to_string());
        errors::config(py, "bad_option", format!("{name} is {got}: {}", fault.value(py)))
    } else {
        fault
    }
}

/// An option of one call, if it is given.
pub(crate) fn given<'py, T>(
    name: &str,
    value: Option<&Bound<'py, PyAny>>,
    read: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    value.map(|value| read(value).map_err(|fault| unfit(name, value, fault))).transpose()
}

fn wrong(what: impl Into<String>) -> PyErr {
    PyValueError::new_err(what.into())
}

fn one_of<T: Copy>(value: &Bound<'_, PyAny>, choices: &[(&str, T)]) -> PyResult<T> {
    let given: String = value.extract()?;
    choices.iter().find(|(name, _)| *name == given).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        wrong(format!("one of {} is expected", names.join(", ")))
    })
}

fn at_least_one(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<usize>() {
        Ok(0) | Err(_) => Err(wrong("a whole number of at least 1 is expected")),
        Ok(number) => Ok(number),
    }
}

/// Seconds as Python counts them.
pub(crate) fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let time: f64 = value.extract()?;
    if (0.0..=LONGEST).contains(&time) {
        return Ok(Duration::from_secs_f64(time));
    }
    Err(wrong("seconds from 0 to ten years are expected"))
}

fn positive(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    match seconds(value)? {
        Duration::ZERO => Err(wrong("seconds above 0 are expected")),
        time => Ok(time),
    }
}

/// A quality of service, as a number or one of the enumeration.
pub(crate) fn qos(value: &Bound<'_, PyAny>) -> PyResult<Qos> {
    match value.extract::<u8>() {
        Ok(0) => Ok(Qos::AtMostOnce),
        Ok(1) => Ok(Qos::AtLeastOnce),
        Ok(2) => Ok(Qos::ExactlyOnce),
        _ => Err(wrong("0, 1 or 2 is expected")),
    }
}

/// `False` for none, `True` for the group of the actor's own name, or a name.
pub(crate) fn group(value: &Bound<'_, PyAny>) -> PyResult<Group> {
    if let Ok(name) = value.cast::<PyString>() {
        return Ok(Group::Named(name.to_str()?.to_owned()));
    }
    Ok(if value.extract()? { Group::OfActor } else { Group::Nobody })
}

/// A list of text; one text alone is not taken letter by letter.
pub(crate) fn texts(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if value.is_instance_of::<PyString>() {
        return Err(wrong("a list is expected"));
    }
    value.try_iter()?.map(|item| item?.extract()).collect()
}

fn features(value: &Bound<'_, PyAny>) -> PyResult<Features> {
    let feature = |name: String| {
        Feature::named(&name).ok_or_else(|| {
            let known = Features::ALL.names().join(", ");
            wrong(format!("{name:?} is no feature, there are {known}"))
        })
    };
    texts(value)?.into_iter().map(feature).collect()
}

/// Strings are alternatives; a list of strings stands for all of them at once.
pub(crate) fn filters(value: &Bound<'_, PyAny>) -> PyResult<Vec<Filter>> {
    if value.is_instance_of::<PyString>() {
        return Err(wrong("a list is expected"));
    }
    let mut filters = Vec::new();
    for item in value.try_iter()? {
        let item = item?;
        filters.push(match item.cast::<PyString>() {
            Ok(text) => Filter::Value(text.to_str()?.to_owned()),
            Err(_) => Filter::Group(texts(&item)?),
        });
    }
    Ok(filters)
}
