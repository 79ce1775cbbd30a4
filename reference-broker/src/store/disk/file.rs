//! What lies in the file, and how.
//!
//! A redb database. History is keyed by number and the window of repeats by a number of its own, so that both grow at one
//! end and are trimmed at the other. Values are MessagePack. Commits are in two phases: what a finished one wrote is
//! either read back whole, or the file is refused as damaged; with one phase redb could fall back to the commit before.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    StorageBackend, StorageError, TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::writer::Batch;
use super::{BLOCK, Bounds};
use crate::store::{Accepted, Kept, Mark, Record, Retain};

/// The form of all below. A broker refuses a file with another.
const FORMAT: u64 = 1;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("nolag");
const NAMES: TableDefinition<'_, &str, &str> = TableDefinition::new("nolag_names");
/// `Record` by number.
const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("history");
/// `(end of its time, Record)` by routing key.
const RETAINED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("retained");
/// `(at, actor, msgRef)` by number.
const ACCEPTED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("accepted");
/// How far each group has come.
const MARKS: TableDefinition<'_, &str, u64> = TableDefinition::new("marks");

/// The keys of `NUMBERS` and `NAMES`.
const KEY_FORMAT: &str = "format";
const KEY_CEILING: &str = "ceiling";
const KEY_FLOOR: &str = "floor";
const KEY_EPOCH: &str = "epoch";

/// Pages that redb keeps in memory; nothing is read again after the start.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// How much a transaction trims beside twice what it adds, so that none takes long.
const SPARE_TRIMS: usize = 256;

/// Why a file cannot be the store. What is in it is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the store {} is in use by another broker: stop that one, or name another file with --store", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is something else, or a store of another version.
    #[error("{} is no store that this broker can use ({reason}): name another file with --store, or move this one away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is different.
        reason: String,
    },
    /// What was written is not there any more as it was.
    #[error(
        "the store {} is damaged ({reason}): put a copy of it in its place, or move it away to begin with an empty one",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it shows.
        reason: String,
    },
    /// The system refuses it.
    #[error("cannot open the store {}: {reason}; name a file with --store that the broker may make and write", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

/// Why something was not written or read.
pub(super) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// An open file.
pub(super) struct File {
    path: PathBuf,
    bounds: Bounds,
    /// None only where it could not be opened again after a failure.
    database: Option<Database>,
    epoch: String,
    state: State,
}

/// What is known of the last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// Numbers up to here may have been given out.
    ceiling: u64,
    /// All that was kept from here on is in the history.
    floor: u64,
    /// What the history weighs.
    history_bytes: u64,
}

impl File {
    /// Opens a file, or makes it, and reads all of it; with the number of the next accepted publish.
    pub(super) fn open(path: &Path, bounds: Bounds) -> Result<(Self, Kept), OpenError> {
        let is_new = !path.exists();
        let backend = connect(path, is_new)?;
        if is_new {
            // The file's name must last as well as its content does.
            sync_folder(path).map_err(|error| io_error(path, &error))?;
        }
        Self::on(backend, path, bounds)
    }

    /// The same for a file that is open already.
    pub(super) fn on(
        backend: impl StorageBackend,
        path: &Path,
        bounds: Bounds,
    ) -> Result<(Self, Kept), OpenError> {
        let unreadable = |error: Fault| OpenError::Damaged { path: path.into(), reason: error.to_string() };
        let unwritable = |error: Fault| OpenError::Io { path: path.into(), reason: error.to_string() };
        let database = database(backend, path)?;
        if is_empty(&database).map_err(unreadable)? {
            initialize(&database).map_err(unwritable)?;
        }
        let head = Head::read(&database, path)?;
        let (kept, history_bytes) = load(&database, &head).map_err(unreadable)?;
        let state = State { ceiling: head.ceiling, floor: head.floor, history_bytes };
        let mut file = Self { path: path.into(), bounds, database: Some(database), epoch: head.epoch, state };
        let reserve = Batch { ceiling: head.ceiling + BLOCK, ..Batch::default() };
        file.commit(&reserve).map_err(unwritable)?;
        Ok((file, kept))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many accepted publishes are remembered.
    pub(super) fn dedupe_max(&self) -> u64 {
        self.bounds.dedupe_max
    }

    /// No number above may be given out.
    pub(super) fn ceiling(&self) -> u64 {
        self.state.ceiling
    }

    /// Opens the file anew, as redb asks for after a failure: what was synced is there.
    pub(super) fn reopen(&mut self) -> Result<(), Fault> {
        // Its lock goes with it.
        self.database = None;
        let database = database(connect(&self.path, false)?, &self.path)?;
        let head = Head::read(&database, &self.path)?;
        // What failed may have reached the file all the same, so it is not behind.
        if head.epoch != self.epoch
            || head.ceiling < self.state.ceiling
            || head.ceiling > self.state.ceiling + BLOCK
        {
            return Err("another broker has used the file meanwhile".into());
        }
        let transaction = database.begin_read()?;
        let mut history_bytes = 0;
        for entry in transaction.open_table(HISTORY)?.iter()? {
            history_bytes += entry?.1.value().len() as u64;
        }
        drop(transaction);
        self.state = State { ceiling: head.ceiling, floor: head.floor, history_bytes };
        self.database = Some(database);
        Ok(())
    }

    /// Writes a batch and syncs it. Writing one again changes nothing.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), Fault> {
        let database = self.database.as_ref().ok_or("the file is not open")?;
        let mut transaction = database.begin_write()?;
        transaction.set_two_phase_commit(true);
        let mut state = self.state;
        write_history(&transaction, batch, &mut state, &self.bounds)?;
        write_retained(&transaction, batch)?;
        write_accepted(&transaction, batch, &self.bounds)?;
        write_marks(&transaction, batch)?;
        state.ceiling = state.ceiling.max(batch.ceiling);
        if (state.ceiling, state.floor) != (self.state.ceiling, self.state.floor) {
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert(KEY_CEILING, state.ceiling)?;
            numbers.insert(KEY_FLOOR, state.floor)?;
        }
        transaction.commit()?;
        self.state = state;
        Ok(())
    }
}

fn write_history(
    transaction: &WriteTransaction,
    batch: &Batch,
    state: &mut State,
    bounds: &Bounds,
) -> Result<(), Fault> {
    let mut history = transaction.open_table(HISTORY)?;
    let mut value = Vec::new();
    for (seq, record) in &batch.history {
        encode(&mut value, &**record)?;
        let before = history.insert(seq, &*value)?.map_or(0, |before| before.value().len() as u64);
        state.history_bytes = (state.history_bytes + value.len() as u64).saturating_sub(before);
    }
    for _ in 0..2 * batch.history.len() + SPARE_TRIMS {
        let Some((seq, bytes)) =
            history.first()?.map(|(seq, value)| (seq.value(), value.value().len() as u64))
        else {
            break;
        };
        if seq >= batch.trim && state.history_bytes <= bounds.history_bytes {
            break;
        }
        history.pop_first()?;
        state.history_bytes = state.history_bytes.saturating_sub(bytes);
        state.floor = state.floor.max(seq + 1);
    }
    Ok(())
}

fn write_retained(transaction: &WriteTransaction, batch: &Batch) -> Result<(), Fault> {
    if batch.retained.is_empty() {
        return Ok(());
    }
    let mut retained = transaction.open_table(RETAINED)?;
    let mut value = Vec::new();
    for (key, record) in &batch.retained {
        match record {
            Some((record, until)) => {
                encode(&mut value, &(until, &**record))?;
                retained.insert(&**key, &*value)?;
            }
            None => drop(retained.remove(&**key)?),
        }
    }
    Ok(())
}

fn write_accepted(transaction: &WriteTransaction, batch: &Batch, bounds: &Bounds) -> Result<(), Fault> {
    let Some((_, newest)) = batch.accepted.last_key_value() else { return Ok(()) };
    let mut accepted = transaction.open_table(ACCEPTED)?;
    let mut value = Vec::new();
    for (number, Accepted { actor, msg_ref, at, .. }) in &batch.accepted {
        encode(&mut value, &(at, actor, msg_ref))?;
        accepted.insert(number, &*value)?;
    }
    let window = u64::try_from(bounds.dedupe_window.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..2 * batch.accepted.len() + SPARE_TRIMS {
        // Only the time is read, with which the value begins.
        let Some(at) = accepted.first()?.map(|(_, value)| time_of(value.value())) else { break };
        let expired = at.is_some_and(|at| at.saturating_add(window) < newest.at);
        if !expired && accepted.len()? <= bounds.dedupe_max {
            break;
        }
        accepted.pop_first()?;
    }
    Ok(())
}

fn write_marks(transaction: &WriteTransaction, batch: &Batch) -> Result<(), Fault> {
    if batch.marks.is_empty() {
        return Ok(());
    }
    let mut marks = transaction.open_table(MARKS)?;
    for (group, done) in &batch.marks {
        match done {
            Some(done) => drop(marks.insert(&**group, done)?),
            None => drop(marks.remove(&**group)?),
        }
    }
    Ok(())
}

/// What a file says of itself.
struct Head {
    epoch: String,
    ceiling: u64,
    floor: u64,
}

impl Head {
    fn read(database: &Database, path: &Path) -> Result<Self, OpenError> {
        let foreign = |reason: &str| OpenError::Foreign { path: path.into(), reason: reason.to_owned() };
        let read = || -> Result<_, redb::Error> {
            let transaction = database.begin_read()?;
            let number = transaction.open_table(NUMBERS)?;
            let number = |key| Ok::<_, redb::Error>(number.get(key)?.map(|value| value.value()));
            let name = transaction.open_table(NAMES)?;
            let epoch = name.get(KEY_EPOCH)?.map(|value| value.value().to_owned());
            Ok((number(KEY_FORMAT)?, number(KEY_CEILING)?, number(KEY_FLOOR)?, epoch))
        };
        match read() {
            Ok((Some(FORMAT), Some(ceiling), Some(floor), Some(epoch))) => Ok(Self { epoch, ceiling, floor }),
            Ok((Some(FORMAT), ..)) => {
                Err(OpenError::Damaged { path: path.into(), reason: "its head is not whole".to_owned() })
            }
            Ok((Some(format), ..)) => Err(foreign(&format!(
                "its format is {format}, and this broker's {FORMAT}: another version wrote it"
            ))),
            Ok((None, ..)) => Err(foreign("a database of something else")),
            Err(redb::Error::TableDoesNotExist(_) | redb::Error::TableTypeMismatch { .. }) => {
                Err(foreign("a database of something else"))
            }
            Err(error) => Err(OpenError::Damaged { path: path.into(), reason: error.to_string() }),
        }
    }
}

fn connect(path: &Path, create: bool) -> Result<FileBackend, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    // What is published is nobody else's business.
    let file = options.mode(0o600).open(path).map_err(|error| io_error(path, &error))?;
    FileBackend::new(file).map_err(|error| OpenError::Io { path: path.into(), reason: error.to_string() })
}

fn database(backend: impl StorageBackend, path: &Path) -> Result<Database, OpenError> {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    let path = path.to_owned();
    builder.create_with_backend(backend).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => OpenError::InUse { path },
        DatabaseError::UpgradeRequired(version) => {
            OpenError::Foreign { path, reason: format!("a database of redb's format {version}") }
        }
        DatabaseError::Storage(StorageError::Corrupted(reason)) => OpenError::Damaged { path, reason },
        DatabaseError::Storage(StorageError::Io(error)) => match error.kind() {
            io::ErrorKind::InvalidData => {
                OpenError::Foreign { path, reason: "it does not begin as one does".to_owned() }
            }
            io::ErrorKind::UnexpectedEof => {
                OpenError::Damaged { path, reason: "its end is missing".to_owned() }
            }
            _ => io_error(&path, &error),
        },
        error => OpenError::Io { path, reason: error.to_string() },
    })
}

fn io_error(path: &Path, error: &io::Error) -> OpenError {
    OpenError::Io { path: path.into(), reason: error.to_string() }
}

/// Syncs the folder that a file lies in.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}

fn is_empty(database: &Database) -> Result<bool, Fault> {
    let transaction = database.begin_read()?;
    Ok(transaction.list_tables()?.next().is_none() && transaction.list_multimap_tables()?.next().is_none())
}

/// Makes an empty database a store.
fn initialize(database: &Database) -> Result<(), Fault> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert(KEY_FORMAT, FORMAT)?;
        numbers.insert(KEY_CEILING, 0)?;
        numbers.insert(KEY_FLOOR, 0)?;
        let epoch = uuid::Uuid::new_v4().simple().to_string();
        transaction.open_table(NAMES)?.insert(KEY_EPOCH, &*epoch)?;
        transaction.open_table(HISTORY)?;
        transaction.open_table(RETAINED)?;
        transaction.open_table(ACCEPTED)?;
        transaction.open_table(MARKS)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Reads all that is kept, and tells what the history weighs.
fn load(database: &Database, head: &Head) -> Result<(Kept, u64), Fault> {
    let transaction = database.begin_read()?;
    let mut names = Names::default();
    let mut history_bytes = 0;
    let mut kept =
        Kept { epoch: head.epoch.clone(), last: head.ceiling, floor: head.floor, ..Kept::default() };
    for entry in transaction.open_table(HISTORY)?.iter()? {
        let (seq, value) = entry?;
        let mut record: Record =
            decode(value.value()).map_err(|error| format!("message {}: {error}", seq.value()))?;
        names.share(&mut record);
        history_bytes += value.value().len() as u64;
        kept.history.push(record);
    }
    for entry in transaction.open_table(RETAINED)?.iter()? {
        let (key, value) = entry?;
        let (until, mut record): (u64, Record) =
            decode(value.value()).map_err(|error| format!("a retained message: {error}"))?;
        names.share(&mut record);
        kept.retained.push(Retain { key: key.value().into(), record: Some((Arc::new(record), until)) });
    }
    for entry in transaction.open_table(ACCEPTED)?.iter()? {
        let (number, value) = entry?;
        let (at, actor, msg_ref): (u64, Arc<str>, Arc<str>) =
            decode(value.value()).map_err(|error| format!("an accepted publish: {error}"))?;
        kept.accepted.push(Accepted { actor: names.shared(actor), msg_ref, at, seq: number.value() });
    }
    for entry in transaction.open_table(MARKS)?.iter()? {
        let (group, done) = entry?;
        kept.marks.push(Mark { group: group.value().into(), done: Some(done.value()) });
    }
    Ok((kept, history_bytes))
}

/// Strings that many records have, each in memory once.
#[derive(Default)]
struct Names(HashSet<Arc<str>>);

impl Names {
    fn share(&mut self, record: &mut Record) {
        for name in [&mut record.base, &mut record.topic, &mut record.from, &mut record.from_type] {
            *name = self.shared(name.clone());
        }
    }

    fn shared(&mut self, name: Arc<str>) -> Arc<str> {
        if let Some(known) = self.0.get(&name) {
            return known.clone();
        }
        self.0.insert(name.clone());
        name
    }
}

fn encode(into: &mut Vec<u8>, value: &impl Serialize) -> Result<(), rmp_serde::encode::Error> {
    into.clear();
    rmp_serde::encode::write(into, value)
}

fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    rmp_serde::from_slice(value)
}

/// The first element of an encoded accepted publish.
fn time_of(value: &[u8]) -> Option<u64> {
    decode::<(u64, serde::de::IgnoredAny, serde::de::IgnoredAny)>(value).ok().map(|(at, ..)| at)
}
