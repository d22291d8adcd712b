//! What the environment variable asks for: a log in a file.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Level, Sink};
use crate::error::{Error, Result};
use crate::sys::descriptor;

/// Reads `level:path`, and opens the file for appending. No sink if the level is `off`.
pub(super) fn sink(value: &OsStr) -> Result<(Option<Sink>, Level)> {
    let bytes = value.as_bytes();
    let parts = bytes.iter().position(|b| *b == b':').map(|colon| (&bytes[..colon], &bytes[colon + 1..]));
    let level = parts.and_then(|(word, _)| Level::ALL.into_iter().find(|l| l.name().as_bytes() == word));
    let (Some(level), Some((_, path))) = (level, parts) else {
        return Err(Error::invalid(format!(
            "{value:?} is not level:path with a level off, error, warn, info or debug"
        )));
    };
    if level == Level::Off {
        return Ok((None, level));
    }
    let file = open(OsStr::from_bytes(path)).map_err(|e| {
        Error::invalid(format!("{value:?}: the file cannot be opened: {e}")).errno(e.raw_os_error().unwrap_or(0))
    })?;
    let sink: Sink = Box::new(move |level, text| {
        // One write for a line, so that the lines of several processes do not mix. There is nobody to tell that it
        // failed.
        let _ = (&file).write_all(line(SystemTime::now(), level, text).as_bytes());
    });
    Ok((Some(sink), level))
}

/// A descriptor of our own, close-on-exec.
fn open(path: &OsStr) -> io::Result<File> {
    if path == "-" {
        // A duplicate, so that no lock of the standard library's can be held when the process forks.
        return Ok(io::stderr().as_fd().try_clone_to_owned()?.into());
    }
    // Without waiting for whoever reads a named pipe; the log's thread waits for him afterwards, when it writes.
    let file = OpenOptions::new().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let file = File::from(descriptor::above_standard(file.into())?);
    // SAFETY: an open descriptor of ours.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
    Ok(file)
}

fn line(at: SystemTime, level: Level, text: &str) -> String {
    let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(since_1970.as_secs()).unwrap_or(0);
    // SAFETY: all zero is a valid tm, whose zone may be null.
    let mut t: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both live for the call. It fails for years that do not fit an int, and leaves zeros.
    unsafe { libc::gmtime_r(&seconds, &mut t) };
    let (year, month) = (t.tm_year + 1900, t.tm_mon + 1);
    let mut out = String::with_capacity(text.len() + 64);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z kvconn[{}] {} {text}",
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec,
        since_1970.subsec_micros(),
        std::process::id(),
        level.name(),
    );
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_time_process_level_and_text() {
        let at = UNIX_EPOCH + Duration::from_micros(1_709_210_096_000_789);
        let expected = format!("2024-02-29T12:34:56.000789Z kvconn[{}] warn a b\n", std::process::id());
        assert_eq!(line(at, Level::Warn, "a b"), expected);
    }

    #[test]
    fn a_named_pipe_that_nobody_reads_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("kvconn-log-pipe-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let value = format!("info:{}", path.display());
        let begun = std::time::Instant::now();
        let refused = sink(OsStr::new(&value)).map(drop).expect_err("nobody reads it");
        assert_eq!((refused.os_errno, begun.elapsed() < Duration::from_secs(5)), (libc::ENXIO, true), "{refused:?}");
        std::fs::remove_file(path).unwrap();
    }
}
