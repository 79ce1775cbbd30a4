//! The store on files of its own, and on files that crashed, were damaged, or cannot be written.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{BackendError, Database, StorageBackend, TableDefinition};
use tempfile::TempDir;

use super::file::File;
use super::writer::Batch;
use super::{BLOCK, Bounds, Disk, MAX_WAITING_BYTES, OpenError};
use crate::store::{Accepted, Change, Full, Kept, Mark, Record, Retain, Store, Synced};

const BOUNDS: Bounds =
    Bounds { history_bytes: 1 << 20, dedupe_window: Duration::from_secs(600), dedupe_max: 1_000 };

fn record(seq: u64) -> Record {
    Record {
        seq,
        timestamp: 1_700_000_000_000 + seq,
        base: "app/jobs".into(),
        topic: "jobs".into(),
        exact: seq.is_multiple_of(2),
        key: seq.is_multiple_of(3).then(|| "vip".into()),
        reaches_below: seq.is_multiple_of(5),
        data: Bytes::from(vec![0xC4, u8::try_from(seq % 100).unwrap(), 1, 2, 3]),
        msg_id: Some(format!("id-{seq}").into()),
        from: "alice".into(),
        from_type: "actor".into(),
        silent: seq.is_multiple_of(7).then(|| "tab-1".into()),
        trace: seq.is_multiple_of(11).then(|| "00-trace".into()),
    }
}

fn message(seq: u64) -> Change {
    Change { message: Some(Arc::new(record(seq))), ..Change::default() }
}

fn accepted(number: u64, at: u64) -> Change {
    let accepted = Accepted { actor: "alice".into(), msg_ref: format!("r-{number}").into(), at, seq: number };
    Change { accepted: Some(accepted), ..Change::default() }
}

fn seqs(kept: &Kept) -> Vec<u64> {
    kept.history.iter().map(|record| record.seq).collect()
}

fn store(folder: &TempDir) -> PathBuf {
    folder.path().join("nolag.store")
}

fn open(path: &Path) -> (Disk, Kept) {
    Disk::open(path, BOUNDS).unwrap()
}

/// Puts a change and waits until it is synced or refused.
fn settle(disk: &Disk, change: Change) -> Synced {
    let (tell, told) = mpsc::channel();
    disk.put(change, Some(Box::new(move |synced| tell.send(synced).unwrap())));
    told.recv().unwrap()
}

/// Features 2: what was put is there at the next start, and the run of numbers is the same one.
#[test]
fn everything_comes_back() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let (disk, first) = open(&path);
    assert_eq!((first.last, first.floor), (0, 0));
    assert!(!first.epoch.is_empty() && first.epoch.len() <= 64);
    assert_eq!(disk.level(), "disk");
    let kept_until = Retain { key: "app/jobs/vip".into(), record: Some((Arc::new(record(3)), 99)) };
    let cleared = Retain { key: "app/cleared".into(), record: Some((Arc::new(record(2)), 99)) };
    let accepted =
        |msg_ref: &str, seq| Accepted { actor: "alice".into(), msg_ref: msg_ref.into(), at: 5, seq };
    let mark = |group: &str, done| Some(Mark { group: group.into(), done });
    for seq in 1..=3 {
        disk.put(message(seq), None);
    }
    disk.put(
        Change { retain: Some(cleared.clone()), mark: mark("gone", Some(1)), ..Change::default() },
        None,
    );
    disk.put(
        Change {
            message: Some(Arc::new(record(4))),
            retain: Some(kept_until.clone()),
            accepted: Some(accepted("r-1", 4)),
            mark: mark("workers", Some(1)),
        },
        None,
    );
    assert_eq!(settle(&disk, Change { accepted: Some(accepted("r-2", 5)), ..Change::default() }), Ok(()));
    disk.put(Change { retain: Some(Retain { record: None, ..cleared }), ..Change::default() }, None);
    disk.put(Change { mark: mark("gone", None), ..Change::default() }, None);
    disk.put(Change { mark: mark("workers", Some(3)), ..Change::default() }, None);
    drop(disk);

    let (_disk, kept) = open(&path);
    assert_eq!(kept.history, (1..=4).map(record).collect::<Vec<_>>());
    assert_eq!(kept.retained, [kept_until]);
    assert_eq!(kept.accepted, [accepted("r-1", 4), accepted("r-2", 5)]);
    assert_eq!(kept.marks, [mark("workers", Some(3)).unwrap()]);
    assert_eq!(kept.epoch, first.epoch);
    assert!(kept.last >= 4);
}

/// Group commit (features 3): all that gathers during one sync shares the next, and everybody is told in order.
#[test]
fn a_sync_is_shared_by_all_that_wait() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&store(&folder));
    let (tell, told) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let first = tell.clone();
    // The thread stands in this call until all others are put.
    disk.put(
        message(1),
        Some(Box::new(move |synced| {
            first.send((1, synced)).unwrap();
            held.recv().unwrap();
        })),
    );
    assert_eq!(told.recv().unwrap(), (1, Ok(())));
    for seq in 2..=500 {
        let tell = tell.clone();
        disk.put(message(seq), Some(Box::new(move |synced| tell.send((seq, synced)).unwrap())));
    }
    let syncs = disk.syncs();
    release.send(()).unwrap();
    for seq in 2..=500 {
        assert_eq!(told.recv().unwrap(), (seq, Ok(())));
    }
    assert_eq!(disk.syncs(), syncs + 1);
    assert_eq!(settle(&disk, Change::default()), Ok(()), "nothing to write, all is synced");
    assert_eq!(disk.syncs(), syncs + 1);
}

/// Features 2: what is trimmed does not come back, and the file tells from where its history is whole.
#[test]
fn history_is_trimmed_at_one_end() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let (disk, _) = open(&path);
    for seq in 1..=100 {
        disk.put(message(seq), None);
    }
    assert_eq!(settle(&disk, Change::default()), Ok(()));
    disk.trim(61);
    assert_eq!(settle(&disk, message(101)), Ok(()));
    drop(disk);
    let (disk, kept) = open(&path);
    assert_eq!((seqs(&kept), kept.floor), ((61..=101).collect(), 61));
    drop(disk);

    // And by what it weighs, oldest out.
    let weight = 41 * 200;
    let (disk, _) = Disk::open(&path, Bounds { history_bytes: weight / 4, ..BOUNDS }).unwrap();
    assert_eq!(settle(&disk, message(102)), Ok(()));
    drop(disk);
    let (_disk, kept) = open(&path);
    let left = seqs(&kept);
    assert!(left.len() > 3 && left.len() < 40, "{left:?}");
    assert_eq!((left.first(), left.last()), (Some(&kept.floor), Some(&102)));
}

/// Features 3: the window of repeats is bounded in time and number.
#[test]
fn accepted_publishes_are_forgotten_in_time() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let (disk, _) = open(&path);
    let start = 1_700_000_000_000;
    for number in 0..10 {
        disk.put(accepted(number, start + number), None);
    }
    // The clock goes back an hour: nothing is forgotten for that.
    assert_eq!(settle(&disk, accepted(10, start - 3_600_000)), Ok(()));
    assert_eq!(settle(&disk, accepted(11, start + 600_004)), Ok(()));
    drop(disk);
    let refs =
        |kept: &Kept| kept.accepted.iter().map(|accepted| accepted.msg_ref.to_string()).collect::<Vec<_>>();
    let (disk, kept) = open(&path);
    let expected = (4..=11).map(|number| format!("r-{number}")).collect::<Vec<_>>();
    assert_eq!(refs(&kept), expected);
    drop(disk);
    let (disk, _) = Disk::open(&path, Bounds { dedupe_max: 2, ..BOUNDS }).unwrap();
    assert_eq!(settle(&disk, accepted(12, start + 600_004)), Ok(()));
    drop(disk);
    assert_eq!(refs(&open(&path).1), ["r-11", "r-12"]);
}

/// Features 2: a crash at any moment gives no number out twice, though the file is not told of each.
#[test]
fn numbers_stay_below_what_the_file_knows() {
    let folder = TempDir::new().unwrap();
    let (path, crashed) = (store(&folder), folder.path().join("crashed"));
    let (disk, _) = open(&path);
    let mut seq = 1;
    for round in 0..3 {
        while disk.covers(seq).is_ok() {
            seq += BLOCK / 4;
            // What it asks for is synced, and the file lies there as a kill would leave it.
            assert_eq!(settle(&disk, Change::default()), Ok(()));
            if seq > (round + 1) * BLOCK {
                break;
            }
        }
        assert!(seq > (round + 1) * BLOCK, "the bound rises in time");
        fs::copy(&path, &crashed).unwrap();
        let (after, kept) = open(&crashed);
        assert!(kept.last >= seq - BLOCK / 4, "{seq} was given out, and {} is the last", kept.last);
        assert_eq!(after.covers(kept.last + 1), Ok(()));
        assert_eq!(after.covers(kept.last + 10 * BLOCK), Err(Full), "no further than it knows");
    }
}

/// A backlog that the disk does not take is a reason to refuse (features 8).
#[test]
fn a_backlog_is_bounded() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&store(&folder));
    let (release, held) = mpsc::channel::<()>();
    disk.put(message(1), Some(Box::new(move |_| held.recv().unwrap())));
    let mut large = record(2);
    large.data = Bytes::from(vec![0; MAX_WAITING_BYTES / 4]);
    for _ in 0..3 {
        assert_eq!(disk.check(), Ok(()));
        disk.put(Change { message: Some(Arc::new(large.clone())), ..Change::default() }, None);
        large.seq += 1;
    }
    disk.put(Change { message: Some(Arc::new(large)), ..Change::default() }, None);
    assert_eq!(disk.check(), Err(Full));
    release.send(()).unwrap();
    assert_eq!(settle(&disk, Change::default()), Ok(()));
    assert_eq!(disk.check(), Ok(()));
}

#[test]
fn a_closed_store_takes_nothing() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&store(&folder));
    disk.put(message(1), None);
    disk.close();
    assert_eq!((disk.check(), settle(&disk, message(2))), (Err(Full), Err(Full)));
    let (_again, kept) = open(&store(&folder));
    assert_eq!(seqs(&kept), [1], "what had gathered was written");
}

#[test]
fn a_file_has_one_broker() {
    let folder = TempDir::new().unwrap();
    let (_disk, _) = open(&store(&folder));
    let refused = Disk::open(&store(&folder), BOUNDS).unwrap_err();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    assert!(
        refused.to_string().contains("nolag.store") && refused.to_string().contains("--store"),
        "{refused}"
    );
}

/// A file that cannot be a store is named with what to do, and left as it is.
#[test]
fn files_of_others_are_refused() {
    let folder = TempDir::new().unwrap();
    let refused = |path: &Path| {
        let before = fs::read(path).ok();
        let error = Disk::open(path, BOUNDS).unwrap_err();
        assert_eq!(fs::read(path).ok(), before, "{error}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && !text.contains('\n'), "{text}");
        error
    };
    let other = folder.path().join("other");
    let zeros = vec![0; 100_000];
    for content in [&b"{\"tokens\": {}}"[..], b"redb", &zeros, include_bytes!("tests.rs")] {
        fs::write(&other, content).unwrap();
        assert!(matches!(refused(&other), OpenError::Foreign { .. }));
    }
    assert!(matches!(refused(folder.path()), OpenError::Io { .. }), "a folder");
    assert!(matches!(refused(&folder.path().join("no/such/folder")), OpenError::Io { .. }));

    // A database that is not ours, and one of a later version.
    let edit = |name: &str, definition: TableDefinition<'_, &str, u64>| {
        let path = folder.path().join(name);
        if name == "later" {
            drop(open(&path));
        }
        let database = Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(definition).unwrap().insert("format", 2).unwrap();
        transaction.commit().unwrap();
        drop(database);
        Disk::open(&path, BOUNDS).unwrap_err()
    };
    let strange = edit("strange", TableDefinition::new("accounts"));
    assert!(matches!(strange, OpenError::Foreign { .. }), "{strange}");
    let later = edit("later", TableDefinition::new("nolag"));
    assert!(
        matches!(later, OpenError::Foreign { .. }) && later.to_string().contains("format is 2"),
        "{later}"
    );
    // An empty one becomes a store.
    fs::write(&other, b"").unwrap();
    drop(open(&other));
}

/// A file that was damaged gives all that was synced, or is refused and left as it is.
#[test]
fn damage_is_found() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let (disk, _) = open(&path);
    for seq in 1..=200 {
        disk.put(message(seq), None);
        disk.put(accepted(seq, 1_700_000_000_000), None);
    }
    assert_eq!(settle(&disk, message(201)), Ok(()));
    let crashed = fs::read(&path).unwrap();
    drop(disk);
    let closed = fs::read(&path).unwrap();
    let whole = seqs(&open(&path).1);
    let (mut opened, mut refused) = (0, 0);
    let mut put_to = |bytes: &[u8], what: &str| {
        let image = Image::of(bytes);
        match image.open() {
            Ok(kept) => {
                assert_eq!((seqs(&kept), kept.accepted.len()), (whole.clone(), 200), "{what}");
                opened += 1;
            }
            Err(error @ (OpenError::Damaged { .. } | OpenError::Foreign { .. })) => {
                // The first page tells how long redb found the file to be.
                let (page, left) = (4_096.min(bytes.len()), image.0.lock());
                assert!(left[page..] == bytes[page..], "{what}: {error}, and it was changed");
                refused += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    };
    for (name, file) in [("crashed", &crashed), ("closed", &closed)] {
        for cut in (1..file.len()).step_by(4_096 / 2 - 1) {
            put_to(&file[..cut], &format!("{name}, cut at {cut}"));
        }
        for at in (0..320).step_by(7).chain((320..file.len()).step_by(911)) {
            let mut bytes = file.clone();
            bytes[at] ^= 0xFF;
            put_to(&bytes, &format!("{name}, other at {at}"));
        }
        let mut bytes = file.clone();
        let tail = bytes.len() - 4_096;
        bytes[tail..].fill(0xAA);
        put_to(&bytes, &format!("{name}, a torn end"));
    }
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}

/// A file in memory, that is there when the database has gone.
#[derive(Debug, Clone)]
struct Image(Arc<Mutex<Vec<u8>>>);

impl Image {
    fn of(bytes: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(bytes.to_vec())))
    }

    fn open(&self) -> Result<Kept, OpenError> {
        File::on(self.clone(), Path::new("image"), BOUNDS).map(|(_, kept)| kept)
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let bytes = self.0.lock();
        out.copy_from_slice(bytes.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        apply(&mut self.0.lock(), &Step::Length(length), None);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        apply(&mut self.0.lock(), &Step::Write(offset, data.to_vec()), None);
        Ok(())
    }
}

/// What reaches a file, step by step.
#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// A file that keeps a journal, and can be full.
#[derive(Debug)]
struct Journaled {
    file: FileBackend,
    journal: Arc<Mutex<Vec<Step>>>,
    full: Arc<AtomicBool>,
}

impl Journaled {
    fn new(path: &Path) -> Self {
        let file =
            fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        Self { file: FileBackend::new(file).unwrap(), journal: Arc::default(), full: Arc::default() }
    }

    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Journaled {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.journal.lock().push(Step::Length(len));
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()?;
        self.journal.lock().push(Step::Sync);
        // The test plays the loss of what was not synced; the disk need not.
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.journal.lock().push(Step::Write(offset, data.to_vec()));
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

/// Carries a step out on the bytes of a file; of a torn write only the first bytes arrive.
fn apply(image: &mut Vec<u8>, step: &Step, torn: Option<usize>) {
    match step {
        Step::Write(offset, data) => {
            let at = usize::try_from(*offset).unwrap();
            let data = &data[..torn.map_or(data.len(), |torn| torn % data.len())];
            if image.len() < at + data.len() {
                image.resize(at + data.len(), 0);
            }
            image[at..at + data.len()].copy_from_slice(data);
        }
        Step::Length(length) => image.resize(usize::try_from(*length).unwrap(), 0),
        Step::Sync => {}
    }
}

/// F-10: after a crash at any step, with any of what was not synced lost or torn, the file opens, and holds all that was
/// said to be synced and nothing by half.
#[test]
fn a_crash_loses_nothing_that_was_synced() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let backend = Journaled::new(&path);
    let journal = backend.journal.clone();
    let (mut file, ..) = File::on(backend, &path, BOUNDS).unwrap();
    // After how many steps the file was ready, and each commit was through.
    let ready = journal.lock().len();
    let mut through = Vec::new();
    for commit in 1..=12_u64 {
        let seqs = (commit - 1) * 10 + 1..=commit * 10;
        let history: BTreeMap<_, _> = seqs.clone().map(|seq| (seq, Arc::new(record(seq)))).collect();
        let accepted =
            Accepted { actor: "alice".into(), msg_ref: commit.to_string().into(), at: commit, seq: commit };
        let accepted = BTreeMap::from([(commit, accepted)]);
        let trim = (commit * 10).saturating_sub(40);
        file.commit(&Batch { history, accepted, trim, ..Batch::default() }).unwrap();
        through.push(journal.lock().len());
    }
    let steps = journal.lock().clone();
    let mut random = fastrand::Rng::with_seed(7);
    let (mut synced, mut synced_to) = (Vec::new(), 0);
    for end in 0..=steps.len() {
        if end > 0 && matches!(steps[end - 1], Step::Sync) {
            steps[synced_to..end].iter().for_each(|step| apply(&mut synced, step, None));
            synced_to = end;
        }
        if end < ready {
            continue;
        }
        for _ in 0..3 {
            let mut image = synced.clone();
            for step in &steps[synced_to..end] {
                match random.u8(..4) {
                    0 => {}
                    1 => apply(&mut image, step, Some(random.usize(..))),
                    _ => apply(&mut image, step, None),
                }
            }
            let kept = Image::of(&image).open().unwrap_or_else(|error| panic!("step {end}: {error}"));
            let promised = through.iter().filter(|done| **done <= end).count() as u64;
            let last = kept.history.last().map_or(0, |record| record.seq);
            assert!(
                last >= promised * 10 && last.is_multiple_of(10),
                "step {end}: {last} of {promised} commits"
            );
            let commits = last / 10;
            let first = kept.history.first().map_or(1, |record| record.seq);
            assert_eq!(first, kept.floor.max(1));
            assert!(first <= (commits * 10).saturating_sub(40).max(1));
            assert_eq!(kept.history, (first..=last).map(record).collect::<Vec<_>>(), "step {end}");
            let numbers = kept.accepted.iter().map(|accepted| accepted.at).collect::<Vec<_>>();
            assert_eq!(numbers, (1..=commits).collect::<Vec<_>>(), "step {end}");
        }
    }
}

/// Features 8: where nothing can be written everybody is told so; when it can be again, all that had come is written, and the
/// store goes on without a restart.
#[test]
fn a_full_disk_is_told_and_survived() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let backend = Journaled::new(&path);
    let full = backend.full.clone();
    let (file, _) = File::on(backend, &path, BOUNDS).unwrap();
    let disk = Disk::on(file).unwrap();
    assert_eq!(settle(&disk, message(1)), Ok(()));
    // What opens the file again has room: it is as if some were made meanwhile.
    full.store(true, Ordering::SeqCst);
    assert_eq!(settle(&disk, message(2)), Err(Full));
    assert_eq!(disk.check(), Err(Full));
    assert_eq!(settle(&disk, accepted(1, 1)), Err(Full), "at once, not at the next attempt");
    while disk.check().is_err() {
        std::thread::yield_now();
    }
    assert_eq!(settle(&disk, message(3)), Ok(()));
    drop(disk);
    let (_disk, kept) = open(&path);
    assert_eq!(seqs(&kept), [1, 2, 3]);
    assert_eq!(kept.accepted.len(), 1);
}

/// A file that somebody else took meanwhile is not written any more.
#[test]
fn a_file_that_was_exchanged_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let path = store(&folder);
    let backend = Journaled::new(&path);
    let full = backend.full.clone();
    let (file, _) = File::on(backend, &path, BOUNDS).unwrap();
    let disk = Disk::on(file).unwrap();
    full.store(true, Ordering::SeqCst);
    assert_eq!(settle(&disk, message(1)), Err(Full));
    fs::remove_file(&path).unwrap();
    let (_, others) = open(&path);
    disk.close();
    let (_again, kept) = open(&path);
    assert_eq!((kept.epoch, kept.history), (others.epoch, Vec::new()));
}
