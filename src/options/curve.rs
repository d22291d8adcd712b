//! CURVE keys, checked when they are given and never shown.

use std::fmt;

use crate::libzmq;

/// A CURVE key, in Z85. Its `Debug` form tells nothing of it: who mixes two keys up may have given the secret one for
/// the public one.
#[derive(Clone, PartialEq, Eq)]
pub struct CurveKey {
    text: Box<str>,
    public: Box<str>,
}

impl CurveKey {
    /// A public key; `None` when it is none.
    pub(super) fn public(text: &str) -> Option<CurveKey> {
        libzmq::is_curve_key(text).then(|| CurveKey { text: text.into(), public: text.into() })
    }

    /// A secret key; `None` when it is none.
    pub(super) fn secret(text: &str) -> Option<CurveKey> {
        let public = libzmq::curve_public_key(text)?;
        Some(CurveKey { text: text.into(), public: public.into() })
    }

    /// The key itself.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether this secret key and that public key were made together.
    pub(super) fn belongs_to(&self, public: &CurveKey) -> bool {
        self.public == public.text
    }
}

impl fmt::Debug for CurveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CurveKey")
    }
}
