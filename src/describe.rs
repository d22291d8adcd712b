//! The present state as text, for a person.
