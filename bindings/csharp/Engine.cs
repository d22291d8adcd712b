// Sends three messages to one rank and waits until its connection ends:  Engine tcp://10.0.0.7:5557
using System;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;

static class Kvconn {
    public const ulong Default = 0; // the process's own manager
    public const int Ok = 0, EventNone = 0, EventStalled = 6;
    const string Library = "libkvconn.so.0";

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct Error {
        public uint StructSize;
        public int Status, OsErrno, Scope, Retriable, RetryAfterMs;
        public ulong Conn;
        public fixed byte Endpoint[264];
        public fixed byte Message[256];
    }

    [StructLayout(LayoutKind.Sequential)]
    public unsafe struct Event {
        public uint StructSize;
        public int Kind, Status, OsErrno;
        public ulong Conn, Node, Count, Acknowledged;
        public int EndedBy;
        public uint Reserved;
        public long TimeMs;
        public fixed byte Endpoint[264];
        public fixed byte NodeName[256];
        public fixed byte Message[256];
    }

    [DllImport(Library)]
    static extern IntPtr kvconn_status_name(int status);
    [DllImport(Library)]
    static extern int kvconn_connect(ulong m, byte[] endpoint, IntPtr options, long waitMs, out ulong conn, ref Error error);
    [DllImport(Library)]
    static extern int kvconn_send_packed(ulong conn, byte[] buffer, uint[] sizes, UIntPtr frameCount, long timeoutMs,
                                         out ulong sequence, ref Error error);
    [DllImport(Library)]
    static extern int kvconn_next_event(ulong m, long timeoutMs, ref Event happened, ref Error error);

    public static string StatusName(int status) => Marshal.PtrToStringAnsi(kvconn_status_name(status));

    static unsafe Error NewError() => new Error { StructSize = (uint)sizeof(Error) };

    static unsafe void Check(string what, int status, ref Error error) {
        fixed (byte* message = error.Message)
            if (status != Ok) throw new Exception($"{what}: {Text(message)} ({StatusName(status)})");
    }

    static unsafe string Text(byte* utf8) {
        int length = 0;
        while (utf8[length] != 0) length++;
        return Encoding.UTF8.GetString(utf8, length);
    }

    public static ulong Connect(string endpoint, long waitMs) {
        var error = NewError();
        var text = Encoding.UTF8.GetBytes(endpoint + "\0"); // a string parameter would be marshalled by the platform's rules
        Check(endpoint, kvconn_connect(Default, text, IntPtr.Zero, waitMs, out ulong conn, ref error), ref error);
        return conn;
    }

    public static ulong Send(ulong conn, params byte[][] frames) {
        var error = NewError();
        var sizes = frames.Select(frame => (uint)frame.Length).ToArray();
        var packed = frames.SelectMany(frame => frame).ToArray();
        var status = kvconn_send_packed(conn, packed, sizes, (UIntPtr)sizes.Length, 1000, out ulong sequence, ref error);
        Check("send", status, ref error);
        return sequence;
    }

    /// The event that ends the connection.
    public static unsafe Event Ending(ulong conn) {
        for (;;) {
            var error = NewError();
            var happened = new Event { StructSize = (uint)sizeof(Event) };
            Check("next_event", kvconn_next_event(Default, 60000, ref happened, ref error), ref error);
            if (happened.Kind == EventNone) throw new Exception("no end was seen");
            if (happened.Conn == conn && happened.Status != Ok && happened.Kind != EventStalled) return happened;
        }
    }
}

static class Engine {
    static int Main(string[] arguments) {
        try {
            var conn = Kvconn.Connect(arguments[0], 3000);
            Console.WriteLine($"connection {conn}");
            foreach (var i in new[] { "1", "2", "3" })
                Console.WriteLine($"accepted {Kvconn.Send(conn, Encoding.UTF8.GetBytes("room"), new byte[0], Encoding.UTF8.GetBytes(i))}");
            var end = Kvconn.Ending(conn);
            Console.WriteLine($"{Kvconn.StatusName(end.Status)}: connection {end.Conn}, {end.Count} accepted, {end.Acknowledged} acknowledged");
            return 0;
        } catch (Exception e) {
            Console.Error.WriteLine(e.Message);
            return 1;
        }
    }
}
