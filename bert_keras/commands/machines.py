"""Verbs around a run: its settings, its machines, its time and money."""

import argparse
import dataclasses
import shlex

from bert_keras import tpu
from bert_keras.commands import config_page, data
from bert_keras.commands import parser as options
from bert_keras.commands.parser import choice, flag, required, value
from bert_keras.core import chips, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, pipelines, pretraining
from bert_keras.tpu import budget as budgets
from bert_keras.tpu import plan as plans

_SUBJECTS = (*config_page.CONFIGURATIONS, "list", "page")


@options.Verb(
    "settings of a verb: keys, values, meanings",
    {
        "subject": value(
            f"one of {', '.join(_SUBJECTS[:-2])}; or `list`: the recipes; or "
            "`page`: all settings of all verbs, as Markdown",
            choices=_SUBJECTS,
            metavar="VERB",
        )
    },
    settings_of="VERB",
)
def config(args: argparse.Namespace) -> None:
    if args.subject in config_page.CONFIGURATIONS:
        model = config_page.CONFIGURATIONS[args.subject]
        settings = options.load_settings(model, args)
        summary = config_page.summary(model)
        print(f"# Settings of `bert-keras {args.subject}`. {summary}")
        lines = config_page.describe(settings)
    elif args.config or args.set:
        raise InputError(f"`config {args.subject}` takes no --config and no --set")
    elif args.subject == "list":
        rows = config_page.recipes()
        lines = (f"{name:24}{verb:10}{summary}" for name, verb, summary in rows)
    else:
        lines = config_page.page()
    options.print_lines(lines)


@options.Verb(
    "is this machine ready to train?",
    {
        "--for": value(
            "what the machine is to do",
            dest="purpose",
            choices=tpu.PURPOSES,
            default="cpu",
        ),
        "--path": value(
            "directories that a run will read or write, on disk or "
            "on gs://: room, rights",
            nargs="+",
        ),
        "--json": flag("print the findings as JSON"),
    },
)
def doctor(args: argparse.Namespace) -> None:
    from bert_keras.tpu import doctor

    findings = list(doctor.examine(args.purpose, args.path or ()))
    rows = [dataclasses.asdict(finding) for finding in findings]
    options.print_result(args, rows, doctor.lines(findings))
    if problems := doctor.problems(findings):
        raise InputError(problems)


@options.Verb(
    "time, money and disk that a run takes",
    {
        "--words": value("words of text to prepare, such as 3e9", type=float),
        "--masking": choice(
            pipelines.ExamplesConfig.model_fields["masking"].annotation,
            "of the examples, see `config examples`: dynamic takes 27 times less disk "
            "(default: the recipe's, else static)",
        ),
        "--max_seq_length": value(
            "tokens of the examples of each phase (default: "
            "the recipe's, else 128 512)",
            nargs="+",
            type=int,
        ),
        "--train": "labelled file: plan a fine-tuning, with --config of `finetune`",
        "--data": "folder of a data set, instead of --train",
        "--vocab": "vocab.txt of the encoder, with --train",
        "--cased": flag("the vocabulary has capital letters"),
        "--model": "recipe of the encoder to fine-tune (default: bert_base)",
        "--sequences_per_second": value(
            "measured speed, as training prints it (seq/s): for each phase, or for the "
            "first one, which gives the others by their FLOPs",
            nargs="+",
            type=float,
        ),
        "--teraflops": value("instead: 10^12 operations a second together", type=float),
        "--price_per_hour": value("of all machines of the run", type=float),
        "--budget": value(
            "choose size, rate and steps of strict_small for as "
            "many hours at --teraflops, and say what to expect",
            type=float,
        ),
        "--json": flag("print the plan as JSON"),
    },
    settings_of="pretrain",
    exclusive=(("--train", "--data"), ("--sequences_per_second", "--teraflops")),
)
def plan(args: argparse.Namespace) -> None:
    choice = None
    if args.words is not None and not 0 < args.words < 1e15:
        raise InputError(f"--words: expected a number above 0, got {args.words:g}")
    if args.budget is not None:
        given = [f"--{name}" for name in _NOT_WITH_BUDGET if getattr(args, name)]
        if given or args.teraflops is None:
            raise InputError(
                "--budget chooses the run: give --teraflops, what the devices reach "
                f"together, {'and leave out ' + ', '.join(given) if given else 'too'}"
            )
        choice = budgets.choose(args.budget, args.teraflops, num_words=args.words)
        settings, examples = budgets.load(choice.settings), [budgets.examples()]
        work = plans.plan_pretraining(settings, examples, num_words=args.words)
    elif args.train or args.data:
        work = _finetuning_work(args)
    else:
        work = _pretraining_work(args)
    facts = plans.facts(
        work,
        sequences_per_second=args.sequences_per_second or (),
        teraflops=args.teraflops,
        price_per_hour=args.price_per_hour,
    )
    if choice is not None:
        facts["budget"] = dataclasses.asdict(choice)
    lines = [*(budgets.lines(choice) if choice else ()), *plans.lines(facts)]
    options.print_result(args, facts, lines)


_NOT_WITH_BUDGET = ("config", "set", "max_seq_length", "masking", "train", "data")
_NOT_WITH_BUDGET += ("vocab", "cased", "model", "sequences_per_second")


def _pretraining_work(args: argparse.Namespace) -> plans.Work:
    try:
        settings = options.load_settings(pretraining.PretrainingConfig, args)
    except InputError as error:
        # Unknown keys of `pretrain` that `finetune` knows have another remedy.
        try:
            options.load_settings(finetuning.FinetuningConfig, args)
        except InputError:
            raise error from None
        raise InputError(
            "these settings are of `finetune`: give its file, too, with --train "
            "or --data, and --vocab"
        ) from None
    for option in ("vocab", "cased", "model"):
        if getattr(args, option):
            raise InputError(f"--{option} is for fine-tuning: give --train or --data")
    # The examples of each phase: those of the recipe's own recipe, or the default ones
    # of 128 tokens, and 512 in a second phase.
    recipe, lengths = f"{args.config}_examples", args.max_seq_length
    if recipe not in loading.recipe_names():
        recipe, lengths = None, lengths or (128, 512)[: len(settings.phases)]
    overrides = [f"masking={args.masking}"] if args.masking else []
    by_length = [[f"max_seq_length={n}"] for n in lengths] if lengths else [[]]
    examples = [
        loading.load(pipelines.ExamplesConfig, recipe, [*overrides, *length])
        for length in by_length
    ]
    return plans.plan_pretraining(settings, examples, num_words=args.words)


def _finetuning_work(args: argparse.Namespace) -> plans.Work:
    requirements.check_packages("plan")
    requirements.quiet_tensorflow()
    from bert_keras.data import tokenization
    from bert_keras.kinds import catalogue

    if args.words is not None or args.max_seq_length or args.masking:
        raise InputError(
            "--words, --masking and --max_seq_length are for pre-training: the length "
            "of a fine-tuning is `--set max_seq_length=N`"
        )
    if args.vocab is None:
        raise InputError("--train and --data need the encoder's --vocab")
    settings = options.load_settings(finetuning.FinetuningConfig, args)
    encoder = loading.load(pretraining.PretrainingConfig, args.model or "bert_base")
    lower = not args.cased
    vocabulary = tokenization.Vocabulary.load(args.vocab, do_lower_case=lower)
    train = args.train or catalogue.training_files(settings.task, args.data)[0]
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=lower)
    return plans.finetuning(settings, encoder.model, train, tokenizer)


@options.Verb(
    "compile the steps of a run for a TPU that is not there",
    {
        "--device": required("TPU slice: v5e-8, v4-8, v5p-16, v6e-1 and so on"),
        "--examples": "made by `examples`: gives shapes and size of the vocabulary",
        "--max_seq_length": value("instead of --examples: tokens of one", type=int),
        "--task": "fine-tuning on it, of the model that --config trains: text, "
        "tagging, span, choice, or a data set such as MRPC (default: pre-training)",
        "--global_batch_size": value(
            "examples of a step on all chips (default: the "
            "configuration's; 32 of a task)",
            type=int,
        ),
        "--json": flag("print JSON instead of a table"),
    },
    needs=options.TENSORFLOW,
    settings_of="pretrain",
)
def preflight(args: argparse.Namespace) -> None:
    from bert_keras.tpu import preflight
    from bert_keras.tpu.preflight import compiling, steps

    settings = options.load_settings(pretraining.PretrainingConfig, args)
    device = chips.parse_device(args.device)
    shapes = ("examples", "max_seq_length", "task", "global_batch_size")
    planned = steps.plan(settings, device, **options.named(args, *shapes))
    rows = [(step, compiling.compile_step(step, device)) for step in planned]
    facts, lines = preflight.report(device, rows), preflight.lines(device, rows)
    options.print_result(args, facts, lines)


@options.Verb(
    "submit a data job and wait for its end",
    {
        "--dry_run": flag("only print the command"),
        "--project": required("id of the Google Cloud project"),
        "--region": required("region of the bucket, such as europe-west4"),
        "--temp_location": required("folder for staged files: gs://BUCKET/FOLDER"),
        "--machine_type": "(default: n2-highmem-4 for `examples`, else n2-standard-4)",
        "--max_num_workers": value("machines, at most", default=16),
        "--number_of_worker_harness_threads": value(
            "threads of each process, one process for each core", default=2
        ),
        "--sdk_container_image": "image of workers (default: Beam's, with our wheel)",
    },
    dashes="The command to run follows `--`: -- corpus --output ...",
)
def dataflow(args: argparse.Namespace) -> None:
    from bert_keras.pipelines import dataflow

    staged = None if args.sdk_container_image else dataflow.write_wheel("dist")
    settings = options.named(args, *dataflow.SETTINGS)
    command = dataflow.make_command(args.beam_arguments, settings, wheel=staged)
    data_verbs = options.Parser(prog="bert-keras")
    below = data_verbs.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in data.VERBS:
        verb.add_to(below)
    job = data_verbs.parse_command(command[1:])
    dataflow.check_paths(vars(job))
    print(shlex.join(command), flush=True)
    if not args.dry_run:
        job.command.run(job)
