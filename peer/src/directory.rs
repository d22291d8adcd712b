//! A directory of our own, for the file of an endpoint `ipc://*`.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Dropping it removes it.
pub struct Directory(PathBuf);

impl Directory {
    /// Also the endpoint in it.
    pub fn with_endpoint() -> io::Result<(Directory, String)> {
        let template = std::env::temp_dir().join("kvconn-peer-XXXXXX");
        let template = CString::new(template.as_os_str().as_bytes())?.into_raw();
        // SAFETY: mkdtemp writes over the six X of a string that is ours; from_raw takes it back.
        let (made, name) = unsafe { (!libc::mkdtemp(template).is_null(), CString::from_raw(template)) };
        if !made {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(OsString::from_vec(name.into_bytes()));
        let endpoint = format!("ipc://{}", path.join("socket").display());
        Ok((Directory(path), endpoint))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
