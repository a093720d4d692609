"""Verbs around a run: its settings, its machines, its time and money."""

import argparse
import dataclasses
import shlex

from bert_keras import tpu
from bert_keras.commands import config_page, data
from bert_keras.commands import parser as options
from bert_keras.core import chips, files, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, pipelines, pretraining
from bert_keras.tpu import budget as budgets
from bert_keras.tpu import plan as plans

_SUBJECTS = (*config_page.CONFIGURATIONS, "list", "page")


@options.Verb(
    "settings of a verb: keys, values, meanings",
    {
        "subject": {
            "choices": _SUBJECTS,
            "metavar": "VERB",
            "help": f"one of {', '.join(_SUBJECTS[:-2])}; or `list`: the recipes; or "
            "`page`: all settings of all verbs, as Markdown",
        },
    },
    name="config",
    settings_of="VERB",
)
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
    options.print_lines(lines)


@options.Verb(
    "is this machine ready to train?",
    {
        "--for": {
            "dest": "purpose",
            "choices": tpu.PURPOSES,
            "default": "cpu",
            "help": f"what the machine is to do {options.DEFAULT}",
        },
        "--path DIRECTORY...": "directories that a run will read or write, on disk or "
        "on gs://: room, rights",
        "--json": "print the findings as JSON",
    },
)
def doctor(args: argparse.Namespace) -> None:
    data.quiet_beam()
    from bert_keras.tpu import doctor

    findings = list(doctor.examine(args.purpose, args.path or ()))
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(files.to_json(rows, indent=2))
    else:
        print("\n".join(doctor.lines(findings)))
    if problems := doctor.problems(findings):
        raise InputError(problems)


@options.Verb(
    "time, money and disk that a run takes",
    {
        "--words N=float": "words of text to prepare, such as 3e9",
        "--masking": (
            pipelines.ExamplesConfig.model_fields["masking"].annotation,
            "of the examples, see `config examples`: dynamic takes 27 times less disk",
        ),
        "--max_seq_length N...=int": "tokens of the examples of each phase (default: "
        "128 512)",
        "--train FILE": "labelled file: plan a fine-tuning on it, --config is one of "
        "`finetune`",
        "--data DIRECTORY": "folder of a data set, instead of --train",
        "--vocab VOCAB": "vocab.txt of the encoder, with --train",
        "--cased": "the vocabulary has capital letters",
        "--model RECIPE=bert_base": "recipe of `pretrain` with the encoder to "
        "fine-tune",
        "--sequences_per_second N...=float": "measured speed, as training prints it "
        "(seq/s): for each phase, or for the first one, which gives the others by "
        "their FLOPs",
        "--teraflops N=float": "instead: 10^12 operations a second that the devices "
        "reach together",
        "--price_per_hour DOLLARS=float": "of all machines of the run",
        "--budget HOURS=float": "choose size, rate and steps of strict_small for as "
        "many hours at --teraflops, and say what to expect",
        "--json": "print the plan as JSON",
    },
    settings_of="pretrain",
    exclusive=(("--train", "--data"), ("--sequences_per_second", "--teraflops")),
)
def plan(args: argparse.Namespace) -> None:
    choice = None if args.budget is None else _choose(args)
    if choice is not None:
        work = _pretraining_work(args, budgets.load(choice.settings), "dynamic")
    elif args.train or args.data:
        work = _finetuning_work(args)
    else:
        work = _pretraining_work(args, _pretraining_settings(args), args.masking)
    facts = plans.facts(
        work,
        sequences_per_second=args.sequences_per_second or (),
        teraflops=args.teraflops,
        price_per_hour=args.price_per_hour,
    )
    if choice is not None:
        facts["budget"] = dataclasses.asdict(choice)
    if args.json:
        print(files.to_json(facts, indent=2))
    else:
        print(*(budgets.lines(choice) if choice else ()), *plans.lines(facts), sep="\n")


def _choose(args: argparse.Namespace) -> budgets.Choice:
    """Chooses the settings of a pre-training for `--budget`."""
    settings = (args.config, args.set, args.max_seq_length, args.train, args.data)
    if any(settings) or args.teraflops is None:
        raise InputError(
            "--budget chooses the run: give --teraflops, what the devices reach "
            "together, and no --config, --set, --max_seq_length, --train, --data"
        )
    petaflop = 3.6 * args.budget * args.teraflops
    if not (args.budget > 0 and 0 < petaflop < 1e9):
        got = f"got {args.budget:g} and {args.teraflops:g}"
        raise InputError(f"--budget, --teraflops: expected numbers above 0, {got}")
    return budgets.choose(petaflop, num_words=args.words)


def _pretraining_work(
    args: argparse.Namespace, settings: pretraining.PretrainingConfig, masking: str
) -> plans.Work:
    if args.vocab:
        raise InputError("--vocab is for fine-tuning: give --train or --data, too")
    if args.words is not None and not 0 < args.words < 1e15:
        raise InputError(f"--words: expected a number above 0, got {args.words:g}")
    return plans.plan_pretraining(
        settings, args.max_seq_length or (), num_words=args.words, masking=masking
    )


def _pretraining_settings(args: argparse.Namespace) -> pretraining.PretrainingConfig:
    try:
        return options.load_settings(pretraining.PretrainingConfig, args)
    except InputError as error:
        try:
            options.load_settings(finetuning.FinetuningConfig, args)
        except InputError:
            raise error from None
        raise InputError(
            "these settings are of `finetune`: give its file, too, with --train "
            "or --data, and --vocab"
        ) from None


def _finetuning_work(args: argparse.Namespace) -> plans.Work:
    requirements.check_packages("plan")
    requirements.quiet_tensorflow()
    from bert_keras.data import tokenization
    from bert_keras.kinds import catalogue

    if args.words is not None or args.max_seq_length:
        raise InputError(
            "--words and --max_seq_length are for pre-training: the length of a "
            "fine-tuning is `--set max_seq_length=N`"
        )
    if args.vocab is None:
        raise InputError("--train and --data need the encoder's --vocab")
    settings = options.load_settings(finetuning.FinetuningConfig, args)
    encoder = loading.load(pretraining.PretrainingConfig, args.model, [])
    lower = not args.cased
    vocabulary = tokenization.load_vocabulary(args.vocab, do_lower_case=lower)
    train = args.train or catalogue.training_files(settings.task, args.data)[0]
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=lower)
    return plans.finetuning(settings, encoder.model, train, tokenizer)


@options.Verb(
    "compile the steps of a run for a TPU that is not there",
    {
        "--device DEVICE!": "TPU slice by Google's name, such as v5e-8, v4-8, v5p-16 "
        "or v6e-1",
        "--examples DIRECTORY": "made by `examples`: gives the shapes and the "
        "vocabulary's size",
        "--max_seq_length N=int": "instead of --examples: tokens of one",
        "--task TASK": "fine-tuning on it, of the model that --config trains: text, "
        "tagging, span, choice, or a data set such as MRPC (default: pre-training)",
        "--global_batch_size N=int": "examples of a step on all chips (default: the "
        "configuration's; 32 of a task)",
        "--json": "print JSON instead of a table",
    },
    needs=options.TENSORFLOW,
    settings_of="pretrain",
)
def preflight(args: argparse.Namespace) -> None:
    from bert_keras.tpu import preflight
    from bert_keras.tpu.preflight import steps, table

    request = steps.Request(
        settings=options.load_settings(pretraining.PretrainingConfig, args),
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


@options.Verb(
    "submit a data job and wait for its end",
    {
        "--dry_run": "only print the command",
        "--project PROJECT!": "id of the Google Cloud project",
        "--region REGION!": "region of the bucket, such as europe-west4",
        "--temp_location TEMP_LOCATION!": "folder for staged files: gs://BUCKET/FOLDER",
        "--machine_type MACHINE_TYPE": "(default: n2-highmem-4 for `examples`, else "
        "n2-standard-4)",
        "--max_num_workers N=16": "machines, at most",
        "--number_of_worker_harness_threads N=2": "threads of each process, one "
        "process for each core",
        "--sdk_container_image SDK_CONTAINER_IMAGE": "container image with this "
        "package (default: Beam's, with our wheel)",
    },
    name="dataflow",
    dashes="The command to run follows `--`: -- corpus --output ...",
)
def launch_dataflow(args: argparse.Namespace) -> None:
    data.quiet_beam()
    from bert_keras.pipelines.dataflow import launch, wheel

    staged = None if args.sdk_container_image else wheel.write_wheel("dist")
    names = launch.Dataflow.__dataclass_fields__
    settings = launch.Dataflow(**{name: getattr(args, name) for name in names})
    command = launch.dataflow_command(args.beam_arguments, settings, wheel=staged)
    data_verbs = options.Parser(prog="bert-keras")
    data_verbs.add_verbs(data.VERBS)
    job = data_verbs.parse_command(command[1:])
    launch.check_paths(vars(job))
    print(shlex.join(command), flush=True)
    if not args.dry_run:
        job.run(job)
