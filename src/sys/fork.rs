//! Whether this process is a child forked since kvconn was last used: then nothing of the parent's may be touched.
//!
//! One page of memory that the kernel wipes in every child answers with a single load, also after a raw `clone`.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page; null until it is made, and for ever where the kernel cannot wipe pages.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Without the page: the process that was marked.
static PID: AtomicU32 = AtomicU32::new(0);

/// Whether [`mark`] was called in this very process.
pub(crate) fn is_marked() -> bool {
    match page() {
        Some(page) => page.load(Ordering::Acquire) == 1,
        None => PID.load(Ordering::Acquire) == std::process::id(),
    }
}

/// From now on [`is_marked`] in this process, and not in its children to come.
pub(crate) fn mark() {
    if page().is_none() {
        make_page();
    }
    match page() {
        Some(page) => page.store(1, Ordering::Release),
        None => PID.store(std::process::id(), Ordering::Release),
    }
}

fn page() -> Option<&'static AtomicU32> {
    // SAFETY: never unmapped once it is set; wiping it in a child leaves a valid zero.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn make_page() {
    let (size, access) = (4096, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh anonymous mapping, nothing of which is in use before madvise has succeeded.
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
