"""Stand-in of Cloud Storage for TensorFlow, which speaks TLS to it and no emulator.

    python tls_store.py PORT BUCKETS CERTIFICATE KEY LOG

A proxy (`https_proxy`) that answers for storage.googleapis.com and www.googleapis.com
itself: reads only, of the files below BUCKETS, whose folders are the buckets. Every
third read fails with 503, so that nothing works which does not try again. Writes a line
for each request to LOG.
"""

import http.server
import itertools
import json
import re
import ssl
import sys
import urllib.parse
from pathlib import Path

PORT, BUCKETS, CERTIFICATE, KEY, LOG = sys.argv[1:]
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
TLS.load_cert_chain(CERTIFICATE, KEY)
READS = itertools.count(1)


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        Store(TLS.wrap_socket(self.connection, server_side=True), self.client_address)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Store(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, connection, address):
        super().__init__(connection, address, None)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        with open(LOG, "a") as log:
            log.write(f"{self.path} {self.headers.get('Range')}\n")
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)", url.path):
            self._describe(*map(urllib.parse.unquote, found.groups()))
        elif found := re.fullmatch(r"/storage/v1/b/([^/]+)/o", url.path):
            self._list(found[1], query.get("prefix", [""])[0])
        elif next(READS) % 3 == 0:
            self._answer(503, b"try again")
        else:
            self._read(*urllib.parse.unquote(url.path)[1:].split("/", 1))

    def _describe(self, bucket, name):
        path = Path(BUCKETS, bucket, name)
        if not path.is_file():
            return self._answer(404, b"{}")
        facts = {
            "size": str(path.stat().st_size),
            "generation": "1",
            "updated": "2026-01-01T00:00:00.000Z",
        }
        return self._answer(200, json.dumps(facts).encode())

    def _list(self, bucket, prefix):
        root = Path(BUCKETS, bucket)
        names = [path.relative_to(root).as_posix() for path in root.rglob("*")]
        items = [{"name": name} for name in names if name.startswith(prefix)]
        self._answer(200, json.dumps({"items": items}).encode())

    def _read(self, bucket, name):
        content = Path(BUCKETS, bucket, name).read_bytes()
        first, last = re.findall(r"\d+", self.headers["Range"])
        part = content[int(first) : int(last) + 1]
        self._answer(206 if part else 416, part)

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("localhost", int(PORT)), Proxy).serve_forever()
