#!/usr/bin/env python3
"""An HTTP server for tests that answers GET with one status: /health of a prefill server.

    report    {"event": "report", "requests": …, "paths": [...]}
"""

import argparse
import http.server
import os
import threading

from pull import Lines, die_with_parent, say

PATHS = []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--status", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    die_with_parent()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            PATHS.append(self.path)
            threading.Event().wait(options.delay_ms / 1000)
            self.send_response(options.status)
            self.end_headers()
            self.wfile.write(b"OK")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("bound", endpoint=f"http://127.0.0.1:{server.server_port}")
    lines = Lines()
    while (commands := lines.read()) is not None:
        for _ in commands:
            say("report", requests=len(PATHS), paths=sorted(set(PATHS)))
    os._exit(0)


if __name__ == "__main__":
    main()
