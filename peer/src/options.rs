//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::kind::Kind;

/// Whether the socket is a CURVE server, and with which key.
#[derive(Debug, PartialEq, Eq)]
pub enum Curve {
    Off,
    New,
    /// The file of the secret key.
    Secret(PathBuf),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub endpoint: String,
    pub kind: Kind,
    pub curve: Curve,
    pub record: Option<PathBuf>,
    pub rcvhwm: i32,
    /// Below 0: the kernel's default.
    pub rcvbuf: i32,
    pub step: Duration,
    pub last_step: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            endpoint: "tcp://127.0.0.1:*".into(),
            kind: Kind::Pull,
            curve: Curve::Off,
            record: None,
            rcvhwm: 1000,
            rcvbuf: -1,
            step: Duration::ZERO,
            last_step: Duration::ZERO,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    Help,
    Run(Options),
}

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Parsed, String> {
        let mut options = Options::default();
        let mut endpoint = None;
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                return Ok(Parsed::Help);
            }
            if !word.starts_with("--") {
                if endpoint.replace(word).is_some() {
                    return Err("there is more than one endpoint".into());
                }
                continue;
            }
            if word == "--curve" {
                options.set_curve(Curve::New)?;
                continue;
            }
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--record" => options.record = Some(value()?.into()),
                "--as" => options.kind = Kind::parse(&value()?)?,
                "--curve-secret-file" => options.set_curve(Curve::Secret(value()?.into()))?,
                "--rcvhwm" => options.rcvhwm = number(&word, &value()?)?,
                "--rcvbuf" => options.rcvbuf = number(&word, &value()?)?,
                "--step-ms" => options.step = Duration::from_millis(number(&word, &value()?)?),
                "--last-step-ms" => options.last_step = Duration::from_millis(number(&word, &value()?)?),
                _ => return Err(format!("there is no option {word}")),
            }
        }
        options.endpoint = endpoint.unwrap_or(options.endpoint);
        Ok(Parsed::Run(options))
    }

    fn set_curve(&mut self, curve: Curve) -> Result<(), String> {
        match std::mem::replace(&mut self.curve, curve) {
            Curve::Off => Ok(()),
            _ => Err("there is more than one CURVE key".into()),
        }
    }
}

fn number<T: FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option}: {value:?} is not a number in its range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Parsed, String> {
        Options::parse(line.split_whitespace().map(str::to_string))
    }

    #[test]
    fn options_and_endpoint_come_in_any_order() {
        let expected = Options {
            endpoint: "ipc:///x".into(),
            kind: Kind::Rep,
            curve: Curve::Secret("/key".into()),
            record: Some("/log".into()),
            rcvhwm: 4,
            rcvbuf: 4096,
            step: Duration::from_millis(10),
            last_step: Duration::from_millis(400),
        };
        let line = "--rcvhwm 4 ipc:///x --rcvbuf 4096 --step-ms 10 --last-step-ms 400 --record /log \
                    --as rep --curve-secret-file /key";
        assert_eq!(parse(line), Ok(Parsed::Run(expected)));
        assert_eq!(parse(""), Ok(Parsed::Run(Options::default())));
        assert_eq!(parse("ipc:///x --help"), Ok(Parsed::Help));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        for (line, expected) in [
            ("--rcvhwm", "--rcvhwm needs a value"),
            ("--rcvhwm many", "--rcvhwm: \"many\" is not a number in its range"),
            ("--step-ms -1", "--step-ms: \"-1\" is not a number in its range"),
            ("--as ftp", "there is no kind \"ftp\": it is one of pull, rep, mute, http, garbage"),
            ("--curve --curve-secret-file /key", "there is more than one CURVE key"),
            ("--speed 3", "there is no option --speed"),
            ("ipc:///x ipc:///y", "there is more than one endpoint"),
        ] {
            assert_eq!(parse(line), Err(expected.to_string()), "{line}");
        }
    }
}
