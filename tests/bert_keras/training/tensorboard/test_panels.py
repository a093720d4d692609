"""The event files are read as what they are, records of `Event`: TensorBoard's own
reader has tests of its own in `test_callbacks`."""

import html
import io
import itertools
import re
import warnings

import markdown
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from bert_keras.core import files, stores
from bert_keras.core.errors import Stopped
from bert_keras.data import features, tokenization
from bert_keras.model import pretrainer
from bert_keras.pages import drawing
from bert_keras.pages import markdown as pages_markdown
from bert_keras.report import scalar_log
from bert_keras.training.pretraining import record_parsing
from bert_keras.training.tensorboard import panels
from tests.bert_keras.training.step import test_learner

WORDS = (*features.SPECIAL_TOKENS, "the", "dog", "##s", "run", "a|b", "*", "cat")


@pytest.fixture
def tokenizer():
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = (*WORDS, *letters)[:40]
    return tokenization.Tokenizer(tokenization.Vocabulary(tokens), do_lower_case=True)


@pytest.fixture
def example(tokenizer):
    """`[CLS] the [MASK] ##s a|b cat [SEP] run [SEP]`, padded; "cat" was "*"."""
    ids = tokenizer.vocabulary.ids
    words = "[CLS] the [MASK] ##s a|b cat [SEP] run [SEP] [PAD]".split()
    return {
        "input_ids": np.array([ids[word] for word in words], "int32"),
        "input_mask": np.array([1] * 9 + [0], "int32"),
        "segment_ids": np.array([0] * 7 + [1, 1, 0], "int32"),
        "masked_lm_positions": np.array([2, 5, 0], "int32"),
        "masked_lm_ids": np.array([ids["dog"], ids["*"], 0], "int32"),
        "masked_lm_weights": np.array([1.0, 1.0, 0.0], "float32"),
        "next_sentence_labels": np.array([0], "int32"),
    }


def markdown_of(example, guesses, tokenizer, **options):
    """`guesses` are the probabilities of words, for each masked one."""
    probabilities = np.zeros((len(example["masked_lm_ids"]), 38))
    for row, guessed in enumerate(guesses):
        for word, probability in guessed.items():
            probabilities[row, tokenizer.vocabulary.ids[word]] = probability
    return panels.guesses_markdown(
        example, probabilities, tokens=tokenizer.vocabulary.tokens, **options
    )


def test_guesses_as_markdown(example, tokenizer):
    guesses = ({"dog": 0.5, "cat": 0.25, "run": 0.125}, {"cat": 0.9876, "a|b": 0.01})
    assert markdown_of(example, guesses, tokenizer, top_k=2) == (
        "&#91;CLS&#93; the **[1]**s a&#124;b **[2]** &#91;SEP&#93; run &#91;SEP&#93;"
        "\n\n"
        "| gap | read | true | guess 1 | guess 2 |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| 1 | &#91;MASK&#93; | dog | **dog** 50.0% | cat 25.0% |\n"
        "| 2 | cat | &#42; | cat 98.8% | a&#124;b 1.0% |"
    )


def test_guesses_of_a_left_to_right_model(tokenizer):
    ids = tokenizer.vocabulary.ids
    example = {
        "input_ids": np.array([ids[word] for word in "[CLS] the dog".split()]),
        "input_mask": np.ones(3, "int32"),
        "masked_lm_positions": np.array([0, 1]),
        "masked_lm_ids": np.array([ids["the"], ids["dog"]]),
        "masked_lm_weights": np.ones(2, "float32"),
    }
    guesses = {"the": 1.0}, {"cat": 1.0}
    assert markdown_of(example, guesses, tokenizer, top_k=1, is_masked=False) == (
        "&#91;CLS&#93; the dog\n\n"
        "| gap | read | true | guess 1 |\n"
        "| --- | --- | --- | --- |\n"
        "| 1 | &#91;CLS&#93; | the | **the** 100.0% |\n"
        "| 2 | the | dog | cat 100.0% |"
    )


def test_readable_text():
    for pieces, text in (
        ("run ##s dog", "runs dog"),
        ("[CLS] ##s dog ##s [SEP] ##s", "[CLS] ##s dogs [SEP] ##s"),
        ("dog [MASK] ##s ##s", "dog **gap**ss"),
    ):
        pieces = pieces.split()
        gaps = {i: "**gap**" for i, piece in enumerate(pieces) if piece == "[MASK]"}
        assert html.unescape(panels.readable_text(pieces, gaps)) == text


def test_tensorboard_shows_any_token_literally():
    tokens = ["|", "*", "<b>", "&", "_x_", "`", "#", "##y", "~", "\\", "é", "[MASK]"]
    cells = " | ".join(map(pages_markdown.escape_signs, tokens))
    header = " | ".join("h" * len(tokens))
    rule = " | ".join(["---"] * len(tokens))
    # As TensorBoard's text page has it.
    shown = markdown.markdown(
        f"| {header} |\n| {rule} |\n| {cells} |",
        extensions=["markdown.extensions.tables", "markdown.extensions.fenced_code"],
    )
    found = re.findall(r"<td>(.*?)</td>", shown)
    assert [html.unescape(cell) for cell in found] == tokens


def test_sentence_for_attention(example, tokenizer):
    batch = {name: values[np.newaxis] for name, values in example.items()}
    ids = record_parsing.unmasked_ids(batch).numpy()[0]
    whole = "[CLS] the dog ##s a|b * [SEP]"
    for most, sentence in ((24, whole), (7, whole), (4, "[CLS] the dog [SEP]")):
        sep_id = tokenizer.vocabulary.sep_id
        cut = panels.first_sentence(ids, max_tokens=most, sep_id=sep_id)
        assert [tokenizer.vocabulary.tokens[i] for i in cut] == sentence.split()


def build_learner(bert_config, batch, strategy):
    return test_learner.build(
        lambda: pretrainer.BertPretrainer(bert_config, seed=3, name="bert_pretrainer"),
        *(batch, strategy),
    )


@pytest.fixture
def model(tiny_config, batch):
    return build_learner(tiny_config, batch, tf.distribute.get_strategy())


def events(directory):
    return [
        tf.compat.v1.Event.FromString(record.numpy())
        for path in sorted(directory.glob("events.out.tfevents.*"))
        for record in tf.data.TFRecordDataset(str(path))
    ]


def values(directory, prefix):
    """`{(tag, step): array}` of the tags that begin with `prefix`."""
    return {
        (value.tag, event.step): tf.make_ndarray(value.tensor)
        for event in events(directory)
        for value in event.summary.value
        if value.tag.startswith(prefix)
    }


@pytest.fixture
def batch(tiny_config, make_batch, tokenizer):
    """Of the 38 tokens of the vocabulary; the model has 40."""
    batch = make_batch(tiny_config)
    for name in ("input_ids", "masked_lm_ids"):
        batch[name] %= len(tokenizer.vocabulary)
    return batch


@pytest.fixture
def opened(model, batch, tokenizer):
    """A function that opens panels at a step."""

    def open_panels(directory, step, **options):
        return panels.EvaluationPanels(
            *(directory, step),
            learner=model,
            tokenizer=tokenizer,
            batch=batch,
            **options,
        )

    return open_panels


def test_panels(model, opened, batch, tokenizer, tiny_config, tmp_path):
    tokens = tokenizer.vocabulary.tokens
    drawn = opened(tmp_path, 0)
    assert not panels.are_drawn(tmp_path, 6, tiny_config)
    for step in (3, 6):
        drawn.draw(step)
    drawn.close()
    assert panels.are_drawn(tmp_path, 6, tiny_config)
    # An interrupted process drew the last step in part: it is drawn again, once.
    again = opened(tmp_path, 6, repeats_drawing=True)
    assert not panels.are_drawn(tmp_path, 6, tiny_config)
    again.draw(6)
    again.close()
    folder = tmp_path / "panels"

    # The fourth example predicts nothing.
    texts = values(folder, "masked_lm/")
    assert texts.keys() == {
        (f"masked_lm/example_{row:02}", step) for row in (1, 2, 3) for step in (3, 6)
    }
    logits = model.network(batch)["masked_lm_logits"].numpy()[0]
    best = tokens[logits[0, : len(tokens)].argmax()]
    written = texts["masked_lm/example_01", 6].item().decode().splitlines()
    assert len(written) == 2 + 2 + 3
    assert pages_markdown.escape_signs(best) in written[4].split(" | ")[3]
    logged = scalar_log.read_log(folder)
    assert logged.texts == {
        tag: (step, text.item().decode())
        for (tag, step), text in texts.items()
        if step == 6
    }

    images = values(folder, "attention/")
    assert images.keys() == {
        (f"attention/layer_{layer}/heads_0_to_3", step)
        for layer, step in itertools.product((0, 1), (3, 6))
    }
    width, height, *drawn = images["attention/layer_0/heads_0_to_3", 6].tolist()
    shown = Image.open(io.BytesIO(drawn[0]))
    assert (int(width), int(height)) == shown.size

    (graph,) = (e.graph_def for e in events(folder) if e.graph_def)
    nodes = tf.compat.v1.GraphDef.FromString(graph).node
    assert any("layer_1" in n.name and n.op.endswith("MatMul") for n in nodes)


def test_a_panel_that_fails_costs_nothing_else(opened, tmp_path, monkeypatch, caplog):
    """A signal still ends the training."""

    def full(*_, **options):
        raise OSError("disk full")

    monkeypatch.setattr(panels, "first_sentence", full)
    drawn = opened(tmp_path, 0)
    drawn.draw(3)
    warnings = [r.getMessage() for r in caplog.records if r.name == panels.__name__]
    assert warnings == [
        "TensorBoard's panels of this step are missing: OSError('disk full')"
    ]

    def stop(*_, **options):
        raise Stopped("SIGTERM")

    monkeypatch.setattr(panels, "first_sentence", stop)
    with pytest.raises(Stopped):
        drawn.draw(6)


def step_marks(space):
    """The numbers of the marks named "train"."""
    return sorted(
        stat.int64_value
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "train"
        for stat in event.stats
        if plane.stat_metadata[stat.metadata_id].name == "step_num"
    )


@pytest.mark.slow
def test_profile_of_some_steps(model, batch, memory_store):
    directory = files.path(memory_store)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    for first_step in (0, 4):
        # Steps 1 to 4, then 5 to 8, which are past the profile's first.
        profile = panels.Profile(directory, model, (2, 3))
        for step in range(first_step, first_step + 4):
            profile.before_steps(step)
            model.make_steps(data, step + 1)
            profile.after_steps(step + 1, {})
        profile.close()
    below = stores.below(f"{directory}/plugins/profile")
    (written,) = (path for path in below if path.endswith(".xplane.pb"))
    space = xplane_pb2.XSpace.FromString(files.read_bytes(written))
    assert step_marks(space) == [2, 3]
    operations = {
        m.name for plane in space.planes for m in plane.event_metadata.values()
    }
    assert any("MatMul" in name for name in operations)


@pytest.mark.slow
def test_panels_of_replicas(tiny_config, batch, tokenizer, tmp_path):
    """Two replicas learn what one device does, and so show the same."""
    model_config = tiny_config.model_copy(
        update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    shown = []
    for number, strategy in enumerate((test_learner.CPU, test_learner.mirrored(2))):
        trained = build_learner(model_config, batch, strategy)
        batches = tf.data.Dataset.from_tensor_slices(batch).batch(4, True).repeat()
        data = strategy.experimental_distribute_dataset(batches)
        trained.make_steps(data, 2)
        folder = tmp_path / str(number)
        drawn = panels.EvaluationPanels(
            *(folder, 0), learner=trained, tokenizer=tokenizer, batch=batch
        )
        drawn.draw(2)
        drawn.close()
        shown.append(values(folder / "panels", "masked_lm/"))
    # Probabilities of a tenth of a percent.
    assert shown[0] and shown[0] == shown[1]


SHOWN_TOKENS = ["[CLS]", "the", "$5$", "日", "the"]


@pytest.fixture
def heads():
    return np.random.default_rng(3).dirichlet(np.ones(5), size=(6, 5))


def test_heads_are_drawn_in_rows_of_two(heads):
    (plot,) = panels.attention_maps(heads, SHOWN_TOKENS, first=4).axes
    cells = plot.get_images()[0].get_array()
    assert cells.shape == (21, 12)
    for number, head in enumerate(heads):
        top, left = 7 * (number // 2), 7 * (number % 2)
        # Rows are the tokens that attend.
        np.testing.assert_array_equal(cells[top : top + 5, left : left + 5], head)
    assert np.isfinite(cells.filled(np.nan)).sum() == 6 * 25
    shown = ["[CLS]", "the", "$5$", "□", "the"]
    assert [tick.get_text() for tick in plot.get_yticklabels()] == 3 * shown
    assert [tick.get_text() for tick in plot.get_xticklabels()] == 2 * shown
    assert plot.get_xticks().tolist() == [*range(5), *range(7, 12)]
    titles = {text.get_text(): text.get_position() for text in plot.texts}
    assert titles == {
        f"head {4 + n}": (7 * (n % 2) + 2, 7 * (n // 2) + 5.6) for n in range(6)
    }


def test_words_can_be_read_in_a_card_of_tensorboard():
    """The largest picture, shown 450 pixels wide: letters are 8 pixels high or more."""
    num_tokens = panels.MAX_ATTENTION_TOKENS
    heads = np.full((panels.HEADS_PER_PICTURE, num_tokens, num_tokens), 0.1)
    tokens = ["lighthouse"] * num_tokens
    png = drawing.as_png(lambda: panels.attention_maps(heads, tokens), dpi=100)
    width = drawing.pixels(png).shape[1]
    (plot,) = panels.attention_maps(heads, tokens).axes
    points = plot.get_xticklabels()[0].get_fontsize()
    assert points * 100 / 72 * 450 / width >= 8


def test_the_picture_is_dark_where_attention_is(heads):
    """The 25 cells, top to bottom, at the height and the width that they have."""
    alone = np.eye(5)[None, [0, 1, 2, 3, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png = drawing.as_png(lambda: panels.attention_maps(alone, SHOWN_TOKENS))
    image = drawing.pixels(png)
    is_dark = np.all(image == (8, 48, 107), axis=-1)
    rows, columns = np.flatnonzero(is_dark.any(axis=1)), np.flatnonzero(is_dark.any(0))
    side = 0.14 * 150
    assert np.ptp(rows) == pytest.approx(5 * side, abs=2)
    assert np.ptp(columns) == pytest.approx(4 * side, abs=2)
    # The last token looks at the first one.
    assert is_dark[rows[-3], columns[3]]


def test_weights_that_are_not_finite_have_white_maps():
    heads = np.full((1, 2, 2), np.nan)
    (plot,) = panels.attention_maps(heads, ["a", "b"]).axes
    assert plot.get_images()[0].get_array()[:2, :2].tolist() == [[0, 0], [0, 0]]
