//! How long a call may take.

use std::time::Duration;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// As configured.
    Default,
    /// This long; zero: without waiting.
    After(Duration),
}

impl Timeout {
    /// The time meant, given the configured one. A timeout of centuries is cut to some decades, which a clock can
    /// still add.
    pub(crate) fn or(self, default: Duration) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1 << 30);
        match self {
            Timeout::Default => default,
            Timeout::After(time) => time.min(LONGEST),
        }
    }
}
