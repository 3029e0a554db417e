use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;

/// A counter by reason.
#[derive(Debug, Clone, Default)]
pub struct Reasons(Family<[(&'static str, &'static str); 1], Counter>);

impl Reasons {
    /// Registers the counter.
    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.0.clone());
    }

    /// Increments the counter of a reason.
    pub fn count(&self, reason: &'static str) {
        self.0.get_or_create(&[("reason", reason)]).inc();
    }
}

/// A limit on concurrent use of a resource (a counting semaphore that never waits). Clones are the same limit; its
/// gauge is its count.
#[derive(Debug, Clone)]
pub struct Limit {
    max: i64,
    held: Gauge,
    /// Gauge of the total use of several limits.
    total: Option<Gauge>,
}

/// A share of a limit, released on drop.
#[derive(Debug)]
pub struct Share {
    limit: Limit,
    amount: i64,
}

impl Limit {
    /// Creates a limit that counts in this gauge. Only the limit may change the gauge.
    #[must_use]
    pub fn new(max: usize, held: Gauge) -> Self {
        Self { max: count(max), held, total: None }
    }

    /// Also counts this limit's shares in `total`, the sum over several limits.
    #[must_use]
    pub fn counted_in(self, total: Gauge) -> Self {
        Self { total: Some(total), ..self }
    }

    /// The maximum.
    #[must_use]
    pub const fn max(&self) -> i64 {
        self.max
    }

    /// Amount that is still free.
    #[must_use]
    pub fn free(&self) -> usize {
        usize::try_from(self.max - self.held.get()).unwrap_or_default()
    }

    /// Whether anything is in use.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.get() > 0
    }

    /// Whether more than half is in use.
    #[must_use]
    pub fn is_half_held(&self) -> bool {
        self.held.get() > self.max / 2
    }

    /// Takes a share; none if the limit would be exceeded.
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<Share> {
        let amount = count(amount);
        self.add(amount).then(|| Share { limit: self.clone(), amount })
    }

    /// Adds to the held amount. Returns false, without a change, if the limit would be exceeded.
    fn add(&self, amount: i64) -> bool {
        let grown = |held: i64| held.checked_add(amount).filter(|held| *held <= self.max);
        let grown = self.held.inner().fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        if let (Ok(_), Some(total)) = (grown, &self.total) {
            total.inc_by(amount);
        }
        grown.is_ok()
    }

    fn give_back(&self, amount: i64) {
        self.held.dec_by(amount);
        if let Some(total) = &self.total {
            total.dec_by(amount);
        }
    }
}

impl Share {
    /// Enlarges the share. Returns false, without a change, if not enough is free.
    #[must_use]
    pub fn grow(&mut self, by: usize) -> bool {
        let by = count(by);
        let grown = self.limit.add(by);
        if grown {
            self.amount += by;
        }
        grown
    }

    /// Splits off up to `amount` as a share of its own.
    #[must_use]
    pub fn split(&mut self, amount: usize) -> Self {
        let amount = count(amount).min(self.amount);
        self.amount -= amount;
        Self { limit: self.limit.clone(), amount }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.limit.give_back(self.amount);
    }
}

/// Sizes in memory are far below this bound.
fn count(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_and_come_back() {
        let held = Gauge::default();
        let limit = Limit::new(10, held.clone());
        let mut first = limit.take(6).expect("a share");
        assert!(limit.take(5).is_none());
        assert!(first.grow(4));
        assert!(!first.grow(1));
        let second = first.split(7);
        drop(first);
        assert_eq!(held.get(), 7);
        drop(second);
        assert_eq!(held.get(), 0);
        assert!(limit.take(usize::MAX).is_none());
        assert!(limit.take(10).is_some());
    }

    #[test]
    fn limits_have_a_total() {
        let total = Gauge::default();
        let held = Gauge::default();
        let first = Limit::new(10, held.clone()).counted_in(total.clone());
        let second = Limit::new(5, Gauge::default()).counted_in(total.clone());
        let mut of_first = first.take(7).expect("7");
        let of_second = second.take(5).expect("5");
        assert!(second.take(1).is_none() && !of_first.grow(4));
        assert_eq!((held.get(), total.get()), (7, 12));
        assert!(of_first.grow(3));
        drop(of_first.split(9));
        assert_eq!(total.get(), 6);
        drop((of_first, of_second));
        assert_eq!(total.get(), 0);
    }
}
