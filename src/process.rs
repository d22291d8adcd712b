//! What the process has one of: libzmq's context, the watcher, the budget of descriptors, the tables of ids.
//!
//! Made at first use and never unmade: libzmq's threads live as long as the process. A forked child gets a fresh
//! one and leaves its parent's alone, untouched and unfreed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use crate::budget::Budget;
use crate::byte_budget::ByteBudget;
use crate::connection::Connection;
use crate::error::{Error, Result, Status};
use crate::fork;
use crate::ids::{ConnId, ManagerId, NodeId};
use crate::libzmq::Context;
use crate::lock::{Mutex, RwLock};
use crate::manager::{Manager, Timeout};
use crate::options::{Key, Options, Reach, SETTINGS, Values};
use crate::registry::Registry;
use crate::release::Releaser;
use crate::resolve::Resolver;
use crate::watcher::Watcher;
use crate::{context, log};

const SHUT: &str = "kvconn_shutdown was called in this process";

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The process-wide part of kvconn.
pub struct Process {
    pid: u32,
    budget: Budget,
    byte_budget: ByteBudget,
    /// When bytes were last reclaimed. Held for a moment, and no other lock under it.
    reclaimed: Mutex<Option<Instant>>,
    resolver: Resolver,
    /// Made with the first lent buffer.
    releaser: OnceCell<Releaser>,
    /// What needs threads: made with the first connection.
    engine: OnceCell<Engine>,
    /// `io_threads`, until the engine is made.
    io_threads: Mutex<i32>,
    /// Defaults, with the environment's.
    values: Values,
    managers: RwLock<HashMap<ManagerId, Arc<Manager>>>,
    registry: Arc<Registry>,
    shut: AtomicBool,
}

/// libzmq and the thread that listens to it.
pub(crate) struct Engine {
    pub(crate) context: Context,
    pub(crate) watcher: Watcher,
}

impl Process {
    /// This process's. INVALID when an environment variable cannot be used, SHUTDOWN after `kvconn_shutdown`.
    pub fn current() -> Result<&'static Process> {
        let process = Process::in_any_state()?;
        if process.is_shut() {
            return Err(Error::new(Status::Shutdown, SHUT));
        }
        Ok(process)
    }

    /// The same also after `kvconn_shutdown`.
    pub(crate) fn in_any_state() -> Result<&'static Process> {
        // The mark first: it is set after CURRENT, so whoever sees it sees the process it was set for.
        if !fork::is_marked() {
            Process::begin()?;
        }
        // SAFETY: set by `begin` before the mark, to a leaked box that is never freed.
        Ok(unsafe { &*CURRENT.load(Ordering::Acquire) })
    }

    /// Whether `kvconn_shutdown` was called.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    fn begin() -> Result<()> {
        let old = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box that is never freed.
        let begun = unsafe { old.as_ref() }.is_some_and(|process| process.pid == std::process::id());
        if !begun {
            if old.is_null() {
                log::from_environment()?;
            } else {
                // Forked: the parent's threads are not here.
                log::reset_after_fork();
            }
            let fresh = Box::into_raw(Box::new(Process::new()?));
            if CURRENT.compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was first; nobody has seen ours.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        fork::mark();
        Ok(())
    }

    fn new() -> Result<Process> {
        let values = Values::from_environment(|name| std::env::var(name).ok())?;
        let budget = Budget::new();
        budget.set_limit(values.count(Key::MaxDescriptors));
        let registry = Arc::new(Registry::new());
        let default = Manager::new(ManagerId::NONE, values.clone(), registry.clone());
        Ok(Process {
            pid: std::process::id(),
            budget,
            byte_budget: ByteBudget::new(values.get(Key::MaxTotalQueuedBytes).unsigned_abs()),
            reclaimed: Mutex::new(None),
            resolver: Resolver::new(),
            releaser: OnceCell::new(),
            engine: OnceCell::new(),
            io_threads: Mutex::new(values.get(Key::IoThreads) as i32),
            values,
            managers: RwLock::new(HashMap::from([(ManagerId::NONE, default)])),
            registry,
            shut: AtomicBool::new(false),
        })
    }

    /// libzmq's context and the watcher; made at the first call, LIMIT when there is no room for them.
    pub(crate) fn engine(&'static self) -> Result<&'static Engine> {
        self.engine.get_or_try_init(|| {
            let context = context::create(*self.io_threads.lock())?;
            match Watcher::start(self) {
                Ok(watcher) => Ok(Engine { context, watcher }),
                Err(e) => {
                    // A start that fails half-way gives everything back.
                    context.terminate();
                    Err(e)
                }
            }
        })
    }

    pub(crate) fn budget(&'static self) -> &'static Budget {
        &self.budget
    }

    pub(crate) fn byte_budget(&'static self) -> &'static ByteBudget {
        &self.byte_budget
    }

    /// Bytes set aside for what is on the way, and how many there may be.
    pub(crate) fn queued_bytes(&self) -> (u64, u64) {
        self.byte_budget.state()
    }

    /// Has every connection give back the bytes that it does not need; false when that was done a moment ago.
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

    /// The thread that gives lent buffers back; started at the first call, LIMIT when it cannot be.
    pub(crate) fn releaser(&'static self) -> Result<&'static Releaser> {
        self.releaser.get_or_try_init(|| Releaser::start(self))
    }

    /// Descriptors set aside for connections, closing ones included.
    pub(crate) fn descriptors_in_use(&self) -> usize {
        self.budget.in_use()
    }

    /// How many there may be.
    pub(crate) fn descriptors_limit(&self) -> u64 {
        self.budget.limit()
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// A manager by its id. STALE.
    pub fn manager(&self, id: ManagerId) -> Result<Arc<Manager>> {
        self.managers.read().get(&id).cloned().ok_or_else(|| {
            Error::new(Status::Stale, format!("manager {id} does not exist (any more), or belongs to another process"))
        })
    }

    /// All managers, the default one first.
    pub(crate) fn managers(&self) -> Vec<Arc<Manager>> {
        let mut all: Vec<_> = self.managers.read().values().cloned().collect();
        all.sort_by_key(|manager| manager.id());
        all
    }

    /// The same, or nothing when somebody holds the table.
    pub(crate) fn try_managers(&self) -> Option<Vec<Arc<Manager>>> {
        Some(self.managers.try_read()?.values().cloned().collect())
    }

    /// A connection by its id, live or ended and remembered. STALE.
    pub fn connection(&self, id: ConnId) -> Result<Arc<Connection>> {
        self.registry.find(id).ok_or_else(|| {
            let text = if id == ConnId::NONE {
                "connection 0 is none".to_owned()
            } else {
                format!("connection {id} is not known (any more), or belongs to another process")
            };
            Error::new(Status::Stale, text).about(id)
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The manager that knows this life of a node. STALE.
    pub fn node(&self, id: NodeId) -> Result<Arc<Manager>> {
        self.managers().into_iter().find(|manager| manager.knows_node(id)).ok_or_else(|| {
            let text = if id == NodeId::NONE {
                "node 0 is none".to_owned()
            } else {
                format!("node {id} is not known (any more), or belongs to another process")
            };
            Error::new(Status::Stale, text)
        })
    }

    /// A new manager, with the environment's defaults and these options.
    pub fn create_manager(&self, options: Option<&Options>) -> Result<ManagerId> {
        /// Each has an event queue and a default number of everything: a bound for loops that forget to destroy.
        const MAX_MANAGERS: usize = 1024;
        let mut values = self.values.clone();
        if let Some(options) = options {
            options.only(&[Reach::Manager, Reach::Connection], "kvconn_manager_create")?;
            values = values.with(options)?;
        }
        let mut managers = self.managers.write();
        // Under the lock: `shutdown` sets the mark before it looks whom to close.
        if self.is_shut() {
            return Err(Error::new(Status::Shutdown, SHUT));
        }
        if managers.len() > MAX_MANAGERS {
            return Err(Error::limit(format!("{MAX_MANAGERS} managers exist, the most there may be")));
        }
        let id = ManagerId::fresh();
        managers.insert(id, Manager::new(id, values, self.registry.clone()));
        Ok(id)
    }

    /// Ends a manager: its connections as DISCONNECTED, its ids become STALE. Waits until libzmq has given the
    /// sockets up; TIMEOUT when that takes longer, which harms nothing.
    pub fn destroy_manager(&self, id: ManagerId, timeout: Timeout) -> Result<()> {
        if id == ManagerId::NONE {
            return Err(Error::invalid("the default manager 0 cannot be destroyed"));
        }
        let manager = self.manager(id)?;
        // Of two that destroy it, one does.
        if self.managers.write().remove(&id).is_none() {
            return Err(Error::new(Status::Stale, format!("manager {id} is being destroyed")));
        }
        let deadline = Instant::now() + timeout.or(manager.send_timeout());
        manager.destroy(deadline)
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
                Key::MaxTotalQueuedBytes => self.byte_budget.set_limit(value.unsigned_abs()),
                Key::MaxDescriptors => self.budget.set_limit(value as usize),
                _ => debug_assert!(SETTINGS[setting.key as usize].reach != Reach::Process),
            }
        }
        Ok(())
    }

    /// Ends everything in this process, for good: connections are flushed as by `kvconn_disconnect_all`, and every
    /// later call gets SHUTDOWN. The threads stay, idle, until the process exits.
    pub fn shutdown(&self, flush: Timeout) -> Result<()> {
        self.shut.store(true, Ordering::Release);
        let managers = self.managers();
        let flush = flush.or(managers.first().map_or(Duration::ZERO, |default| default.send_timeout()));
        let deadline = Instant::now() + flush;
        let drained: Vec<_> = managers.iter().map(|manager| manager.begin_shutdown()).collect();
        let mut result = Ok(());
        for (manager, conns) in managers.iter().zip(&drained) {
            result = result.and(manager.finish_shutdown(conns, deadline));
        }
        // Who does not want to wait has not asked for anything to arrive.
        if flush.is_zero() { Ok(()) } else { result }
    }
}
