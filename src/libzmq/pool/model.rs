//! loom: the orders of a thread that takes and ends, and of two that give back.

use std::cell::Cell;

use loom::thread;

use super::*;

std::thread_local! {
    /// What is allocated and not freed. loom runs all threads of a model on one.
    pub(super) static LEFT: Cell<isize> = const { Cell::new(0) };
}

struct Piece(*mut Head);
// SAFETY: only one thread has it at a time.
unsafe impl Send for Piece {}

impl Piece {
    fn give(self) {
        // SAFETY: it was taken, and is not used any more.
        unsafe { give(self.0) };
    }
}

/// Every order in which a thread is interrupted at most three times in favour of another.
fn bounded(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        run();
        assert_eq!(LEFT.get(), 0, "all is freed, once");
    });
}

fn end(spare: Spare) {
    // SAFETY: the spare takes nothing any more.
    unsafe { Pool::close(spare.pool, spare.free, spare.made) };
}

#[test]
fn what_comes_back_is_taken_once_or_freed_once() {
    bounded(|| {
        let mut spare = Spare::EMPTY;
        let pieces = [Piece(spare.take(0, true)), Piece(spare.take(0, true))];
        let addresses = pieces.each_ref().map(|piece| piece.0.addr());
        let threads = pieces.map(|piece| thread::spawn(move || piece.give()));
        let third = spare.take(0, true);
        let known = addresses.contains(&third.addr());
        assert_eq!(spare.made, 3 - usize::from(known), "what came back was taken again");
        Piece(third).give();
        end(spare);
        threads.map(|thread| thread.join().unwrap());
    });
}

#[test]
fn the_pool_goes_with_the_last_of_its_memory() {
    bounded(|| {
        let mut spare = Spare::EMPTY;
        let threads =
            [Piece(spare.take(0, true)), Piece(spare.take(0, true))].map(|piece| thread::spawn(move || piece.give()));
        end(spare);
        threads.map(|thread| thread.join().unwrap());
    });
}
