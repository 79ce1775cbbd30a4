//! The broker's settings: environment variables with the names kraken's users know, each also a flag
//! (wire protocol 25).

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, ValueEnum};
use nolag_protocol::MAX_PAYLOAD_BYTES;
use nolag_protocol::features::{Feature, Features};
use nolag_protocol::topic;

/// The largest payload limit anybody may set, so that a message with it fits a WebSocket message.
const LARGEST_PAYLOAD_LIMIT: u64 = 1_000_000;

/// Which broker to be (wire protocol 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Profile {
    /// With all additions that no client of kraken can be hurt by.
    #[default]
    Extended,
    /// As kraken 0.10, for comparisons.
    Kraken,
}

/// What connections and the hub go by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which broker to be.
    pub profile: Profile,
    /// What connections may be granted (features 1).
    pub features: Features,
    /// Publishes per second of a connection whose token names no rate; 0 means no limit.
    pub publish_rate_limit: u64,
    /// The largest payload where the token names none, in bytes of MessagePack.
    pub max_payload_bytes: u64,
    /// Whether messages carry ids and ask for acknowledgements.
    pub record_messages: bool,
    /// A connection that sends nothing for so long is closed.
    pub idle_timeout: Duration,
    /// How long after a validation the next one is due.
    pub revalidation_interval: Duration,
    /// How long an accepted token is not asked about again.
    pub auth_cache_ttl: Duration,
    /// How long after its last connection a client's subscriptions are remembered.
    pub resume_retention: Duration,
    /// How long a retained message is kept.
    pub retain_ttl: Duration,
    /// How many retained messages are kept, oldest out first.
    pub retain_max: usize,
    /// How many messages of a topic are kept for subscriptions that continue; 0 keeps none and withdraws the feature.
    pub history_size: usize,
    /// For how long.
    pub history_ttl: Duration,
    /// How many bytes of them, over all topics, oldest out first.
    pub history_max_bytes: usize,
    /// How many messages a subscription may have missed and still continue.
    pub recover_limit: usize,
    /// For how long a publish is recognised when it is sent again.
    pub dedupe_window: Duration,
    /// How often a message of a group is handed out again after a member broke off with it, or let the time pass.
    pub redeliver_max: u32,
    /// The topic name, in place of the last level of its own, under which a message is published that was handed out so often.
    pub dead_letter_topic: Option<String>,
    /// The backlog, in bytes, past which a connection is closed.
    pub max_outbound_bytes: usize,
    /// How long a shutdown waits for connections to end.
    pub shutdown_grace: Duration,
    /// Whether `/metrics` is served, and in the kraken profile `/ready`.
    pub metrics: bool,
    /// What `/metrics` asks for as a bearer token.
    pub metrics_token: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Options::default().settings
    }
}

/// All that the command line and the environment say.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen; `None`: everywhere, or on loopback with the demo tokens.
    pub bind: Option<IpAddr>,
    /// The port; 0 takes any free one.
    pub port: u16,
    /// The token file; `None`: `auth.json` in the working directory, else the demo tokens.
    pub auth_file: Option<PathBuf>,
    /// Take any token.
    pub allow_all: bool,
    /// The file that keeps what outlives the process; `None`: nothing does.
    pub store: Option<PathBuf>,
    /// Which messages to log.
    pub log_level: String,
    /// How to log.
    pub log_format: LogFormat,
    /// What the broker goes by.
    pub settings: Settings,
    /// Variables that were set and have no effect in this version.
    pub inert: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        // Every flag has a default that its own parser accepts, and the environment is not read.
        Self::parse(["nolag-broker"], |arg, _| arg).unwrap_or_else(|error| unreachable!("{error}"))
    }
}

/// The form of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AuthBackend {
    Static,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BrokerBackend {
    Syn,
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreBackend {
    #[value(alias = "ets")] // kraken's name
    Memory,
    Disk,
}

/// Variables of the drop-in broker whose parts are not here yet, or do not apply: taken with a warning.
const INERT: &[&str] = &[
    "MQTT_PORT",
    "MQTT_BROKER_HOST",
    "MQTT_BROKER_PORT",
    "MQTT_BROKER_USERNAME",
    "MQTT_BROKER_PASSWORD",
    "MQTT_BROKER_CLIENT_ID",
    "AUTH_HTTP_URL",
    "CONTROL_BACKEND",
    "CONTROL_HTTP_URL",
    "BACKEND_SECRET",
    "INTERNAL_SECRET",
    "STORE_TTL_SECONDS",
    "STORE_MAX_MESSAGES",
    "CLUSTER_ENABLED",
    "CLUSTER_STRATEGY",
    "CLUSTER_NODES",
    "CLUSTER_DNS_QUERY",
    "CLUSTER_DNS_NAME",
    "ERLANG_NODE_NAME",
    "ERLANG_COOKIE",
    "CACHE_MISS_FALLBACK",
    "CACHE_MISS_TIMEOUT_MS",
    "ACL_DENY_CACHE_TTL_MS",
    "WEBHOOK_MAX_ATTEMPTS",
    "WEBHOOK_TIMEOUT_MS",
    "WEBHOOK_BACKOFF_MS",
    "PUBLISH_HTTP_MAX_BODY_BYTES",
    "PUBLISH_HTTP_RATE_LIMIT",
    "PRESENCE_STORE_BACKEND",
    "WAKE_BACKEND",
    "WAKE_SECRET",
];

/// A realtime messaging broker that speaks the NoLag protocol over WebSocket.
///
/// Without any setting it listens on 127.0.0.1:8080 with two demo tokens, which it prints. Every setting is an
/// environment variable and a flag; the flag wins.
#[derive(Debug, clap::Parser)]
#[command(name = "nolag-broker", version, max_term_width = 100)]
struct CommandLine {
    /// Port to listen on; 0 takes any free one
    #[arg(long, visible_alias = "port", default_value_t = 8080)]
    ws_port: u16,
    /// Address to listen on [default: 0.0.0.0, or 127.0.0.1 with the demo tokens]
    #[arg(long, visible_alias = "bind")]
    bind_address: Option<IpAddr>,
    /// Token file, read again when it changes [default: auth.json in the working directory if it is there,
    /// else the built-in demo tokens]
    #[arg(long, visible_alias = "auth")]
    auth_file: Option<PathBuf>,
    /// Where tokens are known
    #[arg(long, value_enum, default_value = "static")]
    auth_backend: AuthBackend,
    /// Accept every token, for development only
    #[arg(long, value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set)]
    auth_allow_all: bool,
    /// How long an accepted token is not asked about again, in ms
    #[arg(long, default_value_t = 30_000)]
    auth_cache_ttl_ms: u64,
    /// How long after a validation a connection's grants are asked for again, in ms
    #[arg(long, default_value_t = 600_000)]
    revalidation_interval_ms: u64,
    /// Which broker to be: with our additions, or as kraken is
    #[arg(long, visible_alias = "profile", value_enum, default_value = "extended")]
    nolag_compat: Profile,
    // A doc comment would want backticks, which the help would show.
    #[arg(long, default_value = "all", value_parser = features,
        help = "Negotiated features to grant: all, none, or some of recover,dedupe,rooms,batch,redeliver,reauth,trace; \
        in the kraken profile none")]
    nolag_features: Features,
    /// Fan-out; kraken's `mqtt` is not offered
    #[arg(long, value_enum, default_value = "syn")]
    broker_backend: BrokerBackend,
    /// File that keeps history, retained messages and the window of repeats over restarts, made where there is none
    /// [default: they are in memory only]
    #[arg(long, visible_alias = "store")]
    store_path: Option<PathBuf>,
    /// Where they are kept [default: disk with a file, else memory]
    #[arg(long, value_enum)]
    store_backend: Option<StoreBackend>,
    /// Publishes a second of a connection whose token names no rate; 0 means no limit [default: 1000, in the
    /// kraken profile 50]
    #[arg(long)]
    publish_rate_limit: Option<u64>,
    /// Largest payload of a token that names none, in bytes of MessagePack, at most 1000000
    #[arg(long, default_value_t = MAX_PAYLOAD_BYTES as u64, value_parser = clap::value_parser!(u64).range(1..))]
    max_message_size: u64,
    /// Whether messages carry ids and ask for acknowledgements
    #[arg(long, value_parser = BoolishValueParser::new(), default_value = "true", action = clap::ArgAction::Set)]
    record_messages: bool,
    /// Close a connection that sends nothing for so long, in ms
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..))]
    ws_idle_timeout_ms: u64,
    /// How long subscriptions are remembered for a client that asks to have them restored, in ms
    #[arg(long, default_value_t = 3_600_000)]
    resume_retention_ms: u64,
    /// How long a retained message is kept, in seconds
    #[arg(long, default_value_t = 3_600)]
    retain_ttl_seconds: u64,
    /// How many retained messages are kept, oldest out first
    #[arg(long, default_value_t = 10_000)]
    retain_max: usize,
    /// Messages of a topic that are kept for subscriptions that continue after a loss; 0 keeps none
    #[arg(long, default_value_t = 1_000)]
    history_size: usize,
    /// How long they are kept, in seconds
    #[arg(long, default_value_t = 300)]
    history_ttl_seconds: u64,
    /// Bytes of all that are kept, oldest out first
    #[arg(long, default_value_t = 268_435_456)]
    history_max_bytes: usize,
    /// Messages that a subscription may have missed and still continue
    #[arg(long, default_value_t = 10_000)]
    recover_limit: usize,
    /// How long a publish is recognised when it is sent again, in seconds
    #[arg(long, default_value_t = 600)]
    dedupe_window_seconds: u64,
    /// How often a message of a worker group is handed out again after a member broke off with it or let the time pass
    #[arg(long, default_value_t = 5)]
    redeliver_max: u32,
    /// Name of the topic, beside its own, for a message that nobody acknowledged [default: it is dropped]
    #[arg(long, value_parser = topic_name)]
    dead_letter_topic: Option<String>,
    /// Close a connection whose backlog passes so many bytes
    #[arg(long, default_value_t = 8_388_608, value_parser = clap::value_parser!(u64).range(1..))]
    max_outbound_bytes: u64,
    /// How long a shutdown waits for connections to end, in ms
    #[arg(long, default_value_t = 5_000)]
    shutdown_grace_ms: u64,
    /// Serve /metrics [default: on; in the kraken profile off, and /ready with it]
    #[arg(long, value_enum)]
    metrics: Option<Switch>,
    /// Bearer token that /metrics asks for
    #[arg(long)]
    metrics_token: Option<String>,
    // A doc comment would want backticks, which the help would show.
    #[arg(
        long,
        default_value = "info",
        help = "error, warn, info, debug, trace, or a filter such as nolag_broker=debug"
    )]
    log_level: String,
    /// Form of log lines on standard error
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// The features of a comma list, `all` or `none`.
fn features(list: &str) -> Result<Features, String> {
    match list {
        "all" => Ok(Features::ALL),
        "none" => Ok(Features::NONE),
        names => names
            .split(',')
            .map(|name| {
                Feature::named(name.trim()).ok_or_else(|| {
                    format!(
                        "'{name}' is no feature; expected all, none, or some of {}",
                        Features::ALL.names().join(",")
                    )
                })
            })
            .collect(),
    }
}

/// The name of a topic: one level.
fn topic_name(name: &str) -> Result<String, String> {
    match topic::check_publish(name) {
        Ok(()) if !name.contains('/') => Ok(name.to_owned()),
        Ok(()) => Err("expected the name of a topic, without a /".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Options {
    /// Reads the process's arguments and environment. An empty variable counts as unset.
    pub fn from_env() -> Result<Self, clap::Error> {
        Self::parse(std::env::args_os(), |arg, name| {
            let empty = std::env::var_os(&name).is_some_and(|value| value.is_empty());
            if empty { arg } else { arg.env(name) }
        })
    }

    fn parse<I>(args: I, with_env: impl Fn(Arg, String) -> Arg) -> Result<Self, clap::Error>
    where
        I: IntoIterator,
        I::Item: Into<OsString> + Clone,
    {
        let inert = INERT
            .iter()
            .map(|name| Arg::new(*name).long(name.to_ascii_lowercase().replace('_', "-")).hide(true));
        let command = CommandLine::command().args(inert).mut_args(|arg| {
            let name = arg.get_id().as_str().to_ascii_uppercase();
            // Values may be secrets: the help names the variables only.
            with_env(arg, name).hide_env_values(true)
        });
        let matches = command.try_get_matches_from(args)?;
        let line = CommandLine::from_arg_matches(&matches)?;
        line.check_store()?;
        let inert = INERT.iter().copied().filter(|name| matches.contains_id(name)).collect();
        Ok(line.into_options(inert))
    }
}

impl CommandLine {
    /// Where messages are kept, and whether there is a file for it, must agree.
    fn check_store(&self) -> Result<(), clap::Error> {
        let (kind, text) = match (self.store_backend, &self.store_path) {
            (Some(StoreBackend::Disk), None) => (
                ErrorKind::MissingRequiredArgument,
                "STORE_BACKEND=disk needs a file; name it with --store or STORE_PATH",
            ),
            (Some(StoreBackend::Memory), Some(_)) => (
                ErrorKind::ArgumentConflict,
                "STORE_PATH names a file and STORE_BACKEND none; leave out one of them",
            ),
            _ => return Ok(()),
        };
        Err(Self::command().error(kind, text))
    }

    fn into_options(self, inert: Vec<&'static str>) -> Options {
        let kraken = self.nolag_compat == Profile::Kraken;
        let AuthBackend::Static = self.auth_backend;
        let (BrokerBackend::Syn | BrokerBackend::Memory) = self.broker_backend;
        let history_size = if kraken { 0 } else { self.history_size };
        let withdrawn =
            if history_size == 0 { Features::NONE.with(Feature::Recover) } else { Features::NONE };
        Options {
            bind: self.bind_address,
            port: self.ws_port,
            auth_file: self.auth_file,
            allow_all: self.auth_allow_all,
            store: self.store_path,
            log_level: self.log_level,
            log_format: self.log_format,
            inert,
            settings: Settings {
                profile: self.nolag_compat,
                features: if kraken { Features::NONE } else { self.nolag_features.without(withdrawn) },
                publish_rate_limit: self.publish_rate_limit.unwrap_or(if kraken { 50 } else { 1_000 }),
                max_payload_bytes: self.max_message_size.min(LARGEST_PAYLOAD_LIMIT),
                record_messages: self.record_messages,
                idle_timeout: Duration::from_millis(self.ws_idle_timeout_ms),
                revalidation_interval: Duration::from_millis(self.revalidation_interval_ms),
                auth_cache_ttl: Duration::from_millis(self.auth_cache_ttl_ms),
                resume_retention: Duration::from_millis(self.resume_retention_ms),
                retain_ttl: Duration::from_secs(self.retain_ttl_seconds),
                retain_max: self.retain_max,
                history_size,
                history_ttl: Duration::from_secs(self.history_ttl_seconds),
                history_max_bytes: self.history_max_bytes,
                recover_limit: self.recover_limit,
                dedupe_window: Duration::from_secs(self.dedupe_window_seconds),
                redeliver_max: self.redeliver_max,
                dead_letter_topic: self.dead_letter_topic,
                max_outbound_bytes: usize::try_from(self.max_outbound_bytes).unwrap_or(usize::MAX),
                shutdown_grace: Duration::from_millis(self.shutdown_grace_ms),
                metrics: self.metrics.map_or(!kraken, |switch| switch == Switch::On),
                metrics_token: self.metrics_token,
            },
        }
    }
}

impl Settings {
    /// The payload limit of a token that may name its own. kraken has one that nobody can change.
    pub(crate) fn payload_limit(&self, own: Option<u64>) -> usize {
        let limit = match self.profile {
            Profile::Extended => own.unwrap_or(self.max_payload_bytes).min(LARGEST_PAYLOAD_LIMIT),
            Profile::Kraken => MAX_PAYLOAD_BYTES as u64,
        };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// The publish rate of a token that may name its own, per second; `None` means no limit.
    pub(crate) fn publish_rate(&self, own: Option<u64>) -> Option<u64> {
        let own = own.filter(|_| self.profile == Profile::Extended);
        Some(own.unwrap_or(self.publish_rate_limit)).filter(|rate| *rate > 0)
    }
}

/// One line that says what is wrong, and what would be right, from clap's several.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let said =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    // What the standard library says of a number does not tell what would be right.
    let said = said
        .collect::<Vec<_>>()
        .join("; ")
        .replace("invalid digit found in string", "expected a whole number")
        .replace("invalid IP address syntax", "expected an IP address such as 127.0.0.1 or ::1");
    said + " (--help lists all settings)"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        let args = ["nolag-broker"].into_iter().chain(args.iter().copied());
        Options::parse(args, |arg, _| arg).map_err(|error| one_line(&error))
    }

    #[test]
    fn short_names_and_long_ones_are_the_same() {
        let long = parse(&["--ws-port", "0", "--bind-address", "::1", "--nolag-compat", "kraken"]).unwrap();
        let short = parse(&["--port", "0", "--bind", "::1", "--profile", "kraken"]).unwrap();
        assert_eq!(format!("{long:?}"), format!("{short:?}"));
        assert_eq!(long.settings.publish_rate_limit, 50);
        assert!(!long.settings.metrics);
    }

    #[test]
    fn a_wrong_value_is_one_line_with_what_would_be_right() {
        let error = parse(&["--profile", "krakn"]).unwrap_err();
        assert!(!error.contains('\n') && error.contains("krakn") && error.contains("kraken"), "{error}");
        let error = parse(&["--port", "99999"]).unwrap_err();
        assert!(error.contains("99999") && error.contains("WS_PORT"), "{error}");
        let error = parse(&["--prot", "1"]).unwrap_err();
        assert!(error.contains("--prot") && error.contains("--port"), "{error}");
        assert!(parse(&["--broker-backend", "mqtt"]).unwrap_err().contains("memory"));
    }

    #[test]
    fn a_store_is_a_file_and_both_settings_agree_on_it() {
        let store = |args: &[&str]| parse(args).map(|options| options.store);
        assert_eq!(store(&[]), Ok(None));
        assert_eq!(store(&["--store-backend", "ets"]), Ok(None));
        for args in
            [&["--store", "x"][..], &["--store-path", "x"], &["--store", "x", "--store-backend", "disk"]]
        {
            assert_eq!(store(args), Ok(Some("x".into())));
        }
        let error = store(&["--store-backend", "disk"]).unwrap_err();
        assert!(error.contains("STORE_PATH") && error.contains("--store"), "{error}");
        let error = store(&["--store-backend", "memory", "--store", "x"]).unwrap_err();
        assert!(error.contains("STORE_PATH") && error.contains("STORE_BACKEND"), "{error}");
    }

    #[test]
    fn what_has_no_effect_here_is_named() {
        let options = parse(&["--mqtt-port", "1883", "--erlang-cookie", "x"]).unwrap();
        assert_eq!(options.inert, ["MQTT_PORT", "ERLANG_COOKIE"]);
    }

    /// C-075.
    #[test]
    fn limits_of_a_token_count_in_the_extended_profile_only() {
        let extended = Options::default().settings;
        assert_eq!(extended.publish_rate(Some(20)), Some(20));
        assert_eq!(extended.publish_rate(None), Some(1_000));
        assert_eq!(extended.payload_limit(Some(65_536)), 65_536);
        assert_eq!(extended.payload_limit(Some(2_000_000)), 1_000_000);
        let kraken = Settings { profile: Profile::Kraken, publish_rate_limit: 50, ..extended };
        assert_eq!(kraken.publish_rate(Some(20)), Some(50));
        assert_eq!(kraken.payload_limit(Some(65_536)), MAX_PAYLOAD_BYTES);
    }
}
