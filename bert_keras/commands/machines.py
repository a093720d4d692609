"""Verbs around a run: its settings, its machines, its time and money."""

import argparse
import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from bert_keras import tpu
from bert_keras.commands import config_page, data
from bert_keras.commands import parser as options
from bert_keras.core import chips, files, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, loading

if TYPE_CHECKING:
    from bert_keras.tpu import plan as plans


def add_config(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "config", "settings of a verb: keys, values, meanings"
    )
    parser.set_defaults(run=show_config)
    subjects = (*config_page.CONFIGURATIONS, "list", "page")
    parser.add_argument(
        "subject",
        choices=subjects,
        metavar="VERB",
        help=f"one of {', '.join(subjects[:-2])}; or `list`: the recipes; or `page`: "
        "all settings of all verbs, as Markdown",
    )
    options.add_config(parser, "VERB")


def show_config(args: argparse.Namespace) -> None:
    if args.subject in config_page.CONFIGURATIONS:
        model = config_page.CONFIGURATIONS[args.subject]
        lines = config_page.describe(args.subject, options.load_settings(model, args))
    elif args.config or args.set:
        raise InputError(f"`config {args.subject}` takes no --config and no --set")
    elif args.subject == "list":
        lines = config_page.recipe_lines()
    else:
        lines = config_page.page()
    for line in lines:
        print(line)


def add_doctor(verbs: Any) -> None:
    parser = options.add_verb(verbs, "doctor", "is this machine ready to train?")
    parser.set_defaults(run=doctor)
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=tpu.PURPOSES,
        default="cpu",
        help=f"what the machine is to do {options.DEFAULT}",
    )
    parser.add_argument(
        "--path",
        nargs="+",
        default=[],
        metavar="DIRECTORY",
        help="directories that a run will read or write, on disk or on gs://: room, "
        "rights",
    )
    options.add_flag(parser, "--json", "print the findings as JSON")


def doctor(args: argparse.Namespace) -> None:
    data.quiet_beam()
    from bert_keras.tpu import doctor

    findings = list(doctor.examine(args.purpose, args.path))
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(files.to_json(rows, indent=2))
    else:
        print("\n".join(doctor.lines(findings)))
    if problems := doctor.problems(findings):
        raise InputError(problems)


def add_plan(verbs: Any) -> None:
    parser = options.add_verb(verbs, "plan", "time, money and disk that a run takes")
    parser.set_defaults(run=plan)
    options.add_config(parser, "pretrain")
    options.add_number(
        parser, "--words", None, "words of text to prepare, such as 3e9", of=float
    )
    options.add_choice(
        parser,
        "--masking",
        config.ExamplesConfig.model_fields["masking"].annotation,
        "of the examples, see `config examples`: dynamic takes 27 times less disk",
    )
    parser.add_argument(
        "--max_seq_length",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help="tokens of the examples of each phase (default: 128 512)",
    )
    labelled = parser.add_mutually_exclusive_group()
    labelled.add_argument(
        "--train",
        metavar="FILE",
        help="labelled file: plan a fine-tuning on it, --config is one of `finetune`",
    )
    labelled.add_argument(
        "--data", metavar="DIRECTORY", help="folder of a data set, instead of --train"
    )
    parser.add_argument("--vocab", help="vocab.txt of the encoder, with --train")
    options.add_flag(parser, "--cased", "the vocabulary has capital letters")
    parser.add_argument(
        "--model",
        default="bert_base",
        metavar="RECIPE",
        help=f"recipe of `pretrain` with the encoder to fine-tune {options.DEFAULT}",
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--sequences_per_second",
        nargs="+",
        type=float,
        metavar="N",
        help="measured speed, as training prints it (seq/s): for each phase, or for "
        "the first one, which gives the others by their FLOPs",
    )
    speed.add_argument(
        "--teraflops",
        type=float,
        metavar="N",
        help="instead: 10^12 operations a second that the devices reach together",
    )
    options.add_number(
        parser,
        "--price_per_hour",
        None,
        "of all machines of the run",
        of=float,
        metavar="DOLLARS",
    )
    options.add_flag(parser, "--json", "print the plan as JSON")


def plan(args: argparse.Namespace) -> None:
    from bert_keras.tpu import plan

    is_finetuning = bool(args.train or args.data)
    work = _finetuning_work(args) if is_finetuning else _pretraining_work(args)
    rates = plan.rates(
        work,
        sequences_per_second=args.sequences_per_second or (),
        teraflops=args.teraflops,
    )
    facts = plan.facts(work, rates, args.price_per_hour)
    print(files.to_json(facts, indent=2) if args.json else "\n".join(plan.lines(facts)))


def _pretraining_work(args: argparse.Namespace) -> "plans.Work":
    from bert_keras.tpu import plan

    if args.vocab:
        raise InputError("--vocab is for fine-tuning: give --train or --data, too")
    if args.words is not None and not 0 < args.words < 1e15:
        raise InputError(f"--words: expected a number above 0, got {args.words:g}")
    try:
        settings = options.load_settings(config.PretrainingConfig, args)
    except InputError as error:
        try:
            options.load_settings(finetuning.FinetuningConfig, args)
        except InputError:
            raise error from None
        raise InputError(
            "these settings are of `finetune`: give its file, too, with --train "
            "or --data, and --vocab"
        ) from None
    return plan.pretraining(
        settings, args.max_seq_length, num_words=args.words, masking=args.masking
    )


def _finetuning_work(args: argparse.Namespace) -> "plans.Work":
    requirements.check_packages("plan")
    requirements.quiet_tensorflow()
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
    settings = options.load_settings(finetuning.FinetuningConfig, args)
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


def add_preflight(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "preflight", "compile the steps of a run for a TPU that is not there"
    )
    parser.set_defaults(run=preflight, needs=options.TENSORFLOW)
    options.add_required(
        parser,
        device="TPU slice by Google's name, such as v5e-8, v4-8, v5p-16 or v6e-1",
    )
    parser.add_argument(
        "--examples",
        metavar="DIRECTORY",
        help="made by `examples`: gives the shapes and the vocabulary's size",
    )
    options.add_number(
        parser, "--max_seq_length", None, "instead of --examples: tokens of one"
    )
    parser.add_argument(
        "--task",
        help="fine-tuning on it, of the model that --config trains: text, tagging, "
        "span, choice, or a data set such as MRPC (default: pre-training)",
    )
    options.add_number(
        parser,
        "--global_batch_size",
        None,
        "examples of a step on all chips (default: the configuration's; 32 of a task)",
    )
    options.add_flag(parser, "--json", "print JSON instead of a table")
    options.add_config(parser, "pretrain")


def preflight(args: argparse.Namespace) -> None:
    from bert_keras.tpu import preflight
    from bert_keras.tpu.preflight import steps, table

    request = steps.Request(
        settings=options.load_settings(config.PretrainingConfig, args),
        device=chips.parse_device(args.device),
        examples=args.examples,
        max_seq_length=args.max_seq_length,
        task=args.task,
        global_batch_size=args.global_batch_size,
    )
    rows = preflight.check(request)
    if args.json:
        print(files.to_json(preflight.report(request.device, rows), indent=2))
    else:
        print("\n".join(table.lines(request.device, rows)))


def add_launch(verbs: Any, command_line: options.Parser) -> None:
    """Adds `launch` and its targets; `command_line` parses the launched command."""
    launch = verbs.add_parser("launch", help="run a data job on Google's Dataflow")
    targets = launch.add_subparsers(dest="target", required=True, metavar="TARGET")
    parser = options.add_verb(
        targets, "dataflow", "submit a data job and wait for its end"
    )
    parser.set_defaults(run=launch_dataflow)
    parser.set_defaults(takes_beam_options=True, command_line=command_line)
    parser.epilog = "The command to run follows `--`: -- corpus --output ..."
    options.add_flag(parser, "--dry_run", "only print the command")
    options.add_required(
        parser,
        project="id of the Google Cloud project",
        region="region of the bucket, such as europe-west4",
        temp_location="folder for staged files: gs://BUCKET/FOLDER",
    )
    parser.add_argument(
        "--machine_type",
        help="(default: n2-highmem-4 for `examples`, else n2-standard-4)",
    )
    options.add_number(parser, "--max_num_workers", 16, "machines, at most")
    options.add_number(
        parser,
        "--number_of_worker_harness_threads",
        2,
        "threads of each process, one process for each core",
    )
    parser.add_argument(
        "--sdk_container_image",
        help="container image with this package (default: Beam's, with our wheel)",
    )


def launch_dataflow(args: argparse.Namespace) -> None:
    data.quiet_beam()
    from bert_keras.pipelines.dataflow import launch, wheel

    staged = None if args.sdk_container_image else wheel.write_wheel("dist")
    names = launch.Dataflow.__dataclass_fields__
    settings = launch.Dataflow(**{name: getattr(args, name) for name in names})
    command = launch.dataflow_command(args.beam_arguments, settings, wheel=staged)
    job = args.command_line.parse_command(command[1:])
    launch.check_paths(vars(job))
    print(shlex.join(command), flush=True)
    if not args.dry_run:
        job.run(job)
