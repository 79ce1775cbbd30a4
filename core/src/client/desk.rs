//! Where the driver leaves what the application fetches: answers to calls, and the messages of subscriptions.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::{broadcast, oneshot, watch};

use crate::driver::Host;
use crate::error::Error;
use crate::event::{CLIENT_DISCONNECT, Event, Message, State, Topic};
use crate::options::ReceiveOverflow;
use crate::session::{Dispatched, Reply, RequestId};

/// How many messages a reader takes at a time.
const HANDFUL: usize = 64;

type Answer = Result<Reply, Error>;

/// What the driver's task and the handles share.
pub(super) struct Desk {
    pub(super) events: broadcast::Sender<Event>,
    calls: Mutex<HashMap<RequestId, oneshot::Sender<Answer>>>,
    readers: Mutex<Readers>,
    /// Messages that readers are done with, and whether they succeeded.
    finished: Mutex<Vec<(u64, bool)>>,
    /// Readers whose queue is full.
    full: AtomicUsize,
    /// Readers whose subscribe has not been answered.
    beginning: AtomicUsize,
}

#[derive(Default)]
struct Readers {
    of_topic: HashMap<Topic, Vec<Reader>>,
    /// The topics of those whose subscribe has not been answered.
    beginning: HashMap<RequestId, Topic>,
    /// Those whose subscription is over, and who have not fetched all.
    ended: HashMap<RequestId, Ended>,
}

struct Ended {
    queue: VecDeque<Entry>,
    error: Option<Error>,
    closed: Arc<AtomicBool>,
}

/// A message on its way to one of its readers.
pub(super) type Entry = (Message, Ticket);

/// What a reader gives back when it is done with a message.
pub(super) struct Ticket {
    delivery: u64,
    /// How many readers are not done with it; absent where there is one.
    readers: Option<Arc<AtomicUsize>>,
}

/// A subscription's queue.
struct Reader {
    /// Of its subscribe.
    number: RequestId,
    /// Its subscribe has been answered. What comes before is not for it, but for an earlier subscription of the topic; and
    /// since it cannot be read yet, it might fill the queue, so that the answer could never be read.
    begun: bool,
    /// The most messages that wait for it.
    buffer: usize,
    overflow: ReceiveOverflow,
    /// How many were dropped since it had nothing to fetch.
    dropped: u64,
    queue: VecDeque<Entry>,
    /// How many it fetched last.
    held: usize,
    full: bool,
    waker: Option<Waker>,
    closed: Arc<AtomicBool>,
}

/// What a reader finds.
pub(super) enum Fetched {
    /// Nothing yet; it is woken. The driver may have been waiting for room.
    Nothing { has_room: bool },
    /// Messages. The driver may have been waiting for room.
    Messages { messages: VecDeque<Entry>, has_room: bool },
    /// The last ones, and why there are no more if that is an error.
    Last(VecDeque<Entry>, Option<Error>),
}

impl Desk {
    pub(super) fn new(events: broadcast::Sender<Event>) -> Self {
        Self {
            events,
            calls: Mutex::default(),
            readers: Mutex::default(),
            finished: Mutex::default(),
            full: AtomicUsize::new(0),
            beginning: AtomicUsize::new(0),
        }
    }

    /// Somebody waits for a call's answer.
    pub(super) fn expect(&self, request: RequestId) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        lock(&self.calls).insert(request, reply);
        answer
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(&self, request: RequestId) {
        lock(&self.calls).remove(&request);
    }

    /// Somebody reads a topic's messages from the moment when the subscribe of this number is answered; of them `buffer` may wait.
    /// What is returned becomes true when the client is closed: then nothing that waits is handed over (client-api 12.4).
    pub(super) fn enter(
        &self,
        topic: Topic,
        number: RequestId,
        buffer: usize,
        overflow: ReceiveOverflow,
    ) -> Arc<AtomicBool> {
        let closed = Arc::<AtomicBool>::default();
        let reader = Reader {
            number,
            begun: false,
            buffer,
            overflow,
            dropped: 0,
            queue: VecDeque::new(),
            held: 0,
            full: false,
            waker: None,
            closed: Arc::clone(&closed),
        };
        let mut readers = lock(&self.readers);
        readers.beginning.insert(number, topic.clone());
        self.beginning.store(readers.beginning.len(), Ordering::Release);
        readers.of_topic.entry(topic).or_default().push(reader);
        closed
    }

    /// A call has succeeded: if it was a subscribe, its reader begins.
    fn begin(&self, number: RequestId) {
        if self.beginning.load(Ordering::Acquire) == 0 {
            return; // no look at the readers for every publish
        }
        let mut readers = lock(&self.readers);
        let Some(topic) = self.no_more_beginning(&mut readers, number) else { return };
        let of_topic = readers.of_topic.get_mut(&topic).into_iter().flatten();
        for reader in of_topic.filter(|reader| reader.number == number) {
            reader.begun = true;
        }
    }

    fn no_more_beginning(&self, readers: &mut Readers, number: RequestId) -> Option<Topic> {
        let topic = readers.beginning.remove(&number);
        self.beginning.store(readers.beginning.len(), Ordering::Release);
        topic
    }

    /// What there is for a reader that has used up what it fetched before, which is given back empty: `spare`.
    pub(super) fn fetch(
        &self,
        topic: &Topic,
        number: RequestId,
        mut spare: VecDeque<Entry>,
        waker: &Waker,
    ) -> Fetched {
        let mut readers = lock(&self.readers);
        let found =
            readers.of_topic.get_mut(topic).into_iter().flatten().find(|reader| reader.number == number);
        let Some(reader) = found else {
            return match readers.ended.remove(&number) {
                Some(Ended { queue, error, .. }) => Fetched::Last(queue, error),
                None => Fetched::Last(VecDeque::new(), None),
            };
        };
        reader.held = reader.queue.len().min(HANDFUL);
        let has_room = reader.full && reader.queue.len() < reader.buffer;
        if has_room {
            reader.full = false;
            self.full.fetch_sub(1, Ordering::Release);
        }
        if reader.queue.is_empty() {
            reader.waker = Some(waker.clone());
            let dropped = std::mem::take(&mut reader.dropped);
            if dropped > 0 {
                let _ = self.events.send(Event::Overflow { topic: topic.clone(), dropped }); // nobody may be listening
            }
            return Fetched::Nothing { has_room };
        }
        spare.extend(reader.queue.drain(..reader.held));
        let messages = spare;
        Fetched::Messages { messages, has_room }
    }

    /// A reader reads no more; tells whether the topic has lost its last one by that.
    pub(super) fn leave(&self, topic: &Topic, number: RequestId) -> bool {
        let mut readers = lock(&self.readers);
        self.no_more_beginning(&mut readers, number);
        let mut left = readers.ended.remove(&number).map(|ended| ended.queue).unwrap_or_default();
        let mut was_last = false;
        if let Some(of_topic) = readers.of_topic.get_mut(topic)
            && let Some(index) = of_topic.iter().position(|reader| reader.number == number)
        {
            let reader = of_topic.remove(index);
            self.is_gone(&reader);
            left = reader.queue;
            was_last = of_topic.is_empty();
            if was_last {
                readers.of_topic.remove(topic);
            }
        }
        drop(readers);
        for (_, ticket) in &left {
            self.finish(ticket, true); // else the session would wait for them
        }
        was_last
    }

    /// The application has closed the client: nothing that waits is handed over any more (client-api 12.4).
    fn close(&self) -> Vec<Waker> {
        self.close_ended(RequestId(u64::MAX));
        let mut readers = lock(&self.readers);
        let mut wakers = Vec::new();
        for reader in readers.of_topic.drain().flat_map(|(_, readers)| readers) {
            self.is_gone(&reader);
            reader.closed.store(true, Ordering::Release);
            wakers.extend(reader.waker);
        }
        wakers
    }

    /// The same, of those whose subscription is over and is older than this.
    pub(super) fn close_ended(&self, before: RequestId) {
        for (_, ended) in lock(&self.readers).ended.extract_if(|number, _| *number < before) {
            ended.closed.store(true, Ordering::Release);
        }
    }

    fn is_gone(&self, reader: &Reader) {
        if reader.full {
            self.full.fetch_sub(1, Ordering::Release);
        }
    }

    /// Nobody reads a topic any more, and what waits is not handed over.
    pub(super) fn close_topic(&self, topic: &str) {
        let over = lock(&self.readers).of_topic.remove(topic).unwrap_or_default();
        for reader in over {
            self.is_gone(&reader);
            reader.closed.store(true, Ordering::Release);
            for (_, ticket) in &reader.queue {
                self.finish(ticket, true); // else the session would wait for them
            }
            if let Some(waker) = reader.waker {
                waker.wake();
            }
        }
    }

    /// A reader is done with a message.
    pub(super) fn finish(&self, ticket: &Ticket, succeeded: bool) {
        if ticket.readers.as_ref().is_none_or(|readers| readers.fetch_sub(1, Ordering::AcqRel) == 1) {
            lock(&self.finished).push((ticket.delivery, succeeded));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner) // nothing under these locks can panic halfway
}

/// The driver's side of the desk.
pub(super) struct Clerk {
    desk: Arc<Desk>,
    state: watch::Sender<State>,
    /// Of readers that have something to fetch.
    wakers: Vec<Waker>,
    /// Answers of this turn: whoever waits for several is woken once.
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
}

impl Clerk {
    pub(super) fn new(desk: Arc<Desk>, state: watch::Sender<State>) -> Self {
        Self { desk, state, wakers: Vec::new(), answers: Vec::new() }
    }

    fn deliver(&mut self, message: Message) {
        let desk = &*self.desk;
        let mut readers = lock(&desk.readers);
        let Some(of_topic) = readers.of_topic.get_mut(&message.topic) else {
            lock(&desk.finished).push((message.delivery, true)); // nobody reads this topic
            return;
        };
        let delivery = message.delivery;
        let wakers = &mut self.wakers;
        let mut push = |reader: &mut Reader, message: Message, readers: Option<Arc<AtomicUsize>>| {
            let ticket = Ticket { delivery, readers };
            let is_full = reader.queue.len() + reader.held >= reader.buffer;
            if is_full && reader.overflow != ReceiveOverflow::Pause {
                reader.dropped += 1;
                let oldest =
                    (reader.overflow == ReceiveOverflow::DropOldest).then(|| reader.queue.pop_front());
                let Some(Some((_, oldest))) = oldest else { return desk.finish(&ticket, true) };
                desk.finish(&oldest, true);
            }
            reader.queue.push_back((message, ticket));
            let pauses = reader.overflow == ReceiveOverflow::Pause && !reader.full;
            if pauses && reader.queue.len() + reader.held >= reader.buffer {
                reader.full = true;
                desk.full.fetch_add(1, Ordering::Release);
            }
            wakers.extend(reader.waker.take());
        };
        if let [reader @ Reader { begun: true, .. }] = of_topic.as_mut_slice() {
            push(reader, message, None);
            return;
        }
        let begun = of_topic.iter().filter(|reader| reader.begun).count();
        if begun == 0 {
            lock(&desk.finished).push((delivery, true));
            return;
        }
        let count = Arc::new(AtomicUsize::new(begun));
        for reader in of_topic.iter_mut().filter(|reader| reader.begun) {
            push(reader, message.clone(), Some(Arc::clone(&count)));
        }
    }

    /// Ends the readers of one topic, or all: what they have not fetched is fetched before the error, if there is one.
    fn end(&mut self, topic: Option<&str>, error: Option<&Error>) {
        let mut readers = lock(&self.desk.readers);
        let over: Vec<Reader> = match topic {
            Some(topic) => readers.of_topic.remove(topic).unwrap_or_default(),
            None => readers.of_topic.drain().flat_map(|(_, readers)| readers).collect(),
        };
        for reader in over {
            self.desk.is_gone(&reader);
            self.wakers.extend(reader.waker);
            let Reader { number, queue, closed, .. } = reader;
            readers.ended.insert(number, Ended { queue, error: error.cloned(), closed });
        }
    }
}

impl Drop for Clerk {
    /// However the driver ends, nobody waits for ever.
    fn drop(&mut self) {
        lock(&self.desk.calls).clear();
        self.wakers.extend(self.desk.close());
        self.flush();
    }
}

impl Host for Clerk {
    fn event(&mut self, event: Event) {
        match event {
            Event::Message(message) => return self.deliver(message),
            Event::State { ref to, ref reason, .. } => {
                self.state.send_replace(to.clone());
                match to {
                    State::Closed if reason == CLIENT_DISCONNECT => self.wakers.extend(self.desk.close()),
                    // Lost for good: what came before is handed over.
                    State::Closed => self.end(None, None),
                    _ => {}
                }
            }
            Event::Failed(ref error) => self.end(None, Some(error)),
            Event::Error(ref error) if error.server_code() == nolag_protocol::codes::ACCESS_REVOKED.code => {
                if let Some(topic) = error.topic() {
                    self.end(Some(topic), Some(error));
                }
            }
            _ => {}
        }
        let _ = self.desk.events.send(event); // nobody may be listening
    }

    fn complete(&mut self, request: RequestId, result: Answer) {
        if result.is_ok() {
            self.desk.begin(request);
        }
        let waiting = lock(&self.desk.calls).remove(&request);
        self.answers.extend(waiting.map(|reply| (reply, result)));
    }

    fn flush(&mut self) {
        for (reply, answer) in self.answers.drain(..) {
            let _ = reply.send(answer); // whoever asked may have gone
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    fn frame(&mut self, sent: bool, kind: &'static str, bytes: usize) {
        tracing::trace!(target: "nolag", sent, kind, bytes, "frame");
    }

    fn wants_frames(&self) -> bool {
        tracing::enabled!(target: "nolag", tracing::Level::TRACE)
    }

    fn dispatched(&mut self) -> Option<Dispatched> {
        let finished = std::mem::take(&mut *lock(&self.desk.finished));
        (!finished.is_empty()).then_some(Dispatched::Finished(finished))
    }

    fn has_room(&self) -> bool {
        self.desk.full.load(Ordering::Acquire) == 0
    }
}
