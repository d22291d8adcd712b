//! How messages are handed over: frames in the caller's memory, several frames in one call, and the commands that a send reads.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zmq_sys as zmq;

use super::OUT_BATCH_SIZE;
use super::raw::*;
use super::system::*;

// ---- frames ----------------------------------------------------------------------------------------------------------

/// Counts the frames that libzmq has freed.
unsafe extern "C" fn count_freed(_: *mut c_void, count: *mut c_void) {
    // SAFETY: the test keeps it until every frame is freed.
    unsafe { &*count.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

/// Frames of 10, 20, … bytes in the caller's memory, and how many of them were freed.
struct External {
    memory: Vec<(Content, Vec<u8>)>,
    freed: Box<AtomicUsize>,
}

impl External {
    fn new(frames: usize) -> External {
        External::of_lengths((1..=frames).map(|i| 10 * i))
    }

    fn of_lengths(lengths: impl Iterator<Item = usize>) -> External {
        let bytes = |(i, length)| (0..length).map(|at| (i + at) as u8).collect();
        let memory = lengths.enumerate().map(|frame| (Content([0; 40]), bytes(frame))).collect();
        External { memory, freed: Box::default() }
    }

    fn frames(&mut self) -> Vec<zmq::zmq_msg_t> {
        let hint = (&raw const *self.freed).cast_mut().cast();
        // SAFETY: the tests wait until all are freed.
        self.memory.iter_mut().map(|(content, bytes)| unsafe { external(content, bytes, count_freed, hint) }).collect()
    }

    fn wait_until_freed(&self) {
        wait_until("libzmq has freed every frame", || self.freed.load(Ordering::SeqCst) == self.memory.len());
    }
}

#[test]
fn a_message_of_frames_in_the_callers_memory_arrives_whole_and_is_freed_once() {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let push = context.socket(zmq::ZMQ_PUSH);
    push.connect(&pull.bind("tcp://127.0.0.1:*"));
    let mut message = External::new(20);
    let mut frames = message.frames();
    assert_eq!(push.send_frames(&mut frames[..1], true), 1);
    assert_eq!(push.send_frames(&mut frames[1..12], true), 11);
    assert_eq!(push.send_frames(&mut frames[12..], false), 8);
    for (place, (_, bytes)) in message.memory.iter().enumerate() {
        assert_eq!(&pull.receive(), bytes);
        assert_eq!(pull.get(zmq::ZMQ_RCVMORE), c_int::from(place < 19), "after frame {place}");
    }
    message.wait_until_freed();
    push.send(b"the next message");
    assert_eq!(pull.receive(), b"the next message");
}

/// The I/O thread writes short frames into its batch by another way than the first frame of a batch, long ones, and those
/// for which the batch has no room.
#[test]
fn frames_of_every_length_arrive_whole_wherever_a_batch_ends() {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let push = context.socket(zmq::ZMQ_PUSH);
    for (socket, option) in [(&pull, zmq::ZMQ_RCVHWM), (&push, zmq::ZMQ_SNDHWM)] {
        socket.set(option, 0);
    }
    push.set(OUT_BATCH_SIZE, 600);
    push.connect(&pull.bind("tcp://127.0.0.1:*"));
    // 37 and 300 have no divisor in common: every length comes at many places of a batch.
    let mut messages = External::of_lengths((0..12_000).map(|i| i * 37 % 300));
    for message in messages.frames().chunks_mut(3) {
        assert_eq!(push.send_frames(message, false), 3);
    }
    for (place, (_, bytes)) in messages.memory.iter().enumerate() {
        assert_eq!(&pull.receive(), bytes, "frame {place}");
        assert_eq!(pull.get(zmq::ZMQ_RCVMORE), c_int::from(place % 3 < 2), "after frame {place}");
    }
    messages.wait_until_freed();
}

/// The I/O thread writes the rest of a large frame from where it is. The kernel takes it in parts.
#[test]
fn large_frames_arrive_whole_wherever_a_batch_ends() {
    const KIB: usize = 1024;
    let lengths = [3, 24 * KIB, 32 * KIB - 1, 0, 32 * KIB, 200, 40 * KIB, 64 * KIB, 20 * KIB, 64 * KIB + 1, 300 * KIB];
    for batch in [64 * KIB, 9 * KIB, 600] {
        let context = Context::new();
        let pull = context.socket(zmq::ZMQ_PULL);
        let push = context.socket(zmq::ZMQ_PUSH);
        pull.set(zmq::ZMQ_RCVHWM, 1);
        push.set(zmq::ZMQ_SNDHWM, 0);
        push.set(zmq::ZMQ_SNDBUF, 64 * KIB as c_int);
        push.set(OUT_BATCH_SIZE, batch as c_int);
        push.connect(&pull.bind("tcp://127.0.0.1:*"));
        // Three frames are a message, and 3 and 11 have no divisor in common: each length comes at each place.
        let mut messages = External::of_lengths((0..330).map(|i| lengths[i % lengths.len()]));
        for message in messages.frames().chunks_mut(3) {
            assert_eq!(push.send_frames(message, false), 3);
        }
        for (place, (_, bytes)) in messages.memory.iter().enumerate() {
            assert!(pull.receive() == *bytes, "frame {place} of {} bytes, batches of {batch}", bytes.len());
            assert_eq!(pull.get(zmq::ZMQ_RCVMORE), c_int::from(place % 3 < 2), "after frame {place}");
        }
        messages.wait_until_freed();
    }
}

#[test]
fn frames_in_one_call_that_have_no_room_are_not_taken() {
    let context = Context::new();
    let push = context.socket(zmq::ZMQ_PUSH); // connected to nobody
    let mut message = External::new(3);
    let mut frames = message.frames();
    assert_eq!(push.send_frames(&mut frames, false), 0);
    assert_eq!(errno(), libc::EAGAIN);
    assert_eq!(message.freed.load(Ordering::SeqCst), 0);
    for frame in &mut frames {
        // SAFETY: it is as it was.
        unsafe { zmq::zmq_msg_close(frame) };
    }
    message.wait_until_freed();
}

// ---- commands --------------------------------------------------------------------------------------------------------

/// A socket that looks for commands reads its descriptor. A signal that no command goes with shows whether it has.
#[test]
fn a_send_asks_the_kernel_for_commands_only_when_there_are_some() {
    let context = Context::new();
    let pull = context.socket(zmq::ZMQ_PULL);
    let push = context.socket(zmq::ZMQ_PUSH);
    push.set(zmq::ZMQ_RECONNECT_IVL, -1);
    push.set(zmq::ZMQ_IMMEDIATE, 1);
    push.connect(&pull.bind("tcp://127.0.0.1:*"));
    push.send(b"connected");
    assert_eq!(pull.receive(), b"connected");
    let fd = push.get(zmq::ZMQ_FD);
    for _ in 0..20 {
        // Reads what there is.
        push.get(zmq::ZMQ_EVENTS);
        assert!(!is_readable(fd));
        // The time after which libzmq itself looks, and more.
        thread::sleep(Duration::from_millis(5));
        signal(fd);
        push.send(b"idle before");
        assert!(is_readable(fd), "the send has looked for commands");
        assert_eq!(pull.receive(), b"idle before");
    }
    push.get(zmq::ZMQ_EVENTS);
    assert!(!is_readable(fd), "the descriptor is not the one that is read");

    // The I/O thread says by a command that the connection's pipe has ended. The next send knows, however soon it comes.
    push.set(zmq::ZMQ_SNDTIMEO, 0);
    push.send(b"the last");
    drop(pull);
    wait_until("a command is there", || is_readable(fd));
    assert_eq!(push.try_send(b"to nobody"), Err(libc::EAGAIN));
    assert!(!is_readable(fd));
}
