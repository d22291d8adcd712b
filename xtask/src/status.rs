//! `docs/status.md`, from the table of statuses.

use std::fmt::Write as _;

use kvconn::error::{STATUSES, Status};

pub(crate) fn document() -> String {
    let mut out = String::from(
        "# Statuses\n\nMade from the table in `src/error.rs` by `make bless`. Every function that can fail returns one of these. The numbers\n\
         are frozen: a status may be added, but never renumbered.\n\n\
         An error means: nothing was accepted, and nothing is left half-done. These are the exceptions:\n\n\
         * `KVCONN_PARTIAL` of `kvconn_send_batch` and `kvconn_send_batch_packed`: some items were accepted.\n\
         * `KVCONN_PARTIAL` of `kvconn_node_connect`: all endpoints are registered, and some have a connection.\n\
         * `KVCONN_TIMEOUT` of `kvconn_connect`, `kvconn_send_to` and `kvconn_send_packed_to`: a dial that has begun goes on.\n\
         * `KVCONN_TIMEOUT` of `kvconn_disconnect_all`, `kvconn_shutdown` and `kvconn_manager_destroy`: everything has ended, but\n  \
           some message was not acknowledged, or some socket not closed, in time.\n\
         * `KVCONN_TIMEOUT` of `kvconn_set_log`: the log goes to the new function. Of `kvconn_dump`: the text is cut.\n\n\
         The columns:\n\n\
         * **scope**: what is affected: this call only (CALL), this endpoint (PEER), everything that this life of the node owned\n  \
           (NODE), or the whole process (PROCESS).\n\
         * **retriable**: the same endpoint may be tried again without a change by the caller. A call with the id of an ended\n  \
           connection never succeeds: get a new id with `kvconn_connect` (marked \"yes, with a new id\").\n\
         * **errno**: the `os_errno` of an error for which the operating system has given no errno of its own (`kvconn_status_errno`).\n  \
           So `os_errno` is never 0 in an error. Look at the status first: the same errno stands for several.\n\n\
         | name | number | scope | retriable | errno | meaning | what to do |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in STATUSES {
        let ended = matches!(row.status, Status::ConnectFailed | Status::PeerLost | Status::Evicted);
        let retriable = match (row.retriable, ended) {
            (true, true) => "yes, with a new id",
            (true, false) => "yes",
            (false, _) => "no",
        };
        let (name, number, scope) = (row.name, row.status as i32, row.scope.name());
        let (errno, meaning, what_to_do) = (row.errno.1, row.meaning, row.what_to_do);
        let _ = writeln!(out, "| `{name}` | {number} | {scope} | {retriable} | {errno} | {meaning} | {what_to_do} |");
    }
    out
}
