//! loom: every order of a thread that takes and ends, and of two that give back.

use loom::thread;

use super::*;

struct Piece(*mut Head);
// SAFETY: only one thread has it at a time.
unsafe impl Send for Piece {}

impl Piece {
    fn give(self) {
        // SAFETY: it was taken, and is not used any more.
        unsafe { give(self.0) };
    }
}

fn end(cache: Cache) {
    // SAFETY: the cache takes nothing any more.
    unsafe { Pool::close(cache.pool, cache.free, cache.made) };
}

#[test]
fn what_comes_back_is_taken_once_or_freed_once() {
    loom::model(|| {
        let mut cache = Cache::EMPTY;
        let pieces = [Piece(cache.take(0)), Piece(cache.take(0))];
        let addresses = pieces.each_ref().map(|piece| piece.0.addr());
        let threads = pieces.map(|piece| thread::spawn(move || piece.give()));
        let third = cache.take(0);
        let fourth = cache.take(0);
        assert_ne!(third, fourth);
        let known = [third, fourth].iter().filter(|head| addresses.contains(&head.addr())).count();
        assert_eq!(cache.made, 4 - known, "what came back was taken again");
        Piece(third).give();
        Piece(fourth).give();
        end(cache);
        threads.map(|thread| thread.join().unwrap());
    });
}

#[test]
fn the_pool_goes_with_the_last_of_its_memory() {
    loom::model(|| {
        let mut cache = Cache::EMPTY;
        let threads = [Piece(cache.take(0)), Piece(cache.take(0))].map(|piece| thread::spawn(move || piece.give()));
        end(cache);
        threads.map(|thread| thread.join().unwrap());
    });
}
