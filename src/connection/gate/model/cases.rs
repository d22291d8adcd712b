//! What must hold, case by case.

use super::*;

/// Two senders and a peer that reads one message at a time: more messages than room.
fn senders_into_one_slot<const FAIR: bool>() {
    let model = Model::<FAIR>::new(1);
    let senders = [model.sender(2), model.sender(2)];
    for _ in 0..3 {
        model.world.free(1);
        thread::yield_now();
    }
    join(senders);
    model.check(4, true);
}

#[test]
fn nobody_is_left_behind_when_newcomers_pass() {
    explore_bounded(senders_into_one_slot::<false>);
}

#[test]
fn nobody_is_left_behind_when_newcomers_queue() {
    explore_bounded(senders_into_one_slot::<true>);
}

#[test]
fn of_three_nobody_is_left_behind() {
    explore_bounded(|| {
        let model = Model::<false>::new(0);
        let senders = [model.sender(1), model.sender(1), model.sender(1)];
        model.world.free(1);
        model.world.free(2);
        join(senders);
        model.check(3, true);
    });
}

/// One signal tells of room for two.
fn one_signal_for_two<const FAIR: bool>() {
    let model = Model::<FAIR>::new(0);
    let senders = [model.sender(1), model.sender(1)];
    model.world.free(2);
    join(senders);
    model.check(2, true);
}

#[test]
fn a_newcomer_that_ate_the_signal_kicks_the_head() {
    explore(one_signal_for_two::<false>);
}

#[test]
fn who_passes_hands_the_baton_on() {
    explore(one_signal_for_two::<true>);
}

#[test]
fn a_newcomer_that_ate_the_signal_in_vain_kicks_the_head() {
    explore(|| {
        let model = Model::<false>::new(0);
        let (patient, misfit) = (model.sender(1), model.trier(Item::Misfit, Limit::SecondLook));
        model.world.free(1);
        patient.join().unwrap();
        assert_ne!(misfit.join().unwrap(), Ok(()));
        model.check(1, true);
    });
}

/// One that gives up and one that does not, somebody who disturbs, and room for both.
fn one_gives_up<const FAIR: bool>(limit: Limit, disturb: impl Fn(&Arc<Model<FAIR>>) -> JoinHandle<()>) {
    let model = Model::<FAIR>::new(0);
    let (patient, hasty) = (model.sender(1), model.trier(Item::Message, limit));
    let disturber = disturb(&model);
    model.world.free(2);
    patient.join().unwrap();
    let passed = match hasty.join().unwrap() {
        Ok(()) => 1,
        Err(why) => {
            assert_eq!(why, Why::Over);
            0
        }
    };
    disturber.join().unwrap();
    model.check(1 + passed, true);
}

#[test]
fn who_gives_up_after_a_kick_for_nothing_hands_the_baton_on() {
    explore_bounded(|| one_gives_up::<false>(Limit::ThirdLook, Model::watcher));
    explore_bounded(|| one_gives_up::<true>(Limit::ThirdLook, Model::watcher));
}

#[test]
fn who_gives_up_while_polling_or_parked_hands_the_baton_on() {
    explore_bounded(|| one_gives_up::<false>(Limit::Expires, Model::clock));
    explore_bounded(|| one_gives_up::<true>(Limit::Expires, Model::clock));
}

#[test]
fn who_is_refused_hands_the_baton_on() {
    explore(|| {
        let model = Model::<true>::new(0);
        let (misfit, patient) = (model.trier(Item::Misfit, Limit::Never), model.sender(1));
        model.world.free(1);
        patient.join().unwrap();
        // Room that nobody takes: the misfit finds it too, before or after.
        model.world.free(1);
        assert_eq!(misfit.join().unwrap(), Err(Why::Misfit));
        model.check(1, true);
    });
}

/// The end comes while one polls and another is parked, or before they do.
fn close_under_two<const FAIR: bool>(change: impl FnOnce(&mut Pipe<FAIR>)) {
    let model = Model::<FAIR>::with(0, change);
    let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
    model.close();
    assert_eq!(join(triers), [Err(Why::Ended); 2]);
    model.check(0, false);
}

#[test]
fn the_end_releases_who_polls_and_who_is_parked() {
    explore(|| close_under_two::<false>(|_| {}));
    explore(|| close_under_two::<true>(|_| {}));
}

#[test]
fn the_end_releases_who_waits_for_ready() {
    explore(|| close_under_two::<false>(|pipe| pipe.ready = false));
}

#[test]
fn an_end_that_is_announced_releases_everybody_before_it_comes() {
    fn model<const FAIR: bool>(ready: bool) {
        let model = Model::<FAIR>::with(0, |pipe| pipe.ready = ready);
        let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
        model.drain();
        assert_eq!(join(triers), [Err(Why::Ended); 2]);
        model.check(0, true);
        model.close();
        model.check(0, false);
    }
    explore(|| model::<false>(true));
    explore(|| model::<true>(true));
    explore(|| model::<false>(false));
}

#[test]
fn an_end_that_is_announced_may_come_at_once() {
    explore(|| {
        let model = Model::<true>::new(0);
        let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
        model.drain();
        model.close();
        assert_eq!(join(triers), [Err(Why::Ended); 2]);
        model.check(0, false);
    });
}

#[test]
fn the_end_meets_one_who_gives_up() {
    explore_bounded(|| {
        let model = Model::<true>::new(0);
        let triers = [model.trier(Item::Message, Limit::Expires), model.trier(Item::Message, Limit::Never)];
        let clock = model.clock();
        model.close();
        let results = join(triers);
        assert!(matches!(results[..], [Err(Why::Ended | Why::Over), Err(Why::Ended)]), "{results:?}");
        clock.join().unwrap();
        model.check(0, false);
    });
}

#[test]
fn the_end_meets_room() {
    explore(|| {
        let model = Model::<false>::new(0);
        let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
        model.world.free(2);
        model.close();
        let passed = join(triers).iter().filter(|result| result.is_ok()).count();
        model.check(passed, false);
    });
}

#[test]
fn ready_lets_all_pass_who_waited_for_it() {
    explore(|| {
        let model = Model::<false>::with(2, |pipe| pipe.ready = false);
        let senders = [model.sender(1), model.sender(1)];
        model.make_ready();
        join(senders);
        model.check(2, true);
    });
}

#[test]
fn ready_is_followed_by_a_full_queue() {
    explore(|| {
        let model = Model::<false>::with(1, |pipe| pipe.ready = false);
        let senders = [model.sender(1), model.sender(1)];
        model.make_ready();
        model.world.free(1);
        join(senders);
        model.check(2, true);
    });
}

#[test]
fn ready_meets_the_end() {
    explore_bounded(|| {
        let model = Model::<false>::with(2, |pipe| pipe.ready = false);
        let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
        let watcher = model.clone();
        let watcher = thread::spawn(move || watcher.make_ready());
        model.close();
        let passed = join(triers).iter().filter(|result| result.is_ok()).count();
        watcher.join().unwrap();
        model.check(passed, false);
    });
}

#[test]
fn who_looks_at_the_socket_kicks_the_head() {
    explore_bounded(|| {
        let model = Model::<false>::new(0);
        let senders = [model.sender(1), model.sender(1)];
        let watcher = model.watcher();
        model.world.free(2);
        join(senders);
        watcher.join().unwrap();
        model.check(2, true);
    });
}

/// The pipe dies under a message; who finds it reports the end, as `Connection::send` does.
#[test]
fn a_dead_pipe_releases_everybody() {
    explore(|| {
        let model = Model::<false>::with(0, |pipe| pipe.brittle = true);
        let finders = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || {
                assert_eq!(model.pass(Item::Message, Limit::Never), Err(Why::Ended));
                model.close();
            })
        });
        model.world.free(1);
        join(finders);
        model.check(0, false);
    });
}

/// Somebody waits for the state, somebody sends, and `change` happens.
fn state_is_told(change: impl Fn(&Model<false>) + Sync + Send + 'static) {
    explore(move || {
        let model = Model::<false>::with(1, |pipe| pipe.ready = false);
        let waiter = model.clone();
        let waiter = thread::spawn(move || {
            let forever = Instant::now() + Duration::from_secs(1 << 30);
            let look = |pipe: &Pipe<false>| (pipe.ready || pipe.ended).then_some(());
            assert_eq!(waiter.gate.wait_for(forever, look), Some(()));
        });
        let trier = model.trier(Item::Message, Limit::Never);
        change(&model);
        let passed = trier.join().unwrap().is_ok();
        waiter.join().unwrap();
        let ended = model.gate.lock().ended;
        model.check(usize::from(passed), !ended);
    });
}

#[test]
fn who_waits_for_the_state_is_told() {
    state_is_told(Model::make_ready);
    state_is_told(Model::close);
}
