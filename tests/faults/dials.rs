//! Dials: which address, which errno, how soon, how many descriptors.

mod addresses;
mod banners;
mod counters;
mod errnos;
mod options;
mod patience;
mod ports;
mod single_flight;
