//! The one thread that does the I/O of all clients of a process whose language has a loop of its own.

use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};

/// Where such clients run: a thread called `nolag`, which starts with the first of them and never holds up the end of the process.
/// `generation` tells a process from those that were forked off it, in which the thread does not exist: with another one than
/// before a new thread is started.
pub fn background(generation: u64) -> io::Result<Handle> {
    static RUNNING: Mutex<Option<(u64, Handle)>> = Mutex::new(None);
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    match &*running {
        Some((of, handle)) if *of == generation => Ok(handle.clone()),
        _ => {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            std::thread::Builder::new()
                .name("nolag".to_owned())
                .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
            // The parent's is left as it is: its thread does not exist here, its sockets are the parent's.
            std::mem::forget(running.replace((generation, handle.clone())));
            Ok(handle)
        }
    }
}
