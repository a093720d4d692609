"""Verbs about machines, which `cli` calls: doctor, plan, preflight."""

import argparse
import dataclasses

from bert_keras import chips, config, config_files, files, finetuning_config
from bert_keras.errors import InputError


def doctor(args: argparse.Namespace) -> None:
    from bert_keras.tpu import doctor

    found = list(doctor.examine(args.purpose, args.path))
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in found]
        print(files.to_json(rows, indent=2))
    else:
        print("\n".join(doctor.lines(found)))
    if problems := doctor.problems(found):
        raise InputError(problems)


def plan(args: argparse.Namespace) -> None:
    from bert_keras.tpu import plan
    from bert_keras.tpu.plan import data, page, prices, work

    if args.num_examples is None:
        settings = config_files.load(config.PretrainingConfig, args.config, args.set)
        found = work.pretraining(settings, args.max_seq_length)
    else:
        if args.words is not None or args.max_seq_length:
            raise InputError(
                "--words and --max_seq_length are for pre-training, --num_examples for "
                "fine-tuning: its length is `--set max_seq_length=N`"
            )
        tuned = config_files.load(
            finetuning_config.FinetuningConfig, args.config, args.set
        )
        encoder = config_files.load(config.PretrainingConfig, args.model, [])
        found = work.finetuning(tuned, encoder.model, args.num_examples)
    prepared = None
    if args.words is not None:
        if not 0 < args.words < 1e15:
            raise InputError(f"--words: expected a number above 0, got {args.words:g}")
        lengths = [stage.max_seq_length for stage in found.stages]
        examples = config.ExamplesConfig(masking=args.masking)
        prepared = data.prepare(args.words, lengths, examples)
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


def preflight(args: argparse.Namespace) -> None:
    from bert_keras.tpu import preflight
    from bert_keras.tpu.preflight import table

    request = preflight.Request(
        settings=config_files.load(config.PretrainingConfig, args.config, args.set),
        device=chips.parse_device(args.device),
        examples=args.examples,
        max_seq_length=args.max_seq_length,
        task=args.task,
        global_batch_size=args.global_batch_size,
        fast=args.fast,
        largest_batch=args.largest_batch,
    )
    report = preflight.check(request)
    if args.json:
        print(files.to_json(preflight.report_facts(report), indent=2))
        return
    for line in table.lines(report):
        print(line)
