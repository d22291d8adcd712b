//! CURVE keys in Z85, checked.

use std::ffi::{CStr, c_char, c_int};

use zeroize::Zeroizing;

use super::check;

unsafe extern "C" {
    /// Part of libzmq's stable interface; zmq-sys leaves it out.
    fn zmq_curve_public(z85_public_key: *mut c_char, z85_secret_key: *const c_char) -> c_int;
}

/// Length of a CURVE key in Z85.
const CURVE_KEY: usize = 40;

/// Whether a text is a CURVE key in Z85.
pub(crate) fn is_curve_key(text: &str) -> bool {
    let mut bytes = Zeroizing::new([0; CURVE_KEY / 5 * 4]);
    let Some(text) = curve_key_text(text) else { return false };
    // SAFETY: the text is NUL-terminated, and the bytes have room for what its 40 characters mean.
    !unsafe { zmq_sys::zmq_z85_decode(bytes.as_mut_ptr(), text.as_ptr().cast()) }.is_null()
}

/// The public key that belongs to a secret one, both in Z85; `None` when that is no key.
pub(crate) fn curve_public_key(secret: &str) -> Option<String> {
    let mut public = [0_u8; CURVE_KEY + 1];
    let secret = curve_key_text(secret)?;
    // SAFETY: the key is NUL-terminated and of 40 characters; the other is written as 40 characters and a NUL.
    check(unsafe { zmq_curve_public(public.as_mut_ptr().cast(), secret.as_ptr().cast()) }).ok()?;
    Some(CStr::from_bytes_until_nul(&public).ok()?.to_str().ok()?.to_owned())
}

/// The key with a NUL behind it: libzmq looks for the end of the text, and trusts that it is not too long.
fn curve_key_text(text: &str) -> Option<Zeroizing<[u8; CURVE_KEY + 1]>> {
    let text = Some(text.as_bytes()).filter(|text| text.len() == CURVE_KEY && !text.contains(&0))?;
    let mut terminated = Zeroizing::new([0; CURVE_KEY + 1]);
    terminated[..CURVE_KEY].copy_from_slice(text);
    Some(terminated)
}
