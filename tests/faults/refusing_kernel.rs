//! A kernel that answers some system calls as a sandbox, a firewall or another kernel would: a seccomp filter of this
//! process. It stays for the life of the process, so a test that makes one runs in a process of its own. Processes that
//! are started afterwards have it too.

use std::io;

/// One rule: a system call with these arguments (by their place) is not made and answers this errno. With errno 0 it
/// answers success, and changes nothing.
pub struct Rule<'a> {
    pub call: libc::c_long,
    pub arguments: &'a [(u32, u32)],
    pub errno: i32,
}

/// Sets the rules for every thread of the process.
#[track_caller]
pub fn refuse(rules: &[Rule<'_>]) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    // Goes on to the next statement if equal, else skips that many.
    let equal_or_skip = |value: u32, skip: usize| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: u8::try_from(skip).expect("a short rule"),
        k: value,
    };
    let answer = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value);

    // In `struct seccomp_data` the call's number is first, and the arguments, 8 bytes each, begin at 16. Of each only
    // the lower half is compared.
    let low_half = |place: u32| 16 + 8 * place + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut program = Vec::new();
    for rule in rules {
        let number = u32::try_from(rule.call).expect("a system call's number");
        let mut left = 2 * rule.arguments.len() + 1;
        program.extend([load(0), equal_or_skip(number, left)]);
        for (place, value) in rule.arguments {
            left -= 2;
            program.extend([load(low_half(*place)), equal_or_skip(*value, left)]);
        }
        program.push(answer(libc::SECCOMP_RET_ERRNO | rule.errno.unsigned_abs()));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));

    let filter =
        libc::sock_fprog { len: u16::try_from(program.len()).expect("a short program"), filter: program.as_mut_ptr() };
    // SAFETY: the filter is a complete program that lives until the calls return.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "{}", io::Error::last_os_error());
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let result = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter);
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

/// Whether this machine lets a process filter its own system calls.
pub fn available() -> Result<(), String> {
    // SAFETY: takes no pointers.
    match unsafe { libc::prctl(libc::PR_GET_SECCOMP) } {
        -1 => Err(format!("this kernel has no seccomp ({})", io::Error::last_os_error())),
        _ => Ok(()),
    }
}

#[test]
fn a_rule_refuses_what_it_names_and_nothing_else() {
    crate::skip_unless!(available());
    if crate::common::OwnProcess::new(crate::test_name!()).parent() {
        return;
    }
    let (kind, family) = (libc::SOCK_STREAM, libc::AF_INET6 as u32);
    refuse(&[Rule { call: libc::SYS_socket, arguments: &[(0, family), (1, kind as u32)], errno: libc::EAFNOSUPPORT }]);
    let open = |family: i32, kind: i32| {
        // SAFETY: takes no pointers; the process is short-lived, and the descriptor with it.
        match unsafe { libc::socket(family, kind, 0) } {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(0),
            _ => 0,
        }
    };
    assert_eq!(open(libc::AF_INET6, libc::SOCK_STREAM), libc::EAFNOSUPPORT);
    assert_eq!(open(libc::AF_INET6, libc::SOCK_DGRAM), 0);
    assert_eq!(open(libc::AF_INET, libc::SOCK_STREAM), 0);
    // From another thread too.
    std::thread::spawn(move || assert_eq!(open(libc::AF_INET6, libc::SOCK_STREAM), libc::EAFNOSUPPORT)).join().unwrap();
}
