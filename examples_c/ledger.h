/*
 * The rooms that one rank must get, in order, over all lives of its process. A connection takes rooms from the front.
 * When it ends, the front goes back to the first room that was not acknowledged, and the next connection begins
 * there.
 */
#include <stdint.h>

enum { KEPT = 1 << 13 }; /* rooms: more than libzmq's queue and the kernels' buffers hold */

struct ledger {
    uint64_t rooms[KEPT]; /* a circular buffer */
    uint64_t noted;       /* all rooms noted so far */
    uint64_t told;        /* how many of them were accepted, by this connection or an earlier one */
    uint64_t before;      /* how many of them belong to earlier connections */
};

static void note(struct ledger *ledger, uint64_t room) { ledger->rooms[ledger->noted++ % KEPT] = room; }

/* How many rooms are not sent yet. */
static uint64_t untold(const struct ledger *ledger) { return ledger->noted - ledger->told; }

/* How many messages this connection has accepted, which is also the sequence of the last. */
static uint64_t accepted(const struct ledger *ledger) { return ledger->told - ledger->before; }

/* The room of a sequence of this connection, sent or not. */
static uint64_t room_of(const struct ledger *ledger, uint64_t sequence) {
    return ledger->rooms[(ledger->before + sequence - 1) % KEPT];
}

/* The connection has ended: everything after its last acknowledged sequence is to be sent again. 0: no longer kept. */
static int go_back(struct ledger *ledger, uint64_t acknowledged) {
    ledger->before += acknowledged;
    ledger->told = ledger->before;
    return untold(ledger) <= KEPT;
}

/* Nothing is left to send: the node has failed, and its requests start again elsewhere. */
static void forget(struct ledger *ledger) { ledger->before = ledger->told = ledger->noted; }
