//! The broker as a program, and a client that waits.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rmpv::Value;
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket, client};

/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program in an empty working directory and without settings.
pub fn program(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nolag-broker"));
    command.env_clear().current_dir(directory).stdin(Stdio::null());
    command
}

/// What it says when it does not start.
pub fn refused(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut started = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut started).unwrap();
    if !started.is_empty() {
        child.kill().unwrap();
    }
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!(started, "", "it started");
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "one line, not {said}");
    said
}

/// A started broker, killed when dropped.
pub struct Running {
    child: Child,
    pub address: SocketAddr,
    pub stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("listening on ws://").and_then(|rest| rest.strip_suffix("/ws"));
        let address = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { child, address, stdout }
    }

    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The reply to `auth` with this token.
    pub fn auth(&self, token: &str) -> Value {
        Connection::open(self.address).ask(&map! {"type": "auth", "token": token})
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL, in the middle of whatever it does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it with SIGTERM and returns its exit status and what it logged.
    pub fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that waits for what it reads.
pub struct Connection(WebSocket<TcpStream>);

impl Connection {
    /// Connects, without `auth`.
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = client(format!("ws://{address}/ws"), stream).unwrap();
        Self(socket)
    }

    /// Connects and authenticates, asking for these features.
    pub fn login(address: SocketAddr, token: &str, features: &[&str]) -> Self {
        let mut connection = Self::open(address);
        let features: Vec<Value> = features.iter().map(|name| Value::from(*name)).collect();
        let reply = connection
            .ask(&map! {"type": "auth", "token": token, "protocolVersion": 2, "features": features});
        assert_eq!(reply["success"], Value::from(true), "{reply}");
        connection
    }

    pub fn send(&mut self, frame: &Value) -> Result<(), Error> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, frame).unwrap();
        self.0.send(Message::Binary(bytes.into()))
    }

    /// The next frame, or why there is none any more.
    pub fn next(&mut self) -> Result<Value, Error> {
        loop {
            if let Message::Binary(bytes) = self.0.read()? {
                return Ok(rmpv::decode::read_value(&mut &*bytes).unwrap());
            }
        }
    }

    /// Sends a request and gives back its answer, which must come next.
    pub fn ask(&mut self, frame: &Value) -> Value {
        self.send(frame).unwrap();
        self.next().unwrap()
    }
}
