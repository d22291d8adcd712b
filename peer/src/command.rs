//! Commands on standard input: one line each, one line as the answer.

use std::io::{self, Read};

use crate::kind::Kind;

/// What standard input may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Report,
    Pause,
    Resume,
    Freeze,
    Die,
    Goodbye,
    Refuse,
    /// None: the kind of the life before.
    Accept(Option<Kind>),
    Restart(Option<Kind>),
}

impl Command {
    pub fn parse(line: &str) -> Result<Command, String> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let mut argument = words.next();
        let mut kind = || argument.take().map(Kind::parse).transpose();
        let command = match name {
            "report" => Command::Report,
            "pause" => Command::Pause,
            "resume" => Command::Resume,
            "freeze" => Command::Freeze,
            "die" => Command::Die,
            "goodbye" => Command::Goodbye,
            "refuse" => Command::Refuse,
            "accept" => Command::Accept(kind()?),
            "restart" => Command::Restart(kind()?),
            _ => return Err(format!("there is no command {line:?}")),
        };
        match argument.or(words.next()) {
            Some(more) => Err(format!("{name}: {more:?} is one word too many")),
            None => Ok(command),
        }
    }
}

/// The lines of standard input. Reading never blocks on half a line.
#[derive(Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The whole lines that have arrived; None at the end of the input. Call it when the input is readable.
    pub fn read(&mut self) -> io::Result<Option<Vec<String>>> {
        let mut block = [0; 4096];
        let count = match io::stdin().lock().read(&mut block) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Some(Vec::new())),
            result => result?,
        };
        if count == 0 {
            return Ok(None);
        }
        self.rest.extend(&block[..count]);
        Ok(Some(self.take_whole()))
    }

    fn take_whole(&mut self) -> Vec<String> {
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8_lossy(&lines).lines().map(str::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_waits_for_its_end() {
        let mut lines = Lines { rest: b"report\npau".to_vec() };
        assert_eq!(lines.take_whole(), ["report"]);
        lines.rest.extend(b"se\n\n");
        assert_eq!(lines.take_whole(), ["pause", ""]);
        assert!(lines.take_whole().is_empty() && lines.rest.is_empty());
    }

    #[test]
    fn a_command_is_a_whole_line() {
        assert_eq!(Command::parse("goodbye\r"), Ok(Command::Goodbye));
        assert_eq!(Command::parse("accept"), Ok(Command::Accept(None)));
        assert_eq!(Command::parse(" restart  http "), Ok(Command::Restart(Some(Kind::Http))));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        for (line, expected) in [
            ("good", "there is no command \"good\""),
            ("", "there is no command \"\""),
            ("pause now", "pause: \"now\" is one word too many"),
            ("accept pull now", "accept: \"now\" is one word too many"),
            ("restart ftp", "there is no kind \"ftp\": it is one of pull, rep, mute, http, garbage"),
        ] {
            assert_eq!(Command::parse(line), Err(expected.to_string()), "{line}");
        }
    }
}
