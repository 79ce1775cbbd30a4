//! One schedule: the client's session, its application, the network, the broker, and what happens to them.

use super::*;

/// What is on its way to the client.
pub(super) struct Arriving {
    pub(super) at: Duration,
    /// When the broker sent it.
    pub(super) sent: Duration,
    pub(super) event: Transport,
}

/// What lies between client and broker on one connection, and what the broker holds for it.
pub(super) struct Link {
    id: LinkId,
    open: bool,
    pub(super) authenticated: bool,
    /// Frames on their way to the broker, with the time they arrive.
    pub(super) up: VecDeque<(Duration, Bytes)>,
    pub(super) down: VecDeque<Arriving>,
    /// Topic to filter keys.
    pub(super) subscriptions: BTreeMap<String, Vec<String>>,
    pub(super) silent: bool,
    /// The broker's current second, and how many publishes it has accepted in it.
    pub(super) window: (u64, u64),
}

pub(super) struct World {
    pub(super) rng: fastrand::Rng,
    pub(super) now: Duration,
    options: Options,
    session: Session,
    wake: Option<Duration>,
    pub(super) link: Option<Link>,
    token_call: Option<(u64, Duration)>,
    open_calls: BTreeMap<RequestId, &'static str>,
    next_request: u64,
    next_publish: u64,
    resolved: Vec<(u64, RequestId)>,
    /// What the caller wants in the end.
    wanted: BTreeMap<String, Vec<String>>,
    app: App,
    /// When the client received what, by when the broker sent it.
    heard: Vec<(Duration, Duration)>,
    /// The longest that the application leaves a message in the queue.
    laziness: u64,
    pub(super) broker: Broker,
    /// How calls ended, and what else happened.
    pub(super) tally: BTreeMap<String, u64>,
    /// How each call ended.
    outcomes: HashMap<RequestId, String>,
    state: State,
    /// The network and the broker behave from now on.
    calm: bool,
    /// Whether to print what happens.
    trace: bool,
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let credentials =
            if rng.bool() { Credentials::Static(Secret::new("t")) } else { Credentials::Provider };
        let mut options = Options::new(credentials);
        options.features = Features::ALL;
        options.heartbeat_interval = ms(2_000);
        options.heartbeat_timeout = ms(1_000);
        options.ack_timeout = ms(rng.u64(300..3_000));
        options.presence_timeout = ms(rng.u64(300..2_000));
        options.backoff.base = ms(100);
        options.backoff.max = ms(2_000);
        options.max_in_flight = rng.usize(1..20);
        options.queue.max_messages = rng.usize(5..200);
        options.receive_buffer = rng.usize(1..60);
        // The schedules are longer than ids are remembered otherwise.
        options.dedupe.window = Duration::from_secs(3_600);
        if rng.bool() {
            options.queue.qos0 = Qos0::Queue;
        }
        if rng.u8(..) < 60 {
            options.queue.overflow = *rng
                .choice(&[nolag_core::options::Overflow::Block, nolag_core::options::Overflow::DropOldest])
                .unwrap();
        }
        options.ack_mode =
            [AckMode::Auto, AckMode::Auto, AckMode::AfterHandler, AckMode::Manual][rng.usize(0..4)];
        let broker = Broker::new(&mut rng);
        Self {
            session: Session::new(options.clone(), rng.u64(..)),
            now: Duration::ZERO,
            wake: None,
            link: None,
            token_call: None,
            open_calls: BTreeMap::new(),
            next_request: 0,
            next_publish: 0,
            resolved: Vec::new(),
            wanted: BTreeMap::new(),
            app: App::new(options.ack_mode, !broker.kraken),
            heard: Vec::new(),
            laziness: *rng.choice(&[1, 20, 300]).unwrap(),
            broker,
            tally: BTreeMap::new(),
            outcomes: HashMap::new(),
            state: State::Idle,
            calm: false,
            trace,
            options,
            rng,
        }
    }

    pub(super) fn run(&mut self) {
        self.drain();
        if self.rng.u8(..) < 200 {
            self.call("connect", Call::Connect);
        }
        for _ in 0..self.rng.usize(5..60) {
            for _ in 0..self.rng.usize(1..4) {
                self.random_call();
            }
            if self.chance(15) {
                self.misfortune();
            }
            if self.chance(2) {
                self.crash();
            }
            let pause =
                if self.rng.u8(..) < 40 { ms(self.rng.u64(0..3_000)) } else { ms(self.rng.u64(0..60)) };
            self.run_until(self.now + pause);
            self.check_bounds();
        }
    }

    /// What happens, for whoever replays a schedule.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>9.3} {}", self.now.as_secs_f64(), what());
        }
    }

    pub(super) fn chance(&mut self, percent: u8) -> bool {
        !self.calm && self.rng.u8(0..100) < percent
    }

    pub(super) fn delay(&mut self) -> Duration {
        if self.calm { ms(5) } else { ms(self.rng.u64(0..80)) }
    }

    fn drain(&mut self) {
        while let Some(output) = self.session.poll() {
            match output {
                Output::OpenTransport { link } => {
                    assert!(self.link.is_none(), "two transports at once");
                    let mut new = Link {
                        id: link,
                        open: false,
                        authenticated: false,
                        up: VecDeque::new(),
                        down: VecDeque::new(),
                        subscriptions: BTreeMap::new(),
                        silent: false,
                        window: (0, 0),
                    };
                    let at = self.now + self.delay();
                    if self.chance(15) {
                        let failure = Transport::Failed {
                            code: nolag_core::error::ConnectionCode::Refused,
                            message: "refused".into(),
                            retry_after: None,
                        };
                        new.down.push_back(Arriving { at, sent: self.now, event: failure });
                    } else if !self.chance(3) {
                        new.down.push_back(Arriving { at, sent: self.now, event: Transport::Opened });
                    }
                    self.link = Some(new);
                }
                Output::Send { link, frame } => {
                    let at = self.now + self.delay();
                    let current = self.link.as_mut().expect("sent without a transport");
                    assert_eq!(current.id, link, "sent on another transport");
                    assert!(current.open, "sent before the transport was open");
                    let at = current.up.back().map_or(at, |(last, _)| at.max(*last));
                    current.up.push_back((at, frame));
                }
                Output::CloseTransport { link, .. } => {
                    let current = self.link.take().expect("closed without a transport");
                    assert_eq!(current.id, link);
                }
                Output::NeedToken { call, .. } => {
                    let at = self.now + self.delay();
                    self.token_call = Some((call, at));
                }
                Output::WakeAt(at) => self.wake = at,
                Output::Event(event) => self.told(event),
                Output::Complete { request, result } => self.completed(request, &result),
            }
        }
    }

    fn completed(&mut self, request: RequestId, result: &Result<Reply, nolag_core::Error>) {
        let what = self.open_calls.remove(&request);
        let outcome = result.as_ref().err().map_or("ok", |error| error.code()).to_owned();
        *self.tally.entry(format!("{} {outcome}", what.unwrap_or("?"))).or_default() += 1;
        self.outcomes.insert(request, outcome);
        assert!(what.is_some(), "{request:?} completed twice, or never asked: {result:?}");
        if let Ok(Reply::Receipt(receipt)) = result
            && let Some((n, _)) = self.resolved.iter().find(|(_, of)| *of == request)
        {
            assert!(self.broker.accepted.contains_key(n), "{n} resolved, but the broker never accepted it");
            assert!(receipt.outcome != Outcome::Duplicate || receipt.attempts > 1, "{receipt:?}");
        }
        if what == Some("subscribe") && result.is_ok() {
            self.app.confirmed(self.now, request);
        }
    }

    fn told(&mut self, event: Event) {
        self.note(|| match &event {
            Event::Message(message) => format!("         hands out {} {:?}", message.topic, message.meta()),
            event => format!("         tells {event:?}"),
        });
        match event {
            Event::State { from, to, reason, .. } => {
                assert_eq!(from, self.state, "a transition from another state");
                assert!(allowed(&from, &to), "no transition from {from:?} to {to:?}");
                self.state = to;
                if self.state == State::Closed && reason == CLIENT_DISCONNECT {
                    self.app.closed(&self.session);
                }
            }
            Event::Message(message) => {
                let lazy = if self.calm { ms(1) } else { ms(self.rng.u64(0..self.laziness)) };
                self.app.handed_out(self.now, &message, lazy);
            }
            Event::Gap(gap) => {
                assert!(!self.broker.steady, "{gap:?}");
                let from = gap.since.map_or(Duration::ZERO, |since| self.sent_at(since));
                self.app.gap(from, self.now, &gap.topic);
            }
            Event::Ready(ready) => {
                for topic in &ready.resubscribed {
                    self.app.resubscribed(self.now, topic);
                }
                *self.tally.entry(format!("resumed {}", ready.resumed)).or_default() += 1;
            }
            _ => {}
        }
    }

    fn call(&mut self, what: &'static str, call: Call) -> RequestId {
        self.note(|| format!("calls {call:?}"));
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.open_calls.insert(request, what);
        self.session.call(self.now, request, call);
        self.drain();
        request
    }

    /// Whether a call failed because the client is closed, or closing.
    fn refused_at_once(&self, request: RequestId) -> bool {
        let closed = |code: &str| matches!(code, "closed" | "not_connected");
        self.outcomes.get(&request).is_some_and(|code| closed(code))
    }

    fn random_call(&mut self) {
        let topic = *self.rng.choice(&TOPICS).unwrap();
        if matches!(self.state, State::Idle | State::Closed | State::Failed) && self.rng.u8(..) < 80 {
            self.call("connect", Call::Connect);
            return;
        }
        match self.rng.u8(0..100) {
            0..16 => self.subscribe_to(topic),
            16..23 => {
                self.wanted.remove(topic);
                self.app.unsubscribes(topic);
                self.call("unsubscribe", Call::Unsubscribe { topic: topic.into() });
            }
            23..27 => {
                let filters = self.random_filters();
                let change = FilterChange::Set(filters.iter().cloned().map(Filter::Value).collect());
                self.app.filters(topic, &filters);
                let request = self.call("filters", Call::Filters { topic: topic.into(), change });
                if !self.refused_at_once(request)
                    && let Some(wanted) = self.wanted.get_mut(topic)
                {
                    *wanted = filters;
                }
            }
            27..50 => self.publish_one(),
            50..70 => self.elsewhere(),
            70..76 => {
                let room = room(self.rng.choice(&ROOMS).copied().unwrap());
                let data = self.rng.bool().then(|| number(1));
                self.call("presence", Call::SetPresence { room: Some(room), data });
            }
            76..80 => {
                let room = room(self.rng.choice(&ROOMS).copied().unwrap());
                self.call("list", Call::FetchPresence { room });
            }
            80..83 => {
                let lobby = self.rng.choice(&LOBBIES).copied().unwrap().to_owned();
                self.call("watch", Call::WatchLobby { lobby });
            }
            83..85 => {
                let lobby = self.rng.choice(&LOBBIES).copied().unwrap().to_owned();
                self.call("unwatch", Call::UnwatchLobby { lobby });
            }
            85..87 => {
                let lobby = self.rng.choice(&LOBBIES).copied().unwrap().to_owned();
                self.call("lobby", Call::FetchLobby { lobby });
            }
            87..90 => {
                let timeout = self.rng.bool().then(|| ms(500));
                self.call("flush", Call::Flush { timeout });
            }
            90..92 => {
                self.call("connect", Call::Connect);
            }
            92..94 => {
                self.call("disconnect", Call::Disconnect);
                self.app.closed(&self.session);
            }
            94 => {
                let flush = self.next_request.is_multiple_of(2);
                self.call("close", Call::Close { flush, timeout: ms(300) });
            }
            95 => {
                let hints = [Hint::Offline, Hint::Online, Hint::Suspend, Hint::Resume, Hint::ReconnectNow];
                let hint = *self.rng.choice(&hints).unwrap();
                self.session.hint(self.now, hint);
                self.drain();
            }
            _ => {
                // Somebody loses patience.
                let open: Vec<_> = self.open_calls.iter().map(|(request, what)| (*request, *what)).collect();
                let cancellable = open
                    .into_iter()
                    .filter(|(_, what)| !matches!(*what, "connect" | "close"))
                    .collect::<Vec<_>>();
                if let Some((request, _)) = self.rng.choice(&cancellable).copied() {
                    self.session.cancel(self.now, request);
                    self.drain();
                    assert!(!self.open_calls.contains_key(&request), "cancelled, and still open");
                }
            }
        }
    }

    /// When the broker sent what the client received at this time.
    fn sent_at(&self, time: Duration) -> Duration {
        let index = self.heard.partition_point(|(at, _)| *at < time);
        self.heard.get(index).expect("it received something then").1
    }

    fn subscribe_to(&mut self, topic: &str) {
        let filters = if self.rng.u8(0..3) == 0 { self.random_filters() } else { Vec::new() };
        let history = (self.rng.u8(0..3) == 0).then(|| self.rng.u16(1..6));
        self.subscribe_with(topic, filters, SubscribeOptions { history, ..SubscribeOptions::default() });
    }

    fn subscribe_with(&mut self, topic: &str, filters: Vec<String>, options: SubscribeOptions) {
        let values = filters.iter().cloned().map(Filter::Value).collect();
        let options = SubscribeOptions { filters: values, ..options };
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.open_calls.insert(request, "subscribe");
        let is_new = !self.wanted.contains_key(topic);
        self.app.subscribes(topic, &filters, request);
        self.note(|| format!("subscribes {topic} {options:?}"));
        self.session.call(self.now, request, Call::Subscribe { topic: topic.into(), options });
        self.drain();
        if !self.refused_at_once(request) {
            self.wanted.insert(topic.into(), filters);
        } else if is_new {
            self.app.unsubscribes(topic);
        }
    }

    fn random_filters(&mut self) -> Vec<String> {
        let mut filters: Vec<String> =
            FILTERS.iter().filter(|_| self.rng.u8(..) < 80).map(|filter| (*filter).to_owned()).collect();
        filters.sort_unstable();
        filters
    }

    fn random_filter(&mut self) -> Option<String> {
        (self.rng.u8(0..3) == 0).then(|| (*self.rng.choice(&FILTERS).unwrap()).to_owned())
    }

    fn publish_one(&mut self) {
        let base = *self.rng.choice(&BASES).unwrap();
        self.next_publish += 1;
        let n = self.next_publish;
        let qos = if self.rng.u8(..) < 60 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
        let options = PublishOptions {
            qos: Some(qos),
            retain: self.rng.u8(0..8) == 0,
            filter: self.random_filter(),
            ..PublishOptions::default()
        };
        self.next_request += 1;
        let request = RequestId(self.next_request);
        self.open_calls.insert(request, "publish");
        if qos == Qos::AtLeastOnce {
            self.resolved.push((n, request));
        }
        let call = Call::Publish { topic: base.into(), payload: number(n), options };
        self.session.call(self.now, request, call);
        self.drain();
    }

    /// Somebody else publishes a few messages.
    fn elsewhere(&mut self) {
        for _ in 0..self.rng.usize(1..6) {
            let base = *self.rng.choice(&BASES).unwrap();
            let (kept, retain) = (self.rng.u8(0..4) > 0, self.rng.u8(0..8) == 0);
            let key = self.random_filter();
            let accepted = self.broker.accept(self.now, base, key, number(0), kept, retain);
            self.fan_out(&accepted);
        }
    }

    fn misfortune(&mut self) {
        let now = self.now;
        let closed = |code| {
            let event = Transport::Closed { code, reason: String::new() };
            Arriving { at: now, sent: now, event }
        };
        let restarts = !self.broker.steady && self.rng.u8(0..4) == 0;
        if restarts {
            self.broker.restart(&mut self.rng);
        }
        let Some(link) = self.link.as_mut().filter(|link| link.open) else { return };
        match self.rng.u8(0..5) {
            0 if !restarts => {
                link.silent = true;
                return;
            }
            1 => {}
            2 => {
                // It breaks at any boundary of frames, in both directions; what is behind is lost.
                link.up.truncate(self.rng.usize(0..=link.up.len()));
                link.down.truncate(self.rng.usize(0..=link.down.len()));
            }
            3 => {
                link.up.clear();
                link.down.clear();
            }
            _ => {
                let code = *self.rng.choice(&[1000, 1001, 1006, 1011, 1012, 4008]).unwrap();
                link.down.push_back(closed(Some(code)));
            }
        }
        link.silent = true; // what it still reads it does not act upon: it has gone
        link.down.push_back(closed(None));
    }

    /// The program ends, and starts again with the positions that it has stored.
    fn crash(&mut self) {
        let positions = self.app.crashed(&self.session);
        self.session = Session::new(self.options.clone(), self.rng.u64(..));
        (self.link, self.token_call, self.wake) = (None, None, None);
        self.open_calls.clear();
        self.state = State::Idle;
        *self.tally.entry("crash".into()).or_default() += 1;
        self.drain();
        self.call("connect", Call::Connect);
        for (topic, filters) in std::mem::take(&mut self.wanted) {
            let resume_from = positions.get(&topic).cloned().flatten();
            self.subscribe_with(
                &topic,
                filters,
                SubscribeOptions { resume_from, ..SubscribeOptions::default() },
            );
        }
    }

    /// Runs everything that happens until `end`.
    fn run_until(&mut self, end: Duration) {
        for steps in 0.. {
            assert!(steps < 200_000, "the session never comes to rest");
            let mut next = end;
            let mut what = 0;
            let mut consider = |at: Option<Duration>, which: u8| {
                if let Some(at) = at.filter(|at| *at < next) {
                    next = at;
                    what = which;
                }
            };
            consider(self.link.as_ref().and_then(|link| link.up.front()).map(|(at, _)| *at), 1);
            if self.session.wants_input() {
                consider(self.link.as_ref().and_then(|link| link.down.front()).map(|next| next.at), 2);
            }
            consider(self.token_call.map(|(_, at)| at), 3);
            consider(self.wake, 4);
            consider(self.app.deadline(), 5);
            self.now = next.max(self.now);
            match what {
                1 => {
                    let taken = self.link.as_mut().and_then(|link| link.up.pop_front());
                    let silent = self.link.as_ref().is_some_and(|link| link.silent);
                    if let Some((_, frame)) = taken.filter(|_| !silent) {
                        self.broker(&frame);
                    }
                }
                2 => self.arrive(),
                3 => {
                    let Some((call, _)) = self.token_call.take() else { continue };
                    let token = if self.chance(10) {
                        Err(TokenFailure { message: "down".into(), fatal: false })
                    } else {
                        let secret = Secret::new(format!("t{}", self.rng.u32(..)));
                        let expires_in = (!self.broker.kraken && self.rng.bool()).then(|| ms(70_000));
                        Ok(Token { secret, expires_in })
                    };
                    self.session.token(self.now, call, token);
                    self.drain();
                }
                4 => {
                    self.session.wake(self.now);
                    self.drain();
                }
                5 => {
                    if let Some(report) = self.app.work(self.now, &mut self.rng, self.calm) {
                        self.note(|| format!("reports {report:?}"));
                        self.session.dispatched(self.now, report);
                        self.drain();
                    }
                    self.app.check_positions(&self.session);
                }
                _ => return,
            }
        }
    }

    /// What the broker sent comes to the client.
    fn arrive(&mut self) {
        let Some(link) = &mut self.link else { return };
        let Some(Arriving { sent, event, .. }) = link.down.pop_front() else { return };
        let id = link.id;
        if matches!(event, Transport::Frame(_)) {
            self.heard.push((self.now, sent));
        }
        match event {
            Transport::Opened => link.open = true,
            Transport::Closed { .. } | Transport::Failed { .. } => self.link = None,
            _ => {}
        }
        self.note(|| match &event {
            Transport::Frame(frame) => format!("     <-- {:?}", ServerFrame::decode(frame)),
            event => format!("     <-- {event:?}"),
        });
        self.session.transport(self.now, id, event);
        self.drain();
        self.app.check_positions(&self.session);
    }

    fn check_bounds(&self) {
        let stats = self.session.stats();
        assert!(stats.outbox.queued <= 200 + 20, "{stats:?}");
        assert!(stats.remembered_ids <= 10_000);
        assert!(stats.topics <= TOPICS.len(), "{stats:?}");
        assert!(stats.open_calls == self.open_calls.len(), "{stats:?} but {:?}", self.open_calls);
    }

    /// The network heals; everything must come to rest, and be as it is wanted.
    pub(super) fn settle(&mut self) {
        self.calm = true;
        if let Some(link) = self.link.as_mut().filter(|link| link.silent) {
            // What it has swallowed is gone, so nothing that comes later may pass.
            let event = Transport::Closed { code: None, reason: String::new() };
            link.down.push_back(Arriving { at: self.now, sent: self.now, event });
        }
        for hint in [Hint::Online, Hint::Resume] {
            self.session.hint(self.now, hint);
            self.drain();
        }
        self.run_until(self.now + ms(400)); // a close that still drains refuses to connect
        self.call("connect", Call::Connect);
        // A second connection, since what was refused on this one is asked for again on the next.
        for _ in 0..2 {
            self.run_until(self.now + Duration::from_secs(60));
            if let Some(link) = &mut self.link {
                link.silent = true;
                let event = Transport::Closed { code: Some(1001), reason: String::new() };
                link.down.push_back(Arriving { at: self.now, sent: self.now, event });
            }
        }
        self.run_until(self.now + Duration::from_secs(400));
        assert_eq!(self.session.state(), State::Connected);
        assert!(self.open_calls.is_empty(), "never completed: {:?}", self.open_calls);
        assert!(self.session.subscriptions().all(|(_, confirmed)| confirmed), "not confirmed");
        assert_eq!(self.link.as_ref().unwrap().subscriptions, self.wanted, "held, and wanted");
        let stats = self.session.stats();
        assert_eq!((stats.outbox.queued, stats.outbox.in_flight, stats.outbox.held), (0, 0, 0));
        assert_eq!(stats.open_calls, 0);
        for (topic, seen) in &self.broker.first_seen {
            let refused = &self.broker.refused;
            let in_order = seen.iter().filter(|n| !refused.contains(n));
            assert!(in_order.is_sorted(), "the order of {topic}: {seen:?}, refused {refused:?}");
        }
        self.app.check(&self.broker, &self.session);
    }
}

/// The transitions of client-api 2.2.
fn allowed(from: &State, to: &State) -> bool {
    use State::{Authenticating, Backoff, Closed, Closing, Connected, Connecting, Failed, Idle, Suspended};
    match from {
        Idle | Closed | Failed => matches!(to, Connecting),
        Connecting => matches!(to, Authenticating | Backoff | Failed | Suspended | Closed),
        Authenticating => matches!(to, Connected | Closing | Backoff | Failed | Suspended | Closed),
        Connected => matches!(to, Backoff | Failed | Suspended | Closed | Closing),
        Backoff => matches!(to, Connecting | Suspended | Failed | Closed),
        Suspended => matches!(to, Connecting | Closed),
        Closing => matches!(to, Closed),
    }
}
