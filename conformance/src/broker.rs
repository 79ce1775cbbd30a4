//! Starting and stopping the broker under test, with the settings and the token file that a statement needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::client::{Client, patiently, unique};
use crate::http::Address;
use crate::observed::Observed;

/// Variables that would reach the broker from our own environment and change what it does (wire protocol 25).
const SETTINGS: &[&str] = &[
    "AUTH_ALLOW_ALL",
    "AUTH_BACKEND",
    "AUTH_CACHE_TTL_MS",
    "AUTH_FILE",
    "AUTH_HTTP_URL",
    "BACKEND_SECRET",
    "BIND_ADDRESS",
    "BROKER_BACKEND",
    "CONTROL_BACKEND",
    "CONTROL_HTTP_URL",
    "DEAD_LETTER_TOPIC",
    "DEDUPE_WINDOW_SECONDS",
    "HISTORY_MAX_BYTES",
    "HISTORY_SIZE",
    "HISTORY_TTL_SECONDS",
    "INTERNAL_SECRET",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MAX_MESSAGE_SIZE",
    "MAX_OUTBOUND_BYTES",
    "METRICS",
    "METRICS_TOKEN",
    "MQTT_PORT",
    "NOLAG_COMPAT",
    "NOLAG_FEATURES",
    "PUBLISH_RATE_LIMIT",
    "RECORD_MESSAGES",
    "RECOVER_LIMIT",
    "REDELIVER_MAX",
    "RESUME_RETENTION_MS",
    "RETAIN_MAX",
    "RETAIN_TTL_SECONDS",
    "REVALIDATION_INTERVAL_MS",
    "SHUTDOWN_GRACE_MS",
    "STORE_BACKEND",
    "STORE_MAX_MESSAGES",
    "STORE_PATH",
    "STORE_TTL_SECONDS",
    "WS_IDLE_TIMEOUT_MS",
    "WS_PORT",
];

/// How the broker is started: the words of `--broker`.
#[derive(Debug, Clone)]
pub(crate) struct BrokerCommand {
    program: PathBuf,
    arguments: Vec<String>,
}

impl BrokerCommand {
    /// Takes a path as it is, and splits anything else at white space.
    pub(crate) fn parse(words: &str) -> Result<Self> {
        let (program, arguments) = if Path::new(words).is_file() {
            (words, Vec::new())
        } else {
            let mut words = words.split_whitespace();
            (words.next().context("--broker names no program")?, words.map(str::to_owned).collect())
        };
        // The broker runs in a directory of its own, where a relative path would lead elsewhere.
        let program = if program.contains('/') {
            Path::new(program).canonicalize().with_context(|| format!("--broker {program}"))?
        } else {
            PathBuf::from(program)
        };
        Ok(Self { program, arguments })
    }
}

/// A variable's value.
pub(crate) struct Setting(String);

impl From<&str> for Setting {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<u64> for Setting {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

/// Durations are given in milliseconds, as all variables are whose names end so.
impl From<Duration> for Setting {
    fn from(time: Duration) -> Self {
        Self(time.as_millis().to_string())
    }
}

/// Settings and tokens of one broker process.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    settings: BTreeMap<String, String>,
    tokens: Option<Json>,
}

impl Launch {
    /// With these entries in the token file.
    pub(crate) fn tokens(tokens: Json) -> Self {
        Self { settings: BTreeMap::new(), tokens: Some(tokens) }
    }

    /// With the demo tokens of wire protocol 21.1, from a file.
    pub(crate) fn demo() -> Self {
        Self::tokens(json!({ "dev-token-alice": demo("alice"), "dev-token-bob": demo("bob") }))
    }

    /// Without a token file.
    pub(crate) fn without_tokens() -> Self {
        Self { settings: BTreeMap::new(), tokens: None }
    }

    /// With this variable set.
    pub(crate) fn set(mut self, name: &str, value: impl Into<Setting>) -> Self {
        self.settings.insert(name.to_owned(), value.into().0);
        self
    }
}

fn demo(actor: &str) -> Json {
    json!({
        "actorTokenId": actor, "actorType": "user", "projectId": "demo-project", "organizationId": "demo-org",
        "appId": "demo-app", "appName": "demo",
        "allowedTopics": [
            {"pattern": "demo/general/#", "permission": "pubSub", "room_id": "room-general", "room_slug": "general"},
        ],
        "allowedLobbies": [
            {"lobby_slug": "lounge", "lobby_id": "lobby-lounge"}, {"lobby_slug": "online", "lobby_id": "lobby-online"},
        ],
    })
}

/// An entry of the token file: an actor of the project `p` with these rules.
#[expect(clippy::needless_pass_by_value, reason = "rules are written in place with `json!`")]
pub(crate) fn actor(name: &str, rules: Json) -> Json {
    json!({"actorTokenId": name, "projectId": "p", "allowedTopics": rules})
}

/// A running broker of our own. Dropping it kills the process and removes its directory.
pub(crate) struct Broker {
    /// Where it listens.
    pub(crate) address: Address,
    observed: Arc<Observed>,
    child: Child,
    launch: Launch,
    output: Arc<Mutex<String>>,
    /// Behind `child`, so that it is removed after the process is gone.
    place: Place,
}

/// Where and how a broker is started, once and again.
struct Place {
    command: BrokerCommand,
    profile: String,
    folder: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failure leaves files in the temporary directory, and nothing else.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    fn tokens(&self) -> PathBuf {
        self.folder.join("tokens.json")
    }

    /// Starts a broker and waits until it listens.
    async fn start(&self, launch: &Launch, output: &Arc<Mutex<String>>) -> Result<(Child, Address)> {
        let mut process = Command::new(&self.command.program);
        process.args(&self.command.arguments).current_dir(&self.folder);
        for name in SETTINGS {
            process.env_remove(name);
        }
        process
            .env("NOLAG_COMPAT", &self.profile)
            .env("WS_PORT", "0")
            .env("BIND_ADDRESS", "127.0.0.1")
            .env("MQTT_PORT", "off");
        if launch.tokens.is_some() {
            process.env("AUTH_FILE", self.tokens());
        }
        process.envs(&launch.settings);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let program = self.command.program.display();
        let mut child = process.spawn().with_context(|| format!("starting {program}"))?;

        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(keep(BufReader::new(stderr), output.clone()));
        }
        let mut stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        let read = patiently("first line on the broker's standard output", stdout.read_line(&mut line)).await;
        tokio::spawn(keep(stdout, output.clone()));
        let (Ok(Ok(_)), Some(url)) = (read, line.trim().strip_prefix("listening on ")) else {
            let _ = child.kill().await;
            let said = output.lock().unwrap_or_else(PoisonError::into_inner).clone();
            bail!("the broker did not start; its first line was `{}`, and it said: {said}", line.trim());
        };
        Ok((child, Address::parse(url)?))
    }
}

impl Broker {
    /// Starts one on a free port and waits until it listens.
    pub(crate) async fn start(
        command: &BrokerCommand,
        profile: &str,
        launch: Launch,
        observed: Arc<Observed>,
    ) -> Result<Self> {
        let folder =
            std::env::temp_dir().join(format!("nolag-conformance-{}-{}", std::process::id(), unique()));
        std::fs::create_dir_all(&folder)?;
        let place = Place { command: command.clone(), profile: profile.to_owned(), folder };
        if let Some(tokens) = &launch.tokens {
            write_tokens(&place.tokens(), tokens)?;
        }
        let output = Arc::new(Mutex::new(String::new()));
        let (child, address) = place.start(&launch, &output).await?;
        Ok(Self { address, observed, child, launch, output, place })
    }

    /// Kills the process, and starts another in its place, on any free port. What it left in its directory is still there.
    pub(crate) async fn restart(&mut self) -> Result<()> {
        patiently("end of a process that is killed", self.child.kill()).await??;
        (self.child, self.address) = self.place.start(&self.launch, &self.output).await?;
        Ok(())
    }

    /// A connection that is not authenticated.
    pub(crate) async fn open(&self) -> Result<Client> {
        Client::open(&self.address, self.observed.clone()).await
    }

    /// A connection authenticated for protocol version 2.
    pub(crate) async fn connect(&self, token: &str) -> Result<Client> {
        self.open().await?.authenticated(token).await
    }

    /// Replaces the entries of the token file, in one step.
    pub(crate) fn rewrite(&self, tokens: &Json) -> Result<()> {
        write_tokens(&self.place.tokens(), tokens)
    }

    /// Replaces the token file by a text that is no JSON.
    pub(crate) fn break_tokens(&self) -> Result<()> {
        write_file(&self.place.tokens(), "{ \"tokens\": { \"half\": ")
    }

    /// What it wrote on standard error, and on standard output after the first line.
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails when the process is gone.
    pub(crate) fn alive(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the broker ended ({ended:?}): {}", self.output());
        Ok(())
    }

    /// Sends SIGTERM.
    pub(crate) async fn terminate(&self) -> Result<()> {
        let id = self.child.id().context("the broker ended already")?;
        let status = Command::new("kill").args(["-TERM", &id.to_string()]).status().await?;
        ensure!(status.success(), "kill -TERM failed");
        Ok(())
    }

    /// Waits for the process to end.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus> {
        Ok(patiently("end of the broker's process", self.child.wait()).await??)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.start_kill(); // it may have ended
    }
}

fn write_tokens(file: &Path, tokens: &Json) -> Result<()> {
    write_file(file, &json!({ "tokens": tokens }).to_string())
}

/// Replaces the file in one step, so that the broker never reads half of it.
fn write_file(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, file)?;
    Ok(())
}

/// Keeps what a stream says, so that the broker never blocks on a full pipe.
async fn keep(stream: impl AsyncRead + Unpin, output: Arc<Mutex<String>>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while let Ok(1..) = stream.read_until(b'\n', &mut line).await {
        output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
}
