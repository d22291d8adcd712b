//! IPv4 packets with TCP in them: what a middlebox reads and changes.

use std::ops::Range;

pub const RST: u8 = 4;

/// A packet as the kernel gave it.
#[derive(Clone)]
pub struct Packet(pub Vec<u8>);

impl Packet {
    /// Whether it is TCP over IPv4.
    pub fn is_tcp(&self) -> bool {
        self.0.len() >= 40 && self.0[0] >> 4 == 4 && self.0[9] == 6 && self.0.len() >= self.ip_header() + 20
    }

    fn ip_header(&self) -> usize {
        usize::from(self.0[0] & 15) * 4
    }

    fn at(&self, offset: usize) -> Range<usize> {
        let start = self.ip_header() + offset;
        start..start + 4
    }

    fn word(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.0[self.at(offset)].try_into().expect("four bytes"))
    }

    pub fn source_port(&self) -> u16 {
        (self.word(0) >> 16) as u16
    }

    pub fn destination_port(&self) -> u16 {
        self.word(0) as u16
    }

    /// Where the bytes after this packet's begin.
    fn next_sequence(&self) -> u32 {
        let tcp_header = usize::from(self.0[self.ip_header() + 12] >> 4) * 4;
        let data = self.0.len() - self.ip_header() - tcp_header;
        self.word(4).wrapping_add(data as u32)
    }

    pub fn has(&self, flag: u8) -> bool {
        self.0[self.ip_header() + 13] & flag != 0
    }

    /// Replaces the ports.
    pub fn set_ports(&mut self, source: u16, destination: u16) {
        let place = self.at(0);
        self.0[place].copy_from_slice(&(u32::from(source) << 16 | u32::from(destination)).to_be_bytes());
        self.seal();
    }

    /// A reset that goes on where this packet ends, as its sender would send it.
    pub fn reset_behind(&self) -> Packet {
        self.bare(false, self.next_sequence())
    }

    /// A reset that answers this packet, as its receiver would send it.
    pub fn reset_back(&self) -> Packet {
        self.bare(true, self.word(8))
    }

    fn bare(&self, back: bool, sequence: u32) -> Packet {
        let mut bytes = self.0[..20].to_vec();
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&40_u16.to_be_bytes());
        let (source, destination) = (&self.0[12..16], &self.0[16..20]);
        let (mut ports, mut addresses) = ([self.source_port(), self.destination_port()], [source, destination]);
        if back {
            ports.reverse();
            addresses.reverse();
        }
        bytes[12..20].copy_from_slice(&addresses.concat());
        ports.iter().for_each(|port| bytes.extend(port.to_be_bytes()));
        bytes.extend(sequence.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 5 << 4, RST, 0, 0, 0, 0, 0, 0]);
        let mut packet = Packet(bytes);
        packet.seal();
        packet
    }

    /// Makes both checksums right.
    fn seal(&mut self) {
        let start = self.ip_header();
        self.0[10..12].fill(0);
        let sum = checksum(&[&self.0[..start]]);
        self.0[10..12].copy_from_slice(&sum.to_be_bytes());
        self.0[start + 16..start + 18].fill(0);
        let length = ((self.0.len() - start) as u16).to_be_bytes();
        let sum = checksum(&[&self.0[12..20], &[0, 6], &length, &self.0[start..]]);
        self.0[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The Internet checksum; each part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
