//! Random runs: messages of all shapes to peers that stop, go on, send PINGs, close and die at random moments.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvconn::connection::{Connection, ConnectionState};
use kvconn::delivery::EndedBy;
use kvconn::error::Status;

use super::messages::{Account, Shape, Way};
use super::reader::{Action, Reader};
use crate::common::engine::{after, wait_ended};
use crate::common::raw_peer::Numbers;
use crate::common::{Engine, Random, RawPeer, TcpView, ms, soak_time, wait_until};

const LONG: Duration = Duration::from_secs(30);
const WAYS: [Way; 2] = [Way::Copied, Way::Owned];

/// What happened, for the message of a failed assertion.
#[derive(Default)]
struct History(Vec<String>);

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

struct Run {
    conn: Arc<Connection>,
    view: TcpView,
    reader: Reader,
    account: Account,
    history: History,
    random: Random,
}

impl Run {
    fn action(&mut self, action: Action) {
        self.history.0.push(format!("{action:?} after {}", self.account.accepted()));
        self.reader.does(action);
    }

    /// Sends some, or as many of them as there is room for when the peer does not read.
    fn send_some(&mut self, patience: Duration) {
        for _ in 0..self.random.below(60) {
            let (way, shape) = (self.random.one_of(&WAYS), Shape::random(&mut self.random));
            match shape.send(way, &self.conn, self.account.next(), patience) {
                Ok(sequence) => {
                    assert_eq!(sequence, self.account.next());
                    self.account.accept(shape);
                }
                Err(error) => {
                    assert!(matches!(error.status, Status::Timeout | Status::Stalled), "{}: {error:?}", self.history);
                    return;
                }
            }
            self.is_plausible();
        }
    }

    /// At any time: what is acknowledged was accepted, and the kernel has counted it.
    fn is_plausible(&self) {
        let info = self.conn.info();
        let acknowledged = info.acknowledged.expect("TCP tells");
        assert_eq!(info.accepted, self.account.accepted(), "{}", self.history);
        assert!(acknowledged <= info.accepted, "{}: {info:?}", self.history);
        let covered = self.account.covered(&self.view);
        assert!(acknowledged <= covered, "{}: the kernel has {covered}, not {acknowledged}", self.history);
    }

    /// All of it arrives, and then kvconn's account, the test's and the kernel's are the same to the byte.
    fn settles(&mut self) {
        let (flushed, acknowledged) = self.conn.flush(0, after(LONG));
        flushed.unwrap_or_else(|error| panic!("{}: {error:?}", self.history));
        assert_eq!(acknowledged, self.account.accepted(), "{}", self.history);
        let what = format!("the kernel has counted what was computed; {}", self.history);
        wait_until(&what, LONG, || self.account.settles(&self.view));
    }

    /// Some rounds. At the end of each everything has arrived.
    fn rounds(&mut self) {
        for _ in 0..self.random.below(4) {
            self.send_some(LONG);
            let [begin, end] =
                self.random.one_of(&[[Action::Stop, Action::Resume], [Action::PauseReading, Action::ResumeReading]]);
            self.action(begin);
            self.send_some(ms(30));
            self.is_plausible();
            self.action(end);
            self.send_some(LONG);
            self.settles();
        }
    }

    /// The last round, in which the connection ends.
    fn ends(mut self, engine: &Engine) {
        self.send_some(LONG);
        match self.random.below(3) {
            0 => {}
            1 => self.action(Action::PauseReading),
            _ => self.action(Action::Stop),
        }
        let stopped = self.history.0.last().is_some_and(|last| last.starts_with("Stop"));
        self.send_some(ms(30));
        let action = match (stopped, self.random.below(5)) {
            // A stopped peer can only be killed, or left.
            (_, 0) => None,
            (true, _) => Some(Action::Kill),
            (false, _) => Some(self.random.one_of(&[Action::Kill, Action::Close, Action::Finish, Action::Finish])),
        };
        match action {
            Some(action) => self.action(action),
            None => {
                self.history.0.push("we disconnect".into());
                self.conn.disconnect().expect("live");
            }
        }
        let info = wait_ended(&self.conn, LONG);
        self.is_plausible();
        let acknowledged = info.acknowledged.expect("TCP tells");
        let covered = self.account.covered(&self.view);
        let Run { view, reader, account, history, conn, .. } = self;
        let history = format!("{history}, ended by {:?} with {acknowledged} of {}", info.ended_by, info.accepted);
        if action.is_none() {
            assert_eq!(info.ended_by, EndedBy::Local, "{history}");
        }
        assert_eq!(conn.info().state, ConnectionState::Ended);
        let pinged = matches!(&reader, Reader::Libzmq(_)) && view.received() > 92;
        if info.ended_by == EndedBy::Reset && !pinged {
            // After the reset nothing was counted.
            assert_eq!(acknowledged, covered, "{history}");
        }
        // While it is open, no FIN of ours leaves.
        drop(view);
        let Reader::Raw(peer) = &reader else { return };
        if action == Some(Action::Kill) {
            return;
        }
        if action.is_none() {
            peer.resume();
            peer.resume_reading();
        }
        let got = peer.wait_for(&format!("the connection is over; {history}"), LONG, |numbers| numbers.open == 0);
        if action == Some(Action::Finish) {
            assert_eq!(info.ended_by, EndedBy::Fin, "{history}");
        }
        if info.ended_by == EndedBy::Fin {
            let missing = (1..=acknowledged).find(|number| !got.times.contains_key(number));
            assert_eq!(missing, None, "acknowledged, and did not arrive: {history}");
        }
        assert!(got.times.values().all(|times| *times == 1), "{history}");
        if info.ended_by == EndedBy::Fin {
            no_hole_is_left(engine, &account, acknowledged, &got, &history);
        }
    }
}

/// Sends exactly the unacknowledged again, to a successor of the peer.
fn no_hole_is_left(engine: &Engine, account: &Account, acknowledged: u64, first: &Numbers, history: &str) {
    let successor = RawPeer::bind("127.0.0.1:0");
    let conn = engine.ready(&successor.endpoint());
    for number in acknowledged + 1..=account.accepted() {
        account.shape(number).send(WAYS[0], &conn, number, LONG).expect("a healthy peer");
    }
    let expected = (account.accepted() - acknowledged) as usize;
    let second = successor.wait_for("all that was sent again", LONG, |numbers| numbers.times.len() >= expected);
    for number in 1..=account.accepted() {
        let times = [first, &second].map(|numbers| numbers.times.get(&number).copied().unwrap_or(0));
        let times = times[0] + times[1];
        let right = if number <= acknowledged { times == 1 } else { times == 1 || times == 2 };
        assert!(right, "{number} came {times} times: {history}");
    }
    conn.disconnect().expect("live");
}

fn run_once(seed: u64) {
    let mut random = Random::new(seed);
    // Settled into by small seeds only after some steps.
    for _ in 0..20 {
        random.below(2);
    }
    let engine = Engine::with(&[("send_hwm", random.one_of(&["4", "50", "1000"])), ("stall_ms", "50")]);
    let reader = Reader::random(&mut random);
    let conn = engine.ready(&reader.endpoint());
    let view = TcpView::of(&reader.endpoint());
    let mut run = Run { conn, view, reader, account: Account::default(), history: History::default(), random };
    run.history.0.push(format!("seed {seed}"));
    run.rounds();
    run.ends(&engine);
}

/// The same runs every day; `make soak` adds others for as long as there is time.
#[test]
fn whatever_happens_the_account_is_right_and_sending_the_rest_again_leaves_no_hole_soak() {
    const EVERY_DAY: u64 = 24;
    let begun = Instant::now();
    let mut runs = 0;
    while runs < EVERY_DAY || begun.elapsed() < soak_time(Duration::ZERO) {
        runs += 1;
        run_once(runs);
    }
    println!("{runs} runs in {:?}", begun.elapsed());
}
