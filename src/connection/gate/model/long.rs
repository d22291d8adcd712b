//! Items that are handed over in part without the lock.

use super::*;

/// A long item and another one, and room for both, in one or two signals.
fn beside_another<const FAIR: bool>(other: Item, signals: [usize; 2]) {
    let model = Model::<FAIR>::new(0);
    let triers = [model.trier(Item::Long, Limit::Never), model.trier(other, Limit::Never)];
    for room in signals.into_iter().filter(|room| *room > 0) {
        model.world.free(room);
    }
    assert_eq!(join(triers), [Ok(()); 2]);
    model.check(2, true);
}

#[test]
fn a_returning_sender_wakes_those_that_found_the_channel_busy() {
    explore_bounded(|| beside_another::<false>(Item::Message, [2, 0]));
    explore_bounded(|| beside_another::<true>(Item::Message, [2, 0]));
}

#[test]
fn a_sender_that_is_away_may_take_the_signal_of_the_head() {
    explore_bounded(|| beside_another::<false>(Item::Message, [1, 1]));
    explore_bounded(|| beside_another::<true>(Item::Message, [1, 1]));
}

#[test]
fn two_long_ones_follow_each_other() {
    explore_bounded(|| beside_another::<false>(Item::Long, [2, 0]));
    explore_bounded(|| beside_another::<true>(Item::Long, [1, 1]));
}

#[test]
fn of_three_nobody_is_left_behind() {
    explore_bounded(|| {
        let model = Model::<false>::new(3);
        let items = [Item::Long, Item::Long, Item::Message];
        assert_eq!(join(items.map(|item| model.trier(item, Limit::Never))), [Ok(()); 3]);
        model.check(3, true);
    });
}

/// The connection ends under one who is away or before, with another one beside it.
fn meets_the_end<const FAIR: bool>(room: usize, other: Item) {
    let model = Model::<FAIR>::new(room);
    let triers = [model.trier(Item::Long, Limit::Never), model.trier(other, Limit::Never)];
    model.close();
    let results = join(triers);
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Why::Ended))), "{results:?}");
    model.check(results.iter().filter(|result| result.is_ok()).count(), false);
}

#[test]
fn a_sender_that_returns_to_an_ended_channel_gives_up_the_socket() {
    explore(|| {
        let model = Model::<false>::new(1);
        let trier = model.trier(Item::Long, Limit::Never);
        model.close();
        let sent = usize::from(trier.join().unwrap().is_ok());
        model.check(sent, false);
    });
}

#[test]
fn the_end_releases_those_who_found_the_channel_busy() {
    explore_bounded(|| meets_the_end::<false>(2, Item::Message));
    explore_bounded(|| meets_the_end::<true>(1, Item::Message));
    explore_bounded(|| meets_the_end::<false>(1, Item::Long));
}

#[test]
fn an_end_that_is_announced_lets_pass_what_was_begun() {
    explore(|| {
        let model = Model::<false>::new(1);
        let trier = model.trier(Item::Long, Limit::Never);
        model.drain();
        let sent = usize::from(trier.join().unwrap().is_ok());
        model.check(sent, true);
        model.close();
        model.check(sent, false);
    });
}

#[test]
fn a_sender_that_gives_up_at_a_busy_channel_hands_its_role_on() {
    explore_bounded(|| {
        let model = Model::<false>::new(3);
        let items = [(Item::Long, Limit::Never), (Item::Message, Limit::SecondLook), (Item::Message, Limit::Never)];
        let results = join(items.map(|(item, limit)| model.trier(item, limit)));
        assert_eq!((results[0], results[2]), (Ok(()), Ok(())));
        model.check(results.iter().filter(|result| result.is_ok()).count(), true);
    });
}

#[test]
fn a_pipe_that_dies_under_a_long_one_releases_everybody() {
    explore_bounded(|| {
        let model = Model::<false>::with(1, |pipe| pipe.brittle = true);
        let finders = [Item::Long, Item::Long].map(|item| {
            let model = model.clone();
            thread::spawn(move || {
                assert_eq!(model.pass(item, Limit::Never), Err(Why::Ended));
                model.close();
            })
        });
        join(finders);
        model.check(0, false);
    });
}

#[test]
fn a_look_at_the_socket_does_not_disturb() {
    explore_bounded(|| {
        let model = Model::<false>::new(0);
        let triers = [model.trier(Item::Long, Limit::Never), model.trier(Item::Message, Limit::Never)];
        let watcher = model.watcher();
        model.world.free(2);
        assert_eq!(join(triers), [Ok(()); 2]);
        watcher.join().unwrap();
        model.check(2, true);
    });
}

#[test]
fn a_batch_waits_where_another_is_away() {
    explore_bounded(|| {
        let models = Model::<false>::two(|pipe| pipe.room = 2);
        let (batch, trier) = (batch(&models, [1, 1], Limit::Never), models[0].trier(Item::Long, Limit::Never));
        models[1].world.free(1);
        for result in batch.join().unwrap().into_iter().flatten() {
            assert_eq!(result, Ok(()));
        }
        assert_eq!(trier.join().unwrap(), Ok(()));
        models[0].check(2, true);
        models[1].check(1, true);
    });
}
