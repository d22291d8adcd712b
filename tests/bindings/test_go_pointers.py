"""Why the Go program uses kvconn_send_packed: cgo refuses kvconn_send's array of pointers to Go memory."""

from runtimes import run

NESTED = """package main

// #cgo LDFLAGS: -lkvconn
// #include <kvconn.h>
import "C"

import "unsafe"

func main() {
	text := []byte("room")
	frames := []C.kvconn_frame_t{{data: unsafe.Pointer(&text[0]), size: 4}}
	C.kvconn_send(1, &frames[0], 1, 0, nil, nil)
	println("kvconn_send returned")
}
"""


def test_kvconn_send_with_frames_in_go_memory_panics_in_cgo(go_program):
    command, environment = go_program(NESTED)
    result = run(*command, env=environment)
    assert result.returncode != 0 and "kvconn_send returned" not in result.stderr
    assert "cgo argument has Go pointer to" in result.stderr, result.stderr


def test_kvconn_send_packed_does_not(go_program):
    packed = NESTED.replace("frames := []C.kvconn_frame_t{{data: unsafe.Pointer(&text[0]), size: 4}}", "sizes := []C.uint32_t{4}")
    packed = packed.replace("C.kvconn_send(1, &frames[0], 1,", "C.kvconn_send_packed(1, unsafe.Pointer(&text[0]), &sizes[0], 1,")
    command, environment = go_program(packed)
    result = run(*command, env=environment)
    assert (result.returncode, result.stderr) == (0, "kvconn_send returned\n")
