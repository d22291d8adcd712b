//! Values of settings: a value for each setting ([`Values`]), or some explicit values ([`Options`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use super::sources::Source;
use super::{CurveKey, Key, Reach, SETTINGS, Setting, text};
use crate::error::{Error, Result};

const COUNT: usize = SETTINGS.len();

/// One value of a setting. Cheap to clone. Its `Debug` form shows no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, a flag, or a word's index.
    Number(i64),
    /// No text, no key.
    None,
    /// A text in canonical form.
    Text(Arc<str>),
    /// A key.
    Key(Arc<CurveKey>),
}

/// A value for every setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    values: [Value; COUNT],
    /// For people only.
    pub(super) sources: [Source; COUNT],
}

/// Settings that were given explicitly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options([Option<Value>; COUNT]);

/// None was given.
impl Default for Options {
    fn default() -> Options {
        Options([const { None }; COUNT])
    }
}

/// What the loss of endpoints does to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLoss {
    /// Only raises events.
    Report,
    /// The first loss fails the node.
    Any,
    /// The loss of every endpoint that was READY fails the node.
    All,
}

impl Value {
    /// The number, or 0 if it is not one.
    pub fn number(&self) -> i64 {
        match self {
            Value::Number(number) => *number,
            Value::None | Value::Text(_) | Value::Key(_) => 0,
        }
    }
}

impl Options {
    /// Sets one option from text. An error changes nothing.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
            return Err(Error::invalid(format!("there is no option {name:?}; docs/options.md lists them")));
        };
        self.0[setting.key as usize] = Some(setting.parse(value)?);
        Ok(())
    }

    /// Whether the option was given and is not 0.
    pub fn flag(&self, key: Key) -> bool {
        self.0[key as usize].as_ref().is_some_and(|value| value.number() != 0)
    }

    /// An error if a setting was given whose scope is not in `allowed`. The error names the first such setting.
    pub fn only(&self, allowed: &[Reach], call: &str) -> Result<()> {
        match self.given().find(|(s, _)| !allowed.contains(&s.reach)) {
            None => Ok(()),
            Some((s, _)) => Err(Error::invalid(format!(
                "option {} is one of a {}; {call} does not take it",
                s.name,
                s.reach.name()
            ))),
        }
    }

    /// The settings that were given, with their values.
    pub fn given(&self) -> impl Iterator<Item = (&'static Setting, &Value)> + '_ {
        SETTINGS.iter().zip(&self.0).filter_map(|(s, v)| v.as_ref().map(|v| (s, v)))
    }

    /// What an endpoint remembers after these were given over the `old` ones: connection settings with their new value,
    /// or else their old one. So a caller that changes one setting does not lose another, such as a key.
    pub(crate) fn over(&self, old: Option<&Arc<Options>>) -> Option<Arc<Options>> {
        let mut merged = old.map_or_else(Options::default, |old| Options::clone(old));
        for (setting, value) in self.given().filter(|(setting, _)| setting.reach == Reach::Connection) {
            merged.0[setting.key as usize] = Some(value.clone());
        }
        match old {
            Some(old) if **old == merged => Some(old.clone()),
            None if merged == Options::default() => None,
            _ => Some(merged.into()),
        }
    }

    fn gives(&self, key: Key) -> bool {
        self.0[key as usize].is_some()
    }

    fn gives_some(&self, key: Key) -> bool {
        self.0[key as usize].as_ref().is_some_and(|value| *value != Value::None)
    }
}

impl Values {
    /// The defaults.
    pub fn defaults() -> Values {
        let values = std::array::from_fn(|place| SETTINGS[place].default_value());
        Values { values, sources: [Source::Default; COUNT] }
    }

    /// The defaults, with those of the environment. `lookup` is `std::env::var` outside tests. A variable with an
    /// invalid value is an error: a typing mistake in a deployment must not go unnoticed.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Values> {
        let mut values = Values::defaults();
        for setting in SETTINGS {
            let variable = setting.variable();
            // It may be a secret key.
            if let Some(text) = lookup(&variable).map(Zeroizing::new) {
                values.sources[setting.key as usize] = Source::Environment;
                values.values[setting.key as usize] = setting
                    .parse(&text)
                    .map_err(|e| Error::invalid(format!("environment variable {variable}: {}", e.message)))?;
            }
        }
        values.check()?;
        Ok(values)
    }

    /// These values with some replaced.
    pub fn with(&self, options: &Options) -> Result<Values> {
        let mut values = self.clone();
        for (setting, value) in options.given() {
            values.values[setting.key as usize] = value.clone();
        }
        values.check()?;
        Ok(values)
    }

    /// The values of a connection whose endpoint remembers these options.
    pub(crate) fn of_connection(&self, options: Option<&Options>) -> Result<Values> {
        let Some(options) = options else { return Ok(self.clone()) };
        let values = self.with(options)?;
        // A caller that gives keys wants CURVE, unless it says otherwise. The manager's values may have client keys
        // alone.
        let client_key = options.gives_some(Key::CurvePublicKey) || options.gives_some(Key::CurveSecretKey);
        if client_key && !values.is_curve() && !options.gives(Key::CurveServerKey) {
            return Err(Error::invalid("a client key is given and no curve_server_key: the connection would be plain"));
        }
        Ok(values)
    }

    /// Whether a connection with these values may be dialled.
    pub(crate) fn check_dial(&self) -> Result<()> {
        if self.get(Key::RequireCurve) != 0 && !self.is_curve() {
            return Err(Error::invalid(
                "require_curve is set and this endpoint has no curve_server_key; it is not dialled plain",
            ));
        }
        Ok(())
    }

    /// Checks what the range of a single setting cannot express.
    fn check(&self) -> Result<()> {
        if self.get(Key::BackoffMs) > self.get(Key::BackoffMaxMs) {
            return Err(Error::invalid("backoff_ms is greater than backoff_max_ms"));
        }
        let (server, public, secret) =
            (self.key(Key::CurveServerKey), self.key(Key::CurvePublicKey), self.key(Key::CurveSecretKey));
        match (server, public, secret) {
            (_, Some(public), Some(secret)) if !secret.belongs_to(public) => Err(Error::invalid(
                "curve_public_key and curve_secret_key were not made together; give both of the client's own pair",
            )),
            (Some(_), None, _) => Err(Error::invalid("curve_server_key is given and no curve_public_key")),
            (Some(_), _, None) => Err(Error::invalid("curve_server_key is given and no curve_secret_key")),
            _ => Ok(()),
        }
    }

    /// The first connection setting in `options` that differs from these values, as a text for CONFLICT that gives the
    /// present value. `None` if nothing differs. Keys are not shown.
    pub fn conflict(&self, options: &Options) -> Option<String> {
        let (setting, _) =
            options.given().find(|(s, wanted)| s.reach == Reach::Connection && self.value(s.key) != *wanted)?;
        Some(match self.value(setting.key) {
            Value::Number(_) | Value::Text(_) => {
                format!("the live connection has {} = {}", setting.name, self.shown(setting))
            }
            Value::Key(_) => format!("the live connection has another {}", setting.name),
            Value::None => format!("the live connection has no {}", setting.name),
        })
    }

    pub(super) fn value(&self, key: Key) -> &Value {
        &self.values[key as usize]
    }

    /// The number.
    pub fn get(&self, key: Key) -> i64 {
        self.value(key).number()
    }

    /// A count, as a size.
    pub fn count(&self, key: Key) -> usize {
        usize::try_from(self.get(key)).unwrap_or(usize::MAX)
    }

    /// A time in milliseconds, as a duration.
    pub fn ms(&self, key: Key) -> Duration {
        Duration::from_millis(self.get(key).unsigned_abs())
    }

    /// The policy `node_loss`.
    pub fn node_loss(&self) -> NodeLoss {
        match self.get(Key::NodeLoss) {
            1 => NodeLoss::Any,
            2 => NodeLoss::All,
            _ => NodeLoss::Report,
        }
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_curve(&self) -> bool {
        self.key(Key::CurveServerKey).is_some()
    }

    /// Whether acknowledgements are tracked.
    pub(crate) fn acknowledgement(&self) -> bool {
        self.get(Key::Acknowledgement) != 0
    }

    /// The address to dial from, with port 0.
    pub(crate) fn source_address(&self) -> Option<SocketAddr> {
        self.text(Key::SourceAddress).and_then(|text| text::source_of(text))
    }

    /// The interface to dial through.
    pub(crate) fn interface(&self) -> Option<&Arc<str>> {
        self.text(Key::Interface)
    }

    fn text(&self, key: Key) -> Option<&Arc<str>> {
        match self.value(key) {
            Value::Text(text) => Some(text),
            Value::Number(_) | Value::None | Value::Key(_) => None,
        }
    }

    /// One of the CURVE keys. If there is a server key, all three are there: `check` has made sure of that.
    pub(crate) fn key(&self, key: Key) -> Option<&CurveKey> {
        match self.value(key) {
            Value::Key(key) => Some(key),
            Value::Number(_) | Value::None | Value::Text(_) => None,
        }
    }
}
