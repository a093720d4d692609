"""`bert-keras preflight` really run: tables of sizes, chips and faults.

    python benchmarks/preflight.py --results benchmarks/results/preflight.md

Needs the compiler's environment, which `bert-keras preflight` tells how to make. What
was compiled before comes from its cache. Each table is written when it is done, in the
place of its last one, with the commit it is of; `--only NAME` makes one of them.
"""

import argparse
import contextlib
import datetime
import io
import re
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from bert_keras import cli, provenance
from bert_keras.model import layers
from bert_keras.tpu.preflight import compiling

_ONE = "--device v5e-1 --global_batch_size 32 --max_seq_length 128"
_EACH = "--global_batch_size 512 --max_seq_length 128"
TABLES = {
    "BERT-tiny": f"--config bert_tiny {_ONE}",
    "BERT-tiny, classification": f"--config bert_tiny {_ONE} --task MRPC",
    "BERT-mini": f"--config bert_mini {_ONE}",
    "BERT-mini, classification": f"--config bert_mini {_ONE} --task MRPC",
    "BERT-BASE": f"--config bert_base {_ONE}",
    "BERT-BASE, classification": f"--config bert_base {_ONE} --task MRPC",
    "BERT-BASE, eight chips": "--config bert_base --device v5e-8 "
    "--global_batch_size 256 --max_seq_length 128",
    "BERT-LARGE, 512 tokens": "--config bert_large --device v5e-1 "
    "--global_batch_size 32 --max_seq_length 512",
    "BERT-LARGE, 512 tokens, recomputed": "--config bert_large --device v5e-1 "
    "--global_batch_size 32 --max_seq_length 512 --set recompute=layers",
    "BERT-tiny, v4": f"--config bert_tiny {_EACH} --device v4-8",
    "BERT-tiny, v5p": f"--config bert_tiny {_EACH} --device v5p-8",
    "BERT-tiny, v6e": f"--config bert_tiny {_EACH} --device v6e-4",
    "BERT-tiny, four hosts of v5e": f"--config bert_tiny {_EACH} --device v5e-16",
}
"""Words after `bert-keras preflight`, by the table's name."""


def on_the_host(outputs):
    result = tf.py_function(lambda values: values, [outputs], outputs.dtype)
    result.set_shape(outputs.shape)
    return result


def uniques(outputs):
    flat = tf.reshape(tf.cast(outputs, tf.int32), [-1])
    return tf.reduce_sum(tf.unique(flat)[0])


def of_dynamic_shape(outputs):
    return tf.reduce_sum(tf.ones([tf.cast(tf.reduce_max(outputs), tf.int32)]))


PLANTED = {
    "A planted tf.py_function": on_the_host,
    "A planted tf.unique": uniques,
    "A planted dynamic shape": of_dynamic_shape,
}
"""Operations put into the feed-forward part of each layer."""


def run(words: str) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = cli.main(["preflight", *words.split()])
    if code:
        raise SystemExit(f"bert-keras preflight {words}: exit code {code}")
    return printed.getvalue()


def run_planted(name: str) -> str:
    """What `preflight` says of BERT-tiny with an operation that it should not have."""
    call = layers.FeedForward.call

    def planted(self, inputs, *args, **kwargs):
        outputs = call(self, inputs, *args, **kwargs)
        return outputs + tf.cast(PLANTED[name](outputs), outputs.dtype)

    layers.FeedForward.call = planted
    # It is other code: nothing that was kept is of it.
    compiling._code_sha256 = lambda: name
    return run(TABLES["BERT-tiny"])


HEADING = """# `bert-keras preflight`, really run

Two cores; jax 0.10.2, libtpu 0.0.42.1, tensorflow 2.20.0. No TPU was there, and nothing
here has run on one. Each table says its commit; older ones have options and lines that
`preflight` had then, such as the seconds of compilations. Where a table of LARGE is of
dcfd368d, it is older than `recompute`, and its TFLOP and bytes in four parts are those
of two, which the compiler counts of a loop.
"""


def section(name: str, text: str, *, commit: str | None) -> str:
    """A table's part of the page."""
    command = f"bert-keras preflight {TABLES.get(name, TABLES['BERT-tiny'])}"
    made = f"{datetime.date.today()}, commit {commit}"
    return f"## {name}\n\n{made}\n\n```\n{command}\n\n{text.rstrip()}\n```\n"


def put(path: Path, name: str, part: str) -> None:
    """Writes a table's part into the page, in the place of its last one."""
    page = path.read_text(encoding="utf-8") if path.exists() else HEADING
    heading, *parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    found = {part.splitlines()[0].removeprefix("## "): part for part in parts}
    found = {key: one.rstrip() + "\n" for key, one in found.items()} | {name: part}
    ordered = [found[key] for key in (*TABLES, *PLANTED) if key in found]
    path.write_text("\n".join([heading.rstrip() + "\n", *ordered]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", choices=[*TABLES, *PLANTED])
    args = parser.parse_args()
    if args.only:
        text = (
            run_planted(args.only) if args.only in PLANTED else run(TABLES[args.only])
        )
        commit = provenance.commit(Path(cli.__file__).parent)
        put(args.results, args.only, section(args.only, text, commit=commit))
        return
    # A process for each: planted operations stay, and memory is given back.
    for name in (*TABLES, *PLANTED):
        words = ["--results", str(args.results), "--only", name]
        subprocess.run([sys.executable, __file__, *words], check=True)


if __name__ == "__main__":
    main()
