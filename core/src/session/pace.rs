//! How many publishes may be written in any second (client-api 7.5).

use std::time::Duration;

/// How finely a window is cut; a publish counts for up to one slot longer than the window.
const SLOTS: usize = 64;

/// At most so many in any window of time, in constant memory.
#[derive(Debug)]
pub(super) struct Pace {
    /// `None` lets everything pass.
    limit: Option<u64>,
    slot: Duration,
    /// How many passed in each slot; `counts[n % SLOTS]` belongs to slot `n`. Without a limit there are none.
    counts: Vec<u32>,
    /// The newest slot that is counted.
    newest: u64,
    total: u64,
}

impl Pace {
    /// No limit.
    pub(super) fn unlimited() -> Self {
        Self { limit: None, slot: Duration::ZERO, counts: Vec::new(), newest: 0, total: 0 }
    }

    /// A broker's limit less a tenth, in any second; a limit of 1 a second becomes 1 in 1.2 s.
    pub(super) fn below(per_second: u64) -> Self {
        let limit = per_second.saturating_mul(9) / 10;
        let window = if limit == 0 { Duration::from_millis(1_200) } else { Duration::from_secs(1) };
        Self::of(limit.max(1), window)
    }

    /// A limit as it is, in any second.
    pub(super) fn exactly(per_second: u32) -> Self {
        Self::of(u64::from(per_second.max(1)), Duration::from_secs(1))
    }

    fn of(limit: u64, window: Duration) -> Self {
        // One slot less than there are, since the oldest is counted whole.
        let slot = window / (u32::try_from(SLOTS).unwrap_or(64) - 1);
        Self { limit: Some(limit), slot, counts: vec![0; SLOTS], ..Self::unlimited() }
    }

    fn slot_of(&self, now: Duration) -> u64 {
        u64::try_from(now.as_nanos() / self.slot.as_nanos().max(1)).unwrap_or(u64::MAX)
    }

    /// Forgets the slots that the window has left behind.
    fn advance(&mut self, now: Duration) {
        let current = self.slot_of(now).max(self.newest);
        let steps = (current - self.newest).min(SLOTS as u64);
        for step in 1..=steps {
            let count = &mut self.counts[index(self.newest.saturating_add(step))];
            self.total -= u64::from(std::mem::take(count));
        }
        self.newest = current;
    }

    /// When the next one may pass; `now` at the earliest.
    pub(super) fn next(&mut self, now: Duration) -> Duration {
        let Some(limit) = self.limit else { return now };
        self.advance(now);
        if self.total < limit {
            return now;
        }
        // The window moves on until its oldest slots hold enough of what is too much.
        let mut left = self.total;
        for age in (0..SLOTS as u64).rev() {
            let Some(slot) = self.newest.checked_sub(age) else { continue };
            left -= u64::from(self.counts[index(slot)]);
            if left < limit {
                let free = slot.saturating_add(SLOTS as u64);
                return self.slot.saturating_mul(u32::try_from(free).unwrap_or(u32::MAX)).max(now);
            }
        }
        now
    }

    /// One passes.
    pub(super) fn count(&mut self, now: Duration) {
        if self.limit.is_some() {
            self.advance(now);
            self.counts[index(self.newest)] += 1;
            self.total += 1;
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // less than SLOTS
fn index(slot: u64) -> usize {
    (slot % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// API-042: no window of a second holds more than the limit less a tenth.
    #[test]
    fn no_second_holds_more_than_the_pace() {
        for rate in [1, 2, 7, 50, 1_000] {
            let mut pace = Pace::below(rate);
            let (mut now, mut passed) = (Duration::from_millis(12_345), Vec::new());
            while passed.len() < 300 {
                let next = pace.next(now);
                if next > now {
                    now = next;
                    continue;
                }
                pace.count(now);
                passed.push(now);
                now += Duration::from_micros(137);
            }
            let limit = u32::try_from((rate * 9 / 10).max(1)).unwrap();
            for (n, first) in passed.iter().enumerate() {
                let within =
                    passed[n..].iter().take_while(|at| **at < *first + Duration::from_secs(1)).count();
                assert!(within <= limit as usize, "{within} of {rate} in a second");
            }
            // And it is not much slower than that either.
            let seconds = passed[passed.len() - 1].saturating_sub(passed[0]).as_secs_f64();
            let ideal = (300.0 / f64::from(limit) - 1.0).max(0.0);
            assert!(seconds <= ideal * 1.25 + 0.2, "{seconds} s for {rate}, ideally {ideal} s");
        }
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = Pace::unlimited();
        for _ in 0..10_000 {
            assert_eq!(pace.next(Duration::ZERO), Duration::ZERO);
            pace.count(Duration::ZERO);
        }
    }

    /// A clock that runs for centuries does not overflow anything.
    #[test]
    fn late_times_are_no_trouble() {
        let mut pace = Pace::below(1);
        pace.count(Duration::MAX);
        assert!(pace.next(Duration::MAX) <= Duration::MAX);
    }
}
