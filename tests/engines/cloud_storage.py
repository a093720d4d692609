"""A stand-in of Cloud Storage: gcp-storage-emulator with the XML interface.

The emulator itself has the JSON interface, which Beam and TensorFlow speak; `obstore`
speaks XML.
"""

import email.utils
import itertools
import sys
import time
import urllib.parse
import xml.sax.saxutils
from http import HTTPStatus

from gcp_storage_emulator import __main__, exceptions, server
from gcp_storage_emulator.handlers import objects

PARTS: dict[str, dict[int, bytes]] = {}
UPLOADS = itertools.count(1)


def head(request, response, storage):
    name = request.params["bucket_name"], request.params["object_id"]
    try:
        obj = storage.get_file_obj(*name)
    except exceptions.NotFound:
        response.status = HTTPStatus.NOT_FOUND
        return
    put_version(response, obj)
    objects.download(request, response, storage)


def put_version(response, obj):
    response["ETag"] = f'"{obj["md5Hash"]}"'
    response["x-goog-generation"] = obj["generation"]
    response["Last-Modified"] = email.utils.formatdate(time.time(), usegmt=True)


def put(request, response, storage):
    bucket, name = request.params["bucket_name"], request.params["object_id"]
    if "partNumber" in request.query:
        parts = PARTS.get(request.query["uploadId"][0])
        if parts is None:
            response.status = HTTPStatus.NOT_FOUND
            return
        parts[int(request.query["partNumber"][0])] = request.data or b""
        response["ETag"] = '"part"'
        return
    data = request.data or b""
    if source := request.get_header("x-goog-copy-source"):
        data = storage.get_file(*urllib.parse.unquote(source).split("/", 1))
    store(request, response, storage, bucket, name, data)
    if source:
        response.write_file(b"<CopyObjectResult/>")


def store(request, response, storage, bucket, name, data):
    if (asked := request.get_header("x-goog-if-generation-match")) is not None:
        now = storage.objects.get(bucket, {}).get(name, {}).get("generation", "0")
        if asked != now:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
    kind, length = "application/octet-stream", str(len(data))
    obj = objects._make_object_resource(request.base_url, bucket, name, kind, length)
    try:
        storage.create_file(bucket, name, data, objects._checksums(data, obj))
        put_version(response, obj)
    except exceptions.NotFound:
        response.status = HTTPStatus.NOT_FOUND


def post(request, response, storage):
    bucket, name = request.params["bucket_name"], request.params["object_id"]
    if "?uploads" in request.full_url:
        upload = str(next(UPLOADS))
        PARTS[upload] = {}
        tag = f"<UploadId>{upload}</UploadId>"
        start = f"<Bucket>{bucket}</Bucket><Key>{xml.sax.saxutils.escape(name)}</Key>"
        text = f"<InitiateMultipartUploadResult>{start}{tag}"
        response.write_file(f"{text}</InitiateMultipartUploadResult>".encode())
        return
    parts = PARTS.pop(request.query["uploadId"][0], None)
    if parts is None:
        response.status = HTTPStatus.NOT_FOUND
        return
    data = b"".join(parts[number] for number in sorted(parts))
    store(request, response, storage, bucket, name, data)
    response.write_file(
        b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
    )


def list_objects(request, response, storage):
    prefix = request.query.get("prefix", [""])[0]
    delimiter = request.query.get("delimiter", [None])[0]
    try:
        items, prefixes = storage.get_file_list(
            request.params["bucket_name"], prefix, delimiter
        )
    except exceptions.NotFound:
        response.status = HTTPStatus.NOT_FOUND
        return
    text = "".join(
        f"<Contents><Key>{xml.sax.saxutils.escape(obj['name'])}</Key><LastModified>"
        f"{obj['updated']}</LastModified><Size>{obj['size']}</Size></Contents>"
        for obj in items
    ) + "".join(
        f"<CommonPrefixes><Prefix>{xml.sax.saxutils.escape(p)}</Prefix>"
        "</CommonPrefixes>"
        for p in prefixes
    )
    response.write_file(f"<ListBucketResult>{text}</ListBucketResult>".encode())


def close(response, *, close=server.Response.close):
    if response._handler.command == "HEAD":
        # The length of what a GET would send.
        response._handler.wfile = NoBody(response._handler.wfile)
    close(response)


class NoBody:
    def __init__(self, file):
        self.file, self.is_head = file, True

    def write(self, data):
        # All headers come in the first call.
        if self.is_head:
            self.file.write(data)
        self.is_head = False

    def __getattr__(self, name):
        return getattr(self.file, name)


server.Response.close = close
server.RequestHandler.do_HEAD = lambda self: server.Router(self).handle("HEAD")
server.HANDLERS = (
    *server.HANDLERS[:-1],
    (r"^/(?P<bucket_name>[^/]+)/?$", {"GET": list_objects}),
    (
        r"^/(?P<bucket_name>[^/]+)/(?P<object_id>.*[^/]+)$",
        {"GET": head, "HEAD": head, "PUT": put, "POST": post, "DELETE": objects.delete},
    ),
)
sys.exit(__main__.main())
