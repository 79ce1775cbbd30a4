//! One client, as the Python classes see it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use nolag_core::Error;
use nolag_core::driver::{Handle, drive};
use nolag_core::event::{self, Event};
use nolag_core::options::{Position, PublishOptions, Qos, Secret, SubscribeOptions};
use nolag_core::session::{Call, FilterChange, Hint, Reply, RequestId};
use pyo3::PyTraverseError;
use pyo3::exceptions::PyOSError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyWeakrefReference};

use crate::dispatch::{Dispatch, failed};
use crate::queue::{Item, Queue, Sender};
use crate::reach::{TokenAnswer, native, provider};
use crate::receipt::{Completion, Receipt};
use crate::watcher::Watcher;
use crate::{errors, events, runtime, settings, value};

/// Who waits for a call.
enum Waiter {
    Publish(Py<Receipt>),
    /// Is called with an error or `None`, and the reply.
    Call(Py<PyAny>),
    /// The same; then the client is no longer muted.
    Disconnect(Py<PyAny>),
}

/// One client. Its methods are called on the thread of its event loop.
#[pyclass(frozen, weakref, module = "nolag._native")]
pub(crate) struct Core {
    handle: Handle,
    queue: Arc<Queue>,
    number: u64,
    watcher: Py<Watcher>,
    /// The Python client; it keeps this alive, not the other way round.
    owner: Py<PyWeakrefReference>,
    loop_: Py<PyAny>,
    default_qos: Qos,
    /// How many handled messages may go unreported.
    report_at: usize,
    /// The process that it lives in.
    generation: u64,
    started: SystemTime,
    calls: Mutex<HashMap<RequestId, Waiter>>,
    /// Taken from the queue, and not delivered because Python was interrupted.
    rest: Mutex<Vec<Item>>,
    /// Disconnects under way: nothing of before is handed over any more (client-api 12.4).
    pub(crate) muted: AtomicUsize,
    delivering: AtomicBool,
    /// Below how many open calls the owner wants to be told; 0 for never.
    room: AtomicUsize,
}

impl Drop for Core {
    fn drop(&mut self) {
        // In a forked child the driver does not exist, and what it waits on is the parent's too.
        if self.generation == runtime::generation() {
            self.watcher.get().leave(self.number);
        } else {
            std::mem::forget(self.handle.clone());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing under these locks can panic halfway
}

#[pymethods]
impl Core {
    /// A client that is not connected yet. `token` is `None` where the owner's `_fetch_token` gives one.
    #[new]
    #[pyo3(signature = (owner, loop_, watcher, url, token, options, ca=None, proxy=None, headers=None, debug=false))]
    #[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)] // as Python hands them over
    fn new(
        py: Python<'_>,
        owner: &Bound<'_, PyAny>,
        loop_: Py<PyAny>,
        watcher: Py<Watcher>,
        url: &str,
        token: Option<String>,
        options: &Bound<'_, PyDict>,
        ca: Option<Vec<u8>>,
        proxy: Option<&Bound<'_, PyAny>>,
        headers: Option<Vec<(String, String)>>,
        debug: bool,
    ) -> PyResult<Self> {
        let asks = token.is_none();
        let options = settings::options(token, options)?;
        let native = native(url, ca.as_deref(), proxy, headers.unwrap_or_default());
        let native = native.map_err(|error| errors::raised(py, &error))?.within(&options);
        let queue = watcher.get().queue();
        let provider = asks.then(|| provider(Arc::clone(&queue)));
        let default_qos = options.qos;
        let report_at = (options.receive_buffer / 4).max(1);
        let sender = Sender { queue: Arc::clone(&queue), turn: Vec::new(), debug };
        let (handle, driver) = drive(options, Box::new(native), provider, sender);
        runtime::handle().map_err(|fault| PyOSError::new_err(fault.to_string()))?.spawn(driver);
        Ok(Self {
            handle,
            number: queue.number(),
            queue,
            watcher,
            owner: PyWeakrefReference::new(owner)?.unbind(),
            loop_,
            default_qos,
            report_at,
            generation: runtime::generation(),
            started: SystemTime::now(),
            calls: Mutex::default(),
            rest: Mutex::default(),
            muted: AtomicUsize::new(0),
            delivering: AtomicBool::new(false),
            room: AtomicUsize::new(0),
        })
    }

    /// Has the watcher deliver to this client from now on.
    fn enter(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        this.watcher.get().enter(this.number, slf)
    }

    /// Whether this process is the one that it was made in.
    fn is_usable(&self) -> bool {
        self.generation == runtime::generation()
    }

    /// Publishes. What cannot be encoded is raised here; all else is in the receipt.
    #[pyo3(signature = (topic, data, is_emit, callback=None, qos=None, retain=false, echo=true, filter=None, filters=None, ttl=None, retain_ttl=None, msg_ref=None, trace=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn publish<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        data: &Bound<'py, PyAny>,
        is_emit: bool,
        callback: Option<Py<PyAny>>,
        qos: Option<&Bound<'py, PyAny>>,
        retain: bool,
        echo: bool,
        filter: Option<String>,
        filters: Option<&Bound<'py, PyAny>>,
        ttl: Option<&Bound<'py, PyAny>>,
        retain_ttl: Option<&Bound<'py, PyAny>>,
        msg_ref: Option<String>,
        trace: Option<String>,
    ) -> PyResult<Bound<'py, Receipt>> {
        let payload = value::encode(data).map_err(|cause| errors::encode(py, "publish", topic, cause))?;
        let qos = settings::given("qos", qos, settings::qos)?;
        let options = PublishOptions {
            qos,
            retain,
            retain_ttl: settings::given("retain_ttl", retain_ttl, settings::seconds)?,
            no_echo: !echo,
            filter,
            filters: settings::given("filters", filters, settings::texts)?.unwrap_or_default(),
            ttl: settings::given("ttl", ttl, settings::seconds)?,
            msg_ref,
            trace,
        };
        let request = self.handle.number();
        let (qos, loop_) = (qos.unwrap_or(self.default_qos), self.loop_.clone_ref(py));
        let receipt = Bound::new(py, Receipt::new(request, topic, qos, loop_, is_emit, callback))?;
        lock(&self.calls).insert(request, Waiter::Publish(receipt.clone().unbind()));
        self.send(
            py,
            request,
            Call::Publish { topic: topic.to_owned(), payload: Bytes::from(payload), options },
        )?;
        Ok(receipt)
    }

    /// Subscribes. `resume_from` is an epoch and a number.
    #[pyo3(signature = (waiter, topic, qos=None, group=None, filters=None, history=None, resume_from=None, redeliver=false, ack_timeout=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn subscribe(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        topic: String,
        qos: Option<&Bound<'_, PyAny>>,
        group: Option<&Bound<'_, PyAny>>,
        filters: Option<&Bound<'_, PyAny>>,
        history: Option<u16>,
        resume_from: Option<(String, u64)>,
        redeliver: bool,
        ack_timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let options = SubscribeOptions {
            qos: settings::given("qos", qos, settings::qos)?,
            group: settings::given("load_balance_group", group, settings::group)?,
            filters: settings::given("filters", filters, settings::filters)?.unwrap_or_default(),
            history,
            resume_from: resume_from.map(|(epoch, seq)| Position { epoch: epoch.into(), seq }),
            redeliver,
            ack_timeout: settings::given("ack_timeout", ack_timeout, settings::seconds)?,
        };
        self.ask(py, waiter, Call::Subscribe { topic, options })
    }

    /// How far the application is with a topic: an epoch and a number. What the driver has not learnt of counts the next time.
    fn position(&self, topic: &str) -> Option<(String, u64)> {
        if !self.is_usable() {
            return None; // the lock may have been held when the process was forked
        }
        if self.queue.has_finished() {
            self.handle.poke();
        }
        let position = self.handle.position(topic)?;
        Some((position.epoch.to_string(), position.seq))
    }

    fn unsubscribe(&self, py: Python<'_>, waiter: Py<PyAny>, topic: String) -> PyResult<u64> {
        self.ask(py, waiter, Call::Unsubscribe { topic })
    }

    /// Changes filters: `"set"`, `"add"` or `"remove"`.
    fn change_filters(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        topic: String,
        change: &str,
        filters: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let texts =
            || settings::given("filters", Some(filters), settings::texts).map(Option::unwrap_or_default);
        let change = match change {
            "add" => FilterChange::Add(texts()?),
            "remove" => FilterChange::Remove(texts()?),
            _ => {
                let filters = settings::given("filters", Some(filters), settings::filters)?;
                FilterChange::Set(filters.unwrap_or_default())
            }
        };
        self.ask(py, waiter, Call::Filters { topic, change })
    }

    fn connect(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<u64> {
        self.ask(py, waiter, Call::Connect)
    }

    /// Closes at once. What was not handed over before this is not handed over any more, until the client connects again.
    fn disconnect(&self, py: Python<'_>, waiter: Py<PyAny>) -> PyResult<u64> {
        let request = self.handle.number();
        lock(&self.calls).insert(request, Waiter::Disconnect(waiter));
        self.muted.fetch_add(1, Ordering::Relaxed);
        self.send(py, request, Call::Disconnect).map(|()| request.0)
    }

    fn close(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        flush: bool,
        timeout: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let timeout = settings::given("timeout", Some(timeout), settings::seconds)?.unwrap_or_default();
        self.ask(py, waiter, Call::Close { flush, timeout })
    }

    #[pyo3(signature = (waiter, timeout=None))]
    fn flush(&self, py: Python<'_>, waiter: Py<PyAny>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let timeout = settings::given("timeout", timeout, settings::seconds)?;
        self.ask(py, waiter, Call::Flush { timeout })
    }

    /// Announces presence; `None` takes it back. Without a room it is announced to nobody.
    fn set_presence(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        app: Option<String>,
        room: Option<String>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let name = room.clone().unwrap_or_default();
        let data = if data.is_none() {
            None
        } else {
            let encoded =
                value::encode(data).map_err(|cause| errors::encode(py, "set_presence", &name, cause))?;
            Some(Bytes::from(encoded))
        };
        let room = room.map(|room| event::Room { app, room });
        self.ask(py, waiter, Call::SetPresence { room, data })
    }

    fn fetch_presence(
        &self,
        py: Python<'_>,
        waiter: Py<PyAny>,
        app: Option<String>,
        room: String,
    ) -> PyResult<u64> {
        self.ask(py, waiter, Call::FetchPresence { room: event::Room { app, room } })
    }

    fn watch_lobby(&self, py: Python<'_>, waiter: Py<PyAny>, lobby: String) -> PyResult<u64> {
        self.ask(py, waiter, Call::WatchLobby { lobby })
    }

    fn unwatch_lobby(&self, py: Python<'_>, waiter: Py<PyAny>, lobby: String) -> PyResult<u64> {
        self.ask(py, waiter, Call::UnwatchLobby { lobby })
    }

    fn fetch_lobby(&self, py: Python<'_>, waiter: Py<PyAny>, lobby: String) -> PyResult<u64> {
        self.ask(py, waiter, Call::FetchLobby { lobby })
    }

    fn ack(&self, py: Python<'_>, waiter: Py<PyAny>, ids: Vec<String>) -> PyResult<u64> {
        self.ask(py, waiter, Call::Ack { ids })
    }

    fn update_token(&self, py: Python<'_>, waiter: Py<PyAny>, token: String) -> PyResult<u64> {
        self.ask(py, waiter, Call::UpdateToken { token: Secret::new(token) })
    }

    /// Withdraws a call nobody waits for any more.
    fn cancel(&self, request: u64) {
        if self.is_usable() {
            self.handle.cancel(RequestId(request));
        }
    }

    /// Withdraws a publish if it was not written yet.
    fn withdraw(&self, receipt: &Receipt) {
        self.cancel(receipt.request.0);
    }

    /// Passes on a hint of the platform: `"online"`, `"offline"`, `"suspend"`, `"resume"`, or `"now"` for an attempt at once.
    fn hint(&self, hint: &str) {
        let hint = match hint {
            "online" => Hint::Online,
            "offline" => Hint::Offline,
            "suspend" => Hint::Suspend,
            "resume" => Hint::Resume,
            _ => Hint::ReconnectNow,
        };
        if self.is_usable() {
            self.handle.hint(hint);
        }
    }

    /// How many calls are not complete.
    #[getter]
    fn open_calls(&self) -> usize {
        lock(&self.calls).len()
    }

    /// Has `_room_made` called once fewer calls than this are open.
    fn want_room(&self, calls: usize) {
        self.room.store(calls, Ordering::Relaxed);
    }

    /// A message whose handling took longer than its dispatch is handled now.
    fn finish(&self, delivery: u64, succeeded: bool) {
        self.report(&mut vec![(delivery, succeeded)], true);
    }

    /// Some reader has no room for messages, or has room again.
    fn set_full(&self, full: bool) {
        self.queue.set_full(full);
        if !full {
            self.handle.poke();
        }
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.handle.stats();
        let dict = PyDict::new(py);
        dict.set_item("connects", stats.connects)?;
        dict.set_item("connect_failures", stats.connect_failures)?;
        dict.set_item("reconnects", stats.reconnects)?;
        dict.set_item("downtime", stats.downtime.as_secs_f64())?;
        dict.set_item("frames_in", stats.frames_in)?;
        dict.set_item("frames_out", stats.frames_out)?;
        dict.set_item("bytes_in", stats.bytes_in)?;
        dict.set_item("bytes_out", stats.bytes_out)?;
        dict.set_item("published", stats.published)?;
        dict.set_item("publish_failures", stats.publish_failures)?;
        dict.set_item("queue_dropped", stats.queue_dropped)?;
        dict.set_item("queue_messages", stats.outbox.queued)?;
        dict.set_item("queue_bytes", stats.outbox.queued_bytes)?;
        dict.set_item("in_flight", stats.outbox.in_flight)?;
        dict.set_item("received", stats.received)?;
        dict.set_item("duplicates", stats.duplicates)?;
        dict.set_item("gaps", stats.gaps)?;
        dict.set_item("acks_sent", stats.acks_sent)?;
        dict.set_item("ack_backlog", stats.ack_backlog)?;
        dict.set_item("decode_errors", stats.decode_errors)?;
        dict.set_item("subscriptions", stats.topics)?;
        dict.set_item("rtt", stats.round_trip.map(|time| time.as_secs_f64()))?;
        Ok(dict)
    }

    /// Hands over all that waits, in order. Only what ends a program (`KeyboardInterrupt` and the like) interrupts it, and what is
    /// left then is handed over the next time.
    pub(crate) fn deliver(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        if this.delivering.swap(true, Ordering::Relaxed) {
            return Ok(()); // a handler runs the event loop; what waits is for the outer call
        }
        let result = this.deliver_all(slf);
        this.delivering.store(false, Ordering::Relaxed);
        result
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.watcher)?;
        visit.call(&self.owner)?;
        visit.call(&self.loop_)?;
        // Nothing runs beside a traversal, so the lock is free unless this very thread holds it.
        let Ok(calls) = self.calls.try_lock() else { return Ok(()) };
        calls.values().try_for_each(|waiter| match waiter {
            Waiter::Publish(receipt) => visit.call(receipt),
            Waiter::Call(waiter) | Waiter::Disconnect(waiter) => visit.call(waiter),
        })
    }

    fn __clear__(&self) {
        let calls = std::mem::take(&mut *lock(&self.calls));
        drop(calls); // outside the lock: it may run Python
    }
}

impl Core {
    /// Hands a call to the driver.
    fn send(&self, py: Python<'_>, request: RequestId, call: Call) -> PyResult<()> {
        if !self.is_usable() {
            lock(&self.calls).remove(&request);
            return Err(errors::config(
                py,
                "unsupported_runtime",
                "this client belongs to the process that this one was forked from: make a new one here",
            ));
        }
        self.handle.call(request, call).map_err(|error| {
            lock(&self.calls).remove(&request);
            errors::raised(py, &error)
        })
    }

    fn ask(&self, py: Python<'_>, waiter: Py<PyAny>, call: Call) -> PyResult<u64> {
        let request = self.handle.number();
        lock(&self.calls).insert(request, Waiter::Call(waiter));
        self.send(py, request, call)?;
        Ok(request.0)
    }

    /// Notes which messages are handled. The driver is woken for it if the broker waits for an acknowledgement, or the session may
    /// soon wait for the room; else it learns it with the next thing that wakes it.
    pub(crate) fn report(&self, finished: &mut Vec<(u64, bool)>, at_once: bool) {
        if !finished.is_empty() && (self.queue.finish(finished) >= self.report_at || at_once) {
            self.handle.poke();
        }
    }

    fn deliver_all(&self, self_: &Bound<'_, Self>) -> PyResult<()> {
        let py = self_.py();
        let Some(owner) = self.owner.bind(py).upgrade() else { return Ok(()) };
        let mut dispatch = Dispatch::new(self, &owner)?;
        let rest = std::mem::take(&mut *lock(&self.rest));
        let mut items = rest.into_iter().chain(self.queue.take());
        // Whoever awaits an answer goes on before what came after it is handed over: it may be about to register a handler.
        let mut somebody_waits = false;
        while let Some(item) = items.next() {
            let done = if somebody_waits && matches!(item, Item::Event(_)) {
                *lock(&self.rest) = std::iter::once(item).chain(items).collect();
                Ok(())
            } else {
                match self.hand_over(&mut dispatch, item) {
                    Ok(awaited) => {
                        somebody_waits |= awaited;
                        continue;
                    }
                    Err(fault) => {
                        *lock(&self.rest) = items.collect();
                        Err(fault)
                    }
                }
            };
            // Behind what the completions have scheduled.
            self.loop_
                .bind(py)
                .call_method1(intern!(py, "call_soon"), (self_.getattr(intern!(py, "deliver"))?,))?;
            return done;
        }
        let room = self.room.load(Ordering::Relaxed);
        if room > 0 && self.open_calls() < room {
            self.room.store(0, Ordering::Relaxed);
            owner.call_method0(intern!(py, "_room_made"))?;
        }
        Ok(())
    }

    /// Whether somebody awaits what was handed over.
    fn hand_over(&self, dispatch: &mut Dispatch<'_, '_>, item: Item) -> PyResult<bool> {
        let owner = dispatch.owner;
        let py = owner.py();
        match item {
            Item::Complete(request, result) => return self.complete(owner, request, result),
            // Not handled: the session forgets having handed it out.
            Item::Event(_) if self.muted.load(Ordering::Relaxed) > 0 => {}
            Item::Event(Event::Message(message)) => dispatch.message(message)?,
            Item::Event(event) => {
                if let Some((name, payload)) = events::event(py, &event, self.started)? {
                    owner.call_method1(intern!(py, "_on_event"), (name, payload))?;
                }
            }
            Item::Frame(sent, kind, bytes) => {
                owner.call_method1(intern!(py, "_log_frame"), (sent, kind, bytes))?;
            }
            Item::Token(request, reply) => {
                let reason = request.reason.name();
                let last = request.last_error.map(|error| errors::exception(py, &error)).transpose()?;
                let answer = Bound::new(py, TokenAnswer::new(reply))?;
                owner.call_method1(intern!(py, "_fetch_token"), (reason, request.attempt, last, answer))?;
            }
        }
        Ok(false)
    }

    /// Whether somebody awaits the call.
    fn complete(
        &self,
        owner: &Bound<'_, PyAny>,
        request: RequestId,
        result: Result<Reply, Error>,
    ) -> PyResult<bool> {
        let py = owner.py();
        let waiter = lock(&self.calls).remove(&request);
        let waiter = match waiter {
            Some(Waiter::Publish(receipt)) => return published(owner, receipt.bind(py), result),
            Some(Waiter::Call(waiter)) => waiter,
            Some(Waiter::Disconnect(waiter)) => {
                self.muted.fetch_sub(1, Ordering::Relaxed); // what comes now is of the next connection
                waiter
            }
            None => return Ok(false),
        };
        let (error, reply) = match result {
            Ok(reply) => (py.None(), events::reply(py, &reply)?),
            Err(error) => (errors::exception(py, &error)?.unbind(), py.None()),
        };
        waiter.call1(py, (error, reply)).map(|_| ()).or_else(|fault| failed(owner, fault, None))?;
        Ok(true)
    }
}

/// A publish is complete: those who wait learn it, then the callback. Whether somebody waits.
fn published(
    owner: &Bound<'_, PyAny>,
    receipt: &Bound<'_, Receipt>,
    result: Result<Reply, Error>,
) -> PyResult<bool> {
    let result = match result {
        Ok(Reply::Receipt(receipt)) => Ok(receipt),
        Ok(_) => return Ok(false), // a publish has no other reply
        Err(error) => Err(error),
    };
    // A refusal of the broker's is an event of its own.
    let is_told = matches!(&result, Err(Error::Server(refusal)) if !refusal.local);
    let Completion { is_awaited, callback, error } = Receipt::complete(receipt, result)?;
    let py = owner.py();
    if let Some(callback) = callback {
        callback.call1(py, (&error,)).map(|_| ()).or_else(|fault| failed(owner, fault, None))?;
    }
    if let Some(error) = error
        && receipt.get().is_emit
        && !is_told
    {
        owner.call_method1(intern!(py, "_failed"), (error,))?;
    }
    Ok(is_awaited)
}

/// Checks the name of an app, a room, a lobby or a topic's last level.
#[pyfunction]
pub(crate) fn check_name(py: Python<'_>, name: &str) -> PyResult<()> {
    nolag_protocol::topic::check_name(name).map_err(|fault| {
        errors::config(py, "bad_option", format!("{name:?} is no name of an app, room or topic: {fault}"))
    })
}

/// Raises what a payload cannot be encoded for.
#[pyfunction]
pub(crate) fn check_payload(
    py: Python<'_>,
    op: &str,
    topic: Option<&str>,
    data: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let op = if op == "set_presence" { "set_presence" } else { "publish" };
    value::encode(data).map(|_| ()).map_err(|cause| errors::encode(py, op, topic.unwrap_or_default(), cause))
}
