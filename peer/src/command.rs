//! Commands on standard input: one line each, one line as the answer.

use std::io::{self, Read};

/// What standard input may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Report,
    Pause,
    Resume,
    Freeze,
    Die,
    Goodbye,
}

impl Command {
    pub fn parse(line: &str) -> Option<Command> {
        Some(match line.trim() {
            "report" => Command::Report,
            "pause" => Command::Pause,
            "resume" => Command::Resume,
            "freeze" => Command::Freeze,
            "die" => Command::Die,
            "goodbye" => Command::Goodbye,
            _ => return None,
        })
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
        assert_eq!(Command::parse("goodbye\r"), Some(Command::Goodbye));
        assert_eq!(Command::parse("good"), None);
        assert_eq!(Command::parse(""), None);
    }
}
