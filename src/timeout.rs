//! How long a call may take.

use std::time::Duration;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// As configured.
    Default,
    /// This long. Zero: without waiting.
    After(Duration),
}

impl Timeout {
    /// The time, given the configured one. Limited to some decades, so that a clock can still add it.
    pub(crate) fn or(self, default: Duration) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1 << 30);
        match self {
            Timeout::Default => default,
            Timeout::After(time) => time.min(LONGEST),
        }
    }
}
