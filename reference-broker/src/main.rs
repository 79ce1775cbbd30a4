//! The broker as a program.

use std::io::{IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use nolag_broker::auth::{AllowAll, Auth, DEMO_TOKENS, StaticAuth};
use nolag_broker::clock::Clock;
use nolag_broker::config::{LogFormat, Options, one_line};
use nolag_broker::store::Disk;
use nolag_broker::store::disk::Bounds;
use nolag_broker::{Broker, http};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The token file that is taken without being named.
const DEFAULT_TOKEN_FILE: &str = "auth.json";

/// What is wrong with the settings or the machine: exit status 2.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::from_env() {
        Ok(options) => options,
        Err(asked) if !asked.use_stderr() => {
            let _ = asked.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return unusable(&one_line(&error)),
    };
    if let Err(message) = start_logging(&options) {
        return unusable(&message);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return unusable(&format!("error: cannot start: {error}")),
    };
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => unusable(&message),
    }
}

fn unusable(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(UNUSABLE)
}

fn start_logging(options: &Options) -> Result<(), String> {
    let filter = EnvFilter::try_new(&options.log_level).map_err(|error| {
        let level = &options.log_level;
        format!("error: LOG_LEVEL '{level}' is no level and no filter ({error}); for example info or nolag_broker=debug")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match options.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Where tokens are known.
enum Tokens {
    AllowAll,
    File(PathBuf),
    Demo,
}

async fn run(options: Options) -> Result<(), String> {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit on open files"),
    }
    for name in &options.inert {
        tracing::warn!("{name} is set and has no effect in this version");
    }

    let profile = options.settings.profile;
    let tokens = match options.auth_file {
        _ if options.allow_all => Tokens::AllowAll,
        Some(path) => Tokens::File(path),
        None if PathBuf::from(DEFAULT_TOKEN_FILE).exists() => Tokens::File(DEFAULT_TOKEN_FILE.into()),
        None => Tokens::Demo,
    };
    let auth: Arc<dyn Auth> = match &tokens {
        Tokens::AllowAll => Arc::new(AllowAll),
        Tokens::File(path) => {
            Arc::new(StaticAuth::from_file(path, profile).await.map_err(|error| format!("error: {error}"))?)
        }
        Tokens::Demo => {
            Arc::new(StaticAuth::from_text(DEMO_TOKENS, profile).map_err(|error| format!("error: {error}"))?)
        }
    };

    // Before it listens: a file that cannot be used stops the start.
    let store = match &options.store {
        Some(path) => {
            let bounds = Bounds {
                history_bytes: options.settings.history_max_bytes as u64,
                dedupe_window: options.settings.dedupe_window,
                ..Bounds::default()
            };
            let (disk, kept) = Disk::open(path, bounds).map_err(|error| format!("error: {error}"))?;
            tracing::info!(file = %path.display(), messages = kept.history.len(), "store");
            Some((Arc::new(disk), kept))
        }
        None => None,
    };

    // Tokens that everybody knows are for this machine only, unless somebody says otherwise.
    let demo = matches!(tokens, Tokens::Demo);
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let bind = options.bind.unwrap_or(if demo { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { everywhere });
    let address = SocketAddr::new(bind, options.port);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        format!("error: cannot listen on {address}: {error}; choose another --port or --bind, or 0 for any free port")
    })?;
    let address = listener.local_addr().map_err(|error| format!("error: {error}"))?;
    say(&format!("listening on ws://{address}/ws"));
    match &tokens {
        Tokens::AllowAll => {
            tracing::warn!("AUTH_ALLOW_ALL is on: every token is accepted, for development only");
        }
        Tokens::File(path) => tracing::info!(file = %path.display(), "tokens"),
        Tokens::Demo => {
            say("demo tokens: dev-token-alice, dev-token-bob (topics demo/general/..., room general)");
        }
    }

    let (disk, broker) = match store {
        Some((disk, kept)) => {
            let broker = Broker::with_store(options.settings, auth, Clock::System, disk.clone(), kept);
            (Some(disk), broker)
        }
        None => (None, Broker::new(options.settings, auth, Clock::System)),
    };
    let (mut terminate, mut interrupt) =
        (stop_signal(SignalKind::terminate())?, stop_signal(SignalKind::interrupt())?);
    let mut stop = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::select! {
        () = http::serve(broker.clone(), listener) => {}
        () = stop() => {}
    }
    tracing::info!(connections = broker.connections(), "shutting down; a second signal ends it at once");
    tokio::select! {
        () = broker.shutdown() => {}
        () = stop() => {}
    }
    if let Some(disk) = disk {
        disk.close();
    }
    Ok(())
}

fn stop_signal(kind: SignalKind) -> Result<tokio::signal::unix::Signal, String> {
    signal(kind).map_err(|error| format!("error: cannot listen for signals: {error}"))
}

/// Prints a line for whoever started the broker; one that no longer listens does not matter.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
