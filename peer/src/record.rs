//! The file that each message is appended to.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Each message is one write, so a record survives the death of the process whole or not at all.
pub struct Record {
    file: File,
    buffer: Vec<u8>,
}

impl Record {
    pub fn open(path: &Path) -> io::Result<Record> {
        let opened = File::options().create(true).append(true).open(path);
        let file = opened.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        Ok(Record { file, buffer: Vec::new() })
    }

    pub fn append(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        self.buffer.clear();
        let counts = std::iter::once(frames.len()).chain(frames.iter().map(Vec::len));
        for count in counts {
            let count = u32::try_from(count).map_err(|_| io::Error::other("a frame of 4 GiB or more"))?;
            self.buffer.extend(count.to_ne_bytes());
        }
        for frame in frames {
            self.buffer.extend(frame);
        }
        self.file.write_all(&self.buffer)
    }
}
