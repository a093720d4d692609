"""`bert-keras preflight` really run: tables of sizes, chips and faults.

    python benchmarks/preflight.py --results benchmarks/results/preflight.md

Needs the compiler's environment, which `bert-keras preflight` tells how to make. What
was compiled before comes from its cache, with the seconds that it took then: given
again, this takes seconds. `--only NAME` runs one of the tables and writes no page.
"""

import argparse
import contextlib
import datetime
import io
import platform
import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from bert_keras import cli, provenance
from bert_keras.model import layers
from tpu.preflight import compiling

_ONE = "--device v5e-1 --global_batch_size 32 --max_seq_length 128"
_EACH = "--global_batch_size 512 --max_seq_length 128"
TABLES = {
    "BERT-tiny": f"--config bert_tiny {_ONE}",
    "BERT-tiny, classification": f"--config bert_tiny {_ONE} --task MRPC",
    "BERT-mini": f"--config bert_mini {_ONE}",
    "BERT-mini, classification": f"--config bert_mini {_ONE} --task MRPC",
    "BERT-BASE": f"--config bert_base {_ONE} --largest_batch",
    "BERT-BASE, classification": f"--config bert_base {_ONE} --task MRPC",
    "BERT-BASE, eight chips": "--config bert_base --device v5e-8 "
    "--global_batch_size 256 --max_seq_length 128",
    "BERT-LARGE, 512 tokens": "--config bert_large --device v5e-1 "
    "--global_batch_size 32 --max_seq_length 512",
    "BERT-BASE, --fast": f"--config bert_base {_ONE} --fast",
    "BERT-tiny, v4": f"--config bert_tiny {_EACH} --device v4-8",
    "BERT-tiny, v5p": f"--config bert_tiny {_EACH} --device v5p-8",
    "BERT-tiny, v6e": f"--config bert_tiny {_EACH} --device v6e-4",
    "BERT-tiny, four hosts of v5e": f"--config bert_tiny {_EACH} --device v5e-16",
    "BERT-LARGE, GPUs": "--config bert_large --device a100x8 --global_batch_size 256 "
    "--max_seq_length 512",
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


def page(parts: dict[str, str]) -> str:
    """The results as Markdown."""
    versions = ", ".join(f"{k} {v}" for k, v in compiling.PACKAGES.items())
    lines = [
        "# `bert-keras preflight`, really run",
        "",
        f"{datetime.date.today()}, 2 cores, Python {platform.python_version()}, "
        f"tensorflow {tf.__version__}, {versions}; commit "
        f"{provenance.commit(Path(cli.__file__).parent)}. No TPU was there; nothing "
        "here has run on one. The machine did other things: the seconds of "
        "compilations are upper limits.",
    ]
    for name, text in parts.items():
        words = TABLES.get(name, TABLES["BERT-tiny"])
        command = f"bert-keras preflight {words}"
        lines += ["", f"## {name}", "", "```", command, "", text.rstrip(), "```"]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", choices=[*TABLES, *PLANTED])
    args = parser.parse_args()
    if args.only:
        ours = run_planted if args.only in PLANTED else lambda name: run(TABLES[name])
        print(ours(args.only))
        return
    # A process for each: planted operations stay, and memory is given back.
    parts = {
        name: subprocess.run(
            [sys.executable, __file__, "--only", name],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for name in (*TABLES, *PLANTED)
    }
    if args.results:
        args.results.write_text(page(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
