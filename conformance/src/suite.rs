//! The run: which statements there are, what each needs, and what a case gets to work with.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::broker::{Broker, BrokerCommand, Launch};
use crate::client::{Client, unique};
use crate::http::Address;
use crate::observed::Observed;

/// The profile that the broker runs in (wire protocol 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// Everything, with the additions X-01 … X-27.
    Extended,
    /// Frames and side effects as kraken has them.
    Kraken,
}

impl Profile {
    /// The name as `NOLAG_COMPAT` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Extended => "extended",
            Self::Kraken => "kraken",
        }
    }
}

/// The profiles in which a statement is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum In {
    /// `[K]`, or naming both profiles.
    Both,
    Extended,
    Kraken,
}

impl In {
    pub(crate) fn includes(self, profile: Profile) -> bool {
        match self {
            Self::Both => true,
            Self::Extended => profile == Profile::Extended,
            Self::Kraken => profile == Profile::Kraken,
        }
    }
}

/// What a case needs beside a broker that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Two tokens, a topic prefix that both may use, a room and a lobby.
    Nothing,
    /// A broker process with settings, tokens or an end of its own.
    Broker,
}

/// A case's work, boxed.
pub(crate) type Running = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One statement and the case that shows it.
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) text: &'static str,
    pub(crate) profiles: In,
    pub(crate) needs: Needs,
    pub(crate) run: fn(Context) -> Running,
}

/// A row of a file's table.
macro_rules! case {
    ($id:literal, $profiles:ident, $needs:expr, $text:literal, $run:path) => {
        $crate::suite::Case {
            id: $id,
            text: $text,
            profiles: $crate::suite::In::$profiles,
            needs: $needs,
            run: |context| ::std::boxed::Box::pin($run(context)),
        }
    };
}
pub(crate) use case;

/// A reason not to run a case that shows only after it has begun.
#[derive(Debug)]
pub(crate) struct NotRun(pub(crate) String);

impl std::fmt::Display for NotRun {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for NotRun {}

/// A broker and what its tokens may touch.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The two tokens, of different actors.
    pub(crate) token: String,
    pub(crate) other_token: String,
    /// Below it both may publish and subscribe, by a rule that ends in `#`.
    pub(crate) prefix: String,
    /// A room slug of both.
    pub(crate) room: String,
    /// A lobby slug of both, which shows the room.
    pub(crate) lobby: String,
    pub(crate) observed: Arc<Observed>,
}

impl Target {
    /// A connection that is not authenticated.
    pub(crate) async fn open(&self) -> Result<Client> {
        Client::open(&self.address, self.observed.clone()).await
    }

    /// A connection of the first token, protocol version 2.
    pub(crate) async fn alice(&self) -> Result<Client> {
        self.open().await?.authenticated(&self.token).await
    }

    /// A connection of the other token, protocol version 2.
    pub(crate) async fn bob(&self) -> Result<Client> {
        self.open().await?.authenticated(&self.other_token).await
    }

    /// A topic that no other case uses, in this run or an earlier one.
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("{}/{name}-{}-{}", self.prefix, nonce(), unique())
    }
}

/// Tells the topics of this run from those of an earlier one, which may have left retained messages.
fn nonce() -> u128 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_millis() % 100_000_000
}

/// A target that no other case uses at the same time.
pub(crate) struct Alone {
    target: Target,
    _broker: Option<Broker>,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl Deref for Alone {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

/// What all cases share.
pub(crate) struct Suite {
    pub(crate) profile: Profile,
    pub(crate) command: Option<BrokerCommand>,
    pub(crate) target: Target,
    /// Kept for as long as the suite lives; ends with it.
    pub(crate) shared: Option<Broker>,
    /// Taken by cases that use the room, where there is one broker for all.
    pub(crate) turn: Arc<Mutex<()>>,
}

/// What a case gets. It dereferences to the shared target.
#[derive(Clone)]
pub(crate) struct Context(pub(crate) Arc<Suite>);

impl Deref for Context {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.0.target
    }
}

impl Context {
    /// Whether the additions of wire protocol 27 are to be there.
    pub(crate) fn extended(&self) -> bool {
        self.0.profile == Profile::Extended
    }

    /// What the shared broker's tokens may touch; the same tokens are those of the demo file.
    pub(crate) fn target(&self) -> Target {
        self.0.target.clone()
    }

    /// Whether the suite can start brokers.
    pub(crate) fn can_start(&self) -> bool {
        self.0.command.is_some()
    }

    /// Starts a broker of the case's own.
    pub(crate) async fn start(&self, launch: Launch) -> Result<Broker> {
        let command = self.0.command.as_ref().context(NotRun("needs --broker".to_owned()))?;
        Broker::start(command, self.0.profile.name(), launch, self.observed.clone()).await
    }

    /// A target with the demo grants for this case alone: a broker of its own, or a turn at the one that is there.
    pub(crate) async fn alone(&self) -> Result<Alone> {
        if !self.can_start() {
            let turn = self.0.turn.clone().lock_owned().await;
            return Ok(Alone { target: self.0.target.clone(), _broker: None, _turn: Some(turn) });
        }
        let broker = self.start(Launch::demo()).await?;
        let target = Target { address: broker.address.clone(), ..self.0.target.clone() };
        Ok(Alone { target, _broker: Some(broker), _turn: None })
    }
}
