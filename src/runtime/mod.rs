//! What all managers share: libzmq's context, the background threads, the budgets, the table of connections.
//!
//! The context and its threads are made with the first connection. They are never freed: libzmq's threads live as long
//! as the process.

pub(crate) mod context;
mod pacing;
pub(crate) mod release;
pub mod resolve;
pub(crate) mod watcher;

use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use crate::budget::bytes::ByteBudget;
use crate::budget::descriptors::DescriptorBudget;
use crate::connection::acknowledgement::release_tracker::ReleaseQueue;
use crate::connection::registry::Registry;
use crate::error::{Error, Result, Status};
use crate::libzmq::Context;
use crate::options::{Key, Options, Reach, SETTINGS, Values};
use crate::sys::lock::Mutex;

use resolve::Resolver;
use watcher::Watcher;

/// What all managers share.
pub(crate) struct Runtime {
    descriptors: Arc<DescriptorBudget>,
    bytes: Arc<ByteBudget>,
    registry: Arc<Registry>,
    resolver: Arc<Resolver>,
    /// When bytes were last reclaimed. Leaf lock, held for a moment.
    reclaimed: Mutex<Option<Instant>>,
    /// Served by the thread `kvconn-release`; made with the first zero-copy message.
    release_queue: OnceCell<Arc<ReleaseQueue>>,
    /// Made with the first connection.
    engine: OnceCell<Engine>,
    /// The option `io_threads`, until the engine is made. Leaf lock.
    io_threads: Mutex<i32>,
}

/// libzmq, and the thread that watches its sockets.
pub(crate) struct Engine {
    pub(crate) context: Arc<Context>,
    pub(crate) watcher: Arc<Watcher>,
}

impl Runtime {
    /// Makes one from the settings of the process. Starts no thread.
    pub(crate) fn new(values: &Values) -> Arc<Runtime> {
        let descriptors = DescriptorBudget::new();
        descriptors.set_limit(values.count(Key::MaxDescriptors));
        Arc::new(Runtime {
            descriptors: Arc::new(descriptors),
            bytes: Arc::new(ByteBudget::new(values.get(Key::MaxTotalQueuedBytes).unsigned_abs())),
            registry: Arc::new(Registry::new()),
            resolver: Arc::new(Resolver::new()),
            reclaimed: Mutex::new(None),
            release_queue: OnceCell::new(),
            engine: OnceCell::new(),
            io_threads: Mutex::new(values.get(Key::IoThreads) as i32),
        })
    }

    /// libzmq's context and the watcher; made at the first call. LIMIT when there is no room for them.
    pub(crate) fn engine(&self) -> Result<&Engine> {
        self.engine.get_or_try_init(|| {
            let context = Arc::new(context::create(*self.io_threads.lock())?);
            let parts = (context.clone(), self.descriptors.clone(), self.registry.clone(), self.resolver.clone());
            match Watcher::start(parts) {
                Ok(watcher) => Ok(Engine { context, watcher: Arc::new(watcher) }),
                Err(e) => {
                    // A start that fails half-way gives everything back. Nothing else holds the context then.
                    if let Some(context) = Arc::into_inner(context) {
                        context.terminate();
                    }
                    Err(e)
                }
            }
        })
    }

    /// The budget of descriptors.
    pub(crate) fn descriptors(&self) -> &Arc<DescriptorBudget> {
        &self.descriptors
    }

    /// The budget of queued bytes.
    pub(crate) fn bytes(&self) -> &Arc<ByteBudget> {
        &self.bytes
    }

    /// Looks names up.
    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// Connections by their ids.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The queue of the thread that releases zero-copy buffers; the first call starts it. LIMIT when it cannot be
    /// started.
    pub(crate) fn release_queue(&self) -> Result<Arc<ReleaseQueue>> {
        self.release_queue.get_or_try_init(|| release::start(self.registry.clone())).cloned()
    }

    /// Makes every connection give back the bytes that it does not need. Returns false when that was done a moment ago.
    pub(crate) fn reclaim_bytes(&self) -> bool {
        /// Ten thousand connections take some milliseconds.
        const AGAIN: Duration = Duration::from_millis(20);
        {
            let mut last = self.reclaimed.lock();
            if last.is_some_and(|at| at.elapsed() < AGAIN) {
                return false;
            }
            *last = Some(Instant::now());
        }
        self.registry.all().iter().for_each(|conn| conn.try_give_back());
        true
    }

    /// Applies the settings of the process among these options. CONFLICT when it is too late for one.
    pub(crate) fn configure(&self, options: &Options) -> Result<()> {
        for (setting, value) in options.given() {
            let value = value.number();
            match setting.key {
                Key::IoThreads => {
                    let mut io_threads = self.io_threads.lock();
                    if self.engine.get().is_some() && i64::from(*io_threads) != value {
                        return Err(Error::new(
                            Status::Conflict,
                            format!("io_threads is {} and fixed since the first connection", *io_threads),
                        ));
                    }
                    *io_threads = value as i32;
                }
                Key::MaxTotalQueuedBytes => self.bytes.set_limit(value.unsigned_abs()),
                Key::MaxDescriptors => self.descriptors.set_limit(value as usize),
                _ => debug_assert!(SETTINGS[setting.key as usize].reach != Reach::Process),
            }
        }
        Ok(())
    }
}
