//! The gate under every interleaving of a few threads (`make loom`).
//!
//! The channel is a model of libzmq's. The sending side has room only as far as the commands that it has worked off
//! said so. A command raises the mailbox's signal, and *any* attempt by any thread takes the signal away with the
//! commands. Waits have no time limit here (`crate::sys::sync`), and neither has the source: a wake-up that gets lost is a
//! deadlock, which loom reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};

use super::pending::{self, PendingSend};
use super::{Channel, Gate, Patience, SAFETY_CAP, Tried, WaitSource, Waiter, Wake};

mod batches;
mod cases;
mod long;

/// What one wait may be for: every descriptor of a model.
#[derive(Default)]
struct Kernel {
    descriptors: Mutex<Descriptors>,
    changed: Condvar,
}

#[derive(Default)]
struct Descriptors {
    /// Of two sockets at most.
    mailboxes: [Mailbox; 2],
    /// The wakers of threads that wait at both: which are readable.
    wakers: Vec<bool>,
}

#[derive(Default)]
struct Mailbox {
    /// Room that commands tell of which nobody has worked off.
    told: usize,
    /// The mailbox's descriptor is readable.
    signal: bool,
    /// Our eventfd is readable.
    poller_woken: bool,
    /// The head's time is over.
    expired: bool,
}

/// What the I/O thread and the kernel share with one sending side.
struct World {
    kernel: Arc<Kernel>,
    /// Which of the mailboxes.
    own: usize,
}

impl World {
    /// The peer has read so many messages: one command, one signal.
    fn free(&self, room: usize) {
        self.wake(|mailbox| {
            mailbox.told += room;
            mailbox.signal = true;
        });
    }

    /// Any use of the socket: takes the commands, and the signal with them.
    fn work_off_commands(&self) -> usize {
        let mailbox = &mut self.kernel.descriptors.lock().unwrap().mailboxes[self.own];
        mailbox.signal = false;
        std::mem::take(&mut mailbox.told)
    }

    fn wake(&self, what: impl FnOnce(&mut Mailbox)) {
        what(&mut self.kernel.descriptors.lock().unwrap().mailboxes[self.own]);
        self.kernel.changed.notify_all();
    }
}

/// The sending side. `FAIR`: newcomers queue as soon as the head polls; else they never do.
struct Pipe<const FAIR: bool> {
    world: Arc<World>,
    room: usize,
    ready: bool,
    /// Nothing new passes; the socket is still needed.
    draining: bool,
    ended: bool,
    /// The pipe breaks at the next message.
    brittle: bool,
    dead: bool,
    /// Not yet given up.
    socket: bool,
    /// A sender has it, without the lock.
    away: bool,
    /// As many references as sources, and one.
    sources: Arc<()>,
    sent: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Message,
    /// Is handed over in part without the lock.
    Long,
    /// Is refused as soon as there is room, without taking it; concerns nobody else.
    Misfit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Ended,
    Misfit,
    Over,
}

impl<const FAIR: bool> Channel for Pipe<FAIR> {
    type Item = Item;
    type Done = ();
    type Refusal = Why;
    type WaitSource = ModelWaitSource;
    type Handover = ModelHandover;
    const FAIR_AFTER: Duration = if FAIR { Duration::ZERO } else { Duration::MAX };

    fn attempt(&mut self, item: &mut Item) -> Tried<(), Why, ModelHandover> {
        if self.refusal().is_some() {
            return Tried::Refused(Why::Ended);
        }
        if !self.ready || self.away {
            return Tried::NotYet;
        }
        assert!(self.socket, "an attempt on a socket that was given up");
        // libzmq may pass a message without a look at its commands, but it says that there is no room only after one.
        if self.room == 0 {
            self.room = self.world.work_off_commands();
        }
        if self.room == 0 {
            return Tried::Full;
        }
        match item {
            Item::Misfit => Tried::Refused(Why::Misfit),
            Item::Message if self.brittle => {
                self.dead = true;
                Tried::Refused(Why::Ended)
            }
            Item::Message => {
                self.room -= 1;
                self.sent += 1;
                Tried::Done(())
            }
            Item::Long => {
                self.room -= 1;
                self.away = true;
                Tried::Begun(ModelHandover { world: self.world.clone(), room: 0 })
            }
        }
    }

    /// libzmq may look at its commands at every frame, and takes the signal away with them.
    fn hand_over(handover: &mut ModelHandover, _: &mut Item) {
        handover.room = handover.world.work_off_commands();
    }

    fn complete(&mut self, handover: ModelHandover, _: &mut Item) -> Result<(), Why> {
        assert!(self.away && self.socket, "a socket that was taken out was given up");
        self.away = false;
        self.room += handover.room;
        self.dead |= self.brittle;
        if self.ended || self.dead {
            return Err(Why::Ended);
        }
        self.sent += 1;
        Ok(())
    }

    fn refusal(&self) -> Option<Why> {
        (self.draining || self.ended || self.dead).then_some(Why::Ended)
    }

    fn source(&mut self, _: bool) -> ModelWaitSource {
        assert!(self.socket && !self.away, "a wait on a socket that was given up or taken out");
        assert_eq!(Arc::strong_count(&self.sources), 1, "two threads poll");
        ModelWaitSource { world: self.world.clone(), _alive: self.sources.clone() }
    }

    fn release(&mut self) {
        assert_eq!(Arc::strong_count(&self.sources), 1, "the socket is given up under a thread that polls");
        assert!(!self.away, "the socket is given up under a thread that has it");
        self.socket &= !self.ended && !self.dead;
    }
}

/// What a sender has while it hands over a long item.
struct ModelHandover {
    world: Arc<World>,
    /// Room that it has heard of.
    room: usize,
}

struct ModelWaitSource {
    world: Arc<World>,
    _alive: Arc<()>,
}

impl WaitSource for ModelWaitSource {
    type Wake = ModelAlarm;

    fn wait(&self, _: Instant) -> bool {
        let mut descriptors = self.world.kernel.descriptors.lock().unwrap();
        loop {
            let mailbox = &mut descriptors.mailboxes[self.world.own];
            if mailbox.signal || mailbox.poller_woken || mailbox.expired {
                // Both stay until somebody takes them back; the time is over for this wait only.
                mailbox.expired = false;
                return mailbox.signal || mailbox.poller_woken;
            }
            descriptors = self.world.kernel.changed.wait(descriptors).unwrap();
        }
    }

    fn wake_poller(&self) {
        self.world.wake(|mailbox| mailbox.poller_woken = true);
    }

    fn clear(&self) {
        self.world.kernel.descriptors.lock().unwrap().mailboxes[self.world.own].poller_woken = false;
    }

    fn wait_any<'a>(waker: &ModelAlarm, sources: impl Iterator<Item = Option<&'a Self>>, _: Instant) -> Vec<bool> {
        let sources: Vec<_> = sources.map(|source| source.map(|source| source.world.own)).collect();
        let mut descriptors = waker.kernel.descriptors.lock().unwrap();
        let told = loop {
            let signal = |own: &Option<usize>| own.is_some_and(|own| descriptors.mailboxes[own].signal);
            let told: Vec<bool> = sources.iter().map(signal).collect();
            if descriptors.wakers[waker.own] || told.contains(&true) {
                break told;
            }
            descriptors = waker.kernel.changed.wait(descriptors).unwrap();
        };
        // Two calls of the kernel's: it may ring in between.
        drop(descriptors);
        waker.kernel.descriptors.lock().unwrap().wakers[waker.own] = false;
        told
    }
}

struct ModelAlarm {
    kernel: Arc<Kernel>,
    own: usize,
}

impl ModelAlarm {
    fn new(kernel: &Arc<Kernel>) -> ModelAlarm {
        let wakers = &mut kernel.descriptors.lock().unwrap().wakers;
        wakers.push(false);
        ModelAlarm { kernel: kernel.clone(), own: wakers.len() - 1 }
    }
}

impl Wake for ModelAlarm {
    fn wake(&self) {
        self.kernel.descriptors.lock().unwrap().wakers[self.own] = true;
        self.kernel.changed.notify_all();
    }
}

/// Who gives up when.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Never,
    /// At the second look: as soon as it would have to wait.
    SecondLook,
    /// At the third: when it has waited once for nothing.
    ThirdLook,
    /// When [`Model::clock`] says so.
    Expires,
}

struct Model<const FAIR: bool> {
    gate: Gate<Pipe<FAIR>>,
    world: Arc<World>,
    /// The time of those who expire is over. Used under the gate's lock, so that loom need not know of it.
    expired: AtomicBool,
}

impl<const FAIR: bool> Model<FAIR> {
    /// A READY connection with so much room.
    fn new(room: usize) -> Arc<Self> {
        Self::with(room, |_| {})
    }

    fn with(room: usize, change: impl FnOnce(&mut Pipe<FAIR>)) -> Arc<Self> {
        Self::at(&Arc::default(), 0, room, change)
    }

    /// Two connections without room, for a thread that waits at both.
    fn two(change: impl FnOnce(&mut Pipe<FAIR>)) -> [Arc<Self>; 2] {
        let kernel = Arc::default();
        [Self::at(&kernel, 0, 0, change), Self::at(&kernel, 1, 0, |_| {})]
    }

    fn at(kernel: &Arc<Kernel>, own: usize, room: usize, change: impl FnOnce(&mut Pipe<FAIR>)) -> Arc<Self> {
        let world = Arc::new(World { kernel: kernel.clone(), own });
        let mut pipe = Pipe {
            world: world.clone(),
            room,
            ready: true,
            draining: false,
            ended: false,
            brittle: false,
            dead: false,
            socket: true,
            away: false,
            sources: Arc::new(()),
            sent: 0,
        };
        change(&mut pipe);
        Arc::new(Model { gate: Gate::new(pipe), world, expired: AtomicBool::new(false) })
    }

    fn pass(&self, mut item: Item, limit: Limit) -> Result<(), Why> {
        self.gate.pass(&mut item, self.patience(limit))
    }

    fn patience(&self, limit: Limit) -> impl FnMut(&mut Pipe<FAIR>) -> Patience<Why> {
        let mut looks = 0;
        move |_| {
            looks += 1;
            let over = match limit {
                Limit::Never => false,
                Limit::SecondLook => looks == 2,
                Limit::ThirdLook => looks == 3,
                Limit::Expires => self.expired.load(Ordering::Relaxed),
            };
            // Never reached.
            if over { Patience::Over(Why::Over) } else { Patience::Until(Instant::now() + SAFETY_CAP / 2) }
        }
    }

    /// A thread that sends so many messages and gets them through.
    fn sender(self: &Arc<Self>, messages: usize) -> JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || {
            for _ in 0..messages {
                assert_eq!(model.pass(Item::Message, Limit::Never), Ok(()));
            }
        })
    }

    /// A thread that tries to pass one item.
    fn trier(self: &Arc<Self>, item: Item, limit: Limit) -> JoinHandle<Result<(), Why>> {
        let model = self.clone();
        thread::spawn(move || model.pass(item, limit))
    }

    /// A thread that ends the time of all who [`Limit::Expires`], wherever they wait.
    fn clock(self: &Arc<Self>) -> JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || {
            let access = model.gate.lock();
            model.expired.store(true, Ordering::Relaxed);
            model.world.wake(|mailbox| mailbox.expired = true);
            let queue: Vec<Arc<Waiter>> = access.inner.queue.iter().cloned().collect();
            drop(access);
            queue.iter().for_each(|waiter| waiter.wake());
        })
    }

    /// A thread that looks at the socket, as the watcher does at a full one.
    fn watcher(self: &Arc<Self>) -> JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || {
            let mut pipe = model.gate.lock();
            if !pipe.away {
                pipe.room += model.world.work_off_commands();
            }
            pipe.touched();
        })
    }

    fn make_ready(&self) {
        let mut pipe = self.gate.lock();
        pipe.ready = true;
        pipe.wake_head();
    }

    /// As the manager does before it flushes a connection that it will end.
    fn drain(&self) {
        let mut pipe = self.gate.lock();
        pipe.draining = true;
        pipe.refuse().wake();
    }

    /// As the manager ends a connection.
    fn close(&self) {
        let mut pipe = self.gate.lock();
        pipe.ended = true;
        let wakeups = pipe.close();
        wakeups.wake();
    }

    /// Everybody has left; so many got through, and the socket is where it belongs.
    fn check(&self, sent: usize, socket: bool) {
        let access = self.gate.lock();
        assert_eq!((access.sent, access.socket), (sent, socket));
        assert!(access.inner.queue.is_empty() && !access.inner.fair);
        assert!(access.inner.polling.is_none() && !access.inner.poller_woken);
        assert_eq!(access.rescues(), 0);
    }
}

/// A thread that sends messages at both gates, so many at each, with one wait; what became of them, gate by gate.
fn batch<const FAIR: bool>(
    models: &[Arc<Model<FAIR>>; 2],
    messages: [usize; 2],
    limit: Limit,
) -> JoinHandle<[Vec<Result<(), Why>>; 2]> {
    let models = models.clone();
    thread::spawn(move || {
        let mut results = [vec![], vec![]];
        let waker = Arc::new(ModelAlarm::new(&models[0].world.kernel));
        let pending = models.iter().zip(messages).enumerate().map(|(number, (model, count))| PendingSend {
            gate: &model.gate,
            items: (0..count).map(|_| (number, Item::Message)).collect(),
            patience: model.patience(limit),
        });
        pending::run(pending, waker, |number, result, _| results[number].push(result));
        results
    })
}

fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Every interleaving.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(model);
}

/// Every interleaving with at most three preemptions, where all of them would take minutes.
fn explore_bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
