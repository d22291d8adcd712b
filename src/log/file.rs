//! The log file that the environment variable asks for.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{FAILURES, Level, Sink, report_failure};
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
    let mut file = LogFile::open(OsStr::from_bytes(path)).map_err(|e| {
        Error::invalid(format!("{value:?}: the file cannot be opened: {e}")).errno(e.raw_os_error().unwrap_or(0))
    })?;
    Ok((Some(Box::new(move |level, text| file.write(&line(SystemTime::now(), level, text)))), level))
}

struct LogFile {
    file: File,
    /// Absolute, because the host may change its directory; `None` for standard error.
    path: Option<PathBuf>,
    /// Device and inode of the file.
    inode: Option<(u64, u64)>,
    /// A failure has been reported.
    reported: bool,
}

impl LogFile {
    fn open(path: &OsStr) -> io::Result<LogFile> {
        if path == "-" {
            // A duplicate, so that no lock of the standard library's can be held when the process forks.
            let file = io::stderr().as_fd().try_clone_to_owned()?.into();
            return Ok(LogFile { file, path: None, inode: None, reported: false });
        }
        LogFile::open_path(std::path::absolute(path)?)
    }

    fn open_path(path: PathBuf) -> io::Result<LogFile> {
        // Without waiting for the reader of a named pipe; the log's thread waits for it afterwards, when it writes.
        let file = OpenOptions::new().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        let file = File::from(descriptor::above_standard(file.into())?);
        // SAFETY: an open descriptor of ours.
        unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_APPEND) };
        let inode = file.metadata().ok().map(inode);
        Ok(LogFile { file, path: Some(path), inode, reported: false })
    }

    /// One write for a line, so that the lines of several processes do not mix.
    fn write(&mut self, line: &str) {
        self.reopen_if_renamed();
        if let Err(e) = self.file.write_all(line.as_bytes()) {
            self.failed("written", &e);
        }
    }

    fn failed(&mut self, what: &str, e: &io::Error) {
        FAILURES.fetch_add(1, Ordering::Relaxed);
        if let (Some(path), false) = (&self.path, std::mem::replace(&mut self.reported, true)) {
            report_failure(&format!("{} cannot be {what}: {e}", path.display()));
        }
    }

    /// Opens the path again when it no longer names the open file, as after logrotate. While that fails the old file
    /// goes on.
    fn reopen_if_renamed(&mut self) {
        let Some(path) = &self.path else { return };
        if current_inode(path) == self.inode {
            return;
        }
        match LogFile::open_path(path.clone()) {
            Ok(new) => *self = new,
            Err(e) => self.failed("opened again", &e),
        }
    }
}

fn current_inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(inode)
}

fn inode(of: std::fs::Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

pub(super) fn line(at: SystemTime, level: Level, text: &str) -> String {
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
