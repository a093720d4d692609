"""Taggers on a frozen encoder's layers, as in the lower half of the paper's Table 7."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point
from bert_keras.core import files, manifest, ownership, provenance
from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading
from bert_keras.inference import forward
from bert_keras.kinds.tagging import ner
from bert_keras.lab.feature_based import (
    bilstm_tagger,
    configuration,
    layer_vectors,
    vector_files,
)
from bert_keras.labelled import dataset, tokenized
from bert_keras.model import layers
from bert_keras.training.finetuning import batches, loop
from bert_keras.training.step import precision, replicas
from bert_keras.training.tensorboard import progress_line

logger = logging.getLogger(__name__)

PAPER_DEV_F1 = {
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "weighted_sum_last_four": 95.9,
    "concat_last_four": 96.1,
    "weighted_sum_all": 95.5,
}
"""F1 of the paper's BERT BASE (cased) on CoNLL-2003's development set, in percent."""

TABLE_NAME = "table.md"

_WORDS_PER_BATCH = 2048


@ownership.owns("output_dir")
def run_probes(
    settings: configuration.ProbeConfig,
    *,
    model: str | Path,
    train: str | Path,
    dev: str | Path,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains taggers on each representation of words, and scores them.

    A word's vectors are those of its first piece. A tagger reads one sentence at a
    time; only the encoder has read the sentences around it.

    The encoder runs once over both files. Each tagger's scores are kept in `taggers/`,
    so that an interrupted run goes on with the next one. `table.md` and
    `results.json` are written last; then the vectors are deleted.

    Args:
        settings: which taggers, and how they are trained.
        model: checkpoint of any format, whose encoder is taken.
        train: file of tagged words to train on (see `tasks.ner`).
        dev: file of tagged words to score on.
        output_dir: directory to make, or to go on with.
        strategy: to train under.

    Returns:
        What `results.json` holds: the encoder's number of layers, the labels, of each
        representation its layers and the scores of all its taggers, and the
        circumstances.

    Raises:
        InputError: a file, the checkpoint or the directory cannot be used, or the
            encoder has too few layers for a representation.
    """
    settings = _resolved(settings, strategy)
    data, directory = _Data(train, dev), files.path(output_dir)
    num_hidden_layers, digest = _look_at(model)
    chosen = {
        name: layers_of(name, num_hidden_layers, path=model)
        for name in settings.representations
    }
    decisive = {
        "model_sha256": digest,
        "train_sha256": files.sha256(train),
        "dev_sha256": files.sha256(dev),
        **settings.model_dump(mode="json"),
    }
    manifest.claim_output_directory(directory, decisive)
    if (results := run_directory.read_results(directory)) is not None:
        logger.info("%s: finished already", directory)
        return results
    loading.save(settings, directory / run_directory.CONFIG_NAME)
    wanted, folder = sorted(set().union(*chosen.values())), directory / "features"
    vectors = {
        name: _vectors(settings, model, path, folder / name, wanted)
        for name, path in (("train", train), ("dev", dev))
    }
    runs = _train_all(settings, chosen, data, vectors, directory, strategy=strategy)
    results = {
        "num_hidden_layers": num_hidden_layers,
        "labels": data.labels,
        "representations": {
            name: {"layers": chosen[name], "taggers": runs[name]} for name in chosen
        },
        "environment": provenance.describe(
            devices=replicas.describe_devices(strategy),
            paths={"model": model, "train": train, "dev": dev},
        ),
    }
    files.write_atomically(directory / TABLE_NAME, table(results).encode())
    run_directory.write_results(directory, results)
    files.delete_tree(folder)
    logger.info("table and results in %s", directory)
    return run_directory.read_results(directory)


def _resolved(
    settings: configuration.ProbeConfig, strategy: tf.distribute.Strategy
) -> configuration.ProbeConfig:
    """The settings with what the devices decide."""
    changes: dict[str, Any] = {
        "precision": precision.resolve(settings.precision, strategy)
    }
    if isinstance(strategy, tf.distribute.TPUStrategy):
        if settings.lengths == ():
            raise InputError(replicas.NEEDS_LENGTHS)
        changes["lengths"] = settings.lengths or configuration.TPU_LENGTHS
    return settings.model_copy(update=changes)


def _train_all(
    settings: configuration.ProbeConfig,
    chosen: Mapping[str, Sequence[int]],
    data: "_Data",
    vectors: Mapping[str, vector_files.Features],
    directory: Path,
    *,
    strategy: tf.distribute.Strategy,
) -> dict[str, list[dict[str, Any]]]:
    """Scores of all taggers, by representation; those that are there are read."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for restart in range(settings.num_restarts):
        for name in chosen:
            path = directory / "taggers" / f"{name}-{restart}.json"
            if not path.is_file():
                logger.info("%s, restart %d", name, restart)
                tagger = _Tagger(settings, name, restart, chosen[name], data)
                logs = directory / run_directory.LOGS_NAME / path.stem
                files.make_directory(path.parent)
                files.write_json(path, tagger.run(vectors, logs, strategy))
            runs[name].append(files.read_json(path))
    return runs


def _look_at(model: str | Path) -> tuple[int, str]:
    """The number of layers of a checkpoint's encoder, and a digest of it."""
    checkpoint = starting_point.read_with_tokenizer(model)
    digest = starting_point.digest(
        checkpoint, starting_point.encoder_arrays(checkpoint)
    )
    return checkpoint.bert_config.num_hidden_layers, digest


def layers_of(
    representation: str, num_hidden_layers: int, *, path: str | Path
) -> tuple[int, ...]:
    """Layers whose vectors make a representation; 0 are the embeddings.

    Args:
        representation: a `feature_based_config.Representation`.
        num_hidden_layers: of the encoder.
        path: of its checkpoint, for errors.

    Raises:
        InputError: the encoder has too few layers.
    """
    if representation == "embeddings":
        return (0,)
    last = num_hidden_layers
    found = {
        "second_to_last": range(last - 1, last),
        "last": range(last, last + 1),
        "weighted_sum_last_four": range(last - 3, last + 1),
        "concat_last_four": range(last - 3, last + 1),
        "weighted_sum_all": range(1, last + 1),
    }[representation]
    if found.start < 1:
        raise InputError(
            f"{path}: the encoder has {num_hidden_layers} layers, too few for "
            f"{representation}: leave it out of `representations`"
        )
    return tuple(found)


def table(results: Mapping[str, Any]) -> str:
    """Markdown table of the F1 scores in `run_probes`' results, in percent.

    Plain tags have no F1: it is of their accuracy.
    """
    scores = [s for one in results["representations"].values() for s in one["taggers"]]
    metric = "f1" if "f1" in scores[0] else "accuracy"
    rows = [
        f"| representation | {'F1' if metric == 'f1' else metric}, mean | deviation | "
        "best | taggers | paper, BASE |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in results["representations"].items():
        percent = [100 * scores[metric] for scores in found["taggers"]]
        numbers = (
            f"{np.mean(percent):.2f}",
            f"{np.std(percent, ddof=1):.2f}" if len(percent) > 1 else "",
            f"{max(percent):.2f}",
            str(len(percent)),
            f"{PAPER_DEV_F1[name]:.1f}" if metric == "f1" else "",
        )
        rows.append(f"| {name.replace('_', ' ')} | {' | '.join(numbers)} |")
    return "\n".join(rows) + "\n"


class _Data:
    """Sentences, lengths and labels of both files."""

    def __init__(self, train: str | Path, dev: str | Path):
        train_sentences, self.dev_sentences = ner.read(train), ner.read(dev)
        self.labels = ner.distinct_labels(train_sentences, path=train)
        self.lengths, self.label_ids = {}, {}
        for name, sentences, path in (
            ("train", train_sentences, train),
            ("dev", self.dev_sentences, dev),
        ):
            self.lengths[name] = np.array([len(s.words) for s in sentences])
            self.label_ids[name] = ner.label_ids(sentences, self.labels, path=path)

    def ladder(self, lengths: Sequence[int] | None) -> tuple[int, ...]:
        """Words that a batch may have if it has one of some numbers, or as many as the
        longest sentence; empty: as many as it needs."""
        longest = max(int(found.max()) for found in self.lengths.values())
        shorter = (number for number in lengths or () if number < longest)
        return (*shorter, longest) if lengths else ()


def _vectors(
    settings: configuration.ProbeConfig,
    model: str | Path,
    path: str | Path,
    directory: Path,
    wanted: Sequence[int],
) -> vector_files.Features:
    """Vectors of a file's words, made unless they are there."""
    # On a store those of an interrupted run may be there in part.
    if files.is_new(directory):
        layer_vectors.write(
            model,
            path,
            directory,
            settings=configuration.FeaturesConfig(
                max_seq_length=settings.max_seq_length,
                document_context=settings.document_context,
            ),
            layers=wanted,
            pooling="first",
            form="tagging",
        )
    return vector_files.read(directory)


@dataclass(frozen=True, kw_only=True)
class WordVectors:
    """Inputs of a tagger: the vectors of a file's words, a sentence each."""

    layers: Sequence[np.ndarray]
    """`(num_words, hidden_size)` float32 each."""
    lengths: np.ndarray
    """`(num_sentences,)` int64: words of each."""
    label_ids: np.ndarray
    """`(num_words,)` int32."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some sentences, padded to the longest of them.

        Returns:
            `vectors`, `(len(rows), longest, num_layers, hidden_size)` float32;
            `input_mask` and `label_ids`, -1 for padding, `(len(rows), longest)` int32.
        """
        words, mask = self._words(rows)
        words = words[mask]
        size = self.layers[0].shape[1]
        vectors = np.zeros((*mask.shape, len(self.layers), size), np.float32)
        vectors[mask] = np.stack([layer[words] for layer in self.layers], axis=1)
        label_ids = np.full(mask.shape, -1, np.int32)
        label_ids[mask] = self.label_ids[words]
        return {
            "vectors": vectors,
            "input_mask": mask.astype(np.int32),
            "label_ids": label_ids,
        }

    @property
    def num_answers(self) -> int:
        """Words of all sentences: each has outputs."""
        return len(self.label_ids)

    def places(self, rows: np.ndarray) -> dataset.Places:
        """Places of the outputs for a batch of sentences, among all words."""
        words, mask = self._words(rows)
        return dataset.Places(words[mask], np.nonzero(mask))

    def _words(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        return tokenized.padded_ranges(starts, self.lengths[rows])


class _Tagger:
    """One tagger, from its first weights to its scores."""

    def __init__(
        self,
        settings: configuration.ProbeConfig,
        representation: str,
        restart: int,
        chosen: Sequence[int],
        data: _Data,
    ):
        self._settings, self._data, self._layers = settings, data, chosen
        self._ladder = data.ladder(settings.lengths)
        self._is_weighted = representation.startswith("weighted_sum")
        # The same for all representations, so that they can be compared.
        self._seed = layers.derive_seed(settings.seed, f"restart_{restart}")

    def run(
        self,
        features: Mapping[str, vector_files.Features],
        logs: Path,
        strategy: tf.distribute.Strategy,
    ) -> dict[str, Any]:
        """Trains and scores: gives `ner.scores`, the number of steps, and seconds."""
        train, dev = (self._inputs(features[name], name) for name in ("train", "dev"))
        start = time.monotonic()
        tagger = loop.build_learner(
            self._settings,
            lambda: self._network(train.layers[0].shape[1]),
            train,
            strategy=strategy,
        )
        # Shuffled, as in the fine-tuning of taggers.
        stretch = loop.build_stretch(
            *(tagger, self._settings, train),
            by_length=False,
            seed=self._seed,
            batch_shapes=batches.BatchShapes(ladder=self._ladder),
        )
        loop.train(tagger, self._settings, stretch, logs=logs)
        network = tagger.network
        logits = word_logits(network, dev, strategy=strategy, ladder=self._ladder)
        scores = ner.scores(logits, self._data.labels, self._data.dev_sentences)
        logger.info("%s", progress_line.metrics_text(scores))
        results = {
            **scores,
            "steps": replicas.optimizer_step(tagger),
            "seconds": round(time.monotonic() - start, 1),
        }
        if network.mix is not None:
            results["layer_weights"] = network.mix.layer_weights.numpy().tolist()
        return results

    def _inputs(self, features: vector_files.Features, name: str) -> WordVectors:
        return WordVectors(
            layers=[features.layers[layer] for layer in self._layers],
            lengths=self._data.lengths[name],
            label_ids=self._data.label_ids[name],
        )

    def _network(self, hidden_size: int) -> bilstm_tagger.LayerProbe:
        network = bilstm_tagger.LayerProbe(
            len(self._layers),
            hidden_size,
            len(self._data.labels),
            is_weighted=self._is_weighted,
            num_bilstm_layers=self._settings.num_bilstm_layers,
            bilstm_units=self._settings.bilstm_units,
            dropout_prob=self._settings.dropout_prob,
            seed=self._seed,
            dtype=self._settings.precision,
        )
        network.build()
        return network


def word_logits(
    network: bilstm_tagger.LayerProbe,
    words: WordVectors,
    *,
    strategy: tf.distribute.Strategy | None = None,
    ladder: Sequence[int] = (),
) -> np.ndarray:
    """`(num_words, num_labels)` float32, in the order of the words.

    Args:
        network: built.
        words: to score.
        strategy: which made its variables; `None`: none did.
        ladder: see `forward.BatchPredictor`.
    """
    compute = forward.BatchPredictor(
        lambda features: network(features, training=False)["logits"],
        feature_names=("vectors", "input_mask"),
        tokens_per_batch=_WORDS_PER_BATCH,
        strategy=strategy,
        ladder=ladder,
    )
    return compute(words, title=None)
