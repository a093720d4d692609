"""TensorBoard panels that need the network itself; `training.watching` has the curves.

Guesses for masked words and attention maps come at intervals, the graph and a profile
of the device once.
"""

import contextlib
import functools
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core import files
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.data import features, tokenization
from bert_keras.pages import markdown
from bert_keras.training import run
from bert_keras.training.pretraining import record_parsing
from bert_keras.training.step import replicas
from bert_keras.training.tensorboard import event_files

logger = logging.getLogger(__name__)

PANELS_NAME = "panels"

NUM_SENTENCES = 10

TOP_K = 5

MAX_ATTENTION_TOKENS = 16

HEADS_PER_PICTURE = 4
"""The most heads that TensorBoard's cards (400 to 600 pixels) show with legible
words."""
HEADS_PER_ROW = 2
_GAP = 2
_CELL_INCHES = 0.14


@contextlib.contextmanager
def _panels_only() -> Iterator[None]:
    """Turns errors of panels into warnings, so that they do not end the training."""
    try:
        yield
    except Exception as error:  # of TensorBoard, matplotlib, the device's memory, disks
        logger.warning("TensorBoard's panels of this step are missing: %r", error)


class EvaluationPanels(run.Watcher):
    """Shows how the network treats the same few examples as the training goes on.

    A panel that cannot be drawn is a warning. Writes to `panels` in `directory`:

    - text `masked_lm/example_*`: `NUM_SENTENCES` examples, for each masked token the
      `TOP_K` likeliest tokens with their probabilities;
    - images `attention/layer_*/heads_*`: each head's attention in one sentence;
    - the graph of the network, once.

    `batch` must be the same in every session of a run. With `repeats_drawing` an
    interrupted process may have drawn this step in part.
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        *,
        learner: keras.Model,
        tokenizer: tokenization.Tokenizer,
        batch: Mapping[str, np.ndarray],
        repeats_drawing: bool = False,
    ):
        self._writer = event_files.EventWriter(
            directory / PANELS_NAME, step - repeats_drawing
        )
        self._vocabulary = tokenizer.vocabulary
        # An evaluation's last batch is filled up with examples that predict nothing.
        rows = np.flatnonzero(batch["masked_lm_weights"].any(axis=1))[:NUM_SENTENCES]
        self._batch = {name: values[rows] for name, values in batch.items()}
        self._inputs = {k: tf.constant(v) for k, v in self._batch.items()}
        network, strategy = learner.network, learner.distribute_strategy
        self._is_masked = network.encoder.config.attention == "bidirectional"
        self._forward = replicas.on_replicas(
            strategy, lambda batch: network(batch, training=False)
        )
        self._attend = replicas.on_replicas(
            strategy,
            lambda batch: network.encoder(batch, training=False, return_attention=True),
        )
        if step == 0:
            with _panels_only(), self._writer.as_default(0):
                graph = self._forward.get_concrete_function(self._inputs).graph
                tf.summary.graph(graph)

    def draw(self, step: int) -> None:
        """Draws the panels of a step, the attention of the last layer last of all."""
        with _panels_only(), self._writer.as_default(step):
            logits = self._forward(self._inputs)["masked_lm_logits"]
            probabilities = tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()
            tokens, texts = self._vocabulary.tokens, {}
            for row, guessed in enumerate(probabilities):
                example = {name: values[row] for name, values in self._batch.items()}
                tag = f"masked_lm/example_{row + 1:02}"
                texts[tag] = guesses_markdown(
                    example, guessed, tokens=tokens, is_masked=self._is_masked
                )
                tf.summary.text(tag, texts[tag])
            self._writer.add_line(step, texts)
            self._write_attention()
        with _panels_only():
            self._writer.flush()

    def _write_attention(self) -> None:
        from bert_keras.pages import drawing

        ids = self._batch["input_ids"]
        if self._is_masked:
            ids = record_parsing.unmasked_ids(self._batch).numpy()
        ids = first_sentence(
            ids[0], max_tokens=MAX_ATTENTION_TOKENS, sep_id=self._vocabulary.sep_id
        )
        encoded = self._attend(
            {
                "input_ids": tf.constant(ids[None]),
                "input_mask": tf.ones_like(ids[None]),
                "segment_ids": tf.zeros_like(ids[None]),
            }
        )
        tokens = [self._vocabulary.tokens[index] for index in ids]
        for layer, attention in enumerate(encoded["attention_probs"]):
            heads = keras.ops.convert_to_numpy(keras.ops.cast(attention[0], "float32"))
            for first in range(0, len(heads), HEADS_PER_PICTURE):
                some = heads[first : first + HEADS_PER_PICTURE]
                draw = functools.partial(attention_maps, some, tokens, first=first)
                # TensorBoard shows pixel by pixel; a page of a report is made smaller.
                png = drawing.as_png(draw, dpi=100)
                last = first + len(some) - 1
                tag = f"attention/layer_{layer}/heads_{first}_to_{last}"
                tf.summary.image(tag, drawing.pixels(png)[None])

    def send(self) -> None:
        self._writer.send()

    def close(self) -> None:
        self._writer.close()


def are_drawn(directory: Path, step: int, config: BertConfig) -> bool:
    """Whether the run's event files have all panels of a step."""
    layer, head = config.num_hidden_layers - 1, config.num_attention_heads - 1
    last = re.compile(rf"attention/layer_{layer}/heads_\d+_to_{head}")
    return any(
        event.step == step and any(last.match(v.tag) for v in event.summary.value)
        for path in (directory / PANELS_NAME).glob("events.out.tfevents.*")
        for event in map(tf.compat.v1.Event.FromString, event_files.read_records(path))
    )


class Profile(run.Watcher):
    """Runs TensorFlow's profiler from one step to another, both included.

    The profile is for TensorBoard's Profile tab (package `tensorboard-plugin-profile`).
    Several steps per execution: whole executions are profiled. A session that begins
    after the first of `steps`, counted from 1, records nothing.
    """

    def __init__(self, directory: Path, learner: keras.Model, steps: tuple[int, int]):
        self._directory, self._learner = directory, learner
        self._first_step, self._last_step = steps
        self._profiler = contextlib.ExitStack()
        # Without marks of the steps the profile has no overview.
        self._mark = contextlib.ExitStack()
        self._is_recording = False

    def before_steps(self, step: int) -> None:
        next_step = step + self._learner.steps_per_execution
        if not self._is_recording and step < self._first_step <= next_step:
            # On the local disk: a store that fails would cost the profile.
            local = self._profiler.enter_context(files.added_to(self._directory))
            profile = tf.profiler.experimental.Profile(str(local))
            self._profiler.enter_context(profile)
            self._is_recording = True
        if self._is_recording:
            mark = tf.profiler.experimental.Trace("train", step_num=next_step, _r=1)
            self._mark.enter_context(mark)

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        self._mark.close()
        self._step = step
        if step >= self._last_step:
            self.close()

    def close(self) -> None:
        if self._is_recording:
            self._profiler.close()
            self._is_recording = False
            logger.info("profile up to step %d in %s", self._step, self._directory)


def first_sentence(ids: np.ndarray, *, max_tokens: int, sep_id: int) -> np.ndarray:
    """Returns the first sentence as an input of its own, `(num_tokens,)` int32.

    `[SEP]` ends it even where it was cut to `max_tokens`.
    """
    ends = np.flatnonzero(ids == sep_id)
    length = min(int(ends[0]) if len(ends) else len(ids), max_tokens - 1)
    return np.append(ids[:length], sep_id).astype("int32")


def guesses_markdown(
    example: Mapping[str, np.ndarray],
    probabilities: np.ndarray,
    *,
    tokens: Sequence[str],
    top_k: int = TOP_K,
    is_masked: bool = True,
) -> str:
    """Returns an example's text with numbered gaps, and a table of guesses for them.

    The table has the token that the model read (some of the chosen ones are replaced or
    left as they are), the true token, and the likeliest ones; a right guess is bold.
    With `is_masked` false, the true token is the next one, and the text has no gaps.
    `probabilities` are `(max_predictions_per_seq, vocab_size)`.
    """
    mask = example["instance_ids" if "instance_ids" in example else "input_mask"]
    pieces = [tokens[i] for i in example["input_ids"][mask > 0]]
    gaps, rows = {}, []
    slots = np.flatnonzero(example["masked_lm_weights"] > 0)
    for number, slot in enumerate(slots, start=1):
        position = int(example["masked_lm_positions"][slot])
        if is_masked:
            gaps[position] = f"**[{number}]**"
        true = int(example["masked_lm_ids"][slot])
        # The model may have more rows than the vocabulary has tokens.
        known = probabilities[slot, : len(tokens)]
        best = np.argsort(-known, kind="stable")[:top_k]
        guesses = []
        for token in best:
            mark = "**" if token == true else ""
            text = markdown.escape_signs(tokens[token])
            guesses.append(f"{mark}{text}{mark} {known[token]:.1%}")
        cells = [str(number), markdown.escape_signs(pieces[position])]
        rows.append([*cells, markdown.escape_signs(tokens[true]), *guesses])
    header = ["gap", "read", "true", *(f"guess {k + 1}" for k in range(top_k))]
    return f"{readable_text(pieces, gaps)}\n\n{markdown.table(header, rows)}"


def readable_text(pieces: Sequence[str], replaced: Mapping[int, str]) -> str:
    """Joins word pieces into words, with markdown `replaced` by position."""
    prefix = tokenization.CONTINUATION_PREFIX
    text = ""
    # A segment may begin within a word: its first piece keeps the prefix.
    starts = ("", features.CLS_TOKEN, features.SEP_TOKEN)
    for position, (before, piece) in enumerate(itertools.pairwise(("", *pieces))):
        shown = piece
        if piece.startswith(prefix) and before not in starts:
            shown = piece.removeprefix(prefix)
        elif text:
            text += " "
        text += replaced.get(position, markdown.escape_signs(shown))
    return text


def attention_maps(heads: np.ndarray, tokens: Sequence[str], *, first: int = 0) -> Any:
    """Draws some heads of a layer, two in a row: dark is much attention.

    `heads` are `(num_heads, num_tokens, num_tokens)`: rows attend to columns.
    """
    # Not at the top: matplotlib is slow to load, and most processes draw nothing.
    from matplotlib import colors, figure

    from bert_keras.pages import drawing

    num_columns = min(len(heads), HEADS_PER_ROW)
    num_rows = math.ceil(len(heads) / num_columns)
    step = len(tokens) + _GAP
    # One map for all heads: the axes are what takes time.
    cells = np.full((num_rows * step, num_columns * step - _GAP), np.nan)
    picture = figure.Figure(figsize=_CELL_INCHES * np.array(cells.shape[::-1]))
    plot = picture.add_axes((0, 0, 1, 1), frame_on=False)
    for index, probabilities in enumerate(heads):
        row, column = (step * place for place in divmod(index, num_columns))
        # A model whose weights are not finite any more has white maps.
        cells[row : row + len(tokens), column : column + len(tokens)] = np.nan_to_num(
            probabilities
        )
        plot.text(
            column + (len(tokens) - 1) / 2,
            row + len(tokens) + 0.6,
            f"head {first + index}",
            ha="center",
            fontsize=9,
        )
    # The root makes small shares visible.
    plot.imshow(cells, cmap="Blues", norm=colors.PowerNorm(0.5, vmin=0, vmax=1))
    names, places = drawing.drawable(tokens), np.arange(len(tokens))
    ticks = (plot.set_yticks, num_rows), (plot.set_xticks, num_columns)
    for set_ticks, num_maps in ticks:
        all_places = np.add.outer(step * np.arange(num_maps), places)
        set_ticks(all_places.ravel(), names * num_maps)
    plot.tick_params(length=0, labelsize=8.5, bottom=False, labelbottom=False)
    plot.tick_params(axis="x", labeltop=True, labelrotation=90)
    plot.grid(False)
    return picture
