import java.lang.foreign.*;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;

import static java.lang.foreign.ValueLayout.*;

/** Sends three messages to one rank and waits until its connection ends. Java 22 or newer:
 *  java --enable-native-access=ALL-UNNAMED Engine.java tcp://10.0.0.7:5557 */
public final class Engine {
    private static final int ERROR_SIZE = 552, ERROR_MESSAGE = 296; // of kvconn_error_t
    private static final int EVENT_SIZE = 840, EVENT_KIND = 4, EVENT_STATUS = 8, EVENT_CONN = 16, EVENT_COUNT = 32,
            EVENT_ACKNOWLEDGED = 40; // of kvconn_event_t
    private static final int OK = 0, EVENT_NONE = 0, EVENT_STALLED = 6;
    private static final long DEFAULT = 0; // the process's own manager

    private static final Linker LINKER = Linker.nativeLinker();
    private static final SymbolLookup LIB = SymbolLookup.libraryLookup(
            System.getenv().getOrDefault("KVCONN_LIB", "libkvconn.so.0"), Arena.global());
    private static final MethodHandle STATUS_NAME = function("kvconn_status_name", ADDRESS, JAVA_INT);
    private static final MethodHandle CONNECT =
            function("kvconn_connect", JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    private static final MethodHandle SEND_PACKED = function("kvconn_send_packed", JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS,
            JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);
    private static final MethodHandle NEXT_EVENT =
            function("kvconn_next_event", JAVA_INT, JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);

    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... parameters) {
        return LINKER.downcallHandle(LIB.find(name).orElseThrow(), FunctionDescriptor.of(result, parameters));
    }

    /** A struct that kvconn fills. It begins with its own size. */
    private static MemorySegment struct(Arena arena, int size) {
        MemorySegment struct = arena.allocate(size, 8);
        struct.set(JAVA_INT, 0, size);
        return struct;
    }

    private static String statusName(int status) throws Throwable {
        return ((MemorySegment) STATUS_NAME.invokeExact(status)).reinterpret(Long.MAX_VALUE).getString(0);
    }

    private static void check(String what, int status, MemorySegment error) throws Throwable {
        if (status != OK) {
            System.err.println(what + ": " + error.getString(ERROR_MESSAGE) + " (" + statusName(status) + ")");
            System.exit(1);
        }
    }

    static long connect(String endpoint, long waitMs) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment conn = arena.allocate(JAVA_LONG), error = struct(arena, ERROR_SIZE);
            check(endpoint, (int) CONNECT.invokeExact(DEFAULT, arena.allocateFrom(endpoint), MemorySegment.NULL, waitMs,
                    conn, error), error);
            return conn.get(JAVA_LONG, 0);
        }
    }

    static long send(long conn, byte[]... frames) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            int bytes = 0;
            for (byte[] frame : frames) bytes += frame.length;
            MemorySegment packed = arena.allocate(bytes), sizes = arena.allocate(JAVA_INT, frames.length);
            MemorySegment sequence = arena.allocate(JAVA_LONG), error = struct(arena, ERROR_SIZE);
            for (int i = 0, at = 0; i < frames.length; at += frames[i++].length) {
                MemorySegment.copy(frames[i], 0, packed, JAVA_BYTE, at, frames[i].length);
                sizes.setAtIndex(JAVA_INT, i, frames[i].length);
            }
            check("send", (int) SEND_PACKED.invokeExact(conn, packed, sizes, (long) frames.length, 1000L, sequence, error),
                    error);
            return sequence.get(JAVA_LONG, 0);
        }
    }

    /** The event that ends the connection. This thread waits in C; use a platform thread for it. */
    static MemorySegment ending(Arena arena, long conn) throws Throwable {
        MemorySegment event = struct(arena, EVENT_SIZE), error = struct(arena, ERROR_SIZE);
        while (true) {
            check("next_event", (int) NEXT_EVENT.invokeExact(DEFAULT, 60_000L, event, error), error);
            int kind = event.get(JAVA_INT, EVENT_KIND);
            if (kind == EVENT_NONE) throw new IllegalStateException("no end was seen");
            if (event.get(JAVA_LONG, EVENT_CONN) == conn && event.get(JAVA_INT, EVENT_STATUS) != OK
                    && kind != EVENT_STALLED) return event;
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Throwable {
        long conn = connect(arguments[0], 3000);
        System.out.println("connection " + Long.toUnsignedString(conn));
        for (int i = 1; i <= 3; i++)
            System.out.println("accepted " + Long.toUnsignedString(send(conn, bytes("room"), bytes(""), bytes("" + i))));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment end = ending(arena, conn);
            System.out.println(statusName(end.get(JAVA_INT, EVENT_STATUS)) + ": connection "
                    + Long.toUnsignedString(end.get(JAVA_LONG, EVENT_CONN)) + ", "
                    + Long.toUnsignedString(end.get(JAVA_LONG, EVENT_COUNT)) + " accepted, "
                    + Long.toUnsignedString(end.get(JAVA_LONG, EVENT_ACKNOWLEDGED)) + " acknowledged");
        }
    }
}
