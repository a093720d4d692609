"""Run by test_runners.py: a pipeline with two worker processes, one of which dies."""

import os
import sys

import apache_beam as beam

from bert_keras.core.errors import InputError
from bert_keras.pipelines.engine import runner_options, runners


def die(number):
    os._exit(137)


def build(pipeline, heartbeat):
    _ = pipeline | beam.Create([1]) | beam.Reshuffle() | beam.Map(die)


if __name__ == "__main__":
    options = runner_options.parse(num_workers=2)
    try:
        runners.run(build, options=options, title="test", num_bytes=1)
    except InputError as error:
        print(error, flush=True)
        os._exit(2)
    sys.exit(0)
