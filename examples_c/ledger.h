/*
 * What one rank is to be told, in order, over all lives of its process. A connection takes rooms from the front; when it
 * ends, the front goes back to the first room that it did not acknowledge, and the next connection begins there.
 */
#include <stdint.h>

enum { KEPT = 1 << 13 }; /* rooms: more than libzmq's queue and the kernel's buffers hold */

struct ledger {
    uint64_t rooms[KEPT]; /* a ring */
    uint64_t noted;       /* rooms that were ever noted */
    uint64_t told;        /* how many of them were accepted, by this connection or one before */
    uint64_t before;      /* how many of them are the matter of connections before this one */
};

static void note(struct ledger *ledger, uint64_t room) { ledger->rooms[ledger->noted++ % KEPT] = room; }

/* How many rooms wait to be told. */
static uint64_t untold(const struct ledger *ledger) { return ledger->noted - ledger->told; }

/* How many messages this connection has accepted, which is also the sequence of the last. */
static uint64_t accepted(const struct ledger *ledger) { return ledger->told - ledger->before; }

/* The room of a sequence of this connection, told or not. */
static uint64_t room_of(const struct ledger *ledger, uint64_t sequence) {
    return ledger->rooms[(ledger->before + sequence - 1) % KEPT];
}

/* This connection is over; what comes after the sequence that it acknowledged is to be told again. 0: not kept so long. */
static int go_back(struct ledger *ledger, uint64_t acknowledged) {
    ledger->before += acknowledged;
    ledger->told = ledger->before;
    return untold(ledger) <= KEPT;
}

/* Nothing is to be told any more: the node has failed, and its requests begin again elsewhere. */
static void forget(struct ledger *ledger) { ledger->before = ledger->told = ledger->noted; }
