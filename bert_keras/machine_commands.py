"""Verbs about machines, which `cli` calls: doctor, plan, preflight, launch tpu."""

import argparse
import dataclasses
import os
import shlex
from pathlib import Path

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


def launch_tpu(args: argparse.Namespace) -> None:
    from bert_keras.pipelines.dataflow import wheel
    from bert_keras.tpu import launch
    from bert_keras.tpu.launch import commands

    rental = commands.Rental(
        device=chips.parse_device(args.on),
        project=args.project,
        zone=args.zone,
        staging=args.staging,
        arguments=tuple(args.beam_arguments),
        max_hours=args.max_hours,
        spot=not args.on_demand,
        service_account=args.service_account,
    )
    checkout = Path(__file__).resolve().parents[1]
    pins = [checkout / "constraints.txt", checkout / "requirements/tpu.txt"]
    if missing := [str(path) for path in pins if not path.is_file()]:
        raise InputError(f"{missing[0]}: not there; `launch tpu` needs a checkout")
    requirements = [os.path.relpath(path) for path in pins]
    if args.dry_run:
        staged = [f"dist/{wheel.NAME}", *requirements]
        for purpose, words in launch.planned(rental, staged=staged):
            print(f"# {purpose}\n{shlex.join(words)}")
    elif args.do == "delete":
        launch.delete(rental)
    elif args.do == "watch":
        launch.watch(rental)
    else:
        path = wheel.write_wheel("dist")
        launch.run(rental, wheel=path, requirements=requirements)


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
