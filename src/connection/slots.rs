//! Finds a connection's gate by the connection's id, without a lock and without a count that senders share.
//!
//! A value has the place `id % size` of a table, and an id is chosen so that its place is free: no two live ids share
//! one. A reader loads the table, the place, and the value. Values are never freed while the table lives, only used
//! again: a reader that was overtaken reads a value that belongs to another id by now. So **it must check the id under
//! the value's own lock**.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::ids::ConnId;
use crate::sys::lock::Mutex;

/// The size of the first table. Each later one is twice as large.
const FIRST_SIZE: usize = 1024;
/// The size of a cache line.
pub(super) const LINE: usize = 64;

/// The places of the live ids.
pub(crate) struct Slots<T> {
    /// The last of `Contents::tables`.
    table: AtomicPtr<Table<T>>,
    /// Leaf lock. Held to change a place, and to copy the table when it grows.
    contents: Mutex<Contents<T>>,
}

struct Table<T> {
    /// Its size, a power of two, less 1.
    mask: usize,
    places: Box<[TableEntry<T>]>,
}

struct TableEntry<T> {
    /// 0 if the place is free.
    id: AtomicU64,
    value: AtomicPtr<T>,
}

struct Contents<T> {
    /// All tables so far. A reader may still use an old one, so none is freed. They take twice the last one's memory.
    tables: Vec<NonNull<Table<T>>>,
    /// All values, and those that no slot has.
    values: Vec<OnALine<T>>,
    free: Vec<NonNull<T>>,
    /// How many places are taken: at most half of them.
    taken: usize,
}

/// A value at the start of a cache line. Its type asks for no alignment: the standard library would ask for memory with
/// `posix_memalign`, and end the process if there is none.
struct OnALine<T> {
    value: NonNull<T>,
    /// The memory around it, of a box.
    memory: NonNull<[MaybeUninit<u64>]>,
}

impl<T: Default> OnALine<T> {
    fn new() -> OnALine<T> {
        const { assert!(align_of::<T>() <= align_of::<u64>()) };
        // Both pointers come from this one, as Rust's aliasing rules ask.
        let memory =
            NonNull::from(Box::leak(Box::new_uninit_slice((size_of::<T>() + LINE).div_ceil(size_of::<u64>()))));
        let start = memory.cast::<u8>();
        let skipped = start.addr().get().next_multiple_of(LINE) - start.addr().get();
        // SAFETY: less than a line is skipped, and the memory is larger than the value by one.
        let value = unsafe { start.add(skipped) }.cast::<T>();
        // SAFETY: it has room for a value, and a line's alignment.
        unsafe { value.write(T::default()) };
        OnALine { value, memory }
    }
}

impl<T> Drop for OnALine<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has written the value, and leaked the box.
        unsafe {
            self.value.drop_in_place();
            drop(Box::from_raw(self.memory.as_ptr()));
        }
    }
}

// SAFETY: it owns the tables and values behind its pointers. It moves them between threads (Send) and hands out shared
// references to values (Sync).
unsafe impl<T: Send + Sync> Send for Slots<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}

/// A value and its id. It keeps the place until it is hidden, and the value until it is dropped.
pub(crate) struct Slot<T> {
    slots: Arc<Slots<T>>,
    id: ConnId,
    value: NonNull<T>,
}

// SAFETY: a shared reference to a value that `slots` owns, and a part of that owner.
unsafe impl<T: Send + Sync> Send for Slot<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Table<T> {
    fn new(size: usize) -> NonNull<Table<T>> {
        let place = || TableEntry { id: AtomicU64::new(0), value: AtomicPtr::new(ptr::null_mut()) };
        let table = Table { mask: size - 1, places: (0..size).map(|_| place()).collect() };
        NonNull::from(Box::leak(Box::new(table)))
    }

    #[inline(always)]
    fn place(&self, id: ConnId) -> &TableEntry<T> {
        // SAFETY: the mask keeps it below the size.
        unsafe { self.places.get_unchecked(id.0 as usize & self.mask) }
    }

    fn is_free(&self, id: ConnId) -> bool {
        self.place(id).id.load(Ordering::Relaxed) == 0
    }

    fn put(&self, id: ConnId, value: NonNull<T>) {
        let place = self.place(id);
        place.value.store(value.as_ptr(), Ordering::Release);
        place.id.store(id.0, Ordering::Release);
    }
}

impl<T: Default> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        let first = Table::new(FIRST_SIZE);
        let contents = Contents { tables: vec![first], values: Vec::new(), free: Vec::new(), taken: 0 };
        Slots { table: AtomicPtr::new(first.as_ptr()), contents: Mutex::new(contents) }
    }

    /// Gives a value a fresh id. The value is a new one, or one that another id has had.
    pub(crate) fn open(self: &Arc<Self>) -> Slot<T> {
        let mut contents = self.contents.lock();
        if 2 * (contents.taken + 1) > self.table().places.len() {
            self.grow(&mut contents);
        }
        let value = contents.free.pop().unwrap_or_else(|| {
            let fresh = OnALine::new();
            let value = fresh.value;
            contents.values.push(fresh);
            value
        });
        // Half of the places are free, and ids go through them in order: one is found.
        let id = std::iter::repeat_with(ConnId::fresh).find(|id| self.table().is_free(*id)).unwrap_or_default();
        self.table().put(id, value);
        contents.taken += 1;
        Slot { slots: self.clone(), id, value }
    }

    /// Two ids with different places in a table have different places in one of twice its size.
    fn grow(&self, contents: &mut Contents<T>) {
        let old = self.table();
        let new = Table::new(2 * old.places.len());
        for place in &old.places {
            let (id, value) = (place.id.load(Ordering::Relaxed), place.value.load(Ordering::Relaxed));
            if let (true, Some(value)) = (id != 0, NonNull::new(value)) {
                // SAFETY: made above, and freed with `self`.
                unsafe { new.as_ref() }.put(ConnId(id), value);
            }
        }
        contents.tables.push(new);
        self.table.store(new.as_ptr(), Ordering::Release);
    }
}

impl<T> Slots<T> {
    #[inline(always)]
    fn table(&self) -> &Table<T> {
        // SAFETY: a table is freed with `self`.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }

    /// The value of this id. By now it may belong to another id, or to none.
    #[inline(always)]
    pub(crate) fn find(&self, id: ConnId) -> Option<&T> {
        let place = self.table().place(id);
        if place.id.load(Ordering::Acquire) != id.0 {
            return None;
        }
        // SAFETY: null, or a value, which is freed with `self`.
        unsafe { place.value.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        let contents = self.contents.lock();
        // SAFETY: each was leaked from a box once.
        unsafe { contents.tables.iter().for_each(|table| drop(Box::from_raw(table.as_ptr()))) };
    }
}

impl<T> Slot<T> {
    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    /// From now on the id is not found.
    pub(crate) fn hide(&self) {
        let mut contents = self.slots.contents.lock();
        let place = self.slots.table().place(self.id);
        if place.id.load(Ordering::Relaxed) == self.id.0 {
            place.id.store(0, Ordering::Release);
            contents.taken -= 1;
        }
    }
}

impl<T> Deref for Slot<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: freed with `slots`, which is kept alive here.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.hide();
        self.slots.contents.lock().free.push(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// The id that has the value, under a lock.
    type Value = Mutex<u64>;

    fn open(slots: &Arc<Slots<Value>>) -> Slot<Value> {
        let slot = slots.open();
        *slot.lock() = slot.id().0;
        slot
    }

    fn find(slots: &Slots<Value>, id: ConnId) -> Option<u64> {
        slots.find(id).map(|value| *value.lock()).filter(|found| *found == id.0)
    }

    #[test]
    fn ids_are_found_until_they_are_hidden_also_after_growth() {
        let slots = Arc::new(Slots::new());
        let mut all: Vec<_> = (0..3 * FIRST_SIZE).map(|_| open(&slots)).collect();
        let ids: Vec<_> = all.iter().map(Slot::id).collect();
        assert!(ids.iter().all(|id| find(&slots, *id) == Some(id.0)));
        all[7].hide();
        all[7].hide();
        assert_eq!(find(&slots, ids[7]), None);
        drop(all.split_off(100));
        assert!(ids[100..].iter().all(|id| find(&slots, *id).is_none()));
        assert_eq!(slots.contents.lock().taken, 99);
        assert!(ids[..100].iter().all(|id| find(&slots, *id).is_some() == (*id != ids[7])));
        assert_eq!(find(&slots, ConnId::NONE), None);
    }

    #[test]
    fn values_are_used_again_and_places_do_not_run_out() {
        let slots = Arc::new(Slots::new());
        let kept = open(&slots);
        for _ in 0..10 * FIRST_SIZE {
            let slot = open(&slots);
            assert_ne!(slot.id(), kept.id());
            assert_eq!(find(&slots, slot.id()), Some(slot.id().0));
        }
        assert_eq!(find(&slots, kept.id()), Some(kept.id().0));
        let contents = slots.contents.lock();
        assert_eq!((contents.values.len(), contents.tables.len()), (2, 1));
    }

    #[test]
    fn readers_never_take_another_ids_value_for_theirs() {
        let slots = Arc::new(Slots::new());
        let (kept, over) = (open(&slots), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(find(&slots, kept.id()), Some(kept.id().0));
                    }
                });
            }
            let mut old = Vec::new();
            for round in 0..50 {
                let many: Vec<_> = (0..200).map(|_| open(&slots)).collect();
                old.extend(many.iter().map(Slot::id));
                if round % 2 == 0 {
                    drop(many);
                } else {
                    many.iter().for_each(Slot::hide);
                }
                assert!(old.iter().all(|id| find(&slots, *id).is_none()));
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
