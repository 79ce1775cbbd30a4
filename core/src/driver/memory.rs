//! A transport in memory, for tests of a client without a network.

use tokio::sync::mpsc;

use super::native::WebSocket;
use super::{Link, OpenFailure, Opening, Transport};
use crate::error::ConnectionCode;

/// How many bytes are under way in each direction before the writer has to wait.
const WIRE_BYTES: usize = 64 * 1024;

/// The server's end of a connection: the bytes of a WebSocket whose handshake is done.
pub type ServerEnd = tokio::io::DuplexStream;

/// Opens connections whose other ends come out of a queue. A queue that is gone refuses them.
#[derive(Debug)]
pub struct Memory {
    accept: mpsc::Sender<ServerEnd>,
}

impl Memory {
    /// A transport, and the queue of the servers' ends.
    pub fn new() -> (Self, mpsc::Receiver<ServerEnd>) {
        let (accept, queue) = mpsc::channel(16);
        (Self { accept }, queue)
    }
}

impl Transport for Memory {
    fn open(&mut self) -> Opening {
        let accept = self.accept.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(WIRE_BYTES);
            accept.send(theirs).await.map_err(|_| OpenFailure {
                code: ConnectionCode::Refused,
                message: "nobody accepts connections".into(),
                retry_after: None,
            })?;
            Ok(Box::new(WebSocket::new(ours, Vec::new())) as Box<dyn Link>)
        })
    }
}
