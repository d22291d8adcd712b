//! Memory that runs out in a send: the message is accepted whole, or not at all.

use crate::common::{Peer, ms};
use crate::programs::{compile, run};

#[test]
fn a_message_that_cannot_be_followed_is_accepted_whole_or_not_at_all() {
    let peer = Peer::any();
    let (output, text) = run(&compile("no_memory.c", "no_memory"), &[peer.endpoint()]);
    assert!(output.status.success(), "{}: {text}", output.status);
    let accepted: Vec<usize> = text.split_whitespace().map(|count| count.parse().expect("a number")).collect();
    let [of_two, of_one] = accepted[..] else { panic!("{text}") };
    assert!(of_two >= 5 && of_one >= 5, "{text}");
    peer.wait_received((of_two + of_one) as u64, ms(10_000));
    let messages = peer.messages();
    let body = vec![0; 20_000];
    assert_eq!(messages.iter().filter(|message| **message == [b"room".to_vec(), body.clone()]).count(), of_two);
    assert_eq!(messages.iter().filter(|message| **message == [body.clone()]).count(), of_one);
    assert_eq!(messages.len(), of_two + of_one);
}
