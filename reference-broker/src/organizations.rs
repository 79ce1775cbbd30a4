//! Who has how many connections: the limit is counted per organization (wire protocol 6.4).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Live authenticated connections of every organization.
#[derive(Debug, Default)]
pub(crate) struct Organizations {
    live: Mutex<HashMap<Arc<str>, u64>>,
}

/// One connection's place; it is given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    /// `None`: the connection belongs to no organization and is not counted.
    counted: Option<(Arc<Organizations>, Arc<str>)>,
}

impl Organizations {
    /// Takes a place, or none when the organization has `max` already.
    pub(crate) fn enter(self: &Arc<Self>, organization: Option<&str>, max: Option<u64>) -> Option<Seat> {
        let Some(organization) = organization else { return Some(Seat { counted: None }) };
        let mut live = self.live.lock();
        let (name, count) =
            live.get_key_value(organization).map_or((organization.into(), 0), |(k, n)| (k.clone(), *n));
        if max.is_some_and(|max| count >= max) {
            return None;
        }
        live.insert(name.clone(), count + 1);
        Some(Seat { counted: Some((self.clone(), name)) })
    }
}

impl Seat {
    /// Whether the organization has more connections than it may.
    pub(crate) fn is_over(&self, max: Option<u64>) -> bool {
        let Some((organizations, name)) = &self.counted else { return false };
        max.is_some_and(|max| organizations.live.lock().get(name).is_some_and(|count| *count > max))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((organizations, name)) = &self.counted else { return };
        let mut live = organizations.live.lock();
        if let Some(count) = live.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                live.remove(name);
            }
        }
    }
}
