//! The bare loop: one thread that writes ready bytes to many sockets. Nothing that delivers messages one write each can cost
//! less, so the broker's CPU time is told as a multiple of this one's.

use std::io::{BufRead as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::process::Process;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sockets to wait for and write to
    #[arg(long)]
    connections: usize,
    /// The bytes to write, in hexadecimal
    #[arg(long)]
    frame: String,
}

/// Starts the loop in a process of its own; it waits for its connections.
pub(crate) async fn start(connections: usize, frame: &[u8]) -> Result<Process> {
    let frame: String = frame.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bare-writer").arg("--connections").arg(connections.to_string()).arg("--frame").arg(frame);
    Process::start(command).await
}

/// What that process does: for each line `RATE COUNT` on standard input, writes the frame to every socket COUNT times, RATE
/// times a second, and answers `done`.
pub(crate) fn write(args: &Args) -> Result<()> {
    let frame = bytes(&args.frame)?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("listening on {}", listener.local_addr()?);
    let accept = || -> Result<TcpStream> {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    let mut sockets = (0..args.connections).map(|_| accept()).collect::<Result<Vec<_>>>()?;

    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (rate, count) = line.split_once(' ').context("expected: RATE COUNT")?;
        let (rate, count): (u32, u32) = (rate.parse()?, count.parse()?);
        let start = Instant::now();
        for round in 0..count {
            let due = Duration::from_secs(1) * round / rate;
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            for socket in &mut sockets {
                socket.write_all(&frame)?;
            }
        }
        println!("done");
    }
    Ok(())
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        bail!("the frame is not hexadecimal");
    }
    (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&hex[at..at + 2], 16)?)).collect()
}
