//! No key is in any text that kvconn writes.

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::keys::{Pair, QUICK, contains, peer};
use crate::common::engine::{options, refused, wait_ended};
use crate::common::{Engine, OwnProcess, Peer};
use crate::test_name;
use kvconn::error::Status;
use kvconn::options::Options;

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn no_key_is_in_logs_events_errors_or_descriptions() {
    let log = std::env::temp_dir().join(format!("kvconn-curve-log-{}", std::process::id()));
    let log_file = std::env::var("KVCONN_CURVE_LOG").unwrap_or_else(|_| log.display().to_string());
    let own = OwnProcess::new(test_name!()).env("KVCONN_LOG", &format!("debug:{log_file}"));
    if own.env("KVCONN_CURVE_LOG", &log_file).parent() {
        std::fs::remove_file(log_file).ok();
        return;
    }
    let (server, client, other) = (Pair::new(), Pair::new(), Pair::new());
    let (good, plain, wrong) = (peer(&server), Peer::any(), peer(&other));
    let keys = client.settings(&server);
    let mut texts = Vec::new();
    let engine = Engine::with(&[QUICK[0], QUICK[1]]);
    texts.push(format!("{:?}", options(&keys)));

    let conn = engine.ready_with(good.endpoint(), &keys);
    texts.push(engine.describe());
    for settings in [client.settings(&other), other.settings(&server), keys.map(|(name, _)| (name, ""))] {
        let error = refused(engine.connect_with(good.endpoint(), &settings, LIMIT), Status::Conflict);
        texts.push(format!("{error} {error:?}"));
    }
    for peer in [&plain, &wrong] {
        let error = refused(engine.connect_with(peer.endpoint(), &keys, LIMIT), Status::ConnectFailed);
        texts.push(format!("{error} {error:?}"));
        let error = engine.send_to(peer.endpoint(), &[b"x"], LIMIT).expect_err("no such peer");
        texts.push(format!("{error} {error:?}"));
    }
    let mixed_up = [keys[0], ("curve_public_key", &client.secret), ("curve_secret_key", &client.public)];
    let error = refused(engine.connect_with("tcp://127.0.0.1:9", &mixed_up, LIMIT), Status::Invalid);
    texts.push(format!("{error} {error:?}"));
    for name in ["curve_server_key", "curve_public_key", "curve_secret_key"] {
        for key in [&client.secret, &client.public, &server.public] {
            for malformed in [&key[1..], &format!("{key} "), &format!("{}é", &key[..38])] {
                let error = Options::default().set(name, malformed).expect_err("no key");
                texts.push(format!("{error} {error:?}"));
            }
        }
    }
    texts.push(engine.describe());
    good.kill();
    wait_ended(&conn, LIMIT);
    texts.push(format!("{:?} {:?}", conn.info(), engine.events()));
    let dump = std::env::temp_dir().join(format!("kvconn-curve-dump-{}", std::process::id()));
    let file = std::fs::File::create(&dump).expect("a file");
    kvconn::observe::describe::dump(file.as_raw_fd()).expect("dumped");
    texts.push(std::fs::read_to_string(&dump).expect("the dump"));
    std::fs::remove_file(dump).ok();
    drop(engine);
    // The log ends with its process; what was said long before is in the file.
    std::thread::sleep(Duration::from_millis(300));
    let logged = std::fs::read_to_string(&log_file).expect("the log");
    assert!(logged.contains(&format!(":{}", wrong.port())), "nothing was logged: {logged}");
    texts.push(logged);

    for pair in [&server, &client, &other] {
        for trace in pair.traces() {
            // A part of a key is a part too much.
            for part in [&trace[1..15], &trace[15..30]] {
                let hit = texts.iter().find(|text| contains(text.as_bytes(), part));
                assert!(hit.is_none(), "a key is in: {}", hit.unwrap());
            }
        }
    }
    assert!(texts.iter().any(|text| text.contains("curve_secret_key")));
}
