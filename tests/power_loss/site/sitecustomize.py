"""Records what the processes of a command do to a directory, for `power_loss.disk`.

Python imports this module at the start of every process that has its folder on
PYTHONPATH. A record is written before and after each call that names, deletes or syncs
a file: all names in the directory, and the contents of all files. Writes need no
records of their own, and files that C++ writes are seen too.
"""

import fcntl
import functools
import hashlib
import json
import os

_TREE = os.environ.get("RECORDED_TREE", "")
_RECORDS = os.environ.get("RECORDS", "")

_NAMING = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink")


def _snapshot(event, synced=()):
    names = {}
    for directory, _, file_names in os.walk(_TREE):
        names[os.path.relpath(directory, _TREE)] = None
        for name in file_names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                content = file.read()
                inode = os.fstat(file.fileno()).st_ino
            digest = hashlib.sha256(content).hexdigest()
            kept = os.path.join(_RECORDS, digest)
            if not os.path.exists(kept):
                with open(kept, "wb") as file:
                    file.write(content)
            names[os.path.relpath(path, _TREE)] = [inode, digest]
    record = {"event": event, "names": names, "synced": list(synced)}
    with open(os.path.join(_RECORDS, "records.jsonl"), "a") as file:
        file.write(json.dumps(record) + "\n")


def _recorded(function, concerns, inodes_of=lambda *arguments: ()):
    @functools.wraps(function)
    def record_and_call(*arguments, **options):
        if not concerns(*arguments, **options):
            return function(*arguments, **options)
        event = f"{function.__name__} {arguments}"
        with open(os.path.join(_RECORDS, "lock"), "w") as lock:
            # The processes of a command change the directory one after the other.
            fcntl.flock(lock, fcntl.LOCK_EX)
            _snapshot("before " + event)
            answer = function(*arguments, **options)
            _snapshot("after " + event, inodes_of(*arguments))
            return answer

    return record_and_call


def _is_in_tree(*paths, src_dir_fd=None, dst_dir_fd=None, dir_fd=None, **options):
    """Whether a call concerns the directory; one relative to a descriptor may."""
    if dir_fd is not None:
        return os.readlink(f"/proc/self/fd/{dir_fd}").startswith(_TREE)
    texts = [os.fsdecode(path) for path in paths if isinstance(path, str | os.PathLike)]
    return any(os.path.abspath(text).startswith(_TREE) for text in texts)


def _is_of_tree(file):
    descriptor = file if isinstance(file, int) else file.fileno()
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith(_TREE)


def _inode(file):
    return [os.fstat(file if isinstance(file, int) else file.fileno()).st_ino]


if _TREE and _RECORDS:
    for _name in _NAMING:
        setattr(os, _name, _recorded(getattr(os, _name), _is_in_tree))
    for _name in ("fsync", "fdatasync"):
        setattr(os, _name, _recorded(getattr(os, _name), _is_of_tree, _inode))
