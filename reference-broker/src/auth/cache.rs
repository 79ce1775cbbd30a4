//! Remembers accepted tokens for a while, so that a storm of returning clients does not become one of requests
//! to the backend (wire protocol 21.4). Refusals are not remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{Auth, Identity, Refusal, Revalidation};
use crate::clock::later;

/// How many tokens are remembered at most.
const CAPACITY: usize = 100_000;

/// The backend behind a cache of its answers.
pub(crate) struct Cache {
    auth: Arc<dyn Auth>,
    ttl: Duration,
    /// By digest, so that a dump of memory holds no tokens that are not in use.
    accepted: Mutex<HashMap<Digest, Accepted>>,
}

type Digest = [u8; 32];

/// An identity, and until when it need not be asked for again.
type Accepted = (Instant, Arc<Identity>);

impl Cache {
    pub(crate) fn new(auth: Arc<dyn Auth>, ttl: Duration) -> Self {
        Self { auth, ttl, accepted: Mutex::default() }
    }

    /// Who a token stands for. Whether it has expired by now is for the caller to see, since an answer from
    /// the cache may have been given earlier.
    pub(crate) async fn validate(&self, token: &str) -> Result<Arc<Identity>, Refusal> {
        if self.ttl.is_zero() {
            return self.auth.validate(token).await.map(Arc::new);
        }
        let digest: Digest = Sha256::digest(token).into();
        if let Some((until, identity)) = self.accepted.lock().get(&digest)
            && *until > Instant::now()
        {
            return Ok(identity.clone());
        }
        let identity = Arc::new(self.auth.validate(token).await?);
        let now = Instant::now();
        let mut accepted = self.accepted.lock();
        if accepted.len() >= CAPACITY {
            accepted.retain(|_, (until, _)| *until > now);
            if accepted.len() >= CAPACITY {
                accepted.clear();
            }
        }
        accepted.insert(digest, (later(now, self.ttl), identity.clone()));
        Ok(identity)
    }

    /// What holds now for an actor; always asked afresh.
    pub(crate) async fn revalidate(&self, actor_token_id: &str) -> Revalidation {
        self.auth.revalidate(actor_token_id).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{BoxFuture, FutureExt as _};

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Auth for Counting {
        fn validate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            async move { if token == "good" { Ok(Identity::default()) } else { Err(Refusal::Denied) } }
                .boxed()
        }
        fn revalidate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Revalidation> {
            async { Revalidation::Unavailable }.boxed()
        }
    }

    /// C-029.
    #[tokio::test(start_paused = true)]
    async fn a_success_is_remembered_for_its_time_and_a_failure_not() {
        let backend = Arc::new(Counting::default());
        let cache = Cache::new(backend.clone(), Duration::from_secs(30));
        let asked = || backend.0.load(Ordering::Relaxed);
        for _ in 0..3 {
            assert!(cache.validate("good").await.is_ok());
        }
        assert_eq!(asked(), 1);
        for _ in 0..3 {
            assert_eq!(cache.validate("bad").await, Err(Refusal::Denied));
        }
        assert_eq!(asked(), 4);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(cache.validate("good").await.is_ok());
        assert_eq!(asked(), 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(cache.validate("good").await.is_ok());
        assert_eq!(asked(), 5);
    }
}
