//! `AUTH_ALLOW_ALL`: everybody may do everything, for development (wire protocol 21.1).

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use nolag_protocol::grant::{Permission, Rule};

use super::{Auth, Identity, Refusal, Revalidation, jwt, redacted};

/// Takes any token for an actor of that name.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl AllowAll {
    fn identity(token: &str) -> Identity {
        let everything = Rule {
            pattern: "#".to_owned(),
            permission: Some(Permission::PubSub),
            app_id: Some("dev-app".to_owned()),
            ..Rule::default()
        };
        Identity {
            actor_token_id: token.to_owned(),
            organization_id: Some("dev-org".to_owned()),
            project_id: Some("dev-project".to_owned()),
            actor_type: "user".to_owned(),
            rules: vec![everything],
            expires_at: jwt::expiry(token),
            any_room: true,
            ..Identity::default()
        }
    }
}

impl Auth for AllowAll {
    fn validate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Refusal>> {
        tracing::warn!(token = redacted(token), "AUTH_ALLOW_ALL accepts any token");
        ready(Ok(Self::identity(token))).boxed()
    }

    fn revalidate<'a>(&'a self, actor_token_id: &'a str) -> BoxFuture<'a, Revalidation> {
        ready(Revalidation::Valid(Box::new(Self::identity(actor_token_id)))).boxed()
    }
}
