//! Polling a part of a task only when that part was woken.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Tells the wake-ups of one part of a task from those of its other parts.
struct Bell {
    rung: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// Runs a future beside others in one task, and polls it only when something that it waits for has happened.
///
/// A connection's reader clears its whole buffer at each look at the socket; to look once for every frame that is
/// written would cost as much as the writing.
pub(super) async fn when_woken<F: Future>(future: F) -> F::Output {
    let bell = Arc::new(Bell { rung: AtomicBool::new(true), task: AtomicWaker::new() });
    let waker = Waker::from(bell.clone());
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        bell.task.register(context.waker());
        if !bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}
