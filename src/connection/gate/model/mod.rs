//! The gate under every interleaving of a few threads (`make loom`).
//!
//! The channel is a model of libzmq's. The sending side knows of room only from the commands that it has processed. A
//! command raises the mailbox's signal, and *any* attempt by any thread consumes the signal together with the commands.
//! Waits have no time limit here (`crate::sys::sync`), and neither has the source. So a lost wake-up is a deadlock,
//! which loom reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};

use super::pending::{self, PendingSend};
use super::{Channel, Gate, Patience, SAFETY_CAP, Tried, WaitSource, Waiter, Wake, Wakeups};

mod batches;
mod cases;
mod long;

/// All descriptors of a model, as one thing that a thread can wait on.
#[derive(Default)]
struct Kernel {
    descriptors: Mutex<Descriptors>,
    changed: Condvar,
}

#[derive(Default)]
struct Descriptors {
    /// Of at most two sockets.
    mailboxes: [Mailbox; 2],
    /// For threads that wait at both sockets: whether each waker is readable.
    wakers: Vec<bool>,
}

#[derive(Default)]
struct Mailbox {
    /// Room announced by commands that no thread has processed yet.
    announced: usize,
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
    /// Which of the mailboxes is its own.
    own: usize,
}

impl World {
    /// The peer has read `room` messages: one command, one signal.
    fn free(&self, room: usize) {
        self.wake(|mailbox| {
            mailbox.announced += room;
            mailbox.signal = true;
        });
    }

    /// Any use of the socket: consumes the commands, and the signal with them.
    fn process_commands(&self) -> usize {
        let mailbox = &mut self.kernel.descriptors.lock().unwrap().mailboxes[self.own];
        mailbox.signal = false;
        std::mem::take(&mut mailbox.announced)
    }

    fn wake(&self, what: impl FnOnce(&mut Mailbox)) {
        what(&mut self.kernel.descriptors.lock().unwrap().mailboxes[self.own]);
        self.kernel.changed.notify_all();
    }
}

/// The sending side. `FAIR`: newcomers queue as soon as the head polls. Otherwise they never have to.
struct Pipe<const FAIR: bool> {
    world: Arc<World>,
    room: usize,
    ready: bool,
    /// Nothing new passes. The socket is still needed.
    draining: bool,
    ended: bool,
    /// The pipe breaks at the next message.
    brittle: bool,
    dead: bool,
    /// The socket is not closed yet.
    socket: bool,
    /// A sender has the socket, without the lock.
    away: bool,
    /// One reference more than there are sources.
    sources: Arc<()>,
    sent: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Message,
    /// Is handed over in part without the lock.
    Long,
    /// Is refused as soon as there is room, and takes none. Does not affect other items.
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
    type Short = Item;
    type Output = ();
    type Refusal = Why;
    type WaitSource = ModelWaitSource;
    type Handover = ModelHandover;
    type Released = ();
    const FAIR_AFTER: Duration = if FAIR { Duration::ZERO } else { Duration::MAX };

    fn attempt_short(&mut self, item: &mut Item) -> Option<()> {
        if self.refusal().is_some() || !self.ready || self.away {
            return None;
        }
        assert!(self.socket && *item == Item::Message, "an attempt on a closed socket");
        match self.attempt(item) {
            Tried::Passed(()) => Some(()),
            _ => None,
        }
    }

    fn attempt(&mut self, item: &mut Item) -> Tried<(), Why, ModelHandover> {
        if self.refusal().is_some() {
            return Tried::Refused(Why::Ended);
        }
        if !self.ready || self.away {
            return Tried::NotYet;
        }
        assert!(self.socket, "an attempt on a closed socket");
        // libzmq may take a message without reading its commands. It reports a full queue only after reading them.
        if self.room == 0 {
            self.room = self.world.process_commands();
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
                Tried::Passed(())
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
        handover.room = handover.world.process_commands();
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
        assert!(self.socket && !self.away, "a wait on a socket that is closed or that a sender has");
        assert_eq!(Arc::strong_count(&self.sources), 1, "two threads poll");
        ModelWaitSource { world: self.world.clone(), _alive: self.sources.clone() }
    }

    fn release(&mut self) -> Option<()> {
        assert_eq!(Arc::strong_count(&self.sources), 1, "the socket is closed while a thread polls it");
        assert!(!self.away, "the socket is closed while a sender has it");
        self.socket &= !self.ended && !self.dead;
        None
    }
}

/// What a sender has while it hands over a long item.
struct ModelHandover {
    world: Arc<World>,
    /// Room that it knows of.
    room: usize,
}

struct ModelWaitSource {
    world: Arc<World>,
    _alive: Arc<()>,
}

impl WaitSource for ModelWaitSource {
    type Wake = ModelWaker;

    fn wait(&self, _: Instant) -> bool {
        let mut descriptors = self.world.kernel.descriptors.lock().unwrap();
        loop {
            let mailbox = &mut descriptors.mailboxes[self.world.own];
            if mailbox.signal || mailbox.poller_woken || mailbox.expired {
                // Signal and wake-up stay until they are consumed. The timeout counts for this wait only.
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

    fn wait_any<'a>(waker: &ModelWaker, sources: impl Iterator<Item = Option<&'a Self>>, _: Instant) -> Vec<bool> {
        let sources: Vec<_> = sources.map(|source| source.map(|source| source.world.own)).collect();
        let mut descriptors = waker.kernel.descriptors.lock().unwrap();
        let woken = loop {
            let signal = |own: &Option<usize>| own.is_some_and(|own| descriptors.mailboxes[own].signal);
            let woken: Vec<bool> = sources.iter().map(signal).collect();
            if descriptors.wakers[waker.own] || woken.contains(&true) {
                break woken;
            }
            descriptors = waker.kernel.changed.wait(descriptors).unwrap();
        };
        // The real code makes two system calls here: a wake-up may come between them.
        drop(descriptors);
        waker.kernel.descriptors.lock().unwrap().wakers[waker.own] = false;
        woken
    }
}

struct ModelWaker {
    kernel: Arc<Kernel>,
    own: usize,
}

impl ModelWaker {
    fn new(kernel: &Arc<Kernel>) -> ModelWaker {
        let wakers = &mut kernel.descriptors.lock().unwrap().wakers;
        wakers.push(false);
        ModelWaker { kernel: kernel.clone(), own: wakers.len() - 1 }
    }
}

impl Wake for ModelWaker {
    fn wake(&self) {
        self.kernel.descriptors.lock().unwrap().wakers[self.own] = true;
        self.kernel.changed.notify_all();
    }
}

/// When a thread gives up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Never,
    /// At the second look: as soon as it has to wait.
    SecondLook,
    /// At the third look: after one wait without success.
    ThirdLook,
    /// When [`Model::clock`] says so.
    Expires,
}

struct Model<const FAIR: bool> {
    gate: Gate<Pipe<FAIR>>,
    world: Arc<World>,
    /// The time of all threads with [`Limit::Expires`] is over. Used under the gate's lock, so loom need not track it.
    expired: AtomicBool,
}

impl<const FAIR: bool> Model<FAIR> {
    /// A READY connection with this much room.
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

    /// As a connection sends: a message tries the shortest way first.
    fn pass(&self, mut item: Item, limit: Limit) -> Result<(), Why> {
        if item == Item::Message && self.gate.pass_short(&mut item, |_| true).is_some() {
            return Ok(());
        }
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
            // The model never reaches that time.
            if over { Patience::Over(Why::Over) } else { Patience::Until(Instant::now() + SAFETY_CAP / 2) }
        }
    }

    /// A thread that sends this many messages. All must pass.
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

    /// A thread that ends the time of all threads with [`Limit::Expires`], wherever they wait.
    fn clock(self: &Arc<Self>) -> JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || {
            let access = model.gate.lock();
            model.expired.store(true, Ordering::Relaxed);
            model.world.wake(|mailbox| mailbox.expired = true);
            let queue: Vec<Arc<Waiter>> = access.locked.queue.iter().cloned().collect();
            drop(access);
            queue.iter().for_each(|waiter| waiter.wake());
        })
    }

    /// A thread that touches the socket, as the watcher does with a full one.
    fn watcher(self: &Arc<Self>) -> JoinHandle<()> {
        let model = self.clone();
        thread::spawn(move || {
            let mut pipe = model.gate.lock();
            if !pipe.away {
                pipe.room += model.world.process_commands();
            }
            pipe.touched();
        })
    }

    fn make_ready(&self) {
        let mut pipe = self.gate.lock();
        pipe.ready = true;
        pipe.wake_head();
    }

    /// What the manager does before it flushes a connection and ends it.
    fn drain(&self) {
        let mut pipe = self.gate.lock();
        pipe.draining = true;
        pipe.refuse().wake();
    }

    /// How the manager ends a connection.
    fn close(&self) {
        let mut pipe = self.gate.lock();
        pipe.ended = true;
        let mut wakeups = Wakeups::default();
        let _released = pipe.close(&mut wakeups);
        wakeups.wake();
    }

    /// All threads have left. Checks how many messages passed, and whether the socket is open.
    fn check(&self, sent: usize, socket: bool) {
        let access = self.gate.lock();
        assert_eq!((access.sent, access.socket), (sent, socket));
        assert!(access.locked.queue.is_empty() && !access.locked.fair);
        assert!(access.locked.polling.is_none() && !access.locked.poller_woken);
        assert_eq!(access.rescues(), 0);
    }
}

/// A thread that sends messages at both gates with one wait: `messages` for each gate. Returns the results by gate.
fn batch<const FAIR: bool>(
    models: &[Arc<Model<FAIR>>; 2],
    messages: [usize; 2],
    limit: Limit,
) -> JoinHandle<[Vec<Result<(), Why>>; 2]> {
    let models = models.clone();
    thread::spawn(move || {
        let mut results = [vec![], vec![]];
        let waker = Arc::new(ModelWaker::new(&models[0].world.kernel));
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

/// Every interleaving with at most three preemptions. For models where all interleavings would take minutes.
fn explore_bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
