//! `docs/status.md`, from the table of statuses.

use std::fmt::Write as _;

use kvconn::error::STATUSES;

pub(crate) fn document() -> String {
    let mut out = String::from(
        "# Statuses\n\nMade from the table in `src/error.rs` by `make bless`. Every function that can fail returns one of these. The numbers\n\
         are frozen: a status may be added, but never renumbered.\n\n\
         An error means: nothing was accepted, and nothing is left half-done. There are two exceptions:\n\n\
         * `KVCONN_PARTIAL` of a batch: this holds for each item that failed. The other items were accepted.\n\
         * `KVCONN_TIMEOUT` of `kvconn_connect`: the dial goes on. `KVCONN_TIMEOUT` of `kvconn_disconnect_all`, `kvconn_shutdown` and\n  \
           `kvconn_manager_destroy`: everything has ended, but not every message was acknowledged, or not every socket closed, in time.\n\n\
         The columns:\n\n\
         * **scope**: what is affected: this call only (CALL), this endpoint (PEER), everything that this life of the node owned\n  \
           (NODE), or the whole process (PROCESS).\n\
         * **retriable**: the same call can succeed later, and the caller need not change anything.\n\n\
         | name | number | scope | retriable | meaning | what to do |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for row in STATUSES {
        let retriable = if row.retriable { "yes" } else { "no" };
        let (name, number, scope) = (row.name, row.status as i32, row.scope.name());
        let _ = writeln!(out, "| `{name}` | {number} | {scope} | {retriable} | {} | {} |", row.meaning, row.what_to_do);
    }
    out
}
