// Sends three messages to one rank and waits until its connection ends:  node engine.js tcp://10.0.0.7:5557
'use strict';
const koffi = require('koffi');

const lib = koffi.load(process.env.KVCONN_LIB || 'libkvconn.so.0');
const ErrorDetails = koffi.struct('kvconn_error_t', {
  struct_size: 'uint32_t', status: 'int32_t', os_errno: 'int32_t', scope: 'int32_t', retriable: 'int32_t',
  retry_after_ms: 'int32_t', conn: 'uint64_t', endpoint: koffi.array('char', 264), message: koffi.array('char', 256),
});
const Event = koffi.struct('kvconn_event_t', {
  struct_size: 'uint32_t', kind: 'int32_t', status: 'int32_t', os_errno: 'int32_t', conn: 'uint64_t', node: 'uint64_t',
  count: 'uint64_t', acknowledged: 'uint64_t', ended_by: 'int32_t', reserved: 'uint32_t', time_ms: 'int64_t',
  endpoint: koffi.array('char', 264), node_name: koffi.array('char', 256), message: koffi.array('char', 256),
});
const statusName = lib.func('const char *kvconn_status_name(int32_t status)');
const connect = lib.func('int32_t kvconn_connect(uint64_t m, const char *endpoint, void *options, int64_t wait_ms, ' +
  '_Out_ uint64_t *conn, _Inout_ kvconn_error_t *error)');
const sendPacked = lib.func('int32_t kvconn_send_packed(uint64_t conn, const uint8_t *buffer, const uint32_t *sizes, ' +
  'size_t frame_count, int64_t timeout_ms, _Out_ uint64_t *sequence, _Inout_ kvconn_error_t *error)');
const nextEvent = lib.func('int32_t kvconn_next_event(uint64_t m, int64_t timeout_ms, _Inout_ kvconn_event_t *event, ' +
  '_Inout_ kvconn_error_t *error)');

const DEFAULT = 0n; // the process's own manager
const EVENT_NONE = 0, EVENT_STALLED = 6;
const newError = () => ({ struct_size: koffi.sizeof(ErrorDetails) });
// The empty fields, because koffi takes a whole struct as its input.
const newEvent = () => ({ struct_size: koffi.sizeof(Event), endpoint: '', node_name: '', message: '' });

function check(what, status, error) {
  if (status !== 0) throw new Error(`${what}: ${error.message} (${statusName(status)})`);
}

// koffi gives a 64-bit number as a Number when it is below 2^53, else as a BigInt. Ids are above it: make each a BigInt.
function connectTo(endpoint, waitMs) {
  const conn = [null], error = newError();
  check(endpoint, connect(DEFAULT, endpoint, null, waitMs, conn, error), error);
  return BigInt(conn[0]);
}

function send(conn, frames) {
  const sequence = [null], error = newError();
  const sizes = Uint32Array.from(frames, (frame) => frame.length);
  check('send', sendPacked(conn, Buffer.concat(frames), sizes, frames.length, 1000, sequence, error), error);
  return BigInt(sequence[0]);
}

// Waits on one of koffi's threads; the event loop goes on.
async function ending(conn) {
  for (;;) {
    const event = newEvent(), error = newError();
    const status = await new Promise((resolve, reject) =>
      nextEvent.async(DEFAULT, 60000, event, error, (failed, result) => (failed ? reject(failed) : resolve(result))));
    check('next_event', status, error);
    if (event.kind === EVENT_NONE) throw new Error('no end was seen');
    if (BigInt(event.conn) === conn && event.status !== 0 && event.kind !== EVENT_STALLED) return event;
  }
}

async function main(endpoint) {
  const conn = connectTo(endpoint, 3000);
  console.log(`connection ${conn}`);
  for (const i of [1, 2, 3]) console.log(`accepted ${send(conn, ['room', '', String(i)].map((text) => Buffer.from(text)))}`);
  const end = await ending(conn);
  console.log(`${statusName(end.status)}: connection ${end.conn}, ${end.count} accepted, ${end.acknowledged} acknowledged`);
}

main(process.argv[2]).catch((error) => { console.error(error.message); process.exitCode = 1; });
