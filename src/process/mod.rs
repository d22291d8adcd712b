//! The process-wide state: the runtime, and the table of managers.
//!
//! Made at first use and never freed. A forked child gets a fresh one; it neither uses nor frees its parent's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use crate::connection::batch::{self, BatchMessage};
use crate::connection::slots::Slots;
use crate::connection::{Connection, ConnectionGate};
use crate::error::{Error, Result, Status};
use crate::ids::{ConnId, ManagerId, NodeId};
use crate::log::{self, Level};
use crate::manager::Manager;
use crate::options::{self, Options, Reach, Source, Values};
use crate::runtime::Runtime;
use crate::sys::fork;
use crate::sys::lock::RwLock;
use crate::timeout::Timeout;

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// The process-wide part of kvconn.
pub struct Process {
    pid: u32,
    runtime: Arc<Runtime>,
    /// Those of the runtime's registry.
    gates: Arc<Slots<ConnectionGate>>,
    /// The defaults, with those of the environment.
    values: Values,
    shut: AtomicBool,
    managers: Managers,
}

/// With space around them, so that they share no cache line with what every send reads: every reader writes to the lock.
#[repr(C)]
struct Managers([u64; 8], RwLock<HashMap<ManagerId, Arc<Manager>>>, [u64; 8]);

impl Process {
    /// The state of this process. INVALID if an environment variable is not valid, SHUTDOWN after `kvconn_shutdown`.
    #[inline(always)]
    pub fn current() -> Result<&'static Process> {
        let process = Process::in_any_state()?;
        if process.is_shut() {
            return Err(Error::shut());
        }
        Ok(process)
    }

    /// The same, also after `kvconn_shutdown`.
    #[inline(always)]
    pub(crate) fn in_any_state() -> Result<&'static Process> {
        // Check the mark first: it is set after CURRENT, so a thread that sees the mark sees the right process.
        if !fork::is_marked() {
            Process::begin()?;
        }
        // SAFETY: set by `begin` before the mark, to a leaked box that is never freed.
        Ok(unsafe { &*CURRENT.load(Ordering::Acquire) })
    }

    /// The state of this process, if it was made before and `kvconn_shutdown` was not called.
    #[inline(always)]
    pub(crate) fn begun() -> Option<&'static Process> {
        if !fork::is_marked() {
            return None;
        }
        // SAFETY: as above.
        let process = unsafe { &*CURRENT.load(Ordering::Acquire) };
        (!process.is_shut()).then_some(process)
    }

    /// Whether `kvconn_shutdown` was called.
    #[inline(always)]
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    #[cold]
    #[inline(never)]
    fn begin() -> Result<()> {
        let old = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box that is never freed.
        let begun = unsafe { old.as_ref() }.is_some_and(|process| process.pid == std::process::id());
        if !begun {
            if old.is_null() {
                log::from_environment();
            } else {
                // Forked: the parent's threads do not exist here.
                log::reset_after_fork();
            }
            let fresh = Box::into_raw(Box::new(Process::new()?));
            if CURRENT.compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was first, and no thread has seen ours.
                drop(unsafe { Box::from_raw(fresh) });
            } else if old.is_null() {
                for name in options::unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
                    let name = name.display();
                    log::log(Level::Warn, || format!("environment variable {name} is none of kvconn's: misspelt?"));
                }
            }
        }
        fork::mark();
        Ok(())
    }

    fn new() -> Result<Process> {
        let values = Values::from_environment(|name| std::env::var(name).ok())?;
        let runtime = Runtime::new(&values);
        let default = Manager::new(ManagerId::NONE, values.clone(), runtime.clone());
        Ok(Process {
            pid: std::process::id(),
            gates: runtime.registry().gates().clone(),
            runtime,
            values,
            managers: Managers([0; 8], RwLock::new(HashMap::from([(ManagerId::NONE, default)])), [0; 8]),
            shut: AtomicBool::new(false),
        })
    }

    /// What all managers share.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A manager by its id. STALE.
    pub fn manager(&self, id: ManagerId) -> Result<Arc<Manager>> {
        // A statement of its own: `kind_of` takes the lock again, and a reader that holds it already would wait for a writer
        // that waits for that reader.
        let manager = self.managers.1.read().get(&id).cloned();
        manager.ok_or_else(|| {
            let other = self.kind_of(id.0).map(|kind| format!("{id} is the id of a {kind}"));
            Error::new(
                Status::Stale,
                other.unwrap_or_else(|| {
                    format!("manager {id} does not exist (any more), or belongs to another process")
                }),
            )
        })
    }

    /// What an id stands for that is not what the call takes. No number is the id of two kinds. Takes managers' locks.
    #[cold]
    fn kind_of(&self, id: u64) -> Option<&'static str> {
        let managers = self.managers();
        if managers.iter().any(|manager| manager.id().0 == id) {
            Some("manager")
        } else if self.runtime.registry().find(ConnId(id)).is_some() {
            Some("connection")
        } else if managers.iter().any(|manager| manager.knows_node(NodeId(id))) {
            Some("node")
        } else {
            None
        }
    }

    /// All managers, the default one first.
    pub(crate) fn managers(&self) -> Vec<Arc<Manager>> {
        let mut all: Vec<_> = self.managers.1.read().values().cloned().collect();
        all.sort_by_key(|manager| manager.id());
        all
    }

    /// The same, or `None` if another thread holds the table's lock.
    pub(crate) fn try_managers(&self) -> Option<Vec<Arc<Manager>>> {
        Some(self.managers.1.try_read()?.values().cloned().collect())
    }

    /// A connection by its id, live or ended and remembered. STALE.
    pub fn connection(&self, id: ConnId) -> Result<Arc<Connection>> {
        self.runtime.registry().find(id).ok_or_else(|| {
            let text = if id == ConnId::NONE {
                "connection 0 is none".to_owned()
            } else if let Some(kind) = self.kind_of(id.0) {
                format!("{id} is the id of a {kind}")
            } else {
                format!("connection {id} is not known (any more), or belongs to another process")
            };
            Error::new(Status::Stale, text).about(id)
        })
    }

    /// The gate of the live connection with this id, without a lock. By now it may belong to another connection:
    /// [`send_short`](crate::connection::send_short) checks that.
    #[inline(always)]
    pub(crate) fn gate(&self, id: ConnId) -> Option<&ConnectionGate> {
        self.gates.find(id)
    }

    /// Sends each message on its connection. See [`batch::send_batch`].
    #[inline(always)]
    pub(crate) fn send_items<M: BatchMessage>(
        &self,
        items: impl ExactSizeIterator<Item = (ConnId, M)>,
        timeout: Timeout,
        done: impl FnMut(usize, Result<u64>),
    ) {
        batch::send_batch(|id| self.gate(id), |id| self.connection(id), items, timeout, done);
    }

    /// Sends each message on its connection. Returns for each its sequence, or why it was not accepted.
    pub fn send_batch<M: BatchMessage>(
        &self,
        items: impl ExactSizeIterator<Item = (ConnId, M)>,
        timeout: Timeout,
    ) -> Vec<Result<u64>> {
        let mut results = vec![Ok(0); items.len()];
        self.send_items(items, timeout, |place, result| results[place] = result);
        results
    }

    /// The manager that knows this life of a node. STALE.
    pub fn node(&self, id: NodeId) -> Result<Arc<Manager>> {
        self.managers().into_iter().find(|manager| manager.knows_node(id)).ok_or_else(|| {
            let text = if id == NodeId::NONE {
                "node 0 is none".to_owned()
            } else if let Some(kind) = self.kind_of(id.0) {
                format!("{id} is the id of a {kind}")
            } else {
                format!("node {id} is not known (any more), or belongs to another process")
            };
            Error::new(Status::Stale, text)
        })
    }

    /// A new manager, with the environment's defaults and these options.
    pub fn create_manager(&self, options: Option<&Options>) -> Result<ManagerId> {
        /// Each has an event queue and default limits of its own. The bound stops loops that forget to destroy.
        const MAX_MANAGERS: usize = 1024;
        let mut values = self.values.clone();
        if let Some(options) = options {
            options.only(&[Reach::Manager, Reach::Connection], "kvconn_manager_create")?;
            values = values.with(options)?.sourced(options, Source::ManagerCreate);
        }
        let mut managers = self.managers.1.write();
        // Checked under the lock: `shutdown` sets the flag before it reads the table.
        if self.is_shut() {
            return Err(Error::shut());
        }
        if managers.len() > MAX_MANAGERS {
            return Err(Error::limit(format!("{MAX_MANAGERS} managers exist; there cannot be more")));
        }
        let id = ManagerId::fresh();
        managers.insert(id, Manager::new(id, values, self.runtime.clone()));
        Ok(id)
    }

    /// Ends a manager: its connections end as DISCONNECTED, and its ids become STALE. Waits until libzmq has closed the
    /// sockets. TIMEOUT if that takes longer, which is harmless.
    pub fn destroy_manager(&self, id: ManagerId, timeout: Timeout) -> Result<()> {
        if id == ManagerId::NONE {
            return Err(Error::invalid("the default manager 0 cannot be destroyed"));
        }
        let manager = self.manager(id)?;
        // If two threads destroy it, one of them succeeds.
        if self.managers.1.write().remove(&id).is_none() {
            return Err(Error::new(Status::Stale, format!("manager {id} is being destroyed")));
        }
        let deadline = Instant::now() + timeout.or(manager.send_timeout());
        manager.destroy(deadline)
    }

    /// Ends everything in this process, for good: flushes connections like `kvconn_disconnect_all`; every later call
    /// gets SHUTDOWN. The threads stay idle until the process exits.
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
        // A caller that does not wait did not ask for delivery, so unsent messages are no error.
        if flush.is_zero() { Ok(()) } else { result }
    }
}
