//! The token file: JSON that says who each token stands for (wire protocol 21.1).

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use indexmap::IndexMap;
use nolag_protocol::grant::{Permission, Rule};
use nolag_protocol::json;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Identity, Lobby};
use crate::resume;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("cannot read the token file {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is not the JSON it should be; the text names line, column and what was expected.
    #[error("the token file {path} is not valid: {source}")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
}

/// The content of a token file.
#[derive(Debug, Default, Clone)]
pub struct TokenFile {
    identities: HashMap<String, Identity>,
    /// The first token of each actor, in the order of the file.
    actors: HashMap<String, String>,
}

/// A JSON object. What serde derives for a struct would also take an array of its fields in a row.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }
        json.deserialize_map(Fields(PhantomData))
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    tokens: IndexMap<String, Object<Entry>>,
    /// Keys for publishing over HTTP. Read so that they are no unknown key; that endpoint is not here yet.
    #[serde(default, rename = "apiKeys")]
    _api_keys: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    actor_token_id: Option<String>,
    project_id: Option<String>,
    organization_id: Option<String>,
    actor_type: Option<String>,
    app_id: Option<String>,
    #[serde(rename = "appName")]
    _app_name: Option<String>,
    #[serde(default)]
    allowed_topics: Vec<Object<RuleEntry>>,
    #[serde(default)]
    allowed_lobbies: Vec<Object<LobbyEntry>>,
    max_connections: Option<u64>,
    max_message_size_bytes: Option<serde_json::Number>,
    rate_limit: Option<serde_json::Number>,
    scope_slug: Option<String>,
    auth_expires_at: Option<u64>,
    #[serde(rename = "scopeId")]
    _scope_id: Option<String>,
    #[serde(rename = "scopeName")]
    _scope_name: Option<String>,
    #[serde(default)]
    active_subscriptions: Vec<Value>,
    // Of later parts: webhooks, sessions.
    #[serde(default, rename = "triggerWebhook")]
    _trigger_webhook: Option<Value>,
    #[serde(default, rename = "topicWebhooks")]
    _topic_webhooks: Option<Value>,
    #[serde(default, rename = "webhookSigningSecrets")]
    _webhook_signing_secrets: Option<Value>,
    #[serde(default, rename = "hydrationWebhook")]
    _hydration_webhook: Option<Value>,
    #[serde(default, rename = "persistentSession")]
    _persistent_session: Option<Value>,
    #[serde(default, rename = "sessionExpirySeconds")]
    _session_expiry_seconds: Option<Value>,
}

#[derive(Deserialize)]
struct RuleEntry {
    pattern: Option<String>,
    permission: Option<String>,
    topic: Option<String>,
    room_id: Option<String>,
    room_slug: Option<String>,
    app_id: Option<String>,
    app_name: Option<String>,
    app_slug: Option<String>,
    // For webhooks, which come later.
    #[serde(rename = "roomName")]
    _room_name: Option<String>,
    #[serde(rename = "scope_id")]
    _scope_id: Option<String>,
    #[serde(rename = "scope_slug")]
    _scope_slug: Option<String>,
}

#[derive(Deserialize)]
struct LobbyEntry {
    lobby_slug: Option<String>,
    lobby_id: Option<String>,
    rooms: Option<Vec<String>>,
}

/// Which `app_id` a rule has when several places name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppIdOf {
    /// The rule's own, then the entry's, then the first rule's.
    Rule,
    /// The entry's, then the first rule's, for all rules, as kraken has it.
    Entry,
}

impl TokenFile {
    /// Reads a file's text. What it holds that nobody knows is logged with its path; an entry that cannot be
    /// used is left out and logged.
    pub(crate) fn parse(text: &str, path: &str, app_id_of: AppIdOf) -> Result<Self, TokenFileError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let unknown = |key: serde_ignored::Path<'_>| {
            let key = key.to_string();
            if !key.rsplit('.').next().is_some_and(|name| name.starts_with('_')) {
                tracing::warn!(file = path, key, "unknown key in the token file");
            }
        };
        let parsed = serde_ignored::deserialize::<_, _, Object<Document>>(&mut json, unknown);
        let Object(document) = parsed
            .and_then(|document| json.end().map(|()| document))
            .map_err(|source| TokenFileError::Parse { path: path.to_owned(), source })?;

        let mut file = Self::default();
        for (token, Object(entry)) in document.tokens {
            let shown = super::redacted(&token);
            let Some(identity) = entry.identity(&token, app_id_of) else {
                tracing::error!(file = path, token = shown, "a token without actorTokenId is left out");
                continue;
            };
            file.actors.entry(identity.actor_token_id.clone()).or_insert_with(|| token.clone());
            file.identities.insert(token, identity);
        }
        Ok(file)
    }

    /// Who a token stands for.
    pub(crate) fn by_token(&self, token: &str) -> Option<&Identity> {
        self.identities.get(token)
    }

    /// What holds for an actor, whatever its token.
    pub(crate) fn by_actor(&self, actor_token_id: &str) -> Option<&Identity> {
        self.identities.get(self.actors.get(actor_token_id)?)
    }

    /// The tokens, sorted.
    pub fn tokens(&self) -> Vec<&str> {
        let mut tokens: Vec<&str> = self.identities.keys().map(String::as_str).collect();
        tokens.sort_unstable();
        tokens
    }
}

impl Entry {
    fn identity(self, token: &str, app_id_of: AppIdOf) -> Option<Identity> {
        let first = self.allowed_topics.first().and_then(|rule| rule.0.app_id.clone());
        let shared = self.app_id.or(first);
        let rules = self.allowed_topics.into_iter().map(|Object(rule)| Rule {
            pattern: rule.pattern.unwrap_or_default(),
            permission: rule.permission.as_deref().and_then(Permission::parse),
            topic: rule.topic,
            app_id: match app_id_of {
                AppIdOf::Rule => rule.app_id.or_else(|| shared.clone()),
                AppIdOf::Entry => shared.clone(),
            },
            room_id: rule.room_id,
            room_slug: rule.room_slug,
            app_slug: rule.app_slug.or(rule.app_name),
        });
        let lobbies = self.allowed_lobbies.into_iter().filter_map(|Object(lobby)| {
            Some(Lobby { slug: lobby.lobby_slug?, id: lobby.lobby_id?, rooms: lobby.rooms })
        });
        Some(Identity {
            actor_token_id: self.actor_token_id?,
            project_id: self.project_id,
            organization_id: self.organization_id,
            actor_type: self.actor_type.unwrap_or_else(|| "user".to_owned()),
            rules: rules.collect(),
            lobbies: lobbies.collect(),
            max_connections: self.max_connections,
            max_payload_bytes: positive(self.max_message_size_bytes.as_ref()),
            publishes_per_second: positive(self.rate_limit.as_ref()),
            scope_slug: self.scope_slug,
            expires_at: self.auth_expires_at.or_else(|| super::jwt::expiry(token)),
            active_subscriptions: self.active_subscriptions.iter().filter_map(subscribe).collect(),
            any_room: false,
        })
    }
}

/// A limit counts when it is an integer of at least 1; anything else leaves the default (wire protocol 9).
fn positive(number: Option<&serde_json::Number>) -> Option<u64> {
    number.and_then(serde_json::Number::as_u64).filter(|n| *n > 0)
}

/// The `subscribe` frame of an active subscription: a topic, or a map in any of the spellings that backends have for it
/// (wire protocol 17).
fn subscribe(entry: &Value) -> Option<Vec<u8>> {
    let any = |keys: &[&str]| keys.iter().find_map(|key| entry.get(key).filter(|value| !value.is_null()));
    let texts = ["pattern", "topic", "name"].into_iter().map(|key| entry.get(key).and_then(Value::as_str));
    let topic = entry.as_str().or_else(|| texts.flatten().next())?;
    let msgpack = |value: &Value| json::to_msgpack(&value.to_string()).ok().flatten();
    let filters = any(&["filters"]).and_then(msgpack);
    let load_balance = any(&["loadBalance", "load_balance"]).and_then(Value::as_bool);
    let group = any(&["loadBalanceGroup", "load_balance_group"]).and_then(msgpack);
    Some(resume::frame(topic, filters.as_deref(), load_balance, group.as_deref()))
}
