//! Which addresses are well formed (wire protocol 13.1).
//!
//! A topic is levels joined by `/`, compared byte for byte. Empty levels are legal on the wire; the builders
//! of app, room and topic names refuse them.

/// The longest topic, in bytes.
pub const MAX_TOPIC_BYTES: usize = 1_024;

/// The longest app, room or topic name that a builder takes, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// What is wrong with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// No bytes at all.
    #[error("it is empty")]
    Empty,
    /// More than [`MAX_TOPIC_BYTES`], or for a name [`MAX_NAME_BYTES`].
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// U+0000 somewhere.
    #[error("it contains U+0000")]
    Nul,
    /// `+` or `#` where nothing may match more than itself.
    #[error("`+` and `#` are for subscriptions only")]
    Wildcard,
    /// `+` or `#` beside other characters, or `#` before the last level.
    #[error("`+` and `#` stand alone in a level, and `#` in the last level only")]
    MisplacedWildcard,
    /// `/` in a name.
    #[error("a name contains no `/`")]
    Slash,
}

/// Checks the topic of a publish.
pub fn check_publish(topic: &str) -> Result<(), TopicError> {
    check_text(topic, MAX_TOPIC_BYTES)?;
    if topic.contains(['+', '#']) { Err(TopicError::Wildcard) } else { Ok(()) }
}

/// Checks the pattern of a subscription.
pub fn check_subscribe(pattern: &str) -> Result<(), TopicError> {
    check_text(pattern, MAX_TOPIC_BYTES)?;
    let mut levels = pattern.split('/').peekable();
    while let Some(level) = levels.next() {
        let misplaced = match level {
            "+" => false,
            "#" => levels.peek().is_some(),
            _ => level.contains(['+', '#']),
        };
        if misplaced {
            return Err(TopicError::MisplacedWildcard);
        }
    }
    Ok(())
}

/// Checks one app, room or topic name, as the clients' builders take them.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    check_text(name, MAX_NAME_BYTES)?;
    if name.contains('/') {
        Err(TopicError::Slash)
    } else if name.contains(['+', '#']) {
        Err(TopicError::Wildcard)
    } else {
        Ok(())
    }
}

/// Checks the name of a load-balanced group (wire protocol 16).
pub fn check_group(name: &str) -> Result<(), TopicError> {
    if name.len() > MAX_NAME_BYTES {
        Err(TopicError::TooLong(MAX_NAME_BYTES))
    } else if name.contains('/') {
        Err(TopicError::Slash)
    } else if name.contains(['+', '#']) {
        Err(TopicError::Wildcard)
    } else {
        Ok(())
    }
}

fn check_text(text: &str, max: usize) -> Result<(), TopicError> {
    if text.is_empty() {
        Err(TopicError::Empty)
    } else if text.len() > max {
        Err(TopicError::TooLong(max))
    } else if text.contains('\0') {
        Err(TopicError::Nul)
    } else {
        Ok(())
    }
}

/// Whether a pattern matches more than itself: some level is `+`, or the last is `#`.
pub fn is_wildcard(pattern: &str) -> bool {
    pattern.split('/').any(|level| level == "+") || pattern == "#" || pattern.ends_with("/#")
}

/// The topic name: the last level.
pub fn name(topic: &str) -> &str {
    topic.rsplit('/').next().unwrap_or_default()
}
