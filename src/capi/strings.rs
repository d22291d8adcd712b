//! Texts across the boundary: C strings in, arrays inside structs and the caller's buffers out.

use std::ffi::c_char;
use std::marker::PhantomData;
use std::{ptr, slice, str};

use super::pointers::Out;
use crate::error::{Error, Result};

/// The longest text that is accepted: a buffer without a NUL is not read for ever.
const LONGEST: usize = 4096;

/// The caller's C string.
pub(super) struct Text<'a> {
    name: &'static str,
    start: *const c_char,
    life: PhantomData<&'a c_char>,
}

impl<'a> Text<'a> {
    /// # Safety
    /// `start` is NULL, or may be read up to its NUL, or for `LONGEST` + 1 bytes, for the life `'a`.
    pub(super) unsafe fn new(name: &'static str, start: *const c_char) -> Text<'a> {
        Text { name, start, life: PhantomData }
    }

    /// Its bytes up to the NUL or one more than the longest; none for NULL.
    #[inline(always)]
    pub(super) fn bytes(&self) -> Option<&'a [u8]> {
        if self.start.is_null() {
            return None;
        }
        // SAFETY: readable as far as strnlen looks, by `new`'s contract.
        Some(unsafe { slice::from_raw_parts(self.start.cast(), libc::strnlen(self.start, LONGEST + 1)) })
    }

    /// The text. Rejects NULL.
    pub(super) fn required(&self) -> Result<&'a str> {
        let Some(bytes) = self.bytes() else {
            return Err(Error::invalid(format!("{} is NULL", self.name)));
        };
        if bytes.len() > LONGEST {
            return Err(Error::invalid(format!("{} is longer than {LONGEST} bytes, or has no NUL", self.name)));
        }
        str::from_utf8(bytes).map_err(|_| Error::invalid(format!("{} is not UTF-8", self.name)))
    }

    /// A text for a person. It is never refused: it is cut to what the structs can show, and what is not UTF-8 is
    /// replaced.
    pub(super) fn remark(&self) -> Option<String> {
        let bytes = self.bytes()?;
        let shown = &bytes[..bytes.len().min(super::KVCONN_TEXT_SIZE - 1)];
        let text = match str::from_utf8(shown) {
            Ok(text) => text.to_string(),
            // The cut has split a character, and the rest is good.
            Err(e) if e.error_len().is_none() => String::from_utf8_lossy(&shown[..e.valid_up_to()]).into_owned(),
            Err(_) => String::from_utf8_lossy(shown).into_owned(),
        };
        Some(text)
    }
}

/// The longest beginning of `text` that has at most `most` bytes and splits no character.
pub(super) fn cut(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A text inside a struct: cut to fit, ended with NUL, then zeros.
pub(super) fn inline<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(cut(text, N - 1).bytes()) {
        *to = from as c_char;
    }
    array
}

/// A buffer that kvconn fills with a text, and the out-parameter for the size of the whole text.
pub(super) struct Buffer {
    start: *mut c_char,
    capacity: usize,
    needed: Out<usize>,
}

impl Buffer {
    /// Makes it the empty text, and `needed` zero.
    ///
    /// # Safety
    /// `start` is NULL, or may be written for `capacity` bytes until the call ends; `needed` is as for [`Out::new`].
    pub(super) unsafe fn new(start: *mut c_char, capacity: usize, needed: *mut usize) -> Buffer {
        // SAFETY: the same contract.
        let buffer = Buffer { start, capacity, needed: unsafe { Out::new("needed", needed) } };
        buffer.write("");
        buffer
    }

    /// Rejects a NULL buffer with a capacity.
    pub(super) fn required(&self) -> Result<()> {
        if self.start.is_null() && self.capacity > 0 {
            return Err(Error::invalid("buffer is NULL"));
        }
        self.needed.optional()
    }

    /// Writes as much as fits, ended with NUL, and the size that all of it needs with its NUL.
    pub(super) fn set(&self, text: &str) {
        self.write(text);
        self.needed.set(text.len() + 1);
    }

    fn write(&self, text: &str) {
        if self.start.is_null() || self.capacity == 0 {
            return;
        }
        let text = cut(text, self.capacity - 1);
        // SAFETY: the text and its NUL fit into the capacity, for which the buffer may be written by `new`'s contract.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), self.start.cast(), text.len());
            self.start.add(text.len()).write(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn text(bytes: &CString) -> Text<'_> {
        // SAFETY: a live C string.
        unsafe { Text::new("t", bytes.as_ptr()) }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("aé", 2), "a");
        let array: [c_char; 3] = inline("aéb");
        assert_eq!(array.map(|c| c as u8), [b'a', 0, 0]);
    }

    #[test]
    fn over_long_and_malformed_texts_are_refused() {
        let long = CString::new(vec![b'x'; LONGEST + 1]).unwrap();
        assert!(text(&long).required().unwrap_err().message.contains("longer"));
        let longest = CString::new(vec![b'x'; LONGEST]).unwrap();
        assert_eq!(text(&longest).required().unwrap().len(), LONGEST);
        let broken = CString::new(vec![0xff]).unwrap();
        assert!(text(&broken).required().unwrap_err().message.contains("UTF-8"));
    }

    #[test]
    fn a_remark_is_never_refused() {
        let broken = CString::new(vec![b'a', 0xff, b'b']).unwrap();
        assert_eq!(text(&broken).remark().unwrap(), "a\u{fffd}b");
        let long = CString::new("é".repeat(200)).unwrap();
        assert_eq!(text(&long).remark().unwrap(), "é".repeat(127));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { Text::new("t", ptr::null()) }.remark(), None);
    }

    #[test]
    fn a_buffer_gets_what_fits_and_the_size_of_all() {
        let mut bytes = [1 as c_char; 4];
        let mut needed = 0;
        // SAFETY: both live through the block.
        let buffer = unsafe { Buffer::new(bytes.as_mut_ptr(), 3, &mut needed) };
        buffer.required().unwrap();
        buffer.set("hello");
        assert_eq!(bytes.map(|c| c as u8), [b'h', b'e', 0, 1]);
        assert_eq!(needed, 6);
    }
}
