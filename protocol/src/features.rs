//! What the two ends of a connection negotiate (features 1).

/// One feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// A subscription continues where it stopped, or says that it cannot; history on join.
    Recover,
    /// A publish that is sent again is recognised.
    Dedupe,
    /// Presence in several rooms at once.
    Rooms,
    /// Several frames in one WebSocket message.
    Batch,
    /// A worker group's message goes to another member when its holder does not acknowledge it.
    Redeliver,
    /// `reauth` is answered.
    Reauth,
    /// Publishes and messages may carry a `traceparent`.
    Trace,
}

impl Feature {
    /// All, in the order of the specification.
    pub const ALL: [Self; 7] =
        [Self::Recover, Self::Dedupe, Self::Rooms, Self::Batch, Self::Redeliver, Self::Reauth, Self::Trace];

    /// As it is called on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recover => "recover",
            Self::Dedupe => "dedupe",
            Self::Rooms => "rooms",
            Self::Batch => "batch",
            Self::Redeliver => "redeliver",
            Self::Reauth => "reauth",
            Self::Trace => "trace",
        }
    }

    /// The feature of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|feature| feature.name() == name)
    }
}

/// A set of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u8);

impl Features {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self((1 << Feature::ALL.len()) - 1);

    /// Those that are named; names nobody knows are left out of account (F-02).
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        names.into_iter().filter_map(Feature::named).collect()
    }

    /// Their names, in the order of the specification.
    pub fn names(self) -> Vec<&'static str> {
        Feature::ALL.into_iter().filter(|feature| self.has(*feature)).map(Feature::name).collect()
    }

    /// Whether this one is among them.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u8) != 0
    }

    /// The set with this one too.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        Self(self.0 | 1 << feature as u8)
    }

    /// Those that both sets have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        Self(features.into_iter().fold(0, |set, feature| set | (1 << feature as u8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_keeps_its_names_and_ignores_others() {
        let set = Features::named(["trace", "time travel", "recover", "trace"]);
        assert_eq!(set.names(), ["recover", "trace"]);
        assert!(set.has(Feature::Recover) && !set.has(Feature::Batch));
        assert_eq!(Features::ALL.and(set), set);
        assert_eq!(Features::named(Features::ALL.names()), Features::ALL);
        assert_eq!(Feature::ALL.into_iter().collect::<Features>(), Features::ALL);
    }
}
