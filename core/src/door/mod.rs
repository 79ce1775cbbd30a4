//! A client in terms of bytes, for hosts whose language builds its own objects fastest: Node and browsers.
//!
//! What the application asks comes in as commands, what it is to hear goes out as items, both MessagePack. Everything that is
//! ready leaves in one buffer, after one wake-up. A binding adds what moves bytes and nothing else, so that all that stand on
//! the door behave alike.
//!
//! | module | |
//! | --- | --- |
//! | [`settings`] | a client's options, by the names of client-api 5 |
//! | `commands` | what comes in |
//! | `items` | what goes out |
//! | `fields` | maps whose keys are names |
//! | `fit` | values that every decoder takes |
//!
//! # Commands
//!
//! Arrays `[verb, request, …]`, any number back to back. `request` numbers the call, from 1, and comes back in its `done`; of a
//! call with request 0 only a failure is told, as `failed`.
//!
//! | verb | further elements |
//! | --- | --- |
//! | `connect`, `disconnect` | |
//! | `close` | whether to flush, the longest time in ms |
//! | `subscribe` | topic, options or nil: `qos`, `group` (false, true for the actor's own, or a name), `filters`, `history`, `resumeFrom` (`epoch`, `seq`), `redeliver`, `ackTimeoutMs` |
//! | `unsubscribe` | topic |
//! | `filters` | topic; `set`, `add` or `remove`; filters |
//! | `publish` | topic; the payload, any value; options or nil: `qos`, `retain`, `retainTtl` (s), `echo`, `filter`, `filters`, `ttlMs`, `msgRef`, `trace` |
//! | `flush` | the longest time in ms, or nil |
//! | `presence` | app or nil, room or nil, the presence; nil takes it back |
//! | `fetchPresence` | app or nil, room |
//! | `watchLobby`, `unwatchLobby`, `fetchLobby` | lobby |
//! | `ack` | ids |
//! | `updateToken` | token |
//!
//! Without a request:
//!
//! | verb | further elements |
//! | --- | --- |
//! | `cancel` | the request that nobody waits for any more |
//! | `upTo` | a delivery: all up to it were dispatched |
//! | `handled` | deliveries whose handlers succeeded, deliveries whose handlers failed |
//! | `full` | whether the application takes no more messages for now |
//! | `room` | a number: `room` is to be told once when fewer calls than this are open |
//! | `hint` | `online`, `offline`, `suspend`, `resume` or `now` |
//! | `token` | the number of the question, the token, for how many ms it is valid or nil |
//! | `tokenFailed` | the number of the question, why, whether asking again is of no use |
//!
//! # Items
//!
//! Arrays, back to back. One that begins with a number is a message: `[delivery, topic, data, flags, msgId, from, fromType, filter,
//! timestamp, sourceTopic, seq, trace]`, nils at the end left out, the topic nil where it is that of the message before. Flags: 1
//! replay, 2 an acknowledgement is asked for, 4 retained, 8 redelivered, 16 acknowledged when its handlers have finished, 32
//! acknowledged by the application.
//!
//! All others begin with a name:
//!
//! | name | further elements |
//! | --- | --- |
//! | `done` | request; the error or nil; the reply: nil, a receipt, actors, or records by room and actor |
//! | `failed` | the error of a call that nobody waits for |
//! | `state` | from, to, reason, close code or nil |
//! | `connecting`, `reconnected` | |
//! | `connected` | `actorId`, `actorType`, `projectId`, `protocolVersion`, `features` |
//! | `disconnected` | reason, close code or nil |
//! | `reconnecting` | attempt, delay in ms, reason |
//! | `ready` | `resubscribed`, `refused` (of `topic`, `error`), `resumed`, `gaps` |
//! | `error`, `clientFailed` | the error |
//! | `warning` | text |
//! | `replayStart` | topic or nil, count, oldest and newest time in ms since 1970, or nil |
//! | `replayEnd` | topic or nil, count |
//! | `hydration` | topic, full topic or nil, data |
//! | `gap` | `topic`, `reason`, `since` in ms since 1970 or nil |
//! | `presence` | `join`, `update`, `leave` or `waking`; the actor |
//! | `presenceReplaced` | app or nil, room |
//! | `lobby` | `lobby`, `lobbyId`, `room`, `app`, `actorId`, `change`, `data` |
//! | `token` | the number of the question, reason, attempt, the last error or nil |
//! | `room` | |
//! | `frame` | whether it was sent, its kind, its bytes; only where the settings say `debug` |
//!
//! In the application's values what a decoder may not take is made fit: text that is not UTF-8 goes out as bytes; a key of a map that
//! is neither text nor a number, a boolean or nil becomes text, `0x` and its bytes; and but for timestamps an extension of type `t`
//! goes out as one of type 1, whose first byte is `t`. Commands give extensions in the same way. An error is a map: `class`, `code`, `message`, `retryable`, `fatal`,
//! `outcomeUnknown`, and where known `topic`, `hint`, `detail`, `serverCode`, `status`, `op`, `msgRef`, `maxSizeBytes`, `local`.

mod commands;
mod fields;
mod fit;
mod items;
pub mod settings;

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nolag_protocol::msgpack;
use tokio::sync::oneshot;

pub use items::error;
pub use settings::Settings;

use crate::Error;
use crate::driver::{self, Handle, Host, TokenProvider, Transport, runtime};
use crate::event::{Event, Topic};
use crate::options::Position;
use crate::session::{Dispatched, Reply, RequestId, Token, TokenFailure, TokenRequest};

/// Numbers of calls that nobody waits for begin here: above what a host counts up to.
const NOBODY: u64 = 1 << 53;

/// Told that [`Door::take`] has something, at most once until it is called. It must not call the door itself.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// Commands that are none: a mistake of the binding, which the text tells of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no command of the door's")]
pub struct Malformed(pub String);

/// One client. Dropping it disconnects.
pub struct Door {
    handle: Handle,
    shared: Arc<Shared>,
}

/// What the application's thread and the driver's task share.
struct Shared {
    wake: Wake,
    /// Items that wait.
    ready: Mutex<Vec<u8>>,
    reports: Mutex<Reports>,
    /// The application takes no more messages.
    full: AtomicBool,
    /// The broker waits for the acknowledgement of a message that was handed over.
    owing: AtomicBool,
    questions: Mutex<HashMap<u64, oneshot::Sender<Result<Token, TokenFailure>>>>,
    asked: AtomicU64,
    unawaited: AtomicU64,
    /// Calls that are not complete.
    open: AtomicUsize,
    /// Below how many of them the application wants to be told; 0 for never.
    room: AtomicUsize,
    /// The date when the session's clock began, since 1970.
    started: Duration,
}

/// What has become of messages, and the driver has not been told.
#[derive(Default)]
struct Reports {
    up_to: Option<u64>,
    each: Vec<(u64, bool)>,
    /// Up to where it has been told.
    told: u64,
    /// After how many the driver is woken for them.
    enough: u64,
}

impl Door {
    /// A client over this transport that is not connected, and the future that drives it.
    pub fn open(
        settings: Settings,
        transport: Box<dyn Transport>,
        wake: Wake,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::new(Shared {
            wake,
            ready: Mutex::default(),
            reports: Mutex::new(Reports {
                enough: (settings.options.receive_buffer / 4).max(1) as u64,
                ..Reports::default()
            }),
            full: AtomicBool::new(false),
            owing: AtomicBool::new(false),
            questions: Mutex::default(),
            asked: AtomicU64::new(0),
            unawaited: AtomicU64::new(NOBODY),
            open: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            started: runtime::date(),
        });
        let provider = settings.asks_for_tokens().then(|| provider(Arc::clone(&shared)));
        let host = Sill { shared: Arc::clone(&shared), turn: Vec::new(), topic: None, debug: settings.debug };
        let (handle, driver) = driver::drive(settings.options, transport, provider, host);
        (Self { handle, shared }, driver)
    }

    /// Carries out commands. Those before one that is malformed are carried out.
    pub fn send(&self, commands: &[u8]) -> Result<(), Malformed> {
        commands::run(self, commands)
    }

    /// All items that are ready; empty where none are.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.shared.ready))
    }

    /// How far the application is with a subscription, as far as the driver knows; what it has not been told of counts the next time.
    pub fn position(&self, topic: &str) -> Option<Position> {
        let is_untold = {
            let reports = lock(&self.shared.reports);
            reports.up_to.is_some() || !reports.each.is_empty()
        };
        if is_untold {
            self.handle.poke();
        }
        self.handle.position(topic)
    }

    /// How many calls are not complete.
    pub fn open_calls(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// What counts (client-api 14): a map, times in ms.
    pub fn stats(&self) -> Vec<u8> {
        items::stats(&self.handle.stats())
    }

    /// Notes what became of messages. The driver is woken for it if the broker waits for an acknowledgement, or the session may
    /// soon wait for the room; else it learns it with the next thing that wakes it.
    fn report(&self, note: impl FnOnce(&mut Reports)) {
        let mut reports = lock(&self.shared.reports);
        note(&mut reports);
        let untold = reports.up_to.map_or(0, |last| last.saturating_sub(reports.told));
        let is_enough = untold + reports.each.len() as u64 >= reports.enough;
        drop(reports);
        if self.shared.owing.swap(false, Ordering::AcqRel) || is_enough {
            self.handle.poke();
        }
    }
}

impl Shared {
    fn append(&self, items: &mut Vec<u8>) {
        if items.is_empty() {
            return;
        }
        let mut ready = lock(&self.ready);
        let was_empty = ready.is_empty();
        if was_empty {
            *ready = std::mem::take(items); // an idle client holds no buffer
        } else {
            ready.append(items);
        }
        drop(ready);
        if was_empty {
            (self.wake)();
        }
    }

    /// A call is complete.
    fn complete(&self, items: &mut Vec<u8>, request: RequestId, result: Result<Reply, Error>) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        items::done(items, request, result);
    }

    /// Tells that there is room for calls, if that is wanted and so.
    fn tell_room(&self, items: &mut Vec<u8>) {
        let room = self.room.load(Ordering::Relaxed);
        if room > self.open.load(Ordering::Relaxed)
            && self.room.compare_exchange(room, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            items::room(items);
        }
    }
}

/// The driver's side of the door.
struct Sill {
    shared: Arc<Shared>,
    /// The items of this turn.
    turn: Vec<u8>,
    /// The topic of the last message among them.
    topic: Option<Topic>,
    debug: bool,
}

impl Host for Sill {
    fn event(&mut self, event: Event) {
        match event {
            Event::Message(message) => {
                if message.requires_ack {
                    self.shared.owing.store(true, Ordering::Release);
                }
                items::message(&mut self.turn, &message, self.topic.as_ref() == Some(&message.topic));
                self.topic = Some(message.topic);
            }
            event => items::event(&mut self.turn, &event, self.shared.started),
        }
    }

    fn complete(&mut self, request: RequestId, result: Result<Reply, Error>) {
        self.shared.complete(&mut self.turn, request, result);
    }

    fn flush(&mut self) {
        self.topic = None;
        self.shared.tell_room(&mut self.turn);
        self.shared.append(&mut self.turn);
    }

    fn dispatched(&mut self) -> Option<Dispatched> {
        let mut reports = lock(&self.shared.reports);
        if let Some(last) = reports.up_to.take() {
            reports.told = last;
            return Some(Dispatched::UpTo(last));
        }
        let each = std::mem::take(&mut reports.each);
        (!each.is_empty()).then_some(Dispatched::Finished(each))
    }

    fn frame(&mut self, sent: bool, kind: &'static str, bytes: usize) {
        items::frame(&mut self.turn, sent, kind, bytes);
    }

    fn wants_frames(&self) -> bool {
        self.debug
    }

    fn has_room(&self) -> bool {
        !self.shared.full.load(Ordering::Acquire)
    }
}

/// Asks the application for tokens.
fn provider(shared: Arc<Shared>) -> TokenProvider {
    Arc::new(move |request: TokenRequest| {
        let number = shared.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let (reply, token) = oneshot::channel();
        {
            let mut questions = lock(&shared.questions);
            questions.retain(|_, reply| !reply.is_closed()); // those that the session has given up
            questions.insert(number, reply);
        }
        let mut item = Vec::new();
        items::question(&mut item, number, &request);
        shared.append(&mut item);
        Box::pin(async move {
            let gone =
                || TokenFailure { message: "the token provider gave no token".to_owned(), fatal: false };
            token.await.unwrap_or_else(|_| Err(gone()))
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing under these locks can panic halfway
}

impl From<msgpack::Error> for Malformed {
    fn from(fault: msgpack::Error) -> Self {
        Self(fault.to_string())
    }
}
