//! Two copies of the library in one process, for instance an engine's own and the Python package's (field report R11).

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use kvconn::error::Status;

use crate::common::{OwnProcess, Peer};
use crate::test_name;

const LIMIT: Duration = Duration::from_secs(10);

#[repr(C)]
struct Frame {
    data: *const c_void,
    size: usize,
}

type Error = *mut c_void;

/// One copy of the library, loaded for itself.
struct Copy(*mut c_void);

impl Copy {
    /// A copy of the file: the loader takes the same file for the same library.
    fn load(directory: &Path, name: &str) -> Copy {
        let library = std::env::current_exe().unwrap().with_file_name("libkvconn.so");
        let path = directory.join(name);
        std::fs::copy(&library, &path).expect("the library can be copied");
        let text = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Copy(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a live handle and a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is missing");
        symbol
    }

    fn connect(&self, endpoint: &str) -> u64 {
        type Call = unsafe extern "C" fn(u64, *const c_char, *const c_void, i64, *mut u64, Error) -> i32;
        let (endpoint, mut conn) = (CString::new(endpoint).unwrap(), 0);
        // SAFETY: the header's signature; the arguments live for the call.
        let status = unsafe {
            let call: Call = std::mem::transmute(self.symbol(c"kvconn_connect"));
            call(0, endpoint.as_ptr(), ptr::null(), 10_000, &mut conn, ptr::null_mut())
        };
        assert_eq!(status, Status::Ok as i32);
        conn
    }

    fn send(&self, conn: u64, text: &str) -> i32 {
        type Call = unsafe extern "C" fn(u64, *const Frame, usize, i64, *mut u64, Error) -> i32;
        let frame = Frame { data: text.as_ptr().cast(), size: text.len() };
        // SAFETY: the header's signature; the arguments live for the call.
        unsafe {
            let call: Call = std::mem::transmute(self.symbol(c"kvconn_send"));
            call(conn, &frame, 1, 10_000, ptr::null_mut(), ptr::null_mut())
        }
    }

    fn disconnect(&self, conn: u64) -> i32 {
        type Call = unsafe extern "C" fn(u64, Error) -> i32;
        // SAFETY: the header's signature.
        unsafe {
            let call: Call = std::mem::transmute(self.symbol(c"kvconn_disconnect"));
            call(conn, ptr::null_mut())
        }
    }

    fn open_node(&self) -> u64 {
        type Call = unsafe extern "C" fn(u64, *const c_char, *mut u64, *mut i32, Error) -> i32;
        let mut node = 0;
        // SAFETY: the header's signature; the arguments live for the call.
        let status = unsafe {
            let call: Call = std::mem::transmute(self.symbol(c"kvconn_node_open"));
            call(0, c"decode-0".as_ptr(), &mut node, ptr::null_mut(), ptr::null_mut())
        };
        assert_eq!(status, Status::Ok as i32);
        node
    }

    fn track(&self, node: u64, request: u64) -> i32 {
        type Call = unsafe extern "C" fn(u64, u64, Error) -> i32;
        // SAFETY: the header's signature.
        unsafe {
            let call: Call = std::mem::transmute(self.symbol(c"kvconn_node_track_request"));
            call(node, request, ptr::null_mut())
        }
    }
}

#[test]
fn an_id_of_one_copy_is_stale_in_the_other() {
    if OwnProcess::new(test_name!()).parent() {
        return;
    }
    let directory = std::env::temp_dir().join(format!("kvconn-copies-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let copies = ["engine.so", "python.so"].map(|name| Copy::load(&directory, name));
    std::fs::remove_dir_all(&directory).unwrap();
    let peers = [Peer::any(), Peer::any()];
    // The same calls in the same order, which would give the same numbers.
    let conns = [0, 1].map(|i| copies[i].connect(peers[i].endpoint()));
    let nodes = [0, 1].map(|i| copies[i].open_node());
    let ids = [conns[0], conns[1], nodes[0], nodes[1]];
    for (i, other) in [(0, 1), (1, 0)] {
        assert_eq!(copies[i].send(conns[other], "astray"), Status::Stale as i32, "{ids:?}");
        assert_eq!(copies[i].disconnect(conns[other]), Status::Stale as i32, "{ids:?}");
        assert_eq!(copies[i].track(nodes[other], 7), Status::Stale as i32, "{ids:?}");
        assert_eq!(copies[i].track(nodes[i], 7), Status::Ok as i32, "{ids:?}");
    }
    for i in [0, 1] {
        assert_eq!(copies[i].send(conns[i], &format!("for {i}")), Status::Ok as i32);
        peers[i].wait_received(1, LIMIT);
        assert_eq!(peers[i].messages(), [[format!("for {i}").into_bytes()]]);
    }
    assert!(ids.iter().all(|id| *id > u64::from(u32::MAX) && i64::try_from(*id).is_ok()), "{ids:?}");
}
