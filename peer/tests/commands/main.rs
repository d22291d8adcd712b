//! Each command and option of kvconn-peer, against real connections of libzmq and of the kernel.

mod lives;
mod rank;
mod reading;
mod words;
