"""A sample of the examples: counted again one by one, and faults that it shows."""

import math
import random
import re
from collections import Counter

import pytest

from bert_keras.core.settings import architecture, pretraining
from bert_keras.data import features
from bert_keras.report import diagnosis, writing
from bert_keras.training.pretraining import phases, text_sample
from tests import conftest, make
from tests.bert_keras.training.pretraining import test_record_batches as records

SETTINGS = pretraining.PretrainingConfig(
    global_batch_size=8, num_train_steps=12, optimizer={"warmup_steps": 2}
)


def read(directory, settings=SETTINGS):
    plan = {"vocab_path": None, "num_replicas": 1}
    [phase] = phases.read_phases(settings, [directory], **plan)
    return text_sample.measure(phase), phase


def test_figures_are_those_of_all_examples(tiny_examples):
    found, phase = read(tiny_examples)
    counts, tokens, masked, rows = Counter(), 0, 0, 0
    for example in records.stored_examples(phase.train_shards):
        ids = records.plain(example)["input_ids"]
        counts.update(phase.vocabulary.tokens[i] for i in ids)
        tokens += len(ids)
        masked += sum(records.values_of(example, "masked_lm_weights"))
        rows += 1
    for special in ("[CLS]", "[SEP]"):
        del counts[special]
    total = counts.total()
    assert found.num_examples == rows == phase.num_train_records
    assert found.num_shards == 2
    words = sum(n for piece, n in counts.items() if not piece.startswith("##"))
    assert found.pieces_per_word == pytest.approx(total / words)
    assert found.unknown_share == pytest.approx(counts["[UNK]"] / total)
    assert found.masked_share == pytest.approx(masked / total)
    assert found.padding_share == pytest.approx(1 - tokens / (32 * rows))
    assert found.tokens_per_example == pytest.approx(tokens / rows)
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    assert found.entropy == pytest.approx(entropy)


def test_neither_batches_nor_attention_of_the_training_matter(tiny_examples):
    causal = architecture.ModelConfig(attention="left_to_right")
    for changes in ({"global_batch_size": 4096}, {"model": causal}):
        changed = SETTINGS.model_copy(update=changes)
        assert read(tiny_examples, changed)[0] == read(tiny_examples)[0]


def random_documents(number, *, seed=0, other=""):
    choose = random.Random(seed)
    return [
        {
            "id": str(n),
            **{"source": "books", "title": ""},
            "paragraphs": [
                [
                    " ".join(
                        other if other and choose.random() < 0.1 else word
                        for word in choose.choices(conftest.WORDS, k=12)
                    )
                    for _ in range(8)
                ]
            ],
        }
        for n in range(number)
    ]


@pytest.fixture
def made(examples_of, tmp_path):
    """A function: the directory of examples of some texts."""

    def made(texts, *vocab, **settings):
        conftest.write_documents(tmp_path / "corpus", texts)
        settings = {"max_seq_length": 64, "masking": "dynamic", **settings}
        return examples_of(tmp_path / "corpus", *vocab, num_shards=4, **settings)

    return made


def causes(sample):
    return [*diagnosis.text_findings(sample)]


@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"dupe_factor": 5}, {"pack_instances": True}, {"masking": "static"}),
        # Shorter than a run of pieces that may come again.
        {"max_seq_length": 12},
    ],
    ids=str,
)
def test_sound_text(made, settings):
    found, _ = read(made(random_documents(80), **settings))
    assert found.entropy == pytest.approx(math.log(44), abs=0.02)
    assert found.pieces_per_word == 1
    assert found.repeated_share < 0.1
    assert causes(found) == []


@pytest.mark.parametrize(
    ("texts", "settings", "cause"),
    [
        (random_documents(80, other="xyz"), {}, "unknown words"),
        (
            [d | {"id": str(n)} for n, d in enumerate(random_documents(8) * 10)],
            {},
            "repeated text",
        ),
        (random_documents(80), {"masked_lm_prob": 0.9}, "masks"),
        (
            [
                d | {"paragraphs": [d["paragraphs"][0][:2]]}
                for d in random_documents(80)
            ],
            {"max_seq_length": 128, "packing": "sentence_pairs"},
            "padding",
        ),
    ],
)
def test_faults_of_a_text(made, texts, settings, cause):
    found, _ = read(made(texts, **settings))
    assert causes(found) == [cause]


def test_a_vocabulary_of_letters(made, tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*features.SPECIAL_TOKENS, *letters, *(f"##{x}" for x in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    texts = random_documents(80)
    for document in texts:
        (sentences,) = document["paragraphs"]
        document["paragraphs"] = [[s.replace(" ", "") for s in sentences]]
    found, _ = read(made(texts, tmp_path / "vocab.txt"))
    assert found.pieces_per_word == pytest.approx(26, abs=4)
    assert causes(found) == ["vocabulary"]


def test_a_pretraining_warns_once(made, tmp_path, caplog):
    examples = made(random_documents(80, other="xyz"), max_seq_length=32)
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 3}
    settings = make.pretraining_config(num_train_steps=4, optimizer=optimizer)
    run = tmp_path / "run"
    make.pretrain([examples], run, settings)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    causes = [line.split(": ")[1] for line in warnings if "may be" in line]
    assert {"unknown words", "warm-up"} <= set(causes)
    assert len(set(causes)) == len(causes)
    page = (writing.write_report(run) / "report.md").read_text()
    assert "## What may be wrong" in page
    assert "- **unknown words**: " in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "causes"),
    [
        ({"learning_rate": 3e-3}, set()),
        ({"learning_rate": 1e-6}, {"rate too low", "stuck"}),
        ({"learning_rate": 3e-3, "max_grad_norm": 1e-3}, {"clipping", "max grad norm"}),
        ({"learning_rate": 0.5}, {"rate too high", "diverged", "stuck"}),
    ],
    ids=["sound", "low", "clipped", "high"],
)
def test_trainings_that_cannot_work(tmp_path, tiny_examples, caplog, optimizer, causes):
    """Real ones: a fault is among the causes, and a sound run has none."""
    settings = make.pretraining_config(
        num_train_steps=1200,
        save_checkpoint_steps=400,
        draw_steps=10_000,
        optimizer={"warmup_steps": 100} | optimizer,
    )
    make.pretrain([tiny_examples], tmp_path / "run", settings)
    lines = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    matches = [re.match(r"may be wrong: ([a-z -]+): ", line) for line in lines]
    # The tiny text counts through its words again and again.
    found = {match[1] for match in matches if match} - {"repeated text"}
    assert bool(found) == bool(causes)
    assert found <= causes
