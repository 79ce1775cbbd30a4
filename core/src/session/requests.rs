//! Which answer belongs to which request, and which answers are overdue (wire protocol 12.3).
//!
//! Publishes are not among them: the outbox settles those by their reference alone (K-027). An entry whose time
//! is over stays as a placeholder until its answer comes or the connection ends, so that a late answer cannot settle
//! the next request (K-028).

use std::collections::VecDeque;
use std::time::Duration;

use super::RequestId;
use super::effects::Earliest;
use super::positions::Join;
use crate::event::{Room, Topic};

/// The most requests without an answer, placeholders included.
pub(super) const MAX_PENDING: usize = 10_000;

/// What a request is about, and whom its answer concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A subscription operation, by its number.
    Subscribe {
        topic: Topic,
        op: u64,
        /// Of which of its lives, and what it asked for.
        life: u64,
        join: Join,
    },
    Unsubscribe {
        topic: Topic,
        op: u64,
    },
    SetFilters {
        topic: Topic,
        op: u64,
    },
    /// Brokers before X-20 never answer it.
    Presence {
        room: Option<Room>,
    },
    GetPresence {
        room: Room,
        wanted_by: ListFor,
    },
    LobbySubscribe {
        lobby: String,
        waiters: Vec<RequestId>,
    },
    LobbyUnsubscribe {
        lobby: String,
        waiter: Option<RequestId>,
    },
    GetLobby {
        lobby: String,
        waiter: Option<RequestId>,
    },
}

/// Who asked for a presence list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListFor {
    /// The application.
    Caller(RequestId),
    /// The session itself, to keep its roster.
    Roster,
    /// A caller who has gone.
    Nobody,
}

/// An answer, as far as it says what it answers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer<'a> {
    Subscribed(&'a str),
    Unsubscribed(&'a str),
    FiltersUpdated(&'a str),
    PresenceUpdated { app: Option<&'a str>, room: Option<&'a str> },
    PresenceList { app: Option<&'a str>, room: Option<&'a str> },
    LobbySubscribed(&'a str),
    LobbyUnsubscribed(&'a str),
    LobbyList(&'a str),
    Error { topic: Option<&'a str>, app: Option<&'a str>, room: Option<&'a str>, lobby: Option<&'a str> },
}

struct Pending {
    msg_ref: Option<String>,
    kind: Kind,
    deadline: Duration,
    /// Part of the recovery after a connect.
    recovery: bool,
    /// A placeholder: whoever waited has been told.
    overdue: bool,
}

/// What was found for an answer.
pub(super) struct Settled {
    pub(super) kind: Kind,
    pub(super) recovery: bool,
    /// The request had timed out before.
    pub(super) late: bool,
}

/// The requests of one connection that have no answer yet, oldest first.
#[derive(Default)]
pub(super) struct Requests {
    pending: VecDeque<Pending>,
    earliest: Earliest,
    recovering: usize,
}

impl Requests {
    pub(super) fn push(&mut self, msg_ref: Option<String>, kind: Kind, deadline: Duration, recovery: bool) {
        self.earliest.note(deadline);
        self.recovering += usize::from(recovery);
        self.pending.push_back(Pending { msg_ref, kind, deadline, recovery, overdue: false });
    }

    /// Whether another request may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING
    }

    /// How many requests of the recovery are still to be answered.
    pub(super) fn recovering(&self) -> usize {
        self.recovering
    }

    /// Whether a subscribe or setFilters of the topic has no answer yet.
    pub(super) fn concerns(&self, topic: &str) -> bool {
        self.pending.iter().any(|pending| match &pending.kind {
            Kind::Subscribe { topic: of, .. } | Kind::SetFilters { topic: of, .. } => &**of == topic,
            _ => false,
        })
    }

    /// The request that an answer settles: the one with its reference, or the oldest that it fits.
    pub(super) fn settle(&mut self, msg_ref: Option<&str>, answer: &Answer<'_>) -> Option<Settled> {
        let index = match msg_ref {
            Some(_) => self.pending.iter().position(|pending| pending.msg_ref.as_deref() == msg_ref)?,
            None => self.pending.iter().position(|pending| fits(&pending.kind, answer))?,
        };
        let Pending { kind, recovery, overdue, .. } = self.pending.remove(index)?;
        if recovery && !overdue {
            self.recovering -= 1;
        }
        Some(Settled { kind, recovery, late: overdue })
    }

    /// The requests whose time is over; each is returned once.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Settled> {
        let mut expired = Vec::new();
        if !self.earliest.take_due(now) {
            return expired;
        }
        for pending in self.pending.iter_mut().filter(|pending| !pending.overdue) {
            if pending.deadline <= now {
                pending.overdue = true;
                self.recovering -= usize::from(pending.recovery);
                expired.push(Settled { kind: pending.kind.clone(), recovery: pending.recovery, late: false });
            } else {
                self.earliest.note(pending.deadline);
            }
        }
        // Nobody waits for these, and most brokers never answer them.
        self.pending.retain(|pending| !(pending.overdue && matches!(pending.kind, Kind::Presence { .. })));
        expired
    }

    /// The connection is gone: what had no answer and was not given up yet.
    pub(super) fn clear(&mut self) -> Vec<Kind> {
        self.recovering = 0;
        self.earliest = Earliest::default();
        self.pending.drain(..).filter(|pending| !pending.overdue).map(|pending| pending.kind).collect()
    }

    /// Takes a caller off its request; the request itself goes on.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        self.pending.iter_mut().filter(|pending| !pending.overdue).any(|pending| match &mut pending.kind {
            Kind::GetPresence { wanted_by, .. } if *wanted_by == ListFor::Caller(request) => {
                *wanted_by = ListFor::Nobody;
                true
            }
            Kind::LobbySubscribe { waiters, .. } => {
                let before = waiters.len();
                waiters.retain(|waiter| *waiter != request);
                waiters.len() < before
            }
            Kind::LobbyUnsubscribe { waiter, .. } | Kind::GetLobby { waiter, .. } => {
                waiter.take_if(|waiter| *waiter == request).is_some()
            }
            _ => false,
        })
    }

    /// A room has another name from now on.
    pub(super) fn rename(&mut self, from: &Room, to: &Room) {
        for pending in &mut self.pending {
            if let Kind::Presence { room: Some(room) } | Kind::GetPresence { room, .. } = &mut pending.kind
                && room == from
            {
                room.clone_from(to);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.earliest.get()
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

/// Rule 3 of 12.3: by frame type and address. An error settles what may fail with that address.
fn fits(kind: &Kind, answer: &Answer<'_>) -> bool {
    match (kind, answer) {
        (Kind::Subscribe { topic, .. }, Answer::Subscribed(of))
        | (Kind::Unsubscribe { topic, .. }, Answer::Unsubscribed(of))
        | (Kind::SetFilters { topic, .. }, Answer::FiltersUpdated(of))
        | (
            Kind::Subscribe { topic, .. } | Kind::SetFilters { topic, .. },
            Answer::Error { topic: Some(of), .. },
        ) => &**topic == *of,
        (Kind::Presence { room: None }, Answer::PresenceUpdated { room: None, .. }) => true,
        (Kind::Presence { room: Some(room) }, Answer::PresenceUpdated { app, room: Some(of) })
        | (Kind::GetPresence { room, .. }, Answer::PresenceList { app, room: Some(of) })
        | (
            Kind::Presence { room: Some(room) } | Kind::GetPresence { room, .. },
            Answer::Error { topic: None, app, room: Some(of), .. },
        ) => room.room == *of && (app.is_none() || room.app.is_none() || room.app.as_deref() == *app),
        (Kind::LobbySubscribe { lobby, .. }, Answer::LobbySubscribed(of))
        | (Kind::LobbyUnsubscribe { lobby, .. }, Answer::LobbyUnsubscribed(of))
        | (Kind::GetLobby { lobby, .. }, Answer::LobbyList(of))
        | (
            Kind::LobbySubscribe { lobby, .. } | Kind::GetLobby { lobby, .. },
            Answer::Error { topic: None, lobby: Some(of), .. },
        ) => lobby == of,
        _ => false,
    }
}
