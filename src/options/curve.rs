//! CURVE keys. They are checked when they are set, and never shown.

use std::fmt;

use crate::libzmq;

/// A CURVE key, in Z85. Its `Debug` form does not show it: a caller may have mixed up the keys and given the secret one
/// as the public one.
#[derive(Clone, PartialEq, Eq)]
pub struct CurveKey {
    text: Box<str>,
    public: Box<str>,
}

impl CurveKey {
    /// A public key. `None` if the text is not one.
    pub(super) fn public(text: &str) -> Option<CurveKey> {
        libzmq::is_curve_key(text).then(|| CurveKey { text: text.into(), public: text.into() })
    }

    /// A secret key. `None` if the text is not one.
    pub(super) fn secret(text: &str) -> Option<CurveKey> {
        let public = libzmq::curve_public_key(text)?;
        Some(CurveKey { text: text.into(), public: public.into() })
    }

    /// The key itself.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether this secret key and that public key form a pair.
    pub(super) fn belongs_to(&self, public: &CurveKey) -> bool {
        self.public == public.text
    }
}

impl fmt::Debug for CurveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CurveKey")
    }
}
