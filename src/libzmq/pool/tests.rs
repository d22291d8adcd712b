use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;

use super::*;

/// A piece of memory on its journey from thread to thread.
struct Piece(*mut Head, usize);
// SAFETY: only one thread has it at a time.
unsafe impl Send for Piece {}

fn piece(size: usize) -> Piece {
    let (head, size) = take(size, true);
    assert!(!head.is_null());
    // SAFETY: it is this test's, and so large.
    unsafe { head.cast::<u8>().add(size_of::<Head>()).write_bytes(0xa5, size - size_of::<Head>()) };
    Piece(head, size)
}

fn give_back(piece: Piece) {
    // SAFETY: it was taken, and is not used any more.
    unsafe { give(piece.0) };
}

#[test]
fn every_size_has_the_smallest_class_that_fits() {
    for size in size_of::<Head>()..=LARGEST {
        let class = class_of(size);
        assert!(class < CLASSES && size_of_class(class) >= size, "{size} in {class}");
        assert!(class == 0 || size_of_class(class - 1) < size, "{size} fits into the class below {class}");
    }
    assert_eq!((size_of_class(0), size_of_class(1), LARGEST), (128, 192, 512));
    let large = piece(LARGEST + 1);
    assert_eq!(large.1, LARGEST + 1);
    give_back(large);
}

#[test]
fn what_another_thread_gives_back_is_taken_again() {
    thread::spawn(|| {
        let pieces: Vec<_> = (0..100).map(|_| piece(200)).collect();
        let first: HashSet<_> = pieces.iter().map(|piece| piece.0.addr()).collect();
        assert_eq!(first.len(), 100, "each of its own");
        thread::spawn(|| pieces.into_iter().for_each(give_back)).join().unwrap();
        let second: Vec<_> = (0..100).map(|_| piece(256)).collect();
        let again: HashSet<_> = second.iter().map(|piece| piece.0.addr()).collect();
        assert_eq!(again, first, "each once");
        second.into_iter().for_each(give_back);
    })
    .join()
    .unwrap();
}

#[test]
fn no_more_than_the_limit_is_kept() {
    thread::spawn(|| {
        let pieces: Vec<_> = (0..3 * KEPT / LARGEST).map(|_| piece(LARGEST)).collect();
        // SAFETY: they are this test's.
        let kept = pieces.iter().filter(|piece| unsafe { !(*piece.0).pool.is_null() }).count();
        assert_eq!(kept, KEPT / LARGEST);
        assert!(take(LARGEST, false).0.is_null() && take(LARGEST + 1, false).0.is_null());
        pieces.into_iter().for_each(give_back);
    })
    .join()
    .unwrap();
}

#[test]
fn memory_outlives_its_thread_and_a_thread_the_memory_of_others() {
    let (sender, receiver) = mpsc::channel::<Piece>();
    let freeing = thread::spawn(move || {
        for (number, piece) in receiver.into_iter().enumerate() {
            // SAFETY: it is this thread's, and so large.
            let last = unsafe { piece.0.cast::<u8>().add(piece.1 - 1).read() };
            assert_eq!(last, 0xa5, "piece {number}");
            give_back(piece);
        }
    });
    for _ in 0..50 {
        let sender = sender.clone();
        thread::spawn(move || (0..400).for_each(|i| sender.send(piece(100 + i * 2)).unwrap())).join().unwrap();
    }
    drop(sender);
    freeing.join().unwrap();
}
