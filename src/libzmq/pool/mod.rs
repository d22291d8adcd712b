//! Memory that one thread takes and another gives back, again and again.
//!
//! This is what malloc does worst: both threads need the lock of the same heap, and the one that frees looks for
//! neighbours to join. A pool belongs to one thread and one size. Its thread takes from a list of its own. Others give
//! back by one exchange, to a second list, and when its own is empty the thread takes that one whole. What the thread
//! has at its end is freed, and whatever comes back later is freed then.

use std::alloc::{self, Layout};
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

/// The beginning of each piece of memory.
#[repr(C)]
pub(super) struct Head {
    /// Where it goes back to; NULL: to malloc.
    pool: *const Pool,
    /// The next one of a list.
    next: *mut Head,
    /// For the caller that has taken it to count in.
    pub(super) users: ManuallyDrop<AtomicUsize>,
}

/// Of each size a thread keeps at most so many bytes: the memory of 32,768 messages of 64 bytes. What it takes beyond them is
/// malloc's.
const KEPT: usize = 4 * 1024 * 1024;
/// What all threads keep together. Without this limit each of many threads could keep what it has needed once.
const KEPT_BY_ALL: usize = 64 * 1024 * 1024;
/// How many bytes they keep now. The standard library's type, also in loom's models: it orders nothing.
static KEPT_NOW: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
/// The sizes: 128, 192, 256, 384, 512. For larger messages the price of malloc is small beside the rest.
const CLASSES: usize = 5;
const LARGEST: usize = size_of_class(CLASSES - 1);

/// The smallest class with this size.
#[inline(always)]
const fn class_of(size: usize) -> usize {
    if size <= 128 {
        return 0;
    }
    let last = size - 1;
    let power = last.ilog2() as usize;
    2 * (power - 7) + (last >> (power - 1) & 1) + 1
}

#[inline(always)]
const fn size_of_class(class: usize) -> usize {
    if class % 2 == 1 { 192 << (class / 2) } else { 128 << (class / 2) }
}

/// What other threads know of a thread's memory of one size.
#[repr(align(64))] // a cache line of its own
struct Pool {
    /// What has come back; or CLOSED.
    returned: AtomicPtr<Head>,
    /// From its thread's end on: how many are still to come. Before, minus those that have come meanwhile.
    missing: AtomicIsize,
    /// The size of each piece.
    size: usize,
}

/// Its thread has ended: what comes back is freed.
const CLOSED: *mut Head = ptr::without_provenance_mut(1);

impl Pool {
    /// NULL if there is no memory.
    fn new(size: usize) -> *const Pool {
        // SAFETY: its size is not 0.
        let place = unsafe { alloc::alloc(Layout::new::<Pool>()) }.cast::<Pool>();
        if !place.is_null() {
            let pool = Pool { returned: AtomicPtr::new(ptr::null_mut()), missing: AtomicIsize::new(0), size };
            // SAFETY: it was allocated for this.
            unsafe { place.write(pool) };
            count(1);
        }
        place
    }

    /// Gives back memory of this pool.
    ///
    /// # Safety
    /// It was taken from this pool, and nobody uses it.
    unsafe fn give(this: *const Pool, head: *mut Head) {
        // SAFETY: the pool lives until all of its memory is freed, of which this is one piece.
        let returned = unsafe { &(*this).returned };
        let mut first = returned.load(Ordering::Relaxed);
        while first != CLOSED {
            // SAFETY: it is nobody else's until the exchange.
            unsafe { (*head).next = first };
            match returned.compare_exchange_weak(first, head, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
        // SAFETY: it was malloc's. `missing` counts it, so the pool is still there.
        unsafe {
            free(head);
            kept_no_more((*this).size);
            if (*this).missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                Pool::free(this);
            }
        }
    }

    /// # Safety
    /// Nobody uses the pool any more.
    unsafe fn free(this: *const Pool) {
        count(-1);
        // SAFETY: `new` has allocated it.
        unsafe { alloc::dealloc(this.cast_mut().cast(), Layout::new::<Pool>()) };
    }

    /// The thread has ended. `mine` is its own list, `made` is how many pieces it has made.
    ///
    /// # Safety
    /// Called once, by the thread that takes from this pool.
    unsafe fn close(this: *const Pool, mine: *mut Head, made: usize) {
        // SAFETY: it lives until this call has counted what is missing, or longer. The lists are this thread's now.
        unsafe {
            let returned = (*this).returned.swap(CLOSED, Ordering::AcqRel);
            let freed = free_all(mine) + free_all(returned);
            kept_no_more(freed * (*this).size);
            let missing = (made - freed).cast_signed();
            if (*this).missing.fetch_add(missing, Ordering::AcqRel) + missing == 0 {
                Pool::free(this);
            }
        }
    }
}

/// Whether so many bytes more may be kept. Then they are counted.
fn may_keep(bytes: usize) -> bool {
    let may = KEPT_NOW.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BY_ALL;
    if !may {
        kept_no_more(bytes);
    }
    may
}

fn kept_no_more(bytes: usize) {
    KEPT_NOW.fetch_sub(bytes, Ordering::Relaxed);
}

/// # Safety
/// `allocate` has made it, and nobody uses it any more.
unsafe fn free(head: *mut Head) {
    count(-1);
    // SAFETY: it is malloc's.
    unsafe { libc::free(head.cast()) };
}

/// Counts what is allocated and not freed, for the models: nothing may be left.
fn count(_by: isize) {
    #[cfg(all(test, loom))]
    model::LEFT.with(|left| left.set(left.get() + _by));
}

/// Frees a list. Returns how many there were.
///
/// # Safety
/// The list is the caller's.
unsafe fn free_all(mut list: *mut Head) -> usize {
    let mut count = 0;
    while !list.is_null() {
        // SAFETY: each piece of the list was malloc's, and is read before it is freed.
        unsafe {
            let next = (*list).next;
            free(list);
            list = next;
        }
        count += 1;
    }
    count
}

/// A thread's memory of one size that can be taken.
struct Spare {
    /// NULL until something was taken.
    pool: *const Pool,
    /// What can be taken.
    free: *mut Head,
    /// How many pieces belong to the pool.
    made: usize,
    /// How many more times it does not look for what has come back.
    pause: u32,
}

/// How often a thread does not look again when all that it may have is in use. Then its queues are long, and each look would take a
/// cache line from the thread that gives back.
const PAUSE: u32 = 64;

impl Spare {
    const EMPTY: Spare = Spare { pool: ptr::null(), free: ptr::null_mut(), made: 0, pause: 0 };

    /// Memory of this class, which all of it is of. NULL if there is none.
    #[inline(always)]
    fn take(&mut self, class: usize, or_malloc: bool) -> *mut Head {
        if self.free.is_null() {
            return self.take_elsewhere(class, or_malloc);
        }
        let head = self.free;
        // SAFETY: what is in the list is this thread's.
        self.free = unsafe { (*head).next };
        head
    }

    #[inline(never)]
    fn take_elsewhere(&mut self, class: usize, or_malloc: bool) -> *mut Head {
        if self.pause > 0 && !or_malloc {
            self.pause -= 1;
            return ptr::null_mut();
        }
        if self.pool.is_null() {
            self.pool = Pool::new(size_of_class(class));
        }
        if self.pool.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: the pool lives until its thread closes it. What has come back is this thread's from here on.
        let first = unsafe { (*self.pool).returned.swap(ptr::null_mut(), Ordering::Acquire) };
        if !first.is_null() {
            // SAFETY: as above.
            self.free = unsafe { (*first).next };
            return first;
        }
        let size = size_of_class(class);
        if (self.made + 1) * size > KEPT || !may_keep(size) {
            self.pause = PAUSE;
            return if or_malloc { allocate(size, ptr::null()) } else { ptr::null_mut() };
        }
        let head = allocate(size, self.pool);
        match head.is_null() {
            true => kept_no_more(size),
            false => self.made += 1,
        }
        head
    }
}

/// New memory. NULL if there is none.
fn allocate(size: usize, pool: *const Pool) -> *mut Head {
    // SAFETY: allocates; the size is not 0.
    let head = unsafe { libc::malloc(size) }.cast::<Head>();
    if !head.is_null() {
        // SAFETY: malloc aligns for every basic type, and there is room: the smallest size is larger than a head.
        unsafe { head.write(Head { pool, next: ptr::null_mut(), users: ManuallyDrop::new(AtomicUsize::new(0)) }) };
        count(1);
    }
    head
}

struct Spares(UnsafeCell<[Spare; CLASSES]>);

impl Drop for Spares {
    fn drop(&mut self) {
        for spare in self.0.get_mut().iter().filter(|spare| !spare.pool.is_null()) {
            // SAFETY: the spare takes nothing any more.
            unsafe { Pool::close(spare.pool, spare.free, spare.made) };
        }
    }
}

thread_local! {
    static SPARES: Spares = const { Spares(UnsafeCell::new([Spare::EMPTY; CLASSES])) };
}

/// Memory of at least this size, which has at least room for a head, and how much it is. `users` is 0. NULL if there is none,
/// or if this thread has its most of this size in use and need not have malloc's.
#[inline(always)]
pub(super) fn take(size: usize, or_malloc: bool) -> (*mut Head, usize) {
    if size > LARGEST {
        return (if or_malloc { allocate(size, ptr::null()) } else { ptr::null_mut() }, size);
    }
    let class = class_of(size);
    // SAFETY: a spare takes without calling anybody, so there is no second reference.
    let taken = SPARES.try_with(|spares| unsafe { (&mut *spares.0.get())[class].take(class, or_malloc) });
    // A thread's last destructors may send when its spares are gone.
    (taken.unwrap_or_else(|_| allocate(size_of_class(class), ptr::null())), size_of_class(class))
}

/// Gives it back, on any thread.
///
/// # Safety
/// It was taken, and nobody uses it any more. `users` is 0.
pub(super) unsafe fn give(head: *mut Head) {
    // SAFETY: the caller's promise.
    unsafe {
        match (*head).pool {
            pool if pool.is_null() => free(head),
            pool => Pool::give(pool, head),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
