"""Recipes, and docs/paper.md, which says what each is for: what they hold, and that
every command of theirs runs."""

import argparse
import functools
import itertools
import json
import random
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_keras.commands import config_page
from bert_keras.commands import main as cli
from bert_keras.core.settings import (
    architecture,
    finetuning,
    loading,
    pipelines,
    pretraining,
    sweeps,
    tasks,
)
from bert_keras.kinds import catalogue
from bert_keras.kinds.text import glue
from bert_keras.lab.sweep import planning
from bert_keras.model import flops
from tests import test_pages
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.span import test_triviaqa

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs/paper.md").read_text(encoding="utf-8")

OF_THE_DEMO = {"demo", "demo_finetune"}
"""Recipes that have nothing to do with the paper; tests of the demo run them."""

FAST = {f"bert_{n}_fast": f"bert_{n}" for n in ("mini", "small", "base", "large")}
"""Recipes that depart from the paper's, and those whose model they train."""


OTHERS = {*FAST, "strict_small", "strict_small_examples", "sweep_learning_curve"}
"""Recipes that the page of the paper does not name."""


def header(name: str) -> str:
    """The comment at the beginning of a recipe, without its signs."""
    lines = loading.recipe_text(name).splitlines()
    return "".join(f"{line[2:]}\n" for line in lines if line.startswith("# "))


def commands(text: str) -> list[str]:
    return re.findall(r"^bert-keras .*$", text, re.MULTILINE)


PARSER = cli.build_parser()


def parse(line: str) -> argparse.Namespace:
    return PARSER.parse_args(shlex.split(line)[1:])


RECIPES = sorted(set(loading.recipe_names()) - OF_THE_DEMO)
ALL_COMMANDS = commands("\n".join([PAGE, *map(header, RECIPES)]))
ALL_COMMANDS = list(dict.fromkeys(ALL_COMMANDS))

# === What they say ===


@pytest.mark.parametrize("line", ALL_COMMANDS)
def test_every_command_is_understood(line):
    test_pages.check_settings(parse(line))


@pytest.mark.parametrize("name", RECIPES)
def test_a_header_says_how_its_recipe_is_used(name):
    """With a command that names it, and it is a configuration of that command."""
    found = set()
    for args in map(parse, commands(header(name))):
        if name == getattr(args, "sweep", None):
            found.add(sweeps.SweepConfig)
        elif name == getattr(args, "config", None):
            found.add(config_page.CONFIGURATIONS[args.verb])
    assert len(found) == 1
    assert loading.load(found.pop(), name)


def test_the_page_names_all_recipes_of_the_paper_and_no_others():
    families = "ablation|bert|glue|masking|ner|squad|sweep"
    named = re.findall(rf"`((?:{families})_\w+|swag|triviaqa)`", PAGE)
    assert set(named) == set(RECIPES) - OTHERS


def test_a_header_and_the_page_do_not_contradict_each_other():
    """What two commands write to one place, they write alike."""
    written = [output(line) for line in ALL_COMMANDS if parse(line).verb in RUN]
    assert sorted(written) == sorted(set(written))


# === What they hold: the paper's settings ===


FINETUNING = {
    **{
        f"glue_{task.lower().replace('-', '')}": (task, 32, 3, 2e-5, 128)
        for task in "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI".split()
    },
    "squad_v1": ("SQuAD1.1", 32, 3, 5e-5, 384),
    "squad_v2": ("SQuAD2.0", 48, 2, 5e-5, 384),
    "triviaqa": ("TriviaQA", 32, 3, 5e-5, 384),
    "swag": ("SWAG", 16, 3, 2e-5, 128),
    "ner_conll2003": ("CoNLL-2003", 32, 3, 5e-5, 512),
    "ablation_ltr_bilstm": ("MNLI", 32, 3, 2e-5, 128),
}
"""Task, batch, epochs, rate, tokens."""

SIZES = {
    "bert_base": (12, 768, 12, 3072),
    "bert_large": (24, 1024, 16, 4096),
    "bert_l3_h768_a12": (3, 768, 12, 3072),
    "bert_l6_h768_a3": (6, 768, 3, 3072),
    "bert_l6_h768_a12": (6, 768, 12, 3072),
    "bert_l12_h1024_a16": (12, 1024, 16, 4096),
    "ablation_no_nsp": (12, 768, 12, 3072),
    "ablation_ltr_no_nsp": (12, 768, 12, 3072),
}
"""Layers, hidden size, heads, width of the feed-forward network: 4 times the hidden
size (footnote 3)."""

SMALL_SIZES = {
    "bert_medium": (8, 512, 8, 2048),
    "bert_small": (4, 512, 8, 2048),
    "bert_mini": (4, 256, 4, 1024),
    "bert_tiny": (2, 128, 2, 512),
}
"""Turc et al. (2019)."""

MASKING = {
    "masking_80_10_10": (0.8, 0.1),
    "masking_100_0_0": (1.0, 0.0),
    "masking_80_0_20": (0.8, 0.2),
    "masking_80_20_0": (0.8, 0.0),
    "masking_0_20_80": (0.0, 0.8),
    "masking_0_0_100": (0.0, 1.0),
}
"""How many become [MASK], how many random ones."""


@pytest.mark.parametrize(("name", "expected"), FINETUNING.items())
def test_fine_tuning(name, expected):
    found = loading.load(finetuning.FinetuningConfig, name)
    keys = "task batch_size num_train_epochs learning_rate max_seq_length".split()
    assert tuple(getattr(found, key) for key in keys) == expected
    keys = ("dropout_prob", "warmup_proportion", "weight_decay_rate")
    assert [getattr(found, key) for key in keys] == [0.1, 0.1, 0.01]
    assert found.document_context
    assert found.span == finetuning.SpanConfig(
        doc_stride=128, max_query_length=64, max_answer_length=30, n_best_size=20
    )
    assert found.bilstm_units == (768 if name == "ablation_ltr_bilstm" else 0)


def test_there_is_a_recipe_for_every_data_set_of_the_paper():
    names = {task for task, *_ in FINETUNING.values()}
    trained = {name for name, task in glue.TASKS.items() if task.train is not None}
    assert names == trained | set(catalogue.DATASETS)


def test_features():
    found = loading.load(finetuning.FinetuningConfig, "ner_conll2003_features")
    assert (found.num_bilstm_layers, found.bilstm_units) == (2, 768)
    assert (found.max_seq_length, found.document_context) == (512, True)
    sweep = loading.load(sweeps.SweepConfig, "sweep_features")
    rows = typing.get_args(tasks.FeatureLayers)
    assert (sweep.grid, sweep.num_restarts) == ({"feature_layers": rows}, 5)


@pytest.mark.parametrize(("name", "size"), (SIZES | SMALL_SIZES).items())
def test_pre_training(name, size):
    keys = "num_hidden_layers hidden_size num_attention_heads intermediate_size".split()
    is_left_to_right = name == "ablation_ltr_no_nsp"
    expected = pretraining.PretrainingConfig(
        model=architecture.ModelConfig(
            **dict(zip(keys, size, strict=True)),
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            initializer_range=0.02,
            attention="left_to_right" if is_left_to_right else "bidirectional",
        ),
        optimizer=pretraining.OptimizerConfig(
            adamw_mode="google", learning_rate=1e-4, warmup_steps=10_000
        ),
        next_sentence=not name.startswith("ablation"),
        global_batch_size=256,
        num_train_steps=1_000_000,
        phases=[{"fraction": 0.9}, {"fraction": 0.1}],
    )
    assert loading.load(pretraining.PretrainingConfig, name) == expected


@pytest.mark.parametrize(("name", "usual"), FAST.items())
def test_fast_recipes_train_a_plain_model(name, usual):
    """One that any reader of BERT knows: the scale of its beginning and dropout, which
    are gone when it is read, are all that its configuration has of its own."""
    found = loading.load(pretraining.PretrainingConfig, name)
    model = loading.load(pretraining.PretrainingConfig, usual).model
    size = found.model.hidden_size
    assert found.model == model.model_copy(
        update={
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": pytest.approx(0.02 * (768 / size) ** 0.5, rel=0.03),
        }
    )
    assert (found.optimizer.name, found.next_sentence) == ("muon", True)
    assert found.grow_positions == "extrapolate"
    assert ("UNPROVEN" in header(name)) == (name != "bert_mini_fast")
    assert len(found.phases) == 3
    assert found.optimizer.warmup_steps < 0.1 * found.num_train_steps


@pytest.mark.parametrize(("name", "mix"), MASKING.items())
def test_masking(name, mix):
    found = loading.load(pipelines.ExamplesConfig, name)
    assert found == pipelines.ExamplesConfig(
        mask_token_prob=mix[0], random_token_prob=mix[1], partner="any_source"
    )


@pytest.mark.parametrize(
    ("sweep", "recipe", "batches", "rates", "epochs"),
    [
        ("sweep_glue", "glue_rte", {32}, {5e-5, 4e-5, 3e-5, 2e-5}, {3}),
        ("sweep_paper", "ner_conll2003", {16, 32}, {5e-5, 3e-5, 2e-5}, {2, 3, 4}),
    ],
)
def test_a_sweep_of_a_recipe(sweep, recipe, batches, rates, epochs):
    folds = (planning.Fold(None, "t", ("d",)),)
    command = planning.Command(folds=folds, init="i", recipe=recipe)
    runs = planning.plan_runs(loading.load(sweeps.SweepConfig, sweep), command)
    assert len(runs) == len(batches) * len(rates) * len(epochs)
    assert {run.settings.batch_size for run in runs} == batches
    assert {run.settings.learning_rate for run in runs} == rates
    assert {run.settings.num_train_epochs for run in runs} == epochs
    assert {run.settings.task for run in runs} == {FINETUNING[recipe][0]}


# === What they cost ===

NUM_INPUTS = {
    **dict(glue_cola=8551, glue_sst2=67_349, glue_mrpc=3668, glue_stsb=5749),
    **dict(glue_qqp=363_846, glue_mnli=392_702, glue_qnli=104_743),
    **dict(glue_rte=2490, glue_wnli=635, swag=73_546, ner_conll2003=14_041),
    # Windows: 1.013 and 1.022 a question in the articles at hand, 3 a document.
    **dict(squad_v1=88_700, squad_v2=133_000, triviaqa=332_000),
}
"""Of an epoch: rows of the official training files, or windows."""

FLOPS_PER_SECOND = 100e12


@pytest.mark.parametrize(("name", "num_inputs"), NUM_INPUTS.items())
def test_cost_of_fine_tuning(name, num_inputs):
    found = loading.load(finetuning.FinetuningConfig, name)
    length, epochs = found.max_seq_length, int(found.num_train_epochs)
    num_steps = epochs * -(-num_inputs // found.batch_size)
    num_sequences = epochs * num_inputs * (4 if name == "swag" else 1)
    each = encoder_flops(length)
    total = each * num_sequences
    assert (
        f"Cost for BASE: {num_steps:,} steps, {num_sequences:,} sequences of at most "
        f"{length} tokens x {digits(each / 1e9, 3)} GFLOP\n"
        f"= {digits(total / 1e15, 3)} PFLOP: "
        f"{digits(total / FLOPS_PER_SECOND / 60, 2)} minutes at 100 TFLOP/s.\n"
    ) in header(name)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *((name, name) for name in sorted(SIZES)),
        *((name, "bert_base") for name in MASKING),
    ],
)
def test_cost_of_pre_training(name, recipe):
    found = loading.load(pretraining.PretrainingConfig, recipe)
    is_left_to_right = found.model.attention == "left_to_right"
    total, terms = 0, []
    for length, phase in zip((128, 512), found.phases, strict=True):
        slots = pipelines.ExamplesConfig(max_seq_length=length).num_predictions
        each = flops.pretraining_flops_per_example(
            found.model.with_vocab_size(30_522),
            max_seq_length=length,
            num_predictions=length - 1 if is_left_to_right else slots,
            next_sentence=found.next_sentence,
        )
        steps = round(phase.fraction * found.num_train_steps)
        number = steps * found.global_batch_size
        total += number * each
        terms.append((number, digits(each / 1e9, 3)))
    (many, short), (few, long) = terms
    assert (
        f"{many:,} sequences of 128 tokens x {short} GFLOP + {few:,} of 512 x {long} "
        f"GFLOP\n= {digits(total / 1e18, 3)} EFLOP: "
        f"{total / FLOPS_PER_SECOND / 3600:,.0f} hours at 100 TFLOP/s.\n"
    ) in header(name)


def test_cost_of_features():
    found = loading.load(finetuning.FinetuningConfig, "ner_conll2003_features")
    num_words, num_sentences, hidden_size = 203_621, 14_041, 768
    epochs, units = int(found.num_train_epochs), found.bilstm_units
    num_steps = epochs * -(-num_sentences // found.batch_size)
    assert found.evaluate_steps == num_steps
    forward = encoder_flops(found.max_seq_length) // 3
    # Two directions, four gates, an addition with each multiplication.
    bilstms = sum(
        3 * epochs * num_words * 2 * 4 * 2 * units * (input_size + units)
        for input_size in (4 * hidden_size, 2 * units)
    )
    said = header("ner_conll2003_features").replace("\n", " ")
    assert (
        f"Cost for BASE: {num_steps:,} steps, {num_sentences:,} sequences of at most "
        f"{found.max_seq_length} tokens x {digits(forward / 1e9, 3)} GFLOP = "
        f"{digits(num_sentences * forward / 1e15, 3)} PFLOP for the frozen encoder, "
        f"which runs once, and {digits(bilstms / 1e15, 3)} PFLOP for the BiLSTM, "
    ) in said


def encoder_flops(length: int) -> int:
    """Of BASE, forwards and backwards. Poolers and heads are below a thousandth."""
    return flops.encoder_flops_per_example(architecture.BertConfig(), length)


def digits(number: float, count: int) -> str:
    """A number with so many significant digits."""
    return f"{float(f'{number:.{count}g}'):,g}"


# === That they run ===

RUN = ("corpus", "vocab", "examples", "pretrain", "finetune")
"""Verbs whose commands are run; sweeps have tests of their own."""

SMALLER = {
    "pretrain": "--set model.num_hidden_layers=4 --set model.hidden_size=48 "
    "--set model.intermediate_size=64 --set global_batch_size=2 "
    "--set num_train_steps=20 --set optimizer.warmup_steps=4 "
    "--set shuffle_buffer_size=100 --set num_eval_steps=1",
    # Of 20 inputs.
    "finetune": "--set batch_size=4 --set num_train_epochs=4",
}
"""Sizes, and nothing but sizes: 48 is a multiple of every number of heads."""


def smaller(args: argparse.Namespace) -> list[str]:
    return shlex.split(SMALLER.get(args.verb, ""))


def output(line: str) -> str:
    args = parse(line)
    return args.output_dir if "output_dir" in args else args.output


WRITERS = {output(line): line for line in ALL_COMMANDS if parse(line).verb in RUN}


@functools.cache
def write_output(path: str) -> None:
    """Runs the command that writes a path, and before it those it needs."""
    if path not in WRITERS:
        return
    args = parse(WRITERS[path])
    needed = [vars(args).get(key) for key in ("corpus", "vocab", "init", "model")]
    for source in (*needed, *vars(args).get("examples", ())):
        write_output(source)
    assert cli.main([*shlex.split(WRITERS[path])[1:], *smaller(args)]) == 0


@pytest.fixture(scope="module")
def inputs_here(tmp_path_factory) -> Iterator[None]:
    """A working directory with the raw text and the data sets of the commands."""
    directory = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(directory)
        test_pages.write_dump(directory)
        for name, text in (*glue_files(), *question_files(), *other_files()):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("inputs_here")
@pytest.mark.parametrize("path", WRITERS)
def test_twenty_steps(path):
    write_output(path)
    args = parse(WRITERS[path])
    if args.verb in ("pretrain", "finetune"):
        results = json.loads(Path(path, "results.json").read_text())
        assert results["steps"] == 20
        model = config_page.CONFIGURATIONS[args.verb]
        written = loading.load(model, f"{path}/config.yaml")
        wanted = loading.load(model, args.config, [*args.set, *smaller(args)[1::2]])
        # Which precision is the machine's to say.
        update = {"precision": written.precision}
        if args.verb == "finetune" and args.task:
            update["task"] = args.task
        assert written == wanted.model_copy(update=update)
    elif args.verb == "examples":
        made_with = json.loads(Path(path, "manifest.json").read_text())["config"]
        found = made_with["mask_token_prob"], made_with["random_token_prob"]
        wanted = {**MASKING, "strict_small_examples": (1.0, 0.0)}
        assert found == wanted.get(args.config, MASKING["masking_80_10_10"])
        assert made_with["max_seq_length"] == (args.max_seq_length or 128)
        assert made_with["do_lower_case"] == args.do_lower_case


# === Small data in the official layouts ===

NUM_TRAIN, NUM_DEV = 20, 6
SENTENCES = (
    "the road to the village was covered with snow",
    "in the evening the old man lit his lamp",
    "nobody had come along it for three days",
)


def splits(*names: str) -> Iterator[tuple[str, int]]:
    """Names of files and how many examples they get: the first is for training."""
    for name in names:
        yield name, NUM_TRAIN if name == names[0] else NUM_DEV


def glue_files() -> Iterator[tuple[str, str]]:
    """With the columns that are read: `test_glue.py` reads the official files."""
    for name, task in glue.TASKS.items():
        columns = (task.columns.text, task.columns.text_pair, task.columns.label)
        names = task.column_names or [column for column in columns if column]
        labels = itertools.cycle(task.labels or ("0.0", "1.250", "5.000"))
        for split, number in splits(task.train, *task.dev) if task.train else ():
            lines = [] if task.column_names else [names]
            for row in range(number):
                values = dict.fromkeys(names, SENTENCES[row % 3])
                lines.append([*(values | {task.columns.label: next(labels)}).values()])
            content = "".join("\t".join(line) + "\n" for line in lines)
            yield f"glue/{name}/{split}.tsv", content


def question_files() -> Iterator[tuple[str, str]]:
    data = kind_data.DATA["span"]
    for split, number in splits("train", "dev"):
        rows = [data.row(random.Random(row), row) for row in range(number)]
        for version in ("1.1", "2.0"):
            content = data.write(rows, True).replace('"1.1"', f'"{version}"')
            yield f"squad_v{version[0]}/{split}-v{version}.json", content
    yield "triviaqa/evidence/wikipedia/Winter.txt", ". ".join(SENTENCES)
    for split, number in splits("train", "dev"):
        nodes = [
            test_triviaqa.node(f"{split}_{row}", pages=["Winter.txt"], value="Old Man")
            for row in range(number)
        ]
        content = json.dumps({"Data": nodes, "Domain": "Wikipedia"})
        yield f"triviaqa/qa/wikipedia-{split}.json", content


def other_files() -> Iterator[tuple[str, str]]:
    paragraphs = [f"{s.capitalize()}. Again." for s in SENTENCES]
    yield "books/winter.txt", "\n\n".join(paragraphs)
    for split, number in splits("train", "val"):
        rows = [kind_data.endings(random.Random(row), row) for row in range(number)]
        yield f"swag/{split}.csv", kind_data.DATA["choice"].write(rows, True)
    words = "the DT I-NP O|old JJ I-NP I-PER|man NN I-NP I-PER|lit VBD I-VP O"
    sentence = words.replace("|", "\n") + "\n\n"
    for split, number in splits("eng.train", "eng.testa"):
        document = "-DOCSTART- -X- O O\n\n" + sentence * 2
        yield f"conll2003/{split}", document * (number // 2)
