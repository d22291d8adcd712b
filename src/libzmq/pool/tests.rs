use std::collections::HashSet;
use std::sync::{Barrier, Mutex, PoisonError, mpsc};
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

/// The tests count what all threads keep, so one runs at a time.
fn alone() -> impl Drop {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many of them a pool gets back.
fn kept(pieces: &[Piece]) -> usize {
    // SAFETY: they are this test's.
    pieces.iter().filter(|piece| unsafe { !(*piece.0).pool.is_null() }).count()
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
    let _alone = alone();
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
    let _alone = alone();
    thread::spawn(|| {
        let pieces: Vec<_> = (0..2 * KEPT / LARGEST).map(|_| piece(LARGEST)).collect();
        assert_eq!(kept(&pieces), KEPT / LARGEST);
        assert!(take(LARGEST, false).0.is_null() && take(LARGEST + 1, false).0.is_null());
        pieces.into_iter().for_each(give_back);
    })
    .join()
    .unwrap();
}

#[test]
fn all_threads_together_keep_no_more_than_their_limit() {
    const THREADS: usize = KEPT_BY_ALL / KEPT + 2;
    let _alone = alone();
    let now = || KEPT_NOW.load(Ordering::Relaxed);
    let (before, all_have) = (now(), Barrier::new(THREADS));
    let hold = || {
        let pieces: Vec<_> = (0..KEPT / LARGEST).map(|_| piece(LARGEST)).collect();
        let kept = kept(&pieces);
        all_have.wait();
        assert!(now() <= KEPT_BY_ALL && now() > KEPT_BY_ALL - LARGEST, "{} bytes", now());
        all_have.wait();
        // The first half goes back in time, the second one after this thread's end.
        let late = pieces.into_iter().enumerate().filter_map(|(i, piece)| {
            if i % 2 == 0 {
                give_back(piece);
                return None;
            }
            Some(piece)
        });
        (kept, late.collect::<Vec<_>>())
    };
    let (kept, late): (Vec<usize>, Vec<_>) = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(hold)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
    });
    assert_eq!(kept.iter().sum::<usize>() * LARGEST, KEPT_BY_ALL - before);
    late.into_iter().flatten().for_each(give_back);
    assert_eq!(now(), before, "what is freed is not kept");
}

#[test]
fn memory_outlives_its_thread_and_a_thread_the_memory_of_others() {
    let _alone = alone();
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
