"""Warnings of a training under way, each once: see `report.diagnosis`."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_keras.report import diagnosis
from bert_keras.report.scalar_log import Curve
from bert_keras.training.step import watcher
from bert_keras.training.tensorboard import curves

logger = logging.getLogger(__name__)


class CurveWarnings(watcher.Watcher):
    """Checks a phase's curves, as far as this process drew them, at evaluations."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        sample: diagnosis.TextSample | None,
        first_step: int,
    ):
        self._settings, self._sample = settings, sample
        self._first_step = self._step = first_step
        self._train: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._held_out: list[tuple[int, float]] = []
        self._warned_of: set[str] = set()

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        if curves.is_logged(self._step, step, every_steps=10):
            for name in diagnosis.CURVES:
                if name in logs:
                    self._train[name].append((step, logs[name]))
        self._step = step

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        if "masked_lm_loss" not in metrics:
            return
        self._held_out.append((step, metrics["masked_lm_loss"]))
        findings = diagnosis.curve_findings(
            self._settings,
            {name: _curve(points) for name, points in self._train.items()},
            _curve(self._held_out),
            self._sample,
            first_step=self._first_step,
        )
        for cause, text in findings:
            if cause not in self._warned_of:
                logger.warning("may be wrong: %s: at step %d %s", cause, step, text)
            self._warned_of.add(cause)


def _curve(points: list[tuple[int, float]]) -> Curve:
    steps, values = zip(*points, strict=True)
    return Curve(np.array(steps), np.array(values, np.float64))
