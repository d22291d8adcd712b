//! The pointers that C passes, as checked values.
//!
//! Wrapping an out-parameter zeroes it, so whatever fails later leaves it zero. None of these types makes a reference
//! to memory that C may not have initialised.

use std::marker::PhantomData;
use std::{mem, ptr, slice};

use crate::error::{Error, Result};

pub(super) fn null(name: &str) -> Error {
    Error::invalid(format!("{name} is NULL"))
}

pub(super) fn misaligned(name: &str) -> Error {
    Error::invalid(format!("{name} is not aligned for its type"))
}

/// A struct that kvconn fills.
///
/// # Safety
/// `repr(C)`, begins with `struct_size: u32`, has no padding, and every pattern of bytes is a value of it.
pub(super) unsafe trait Filled: Copy {
    /// Its size in the first version that had it. Frozen: a caller may be that old.
    const FIRST_SIZE: usize;

    /// All zero.
    fn zero() -> Self {
        // SAFETY: every pattern of bytes is a value, as the trait's contract says.
        unsafe { mem::zeroed() }
    }
}

/// A struct_size above this is taken for memory that was never initialised.
pub(super) const ABSURD_SIZE: usize = 1 << 16;

/// Whether a struct_size can be one of a version of `T`.
pub(super) fn is_size_of<T: Filled>(size: usize) -> bool {
    const { assert!(T::FIRST_SIZE <= size_of::<T>()) };
    (T::FIRST_SIZE..=ABSURD_SIZE).contains(&size)
}

/// Writes `value` without its struct_size, as far as it fits in `size` bytes.
///
/// # Safety
/// `to` is aligned and may be written for `size` bytes, and `is_size_of::<T>(size)`.
pub(super) unsafe fn write_struct<T: Filled>(to: *mut T, size: usize, value: &T) {
    const HEAD: usize = size_of::<u32>();
    let length = size.min(size_of::<T>()) - HEAD;
    // SAFETY: both sides are valid for `length` bytes behind the head; `value` has no padding, so all its bytes are
    // initialised.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>().add(HEAD), to.cast::<u8>().add(HEAD), length) }
}

/// An out-parameter of a plain type.
pub(super) struct Out<T> {
    name: &'static str,
    to: *mut T,
}

impl<T: Copy + Default> Out<T> {
    /// Zeroes it.
    ///
    /// # Safety
    /// `to` is NULL, not aligned, or may be written until the call ends.
    pub(super) unsafe fn new(name: &'static str, to: *mut T) -> Out<T> {
        // SAFETY: the same contract.
        unsafe { Out::with(name, to, T::default()) }
    }
}

impl<T: Copy> Out<T> {
    /// Sets the value that it has on failure, if that is not zero.
    ///
    /// # Safety
    /// As for [`Out::new`].
    pub(super) unsafe fn with(name: &'static str, to: *mut T, on_failure: T) -> Out<T> {
        let out = Out { name, to };
        out.set(on_failure);
        out
    }

    /// Rejects NULL.
    pub(super) fn required(&self) -> Result<()> {
        if self.to.is_null() { Err(null(self.name)) } else { self.optional() }
    }

    /// Whether it can be written, if it is wanted.
    #[inline(always)]
    pub(super) fn is_aligned(&self) -> bool {
        self.to.is_aligned()
    }

    /// Accepts NULL, which means "not wanted".
    pub(super) fn optional(&self) -> Result<()> {
        if self.to.is_aligned() { Ok(()) } else { Err(misaligned(self.name)) }
    }

    /// Whether the caller wants it.
    pub(super) fn wanted(&self) -> bool {
        !self.to.is_null()
    }

    /// Writes it, if it is wanted.
    pub(super) fn set(&self, value: T) {
        if !self.to.is_null() && self.to.is_aligned() {
            // SAFETY: `new` was promised that it may be written.
            unsafe { self.to.write(value) }
        }
    }
}

/// An out-parameter that is a struct with a struct_size.
pub(super) struct OutStruct<T> {
    name: &'static str,
    to: *mut T,
    size: usize,
}

impl<T: Filled> OutStruct<T> {
    /// Zeroes it, except its struct_size.
    ///
    /// # Safety
    /// `to` is NULL, not aligned, or may be read and written for the struct_size it begins with until the call ends.
    pub(super) unsafe fn new(name: &'static str, to: *mut T) -> OutStruct<T> {
        let size = if to.is_null() || !to.is_aligned() {
            0
        } else {
            // SAFETY: it is readable by contract, and begins with a u32.
            unsafe { to.cast::<u32>().read() as usize }
        };
        let out = OutStruct { name, to, size };
        if is_size_of::<T>(size) {
            out.set(&T::zero());
        }
        out
    }

    /// Rejects NULL and an impossible struct_size.
    pub(super) fn required(&self) -> Result<()> {
        if self.to.is_null() {
            Err(null(self.name))
        } else if !self.to.is_aligned() {
            Err(misaligned(self.name))
        } else if is_size_of::<T>(self.size) {
            Ok(())
        } else {
            Err(Error::invalid(format!("{}->struct_size is {}; set it to sizeof *{0}", self.name, self.size)))
        }
    }

    /// Writes it without its struct_size. Call it only after [`required`](Self::required) returned OK.
    pub(super) fn set(&self, value: &T) {
        if is_size_of::<T>(self.size) {
            // SAFETY: the size was read from it, so it is not NULL, aligned, and may be written by `new`'s contract.
            unsafe { write_struct(self.to, self.size, value) }
        }
    }
}

/// The caller's array.
pub(super) struct Array<'a, T> {
    name: &'static str,
    start: *const T,
    count: usize,
    life: PhantomData<&'a T>,
}

impl<'a, T> Array<'a, T> {
    /// # Safety
    /// `start` is NULL, not aligned, or may be read for `count` elements, all initialised, for the life `'a`.
    pub(super) unsafe fn new(name: &'static str, start: *const T, count: usize) -> Array<'a, T> {
        Array { name, start, count, life: PhantomData }
    }

    /// Its elements, if there are 1 to `most` of them and nothing is wrong with the array.
    #[inline(always)]
    pub(super) fn few(&self, most: usize) -> Option<&'a [T]> {
        let usual = (1..=most).contains(&self.count) && !self.start.is_null() && self.start.is_aligned();
        // SAFETY: not NULL, aligned, a few elements, and readable for `'a` by `new`'s contract.
        usual.then(|| unsafe { slice::from_raw_parts(self.start, self.count) })
    }

    /// Its elements. NULL with count 0 is an empty array. `most` rejects a count that was never set.
    pub(super) fn get(&self, most: usize) -> Result<&'a [T]> {
        if self.count > most {
            return Err(Error::invalid(format!("{} has {} elements; {most} are allowed", self.name, self.count)));
        }
        if self.count == 0 {
            return Ok(&[]);
        }
        if self.start.is_null() {
            return Err(null(self.name));
        }
        if !self.start.is_aligned() || self.count.checked_mul(size_of::<T>()).is_none_or(|n| n > isize::MAX as usize) {
            return Err(misaligned(self.name));
        }
        // SAFETY: not NULL, aligned, no larger than memory can be, and readable for `'a` by `new`'s contract.
        Ok(unsafe { slice::from_raw_parts(self.start, self.count) })
    }
}

/// An array that kvconn fills with one element for each item of a call.
pub(super) struct OutItems<T> {
    name: &'static str,
    start: *mut T,
    count: usize,
}

impl<T: Copy> OutItems<T> {
    /// # Safety
    /// `start` is NULL, not aligned, or may be written for `count` elements until the call ends, if `count` is at most
    /// what the call allows.
    pub(super) unsafe fn new(name: &'static str, start: *mut T, count: usize) -> OutItems<T> {
        OutItems { name, start, count }
    }

    /// Rejects NULL, unless there are no items.
    pub(super) fn required(&self) -> Result<()> {
        if self.start.is_null() && self.count > 0 { Err(null(self.name)) } else { self.optional() }
    }

    /// Accepts NULL, which means "not wanted".
    pub(super) fn optional(&self) -> Result<()> {
        if self.start.is_aligned() { Ok(()) } else { Err(misaligned(self.name)) }
    }

    /// Writes one, if they are wanted. Call it only with a count that the call allows.
    pub(super) fn set(&self, place: usize, value: T) {
        assert!(place < self.count);
        if !self.start.is_null() && self.start.is_aligned() {
            // SAFETY: inside the array, which may be written by `new`'s contract.
            unsafe { self.start.add(place).write(value) }
        }
    }

    /// Writes the same for all.
    pub(super) fn fill(&self, value: T) {
        (0..self.count).for_each(|place| self.set(place, value));
    }
}

/// An array that kvconn fills, and the out-parameter for the number of elements.
pub(super) struct OutArray<T> {
    name: &'static str,
    start: *mut T,
    capacity: usize,
    count: Out<usize>,
}

impl<T: Copy> OutArray<T> {
    /// Zeroes the count.
    ///
    /// # Safety
    /// `start` is NULL, not aligned, or may be written for `capacity` elements; `count` is as for [`Out::new`].
    pub(super) unsafe fn new(name: &'static str, start: *mut T, capacity: usize, count: *mut usize) -> OutArray<T> {
        // SAFETY: the same contract.
        OutArray { name, start, capacity, count: unsafe { Out::new("count", count) } }
    }

    /// Rejects a NULL count, and a NULL array with a capacity.
    pub(super) fn required(&self) -> Result<()> {
        self.count.required()?;
        if self.capacity == 0 {
            Ok(())
        } else if self.start.is_null() {
            Err(null(self.name))
        } else if self.start.is_aligned() {
            Ok(())
        } else {
            Err(misaligned(self.name))
        }
    }

    /// Writes as many as fit, and the number of all. Call it only after [`required`](Self::required) returned OK.
    pub(super) fn set(&self, values: impl ExactSizeIterator<Item = T>) {
        let count = values.len();
        for (place, value) in values.take(self.capacity).enumerate() {
            // SAFETY: `place` is below the capacity, for which the array may be written by `new`'s contract.
            unsafe { self.start.add(place).write(value) }
        }
        self.set_count(count);
    }

    /// Writes the number of all.
    pub(super) fn set_count(&self, count: usize) {
        self.count.set(count);
    }
}
