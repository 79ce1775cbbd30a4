//! The thread that writes.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::file::File;
use super::{BLOCK, Job, Shared};
use crate::store::{Accepted, Done, Full, Record, Synced};

/// How long after a failure the file is tried again; each time twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// The longest wait between two attempts.
const LAST_RETRY: Duration = Duration::from_secs(10);

/// What has gathered for the next transaction. What a later change makes pointless is not in it, so that it stays
/// small where nothing can be written for long.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// By number.
    pub(super) history: BTreeMap<u64, Arc<Record>>,
    /// By routing key, each until then.
    pub(super) retained: HashMap<Arc<str>, Option<(Arc<Record>, u64)>>,
    /// By number.
    pub(super) accepted: BTreeMap<u64, Accepted>,
    /// By group.
    pub(super) marks: HashMap<Arc<str>, Option<u64>>,
    /// Nothing below is in the history any more.
    pub(super) trim: u64,
    /// The ceiling that numbers have from then on.
    pub(super) ceiling: u64,
}

impl Batch {
    fn add(&mut self, job: Job) -> Option<Done> {
        let change = job.change;
        if let Some(record) = change.message {
            self.history.insert(record.seq, record);
        }
        if let Some(retain) = change.retain {
            self.retained.insert(retain.key, retain.record);
        }
        if let Some(accepted) = change.accepted {
            self.accepted.insert(accepted.seq, accepted);
        }
        if let Some(mark) = change.mark {
            self.marks.insert(mark.group, mark.done);
        }
        job.done
    }

    fn is_empty(&self) -> bool {
        self.history.is_empty()
            && self.retained.is_empty()
            && self.accepted.is_empty()
            && self.marks.is_empty()
    }
}

/// The thread's own things.
pub(super) struct Writer {
    file: File,
    shared: Arc<Shared>,
    batch: Batch,
    /// What the batch weighs in the queue's account.
    bytes: usize,
    /// Who waits for the batch, in order.
    waiting: Vec<Done>,
    /// While the file cannot be written: when to try again, and how long to wait after that.
    retry: Option<(Instant, Duration)>,
}

impl Writer {
    pub(super) fn new(file: File, shared: Arc<Shared>) -> Self {
        let batch = Batch { ceiling: file.ceiling(), ..Batch::default() };
        Self { file, shared, batch, bytes: 0, waiting: Vec::new(), retry: None }
    }

    /// Writes what comes until the store is closed.
    pub(super) fn run(mut self) {
        loop {
            let closed = self.gather();
            if !closed && self.retry.is_some_and(|(at, _)| Instant::now() < at) {
                self.tell(Err(Full));
            } else {
                self.write();
            }
            if closed {
                return;
            }
        }
    }

    /// Waits for something to do and takes all of it; tells whether the store was closed.
    fn gather(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        while queue.jobs.is_empty() && !queue.closed && (!queue.raise || self.retry.is_some()) {
            match self.retry {
                Some((at, _)) if self.shared.bell.wait_until(&mut queue, at).timed_out() => break,
                Some(_) => {}
                None => self.shared.bell.wait(&mut queue),
            }
        }
        if mem::take(&mut queue.raise) {
            self.batch.ceiling = self.file.ceiling() + BLOCK;
        }
        self.batch.trim = queue.trim;
        let (jobs, closed) = (mem::take(&mut queue.jobs), queue.closed);
        drop(queue);
        for job in jobs {
            self.bytes += job.bytes;
            self.waiting.extend(self.batch.add(job));
        }
        // What is not kept itself is accepted also while nothing can be written.
        while self.batch.accepted.len() as u64 > self.file.dedupe_max() {
            self.batch.accepted.pop_first();
        }
        closed
    }

    /// Writes the batch in one transaction, and tells those who wait what became of it.
    fn write(&mut self) {
        let raised = self.batch.ceiling > self.file.ceiling();
        if self.batch.is_empty() && !raised && self.retry.is_none() {
            // They asked only whether all before is synced.
            return self.synced();
        }
        let attempt = match self.retry {
            Some(_) => self.file.reopen().and_then(|()| self.file.commit(&self.batch)),
            None => self.file.commit(&self.batch),
        };
        match attempt {
            Ok(()) => {
                if self.retry.take().is_some() {
                    tracing::info!(path = %self.file.path().display(), "the store can be written again");
                }
                let ceiling = self.file.ceiling();
                self.batch = Batch { ceiling, ..Batch::default() };
                self.shared.ceiling.store(ceiling, Ordering::Release);
                self.shared.syncs.fetch_add(1, Ordering::Relaxed);
                self.synced();
            }
            Err(error) => {
                let wait = self.retry.map_or(FIRST_RETRY, |(_, wait)| wait);
                if self.retry.is_none() {
                    tracing::error!(
                        path = %self.file.path().display(), %error,
                        "cannot write the store: until it can be, publishes that it should keep are refused (42970)"
                    );
                } else {
                    tracing::debug!(%error, "still cannot write the store");
                }
                self.retry = Some((Instant::now() + wait, (wait * 2).min(LAST_RETRY)));
                self.shared.queue.lock().failing = true;
                self.tell(Err(Full));
            }
        }
    }

    /// The batch is in the file.
    fn synced(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.bytes -= mem::take(&mut self.bytes);
        queue.failing = false;
        drop(queue);
        self.tell(Ok(()));
    }

    fn tell(&mut self, synced: Synced) {
        for done in self.waiting.drain(..) {
            done(synced);
        }
    }
}

impl Drop for Writer {
    /// However the thread ends, by a panic too, nobody waits for ever, and nobody is promised anything more.
    fn drop(&mut self) {
        let jobs = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            mem::take(&mut queue.jobs)
        };
        self.waiting.extend(jobs.into_iter().filter_map(|job| job.done));
        self.tell(Err(Full));
    }
}
