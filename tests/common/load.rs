//! Bounds of time on a machine that has other things to do.
//!
//! A thread sleeps for a millisecond, again and again; how much too late it is woken adds up to the time that this
//! machine had no processor for a thread that was ready to run. A bound that a test asserts is extended by what added
//! up meanwhile: next to nothing on an idle machine, so that the bound is the guarantee's, and as much as it takes on a
//! machine where twenty processes compete for two processors.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

struct Sampler {
    begun: Instant,
    /// Nanoseconds too late, in all.
    late: AtomicU64,
    /// When it is to be woken next, in nanoseconds since it began.
    due: AtomicU64,
}

impl Sampler {
    fn get() -> &'static Sampler {
        static SAMPLER: OnceLock<Sampler> = OnceLock::new();
        static STARTED: OnceLock<()> = OnceLock::new();
        let sampler = SAMPLER.get_or_init(|| Sampler {
            begun: Instant::now(),
            late: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
        });
        STARTED.get_or_init(|| drop(std::thread::spawn(|| sampler.run())));
        sampler
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn run(&self) {
        const NAP: Duration = Duration::from_millis(1);
        loop {
            let due = self.now() + NAP.as_nanos() as u64;
            self.due.store(due, Ordering::SeqCst);
            std::thread::sleep(NAP);
            self.late.fetch_add(self.now().saturating_sub(due), Ordering::SeqCst);
        }
    }

    /// What has added up until now, the nap that is overdue at this moment included.
    fn late(&self) -> Duration {
        let overdue = self.now().saturating_sub(self.due.load(Ordering::SeqCst));
        Duration::from_nanos(self.late.load(Ordering::SeqCst) + overdue)
    }
}

/// How long the calling thread has been ready to run without a processor, since it began. None where the kernel does not say.
fn waited_for_processor() -> Option<Duration> {
    Some(schedstat(Path::new("/proc/thread-self"))?.1)
}

/// How long a thread has run, and how long it has been ready to run without a processor.
fn schedstat(thread: &Path) -> Option<(Duration, Duration)> {
    let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
    let mut times = text.split_whitespace().map(|time| time.parse().ok().map(Duration::from_nanos));
    Some((times.next()??, times.next()??))
}

/// What the threads of this process have had of the processors until now. For a call that takes locks: a thread that lost
/// its processor under one holds up the others until it runs again.
pub struct Starved(HashMap<PathBuf, (Duration, Duration)>);

impl Starved {
    pub fn begin() -> Starved {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        Starved(threads.filter_map(|thread| Some((thread.path(), schedstat(&thread.path())?))).collect())
    }

    /// How long threads that have run for less than this since then were ready to run. A thread that holds a lock for long
    /// because it has much to do, or because it sleeps, is none of these.
    pub fn since(&self, ran_less: Duration) -> Duration {
        let now = Starved::begin().0;
        let since = now.iter().filter_map(|(thread, (ran, waited))| {
            let before = self.0.get(thread)?;
            (*ran - before.0 < ran_less).then(|| *waited - before.1)
        });
        since.sum()
    }
}

/// How many times slower this build is than others: 1, or what `KVCONN_TEST_SLOWDOWN` says, for a sanitizer.
fn slowdown() -> u32 {
    static TIMES: OnceLock<u32> = OnceLock::new();
    *TIMES.get_or_init(|| match std::env::var("KVCONN_TEST_SLOWDOWN") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("KVCONN_TEST_SLOWDOWN={text} is not a number")),
        Err(_) => 1,
    })
}

/// Measures from its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    begun: Instant,
    late: Duration,
    waited: Option<(ThreadId, Duration)>,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let late = Sampler::get().late();
        Stopwatch { begun: Instant::now(), late, waited: None }
    }

    /// For a thread that computes much. The scheduler lets it wait for longer than the sampler, which mostly sleeps; what
    /// this thread has waited is excused too.
    pub fn of_this_thread() -> Stopwatch {
        let waited = waited_for_processor().map(|waited| (std::thread::current().id(), waited));
        Stopwatch { waited, ..Stopwatch::start() }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What the machine's load excuses.
    pub fn excused(&self) -> Duration {
        let late = Sampler::get().late().saturating_sub(self.late);
        let Some((thread, before)) = self.waited else { return late };
        assert_eq!(thread, std::thread::current().id(), "a stopwatch of another thread");
        late + waited_for_processor().map_or(Duration::ZERO, |waited| waited.saturating_sub(before))
    }

    /// Panics when more than `most` has passed.
    #[track_caller]
    pub fn at_most(&self, most: Duration, what: &str) {
        let took = self.elapsed();
        let excused = self.excused();
        let most = most * slowdown();
        assert!(took <= most + excused, "{what} took {took:?}, allowed are {most:?} and {excused:?} for the load");
    }

    /// The same, and when less than `least` has passed, which no load excuses.
    #[track_caller]
    pub fn between(&self, least: Duration, most: Duration, what: &str) {
        let took = self.elapsed();
        assert!(took >= least, "{what} took {took:?}, less than {least:?}");
        self.at_most(most, what);
    }
}

/// How long a stress test goes on: for `soak_time(everyday)`, and longer where the machine is so loaded that it has not
/// tested enough by then.
pub struct Storm {
    begun: Instant,
    time: Duration,
}

impl Storm {
    pub fn new(everyday: Duration) -> Storm {
        Storm { begun: Instant::now(), time: super::soak_time(everyday) }
    }

    pub fn goes_on(&self, enough: bool) -> bool {
        const LONGER: Duration = Duration::from_secs(10);
        self.begun.elapsed() < self.time + if enough { Duration::ZERO } else { LONGER }
    }
}

/// `common::within` with the machine's load excused.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, call: impl FnOnce() -> T) -> T {
    let watch = Stopwatch::start();
    let result = call();
    watch.at_most(limit, what);
    result
}

/// What the threads of this process do, several times a second. Tells why a call was late, where that is seen too rarely
/// to be repeated: `print` it when a bound is broken.
pub struct ThreadHistory {
    samples: Arc<Mutex<VecDeque<String>>>,
    stop: Arc<AtomicBool>,
}

impl ThreadHistory {
    pub fn begin() -> ThreadHistory {
        const EVERY: Duration = Duration::from_millis(100);
        /// Five seconds.
        const KEPT: usize = 50;
        let history = ThreadHistory { samples: Arc::default(), stop: Arc::default() };
        let (samples, stop) = (history.samples.clone(), history.stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let sample = sample_threads();
                let mut samples = samples.lock().expect("no sample panics");
                samples.push_back(sample);
                if samples.len() > KEPT {
                    samples.pop_front();
                }
                drop(samples);
                std::thread::sleep(EVERY);
            }
        });
        history
    }

    pub fn print(&self) {
        for sample in &*self.samples.lock().expect("no sample panics") {
            println!("{sample}");
        }
    }
}

impl Drop for ThreadHistory {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// The threads of kvconn and of libzmq, and those that the kernel holds: state, milliseconds run and waited for a
/// processor, and where in the kernel it is.
fn sample_threads() -> String {
    let mut text = format!("{:?}:", SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    for thread in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let (name, state) = stat.rsplit_once(") ").unwrap_or_default();
        let name = name.split_once('(').unwrap_or_default().1;
        if ["ZMQ", "kvconn-"].iter().any(|ours| name.starts_with(ours)) || state.starts_with('D') {
            let (ran, waited) = schedstat(&thread.path()).unwrap_or_default();
            let state = state.get(..1).unwrap_or("?");
            text += &format!(" {name} {state} {}/{} {};", ran.as_millis(), waited.as_millis(), read("wchan"));
        }
    }
    text
}
