// Sends three messages to one rank and waits until its connection ends:  engine tcp://10.0.0.7:5557
package main

// #cgo LDFLAGS: -lkvconn
// #include <stdlib.h>
// #include <kvconn.h>
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// check ends the program with the text of an error. An error struct for each call: goroutines change threads.
func check(what string, status C.kvconn_status_t, e *C.kvconn_error_t) {
	if status != C.KVCONN_OK {
		fmt.Fprintf(os.Stderr, "%s: %s (%s)\n", what, C.GoString(&e.message[0]), C.GoString(C.kvconn_status_name(status)))
		os.Exit(1)
	}
}

func newError() *C.kvconn_error_t {
	return &C.kvconn_error_t{struct_size: C.sizeof_kvconn_error_t}
}

func connect(endpoint string, wait time.Duration) C.kvconn_conn_t {
	text := C.CString(endpoint)
	defer C.free(unsafe.Pointer(text))
	var conn C.kvconn_conn_t
	e := newError()
	check(endpoint, C.kvconn_connect(C.KVCONN_DEFAULT, text, nil, C.int64_t(wait.Milliseconds()), &conn, e), e)
	return conn
}

// send packs the frames into one buffer. kvconn_send would get an array of pointers to Go memory, which cgo forbids.
func send(conn C.kvconn_conn_t, frames ...[]byte) uint64 {
	var packed []byte
	var sizes []C.uint32_t
	for _, frame := range frames {
		packed, sizes = append(packed, frame...), append(sizes, C.uint32_t(len(frame)))
	}
	var buffer unsafe.Pointer // NULL is allowed if all frames are empty
	if len(packed) > 0 {
		buffer = unsafe.Pointer(&packed[0])
	}
	var sequence C.uint64_t
	e := newError()
	check("send", C.kvconn_send_packed(conn, buffer, &sizes[0], C.size_t(len(sizes)), 1000, &sequence, e), e)
	return uint64(sequence)
}

// ending waits for the end of a connection. Go's poller watches the descriptor, so no thread waits in C.
func ending(conn C.kvconn_conn_t, wait time.Duration) (event C.kvconn_event_t) {
	var fd C.int
	e := newError()
	check("event_fd", C.kvconn_event_fd(C.KVCONN_DEFAULT, &fd, e), e)
	own, err := syscall.Dup(int(fd)) // os.File closes its descriptor; this one belongs to the manager
	if err == nil {
		err = syscall.SetNonblock(own, true)
	}
	events := os.NewFile(uintptr(own), "kvconn events")
	defer events.Close()
	raw, _ := events.SyscallConn()
	if err == nil {
		err = events.SetReadDeadline(time.Now().Add(wait))
	}
	if err == nil { // true ends the wait; false waits until the descriptor is readable again
		err = raw.Read(func(uintptr) bool {
			for {
				event = C.kvconn_event_t{struct_size: C.sizeof_kvconn_event_t}
				check("next_event", C.kvconn_next_event(C.KVCONN_DEFAULT, 0, &event, e), e)
				if event.conn == conn && event.status != C.KVCONN_OK && event.kind != C.KVCONN_EVENT_STALLED {
					return true
				}
				if event.kind == C.KVCONN_EVENT_NONE {
					return false
				}
			}
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no end was seen:", err)
		os.Exit(1)
	}
	return event
}

func main() {
	conn := connect(os.Args[1], 3*time.Second)
	fmt.Println("connection", conn)
	for i := 1; i <= 3; i++ {
		fmt.Println("accepted", send(conn, []byte("room"), nil, []byte(fmt.Sprint(i))))
	}
	end := ending(conn, time.Minute)
	fmt.Printf("%s: connection %d, %d accepted, %d acknowledged\n",
		C.GoString(C.kvconn_status_name(end.status)), end.conn, end.count, end.acknowledged)
}
