//! What is true of every frame that any case receives: C-007, C-008 and C-017.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};

use crate::wire::{self, MAX_MESSAGE};

/// What the read path of all connections has seen.
#[derive(Default)]
pub(crate) struct Observed {
    frames: AtomicUsize,
    faults: Mutex<Faults>,
}

/// The first fault of each kind.
#[derive(Default, Clone)]
struct Faults {
    form: Option<String>,
    utf8: Option<String>,
    size: Option<String>,
}

impl Observed {
    /// Looks at the bytes of one binary message.
    pub(crate) fn look_at(&self, bytes: &[u8]) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if bytes.len() > MAX_MESSAGE {
            faults.size.get_or_insert_with(|| format!("a message of {} bytes", bytes.len()));
        }
        if let Err(error) = wire::check_canonical(bytes) {
            let error = wire::cut(&format!("{error:#}"));
            let kind = if error.contains("not UTF-8") { &mut faults.utf8 } else { &mut faults.form };
            kind.get_or_insert(error);
        }
    }

    fn faults(&self) -> Faults {
        self.faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// C-007: every frame was in canonical form.
    pub(crate) fn canonical(&self) -> Result<()> {
        verdict(self.faults().form)
    }

    /// C-008: every text was UTF-8.
    pub(crate) fn utf8(&self) -> Result<()> {
        verdict(self.faults().utf8)
    }

    /// C-017: no message was over the limit.
    pub(crate) fn size(&self) -> Result<()> {
        verdict(self.faults().size)
    }

    /// How many frames were looked at.
    pub(crate) fn frames(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }
}

fn verdict(fault: Option<String>) -> Result<()> {
    match fault {
        None => Ok(()),
        Some(fault) => bail!("{fault}"),
    }
}
