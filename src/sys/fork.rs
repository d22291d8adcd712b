//! Detects that this process is a child forked since kvconn was last used. Then nothing of the parent's may be touched.
//!
//! The kernel wipes one page of memory in every child, also after a raw `clone`. So one load gives the answer.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page. Null until it is made, and always null where the kernel cannot wipe pages.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Where there is no page: the process that was marked.
static PID: AtomicU32 = AtomicU32::new(0);

/// Whether [`mark`] was called in this process itself.
#[inline(always)]
pub(crate) fn is_marked() -> bool {
    match page() {
        Some(page) => page.load(Ordering::Acquire) == 1,
        None => PID.load(Ordering::Acquire) == std::process::id(),
    }
}

/// Makes [`is_marked`] true in this process, but not in its future children.
pub(crate) fn mark() {
    if page().is_none() {
        make_page();
    }
    match page() {
        Some(page) => page.store(1, Ordering::Release),
        None => PID.store(std::process::id(), Ordering::Release),
    }
}

#[inline(always)]
fn page() -> Option<&'static AtomicU32> {
    // SAFETY: never unmapped once it is set. Wiping it in a child leaves a valid zero.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn make_page() {
    let (size, access) = (4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh anonymous mapping. It is not used before madvise has succeeded.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        let wiped = libc::madvise(page, size, libc::MADV_WIPEONFORK) == 0;
        let first = wiped
            && PAGE.compare_exchange(std::ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !first {
            libc::munmap(page, size);
        }
    }
}
