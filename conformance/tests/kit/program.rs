//! The broker's program as a process that a test starts, kills, drains and starts again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::soon;

/// The program: what `NOLAG_BROKER` names, else what cargo builds from this workspace.
fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("NOLAG_BROKER") {
            return path.into();
        }
        // Tests lie in `target/<profile>/deps`.
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap();
        let mut cargo =
            std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--package", "nolag-broker"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        // What cargo says about this package is not about the other one, which it would build anew.
        for (name, _) in std::env::vars_os() {
            let is_ours = name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
            if is_ours {
                cargo.env_remove(name);
            }
        }
        assert!(cargo.status().unwrap().success(), "the broker's program cannot be built");
        folder.join(format!("nolag-broker{}", std::env::consts::EXE_SUFFIX))
    })
}

/// A broker's process. Dropping it kills the process.
pub struct Broker {
    settings: BTreeMap<&'static str, String>,
    folder: TempDir,
    child: Child,
    pub address: SocketAddr,
}

impl Broker {
    /// Starts one on a free port, with these variables and the demo tokens, and waits until it listens.
    pub async fn start<const N: usize>(settings: [(&'static str, &str); N]) -> Self {
        let settings = settings.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        let folder = TempDir::new().unwrap();
        let (child, address) = launch(&settings, &folder, 0).await;
        Self { settings, folder, child, address }
    }

    /// As `kill -9`.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// As SIGTERM; waits for its end.
    pub async fn drain(&mut self) {
        let id = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        soon("the end of a drained broker", self.child.wait()).await.unwrap();
    }

    /// Starts it again after its end, in the same place.
    pub async fn restart(&mut self) {
        (self.child, _) = launch(&self.settings, &self.folder, self.address.port()).await;
    }

    /// A figure of `/proc/<id>/status` in bytes, such as `VmRSS`.
    pub fn memory(&self, figure: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Lets the peak `VmHWM` begin anew at what is used now.
    pub fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id().unwrap()), "5").unwrap();
    }

    /// The value of a metric with these labels, as Prometheus writes them; 0 where there is none.
    pub async fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

async fn launch(
    settings: &BTreeMap<&'static str, String>,
    folder: &TempDir,
    port: u16,
) -> (Child, SocketAddr) {
    let mut command = Command::new(path());
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]).current_dir(folder.path());
    command.env_clear().envs(settings).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = soon("a broker that listens", lines.next_line()).await.unwrap().unwrap_or_default();
    let address = line.strip_prefix("listening on ws://").and_then(|rest| rest.strip_suffix("/ws"));
    let address = address.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} }); // or its pipe would fill
    (child, address)
}
