//! The static backend: a token file that is read again when it changes, or the demo tokens compiled in.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::Mutex;

use super::token_file::AppIdOf;
use super::{Auth, Identity, Refusal, Revalidation, TokenFile, TokenFileError};
use crate::config::Profile;

/// The demo tokens: a token file like any other (wire protocol 21.1).
pub const DEMO_TOKENS: &str = include_str!("demo-tokens.json");

/// Tokens from a file, or from a text that does not change.
pub struct StaticAuth {
    path: Option<PathBuf>,
    app_id_of: AppIdOf,
    current: Mutex<Current>,
}

struct Current {
    /// Modification time and size when it was read.
    stamp: Option<(SystemTime, u64)>,
    /// `None` while the file cannot be used: then nobody new is accepted.
    tokens: Option<Arc<TokenFile>>,
}

impl StaticAuth {
    /// Tokens of a text.
    pub fn from_text(text: &str, profile: Profile) -> Result<Self, TokenFileError> {
        let app_id_of = app_id_of(profile);
        let tokens = TokenFile::parse(text, "(built in)", app_id_of)?;
        Ok(Self {
            path: None,
            app_id_of,
            current: Mutex::new(Current { stamp: None, tokens: Some(Arc::new(tokens)) }),
        })
    }

    /// Tokens of a file, which must be readable and valid now.
    pub async fn from_file(path: &Path, profile: Profile) -> Result<Self, TokenFileError> {
        let app_id_of = app_id_of(profile);
        let stamp = stamp(path).await?;
        let tokens = read(path, app_id_of).await?;
        let current = Current { stamp: Some(stamp), tokens: Some(Arc::new(tokens)) };
        Ok(Self { path: Some(path.to_owned()), app_id_of, current: Mutex::new(current) })
    }

    /// The tokens as they are now; none while the file cannot be used.
    pub async fn tokens(&self) -> Option<Arc<TokenFile>> {
        let mut current = self.current.lock().await;
        let Some(path) = &self.path else { return current.tokens.clone() };
        match stamp(path).await {
            Ok(stamp) if current.stamp == Some(stamp) => {}
            Ok(stamp) => {
                current.stamp = Some(stamp);
                current.tokens = match read(path, self.app_id_of).await {
                    Ok(tokens) => {
                        tracing::info!(file = %path.display(), "read the token file again");
                        Some(Arc::new(tokens))
                    }
                    Err(error) => {
                        tracing::error!(%error, "no token is accepted until the token file is repaired");
                        None
                    }
                };
            }
            Err(error) => {
                if current.stamp.take().is_some() {
                    tracing::error!(%error, "no token is accepted until the token file is back");
                }
                current.tokens = None;
            }
        }
        current.tokens.clone()
    }
}

fn app_id_of(profile: Profile) -> AppIdOf {
    match profile {
        Profile::Extended => AppIdOf::Rule,
        Profile::Kraken => AppIdOf::Entry,
    }
}

async fn stamp(path: &Path) -> Result<(SystemTime, u64), TokenFileError> {
    let read = async {
        let metadata = tokio::fs::metadata(path).await?;
        Ok((metadata.modified()?, metadata.len()))
    };
    read.await.map_err(|source| TokenFileError::Read { path: path.display().to_string(), source })
}

async fn read(path: &Path, app_id_of: AppIdOf) -> Result<TokenFile, TokenFileError> {
    let shown = path.display().to_string();
    match tokio::fs::read_to_string(path).await {
        Ok(text) => TokenFile::parse(&text, &shown, app_id_of),
        Err(source) => Err(TokenFileError::Read { path: shown, source }),
    }
}

impl Auth for StaticAuth {
    fn validate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>> {
        async move {
            let tokens = self.tokens().await.ok_or(Refusal::Denied)?;
            tokens.by_token(token).cloned().ok_or(Refusal::Denied)
        }
        .boxed()
    }

    /// The entry of the same actor counts, whatever its token (21.5). While the file is broken nobody is
    /// thrown out.
    fn revalidate<'a>(&'a self, actor_token_id: &'a str) -> BoxFuture<'a, Revalidation> {
        async move {
            let Some(tokens) = self.tokens().await else { return Revalidation::Unavailable };
            match tokens.by_actor(actor_token_id) {
                Some(identity) => Revalidation::Valid(Box::new(identity.clone())),
                None => Revalidation::Invalid("token_revoked".to_owned()),
            }
        }
        .boxed()
    }
}
