//! One thread that waits at two gates, beside threads that wait at one of them.

use super::*;

/// Every message of the batch passed.
fn all_passed(batch: JoinHandle<[Vec<Result<(), Why>>; 2]>) {
    for result in batch.join().unwrap().into_iter().flatten() {
        assert_eq!(result, Ok(()));
    }
}

/// Both gates get room, in either order.
fn alone<const FAIR: bool>() {
    let models = Model::<FAIR>::two(|_| {});
    let batch = batch(&models, [1, 1], Limit::Never);
    models[1].world.free(1);
    models[0].world.free(1);
    all_passed(batch);
    models.iter().for_each(|model| model.check(1, true));
}

#[test]
fn it_is_woken_by_room_at_each_gate() {
    explore(alone::<false>);
    explore(alone::<true>);
}

#[test]
fn the_second_item_at_a_gate_passes_after_the_first() {
    explore_bounded(|| {
        let models = Model::<true>::two(|_| {});
        let batch = batch(&models, [2, 1], Limit::Never);
        models[0].world.free(1);
        models[1].world.free(1);
        models[0].world.free(1);
        all_passed(batch);
        models[0].check(2, true);
        models[1].check(1, true);
    });
}

/// Another sender at one of the gates, before the batch or behind it, and one signal for both.
fn beside_a_sender<const FAIR: bool>() {
    let models = Model::<FAIR>::two(|_| {});
    let (batch, sender) = (batch(&models, [1, 1], Limit::Never), models[0].sender(1));
    models[0].world.free(2);
    models[1].world.free(1);
    all_passed(batch);
    sender.join().unwrap();
    models[0].check(2, true);
    models[1].check(1, true);
}

#[test]
fn it_takes_part_in_the_hand_off_and_is_woken_by_newcomers() {
    explore_bounded(beside_a_sender::<false>);
    explore_bounded(beside_a_sender::<true>);
}

#[test]
fn two_batches_in_opposite_order_do_not_deadlock() {
    explore_bounded(|| {
        let [a, b] = Model::<true>::two(|_| {});
        let batches = [[a.clone(), b.clone()], [b.clone(), a.clone()]];
        let batches = batches.map(|models| batch(&models, [1, 1], Limit::Never));
        a.world.free(2);
        b.world.free(2);
        batches.into_iter().for_each(all_passed);
        a.check(2, true);
        b.check(2, true);
    });
}

#[test]
fn touching_a_socket_wakes_it() {
    explore_bounded(|| {
        let models = Model::<false>::two(|_| {});
        let (batch, watcher) = (batch(&models, [1, 1], Limit::Never), models[0].watcher());
        models[0].world.free(1);
        models[1].world.free(1);
        all_passed(batch);
        watcher.join().unwrap();
        models.iter().for_each(|model| model.check(1, true));
    });
}

/// One gate closes while the batch waits there with another sender. The other gate gets room.
fn one_end<const FAIR: bool>() {
    let models = Model::<FAIR>::two(|_| {});
    let (batch, trier) = (batch(&models, [1, 1], Limit::Never), models[0].trier(Item::Message, Limit::Never));
    models[0].close();
    models[1].world.free(1);
    let results = batch.join().unwrap();
    assert_eq!(results, [vec![Err(Why::Ended)], vec![Ok(())]]);
    assert_eq!(trier.join().unwrap(), Err(Why::Ended));
    models[0].check(0, false);
    models[1].check(1, true);
}

#[test]
fn the_end_of_one_connection_affects_that_gate_only() {
    explore_bounded(one_end::<false>);
    explore_bounded(one_end::<true>);
}

#[test]
fn it_waits_for_ready_at_one_gate_and_for_room_at_the_other() {
    explore_bounded(|| {
        let models = Model::<false>::two(|pipe| {
            pipe.ready = false;
            pipe.room = 2;
        });
        let (batch, sender) = (batch(&models, [1, 1], Limit::Never), models[0].sender(1));
        models[0].make_ready();
        models[1].world.free(1);
        all_passed(batch);
        sender.join().unwrap();
        models[0].check(2, true);
        models[1].check(1, true);
    });
}

/// The batch's time is over at one gate, where another sender goes on waiting. The other gate gets room.
fn gives_up<const FAIR: bool>() {
    let models = Model::<FAIR>::two(|_| {});
    let (batch, sender) = (batch(&models, [1, 1], Limit::Expires), models[0].sender(1));
    let clock = models[0].clock();
    models[0].world.free(2);
    models[1].world.free(1);
    sender.join().unwrap();
    let [at_first, at_second] = batch.join().unwrap();
    clock.join().unwrap();
    assert_eq!(at_second, [Ok(())]);
    models[0].check(1 + usize::from(at_first == [Ok(())]), true);
    models[1].check(1, true);
}

#[test]
fn it_hands_off_where_it_gives_up() {
    explore_bounded(gives_up::<false>);
    explore_bounded(gives_up::<true>);
}
