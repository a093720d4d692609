"""The verbs about machines: `doctor`, `plan`; see `cli` for what calls them."""

import argparse
import dataclasses

from bert_keras import config, config_files, files
from bert_keras.errors import InputError


def doctor(args: argparse.Namespace) -> None:
    from tpu import doctor

    found = list(doctor.examine(args.purpose, args.path))
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in found]
        print(files.to_json(rows, indent=2))
    else:
        print("\n".join(doctor.lines(found)))
    if problems := doctor.problems(found):
        raise InputError(problems)


def plan(args: argparse.Namespace) -> None:
    from tpu import plan
    from tpu.plan import data, page, prices, work

    if args.num_examples is None:
        settings = config_files.load(config.PretrainingConfig, args.config, args.set)
        found = work.pretraining(settings, args.max_seq_length)
    else:
        if args.words is not None or args.max_seq_length:
            raise InputError(
                "--words and --max_seq_length are for pre-training, --num_examples for "
                "fine-tuning: its length is `--set max_seq_length=N`"
            )
        tuned = config_files.load(config.FinetuningConfig, args.config, args.set)
        encoder = config_files.load(config.PretrainingConfig, args.model, [])
        found = work.finetuning(tuned, encoder.model, args.num_examples)
    prepared = None
    if args.words is not None:
        if not 0 < args.words < 1e15:
            raise InputError(f"--words: expected a number above 0, got {args.words:g}")
        lengths = [stage.max_seq_length for stage in found.stages]
        prepared = data.prepare(args.words, lengths, config.ExamplesConfig())
    made = plan.make(
        found,
        prepared,
        args.on,
        prices.load(args.price),
        measured=dict(map(_rate, args.rate)),
    )
    if args.drawing:
        page.draw(made, args.drawing)
    if args.json:
        print(files.to_json(page.facts(made), indent=2))
    else:
        print("\n".join(page.lines(made)))


def _rate(text: str) -> tuple[str, float]:
    """`v5e-8=310` in operations a second."""
    device, _, number = text.partition("=")
    try:
        rate = float(number) * 1e12
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InputError(f"--rate: expected DEVICE=TFLOPS, such as cpu=0.4, got {text}")
    return device, rate
