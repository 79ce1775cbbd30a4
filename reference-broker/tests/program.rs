//! The broker as a program: how it starts, what it says about settings that are wrong, and what it logs.

use std::fs;
use std::io::BufRead as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use kit::process::{Running, program, refused};
use rmpv::Value;
use tempfile::TempDir;

#[macro_use]
mod kit;

fn tokens(token: &str) -> String {
    format!(
        r#"{{"tokens": {{"{token}": {{"actorTokenId": "mira", "projectId": "p", "allowedTopics": []}}}}}}"#
    )
}

/// C-110, and wire protocol 21.1 and 25: without any setting it says where it listens and whom it takes.
#[test]
fn it_starts_without_settings() {
    let directory = TempDir::new().unwrap();
    let mut broker = Running::start(program(directory.path()).args(["--port", "0"]));
    assert!(broker.address.ip().is_loopback(), "demo tokens are for this machine");
    let mut line = String::new();
    broker.stdout.read_line(&mut line).unwrap();
    assert!(line.contains("dev-token-alice") && line.contains("dev-token-bob"), "{line}");
    let health = broker.get("/health");
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with(r#"{"status":"ok"}"#), "{health}");
    assert!(broker.get("/elsewhere").starts_with("HTTP/1.1 404"));
    assert_eq!(broker.auth("dev-token-alice")["actorTokenId"], Value::from("alice"));
    let (status, _) = broker.stop();
    assert_eq!(status, Some(0));
}

#[test]
fn wrong_settings_are_one_line_and_status_2() {
    let directory = TempDir::new().unwrap();
    let said = refused(program(directory.path()).args(["--prot", "8080"]));
    assert!(said.contains("--prot") && said.contains("--port"), "{said}");
    let said = refused(program(directory.path()).env("WS_PORT", "eighty"));
    assert!(said.contains("WS_PORT") && said.contains("eighty") && said.contains("a whole number"), "{said}");
    let said = refused(program(directory.path()).env("BIND_ADDRESS", "localhost"));
    assert!(said.contains("BIND_ADDRESS") && said.contains("127.0.0.1"), "{said}");
    let said = refused(program(directory.path()).env("NOLAG_COMPAT", "both"));
    assert!(said.contains("extended") && said.contains("kraken"), "{said}");
    let said = refused(program(directory.path()).env("BROKER_BACKEND", "mqtt"));
    assert!(said.contains("mqtt") && said.contains("syn"), "{said}");
    let said = refused(program(directory.path()).env("LOG_LEVEL", "loud=very"));
    assert!(said.contains("LOG_LEVEL") && said.contains("loud=very"), "{said}");
}

#[test]
fn a_port_in_use_is_named() {
    let directory = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = refused(program(directory.path()).args(["--port", &port]));
    assert!(said.contains(&port) && said.contains("--port"), "{said}");
}

/// A file that cannot be the store, or is another broker's, stops the start and stays as it is.
#[test]
fn a_store_that_cannot_be_used_stops_the_start() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("notes.txt");
    fs::write(&path, "my notes").unwrap();
    let start = |store: &str| {
        let mut command = program(directory.path());
        command.args(["--port", "0", "--store", store]);
        command
    };
    for store in ["notes.txt", ".", "no/such/folder/store"] {
        let said = refused(&mut start(store));
        assert!(said.contains(store) && said.contains("--store"), "{said}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "my notes");

    let broker = Running::start(&mut start("store"));
    let said = refused(&mut start("store"));
    assert!(said.contains("store is in use by another broker") && said.contains("--store"), "{said}");
    let (status, _) = broker.stop();
    assert_eq!(status, Some(0));
    let whole = fs::read(directory.path().join("store")).unwrap();
    assert_eq!(fs::metadata(directory.path().join("store")).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(directory.path().join("store"), &whole[..whole.len() / 2]).unwrap();
    let said = refused(&mut start("store"));
    assert!(said.contains("store is damaged") && said.contains("move it away"), "{said}");
    fs::write(directory.path().join("store"), &whole).unwrap();
    Running::start(&mut start("store"));
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let directory = TempDir::new().unwrap();
    let mut command = program(directory.path());
    command.args(["--port", "0"]).env("AUTH_FILE", "").env("MAX_MESSAGE_SIZE", "").env("AUTH_ALLOW_ALL", "");
    Running::start(&mut command);
}

#[test]
fn a_token_file_with_a_mistake_stops_the_start() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("tokens.json");
    for (text, place, expected) in [
        ("{\n  \"tokens\": {\n    \"a\": }\n}", "line 3 column 10", "expected value"),
        ("{\"tokens\": {\"a\": {\"actorTokenId\": 7}}}", "line 1 column 35", "expected a string"),
        ("{\"tokens\": {}} x", "line 1 column 16", "trailing characters"),
        ("[]", "line 1 column 0", "expected an object"),
        ("{\"tokens\": {\"a\": [\"mira\"]}}", "line 1 column 17", "expected an object"),
    ] {
        fs::write(&path, text).unwrap();
        let said = refused(program(directory.path()).args(["--port", "0", "--auth", "tokens.json"]));
        assert!(
            said.contains("tokens.json") && said.contains(place) && said.contains(expected),
            "{text}: {said}"
        );
    }
    let said = refused(program(directory.path()).args(["--port", "0", "--auth", "missing.json"]));
    assert!(said.contains("missing.json"), "{said}");
}

#[test]
fn an_unknown_key_is_named_with_its_path() {
    let directory = TempDir::new().unwrap();
    let text = r##"{"_comment": "x", "tokens": {"a": {"actorTokenId": "a", "rateLimits": 5, "rateLimit": 3,
        "allowedTopics": [{"pattern": "#", "permision": "pubSub"}]}, "b": {"projectId": "p"}}}"##;
    fs::write(directory.path().join("auth.json"), text).unwrap();
    let broker = Running::start(program(directory.path()).args(["--port", "0"]));
    assert_eq!(broker.auth("a")["success"], Value::from(true), "auth.json is taken without being named");
    assert_eq!(
        broker.auth("b")["error"],
        Value::from("access_denied"),
        "an entry without an actor is left out"
    );
    let (_, log) = broker.stop();
    assert!(
        log.contains("tokens.a.rateLimits") && log.contains("tokens.a.allowedTopics.0.permision"),
        "{log}"
    );
    assert!(!log.contains("_comment") && log.contains("actorTokenId"), "{log}");
}

/// C-039: a changed file counts at once, a broken one lets nobody in until it is repaired.
#[test]
fn the_token_file_is_followed_while_it_runs() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("tokens.json");
    fs::write(&path, tokens("first")).unwrap();
    let mut command = program(directory.path());
    command.args(["--port", "0", "--auth-cache-ttl-ms", "0"]).env("AUTH_FILE", &path);
    let broker = Running::start(&mut command);
    let accepted = |token| broker.auth(token)["success"] == Value::from(true);
    assert!(accepted("first") && !accepted("second-token"));
    fs::write(&path, tokens("second-token")).unwrap();
    assert!(!accepted("first") && accepted("second-token"));
    fs::write(&path, "{ \"tokens\": ").unwrap();
    assert!(!accepted("second-token"));
    fs::remove_file(&path).unwrap();
    assert!(!accepted("second-token"));
    fs::write(&path, tokens("third")).unwrap();
    assert!(accepted("third"));
    let (_, log) = broker.stop();
    assert!(log.contains("line 1 column") && log.contains("until the token file is repaired"), "{log}");
    assert!(!log.contains('\u{1b}'), "colours are for terminals: {log}");
}

/// C-041, C-128: what is logged, and with which settings it starts.
#[test]
fn tokens_are_not_logged_and_krakens_variables_are_taken() {
    let directory = TempDir::new().unwrap();
    let mut command = program(directory.path());
    for (name, value) in [
        ("WS_PORT", "0"),
        ("MQTT_PORT", "1883"),
        ("AUTH_BACKEND", "static"),
        ("AUTH_ALLOW_ALL", "true"),
        ("AUTH_HTTP_URL", "http://localhost:1"),
        ("BROKER_BACKEND", "syn"),
        ("STORE_BACKEND", "ets"),
        ("STORE_TTL_SECONDS", "3600"),
        ("RECORD_MESSAGES", "true"),
        ("CONTROL_BACKEND", "noop"),
        ("INTERNAL_SECRET", "change_me"),
        ("ERLANG_COOKIE", "x"),
        ("CLUSTER_ENABLED", "false"),
        ("LOG_LEVEL", "trace"),
        ("LOG_FORMAT", "json"),
    ] {
        command.env(name, value);
    }
    let broker = Running::start(&mut command);
    let reply = broker.auth("a-secret-token-that-nobody-shall-see");
    assert_eq!(reply["actorTokenId"], Value::from("a-secret-token-that-nobody-shall-see"));
    let (status, log) = broker.stop();
    assert_eq!(status, Some(0));
    assert!(!log.contains("nobody-shall-see"), "{log}");
    assert!(log.contains("a-secret-token-t…") && log.contains("MQTT_PORT"), "{log}");
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}
