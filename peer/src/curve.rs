//! The CURVE keys of a server.

use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::io;
use std::path::Path;

// The bundled libzmq is linked by it.
use zmq_sys as _;

unsafe extern "C" {
    /// Part of libzmq's stable interface; zmq-sys leaves it out.
    fn zmq_curve_public(z85_public_key: *mut c_char, z85_secret_key: *const c_char) -> c_int;
}

/// Characters of a key in Z85.
const TEXT: usize = 40;

pub struct Keys {
    pub secret: Vec<u8>,
    /// In Z85, for the clients.
    pub public: String,
}

impl Keys {
    /// A new pair.
    pub fn make() -> io::Result<Keys> {
        let pair = zmq::CurveKeyPair::new()?;
        let public = zmq::z85_encode(&pair.public_key).map_err(io::Error::other)?;
        Ok(Keys { secret: pair.secret_key.to_vec(), public })
    }

    /// The secret key in a file, as Z85 text.
    pub fn read(path: &Path) -> io::Result<Keys> {
        let wrong = |what: &dyn std::fmt::Display| io::Error::other(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let no_key = "this is no CURVE secret key: 40 characters of Z85";
        let text = Some(text.trim()).filter(|text| text.len() == TEXT).ok_or_else(|| wrong(&no_key))?;
        let secret = zmq::z85_decode(text).map_err(|_| wrong(&no_key))?;
        let public = public_of(text).map_err(|error| wrong(&error))?;
        Ok(Keys { secret, public })
    }
}

fn public_of(secret: &str) -> io::Result<String> {
    let secret = CString::new(secret)?;
    let mut public = [0u8; TEXT + 1];
    // SAFETY: libzmq reads a string of 40 characters with its end, and writes as many.
    let result = unsafe { zmq_curve_public(public.as_mut_ptr().cast(), secret.as_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    String::from_utf8(public[..TEXT].to_vec()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_key_belongs_to_the_secret_one() {
        let pair = Keys::make().unwrap();
        let secret = zmq::z85_encode(&pair.secret).unwrap();
        assert_eq!(public_of(&secret).unwrap(), pair.public);
    }
}
