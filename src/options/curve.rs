//! CURVE keys. They are checked when they are set, never shown, and wiped from memory when nothing needs them any more.

use std::fmt;

use zeroize::Zeroizing;

use crate::libzmq;

/// A CURVE key, in Z85. Its `Debug` form does not show it: a caller may have mixed up the keys and given the secret one
/// as the public one.
#[derive(Clone, PartialEq, Eq)]
pub struct CurveKey {
    text: Zeroizing<Box<str>>,
    public: Box<str>,
}

impl CurveKey {
    /// A public key. `None` if the text is not one.
    pub(super) fn public(text: &str) -> Option<CurveKey> {
        libzmq::is_curve_key(text).then(|| CurveKey { text: wiped(text), public: text.into() })
    }

    /// A secret key. `None` if the text is not one.
    pub(super) fn secret(text: &str) -> Option<CurveKey> {
        let public = libzmq::curve_public_key(text)?;
        Some(CurveKey { text: wiped(text), public: public.into() })
    }

    /// The key itself.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether this secret key and that public key form a pair.
    pub(super) fn belongs_to(&self, public: &CurveKey) -> bool {
        self.public == *public.text
    }
}

/// A copy that is overwritten when it is dropped.
fn wiped(text: &str) -> Zeroizing<Box<str>> {
    Zeroizing::new(text.into())
}

impl fmt::Debug for CurveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CurveKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wiped cannot be looked at: its memory is given back. So the type promises it.
    #[test]
    fn a_key_is_wiped_when_it_is_dropped() {
        fn promises<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        let key = CurveKey::public("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7").expect("a key");
        promises(&key.text);
        assert_eq!(key.clone(), key);
    }
}
