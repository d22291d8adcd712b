//! What listens at the endpoint.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pull,
    Rep,
    Mute,
    Http,
    Garbage,
}

const NAMES: [(&str, Kind); 5] =
    [("pull", Kind::Pull), ("rep", Kind::Rep), ("mute", Kind::Mute), ("http", Kind::Http), ("garbage", Kind::Garbage)];

impl Kind {
    pub fn parse(name: &str) -> Result<Kind, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names = NAMES.map(|(known, _)| known).join(", ");
            format!("there is no kind {name:?}: it is one of {names}")
        })
    }

    /// The type of the libzmq socket; None if it speaks no ZMTP.
    pub fn socket_type(self) -> Option<zmq::SocketType> {
        match self {
            Kind::Pull => Some(zmq::PULL),
            Kind::Rep => Some(zmq::REP),
            Kind::Mute | Kind::Http | Kind::Garbage => None,
        }
    }
}
