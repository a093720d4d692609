"""Verbs about machines, which `cli` calls: doctor, plan, preflight."""

import argparse
import dataclasses

from bert_keras.core import chips, files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, loading


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

    if args.train is None and args.data is None:
        if args.vocab:
            raise InputError("--vocab is for fine-tuning: give --train or --data, too")
        if args.words is not None and not 0 < args.words < 1e15:
            raise InputError(f"--words: expected a number above 0, got {args.words:g}")
        try:
            settings = loading.load(config.PretrainingConfig, args.config, args.set)
        except InputError as error:
            try:
                loading.load(finetuning.FinetuningConfig, args.config, args.set)
            except InputError:
                raise error from None
            raise InputError(
                "these settings are of `finetune`: give its file, too, with --train "
                "or --data, and --vocab"
            ) from None
        work = plan.pretraining(
            settings,
            args.max_seq_length,
            num_words=args.words,
            masking=args.masking,
        )
    else:
        work = _plan_finetuning(args)
    rates = plan.rates(
        work,
        sequences_per_second=args.sequences_per_second or (),
        teraflops=args.teraflops,
    )
    found = plan.facts(work, rates, args.price_per_hour)
    print(files.to_json(found, indent=2) if args.json else "\n".join(plan.lines(found)))


def _plan_finetuning(args: argparse.Namespace) -> "plan.Work":
    from bert_keras.data import tokenization
    from bert_keras.kinds import catalogue
    from bert_keras.tpu import plan

    if args.words is not None or args.max_seq_length:
        raise InputError(
            "--words and --max_seq_length are for pre-training: the length of a "
            "fine-tuning is `--set max_seq_length=N`"
        )
    if args.vocab is None:
        raise InputError("--train and --data need the encoder's --vocab")
    settings = loading.load(finetuning.FinetuningConfig, args.config, args.set)
    encoder = loading.load(config.PretrainingConfig, args.model, [])
    lower = not args.cased
    vocabulary = tokenization.load_vocabulary(args.vocab, do_lower_case=lower)
    train = args.train or catalogue.training_files(settings.task, args.data)[0]
    return plan.finetuning(
        settings,
        encoder.model,
        train,
        tokenization.Tokenizer(vocabulary, do_lower_case=lower),
    )


def preflight(args: argparse.Namespace) -> None:
    from bert_keras.tpu import preflight
    from bert_keras.tpu.preflight import table

    request = preflight.Request(
        settings=loading.load(config.PretrainingConfig, args.config, args.set),
        device=chips.parse_device(args.device),
        examples=args.examples,
        max_seq_length=args.max_seq_length,
        task=args.task,
        global_batch_size=args.global_batch_size,
    )
    checked = preflight.check(request)
    if args.json:
        print(files.to_json(preflight.report(request.device, checked), indent=2))
    else:
        print("\n".join(table.lines(request.device, checked)))
