//! Metrics: every number moves as it should, none goes back, and a scrape holds nobody up.

mod counts;
mod endpoints;
mod process;
mod races;
mod text;
