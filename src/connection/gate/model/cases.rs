//! What must hold for one gate, case by case.

use super::*;

/// Two senders and a peer that reads one message at a time. There are more messages than room.
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
fn no_sender_is_left_waiting_when_newcomers_barge() {
    explore_bounded(senders_into_one_slot::<false>);
}

#[test]
fn no_sender_is_left_waiting_when_newcomers_queue() {
    explore_bounded(senders_into_one_slot::<true>);
}

#[test]
fn none_of_three_senders_is_left_waiting() {
    explore_bounded(|| {
        let model = Model::<false>::new(0);
        let senders = [model.sender(1), model.sender(1), model.sender(1)];
        model.world.free(1);
        model.world.free(2);
        join(senders);
        model.check(3, true);
    });
}

/// One signal for room for two.
fn one_signal_for_two<const FAIR: bool>() {
    let model = Model::<FAIR>::new(0);
    let senders = [model.sender(1), model.sender(1)];
    model.world.free(2);
    join(senders);
    model.check(2, true);
}

#[test]
fn a_newcomer_that_consumes_the_signal_wakes_the_head() {
    explore(one_signal_for_two::<false>);
}

#[test]
fn a_sender_that_passes_hands_off() {
    explore(one_signal_for_two::<true>);
}

#[test]
fn a_newcomer_that_consumes_the_signal_and_does_not_pass_wakes_the_head() {
    explore(|| {
        let model = Model::<false>::new(0);
        let (patient, misfit) = (model.sender(1), model.trier(Item::Misfit, Limit::SecondLook));
        model.world.free(1);
        patient.join().unwrap();
        assert_ne!(misfit.join().unwrap(), Ok(()));
        model.check(1, true);
    });
}

/// One sender that gives up, one that does not, a disturbing thread, and room for both.
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
fn a_sender_that_gives_up_after_a_useless_wake_up_hands_off() {
    explore_bounded(|| one_gives_up::<false>(Limit::ThirdLook, Model::watcher));
    explore_bounded(|| one_gives_up::<true>(Limit::ThirdLook, Model::watcher));
}

#[test]
fn a_sender_that_gives_up_while_polling_or_parked_hands_off() {
    explore_bounded(|| one_gives_up::<false>(Limit::Expires, Model::clock));
    explore_bounded(|| one_gives_up::<true>(Limit::Expires, Model::clock));
}

#[test]
fn a_refused_sender_hands_off() {
    explore(|| {
        let model = Model::<true>::new(0);
        let (misfit, patient) = (model.trier(Item::Misfit, Limit::Never), model.sender(1));
        model.world.free(1);
        patient.join().unwrap();
        // Room that stays unused. The misfit finds it too, sooner or later.
        model.world.free(1);
        assert_eq!(misfit.join().unwrap(), Err(Why::Misfit));
        model.check(1, true);
    });
}

/// The end comes while one sender polls and another is parked, or before that.
fn close_under_two<const FAIR: bool>(change: impl FnOnce(&mut Pipe<FAIR>)) {
    let model = Model::<FAIR>::with(0, change);
    let triers = [model.trier(Item::Message, Limit::Never), model.trier(Item::Message, Limit::Never)];
    model.close();
    assert_eq!(join(triers), [Err(Why::Ended); 2]);
    model.check(0, false);
}

#[test]
fn the_end_wakes_polling_and_parked_senders() {
    explore(|| close_under_two::<false>(|_| {}));
    explore(|| close_under_two::<true>(|_| {}));
}

#[test]
fn the_end_wakes_senders_that_wait_for_ready() {
    explore(|| close_under_two::<false>(|pipe| pipe.ready = false));
}

#[test]
fn draining_wakes_all_senders_before_the_end() {
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
fn draining_may_be_followed_by_the_end_at_once() {
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
fn the_end_races_with_a_sender_that_gives_up() {
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
fn the_end_races_with_room() {
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
fn ready_lets_all_waiting_senders_pass() {
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
fn ready_races_with_the_end() {
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
fn touching_the_socket_wakes_the_head() {
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

/// The pipe dies within a message. The sender that finds it dead reports the end, as `Connection::send` does.
#[test]
fn a_dead_pipe_wakes_all_senders() {
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

/// One thread waits for the state, one sends, and then `change` runs.
fn state_waiter_sees(change: impl Fn(&Model<false>) + Sync + Send + 'static) {
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
fn a_thread_that_waits_for_the_state_is_woken() {
    state_waiter_sees(Model::make_ready);
    state_waiter_sees(Model::close);
}
