"""Front of the emulator of Cloud Storage: TLS for TensorFlow, and faults for everyone.

    python store_front.py PORT EMULATOR CERTIFICATE KEY FOLDER

A proxy (`https_proxy`) that answers for storage.googleapis.com and www.googleapis.com
from the emulator at `http://EMULATOR`, and an address for `STORAGE_EMULATOR_HOST` too:
both meet the same objects. FOLDER/log gets a line for each request. FOLDER/faults says
what goes wrong: a JSON object such as

    {"every": 5, "kinds": ["429", "503", "cut", "slow"]}

in which the kinds follow each other, from the first one each time that the file
changes; `{"every": 1, "kinds": ["down"]}` is an outage.
Numbers are HTTP's status codes; "cut" ends the connection in the middle of the answer,
after the emulator has done what was asked; "slow" leaves the client waiting for it,
"silent" for good; without the file nothing goes wrong.
"""

import functools
import http.client
import http.server
import itertools
import json
import ssl
import sys
import threading
import time
import urllib.parse
from pathlib import Path

PORT, EMULATOR, CERTIFICATE, KEY, FOLDER = sys.argv[1:]
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
if CERTIFICATE:
    TLS.load_cert_chain(CERTIFICATE, KEY)
SLOW_SECONDS = 1
REQUESTS = itertools.count(1)
# The emulator writes its one list of objects after each change.
ONE_AT_A_TIME = threading.Lock()


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scheme = "http"

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        connection = TLS.wrap_socket(self.connection, server_side=True)
        TlsFront(connection, self.client_address, self.server)
        self.close_connection = True

    def answer(self):
        # TensorFlow gives both, and sends chunks.
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = next_fault()
        with open(Path(FOLDER, "log"), "a") as log:
            place = self.headers.get("Range") or self.headers.get("Content-Range")
            log.write(f"{self.command} {self.path} {place} {fault or ''}\n")
        if fault == "silent":
            time.sleep(1000)
        if fault == "down":
            self.close_connection = True
        elif fault and fault.isdigit():
            self._send(int(fault), {}, b"try again")
        else:
            status, headers, content = self._ask(body)
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            self._send(status, headers, content, is_cut=fault == "cut")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def _chunks(self):
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _ask(self, body):
        url = urllib.parse.urlsplit(self.path)
        target = url.path + (f"?{url.query}" if url.query else "")
        kept = ("connection", "proxy-connection", "transfer-encoding", "content-length")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in kept}
        with ONE_AT_A_TIME:
            emulator = http.client.HTTPConnection(EMULATOR)
            headers["Content-Length"] = str(len(body))
            emulator.request(self.command, target, body, headers)
            found = emulator.getresponse()
            content = found.read()
            emulator.close()
        answered = dict(found.headers)
        if found.status == 308 and answered.get("Range") == "bytes=0-0":
            # So the emulator says that it has nothing; Cloud Storage says no range.
            del answered["Range"]
        return found.status, answered, content

    def _send(self, status, headers, content, *, is_cut=False):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() == "location":
                value = value.replace("http://", f"{self.scheme}://", 1)
            if name.lower() not in ("content-length", "connection", "date", "server"):
                self.send_header(name, value)
        # One byte more than comes, so that a client knows that something lacks.
        length = len(content) + is_cut
        if self.command == "HEAD":
            length = headers.get("Content-Length", 0)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self.close_connection = True

    def log_message(self, *_):
        pass


class TlsFront(Front):
    scheme = "https"

    def finish(self):
        super().finish()
        # The connection is TLS's own object: nobody else ends it.
        self.connection.close()


@functools.lru_cache(maxsize=1)
def faults(text, changed):
    rule = json.loads(text)
    return rule["every"], itertools.cycle(rule["kinds"])


def next_fault():
    file = Path(FOLDER, "faults")
    try:
        every, kinds = faults(file.read_text(), file.stat().st_mtime_ns)
    except (FileNotFoundError, ValueError):
        return None
    return None if next(REQUESTS) % every else next(kinds)


http.server.ThreadingHTTPServer(("localhost", int(PORT)), Front).serve_forever()
