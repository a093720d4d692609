"""One run of training, from its directory to its results, for all kinds of runs.

`run` has the steps in order. A `Job` has what pre-training or fine-tuning starts from
and the table of events; its engine makes steps and knows neither.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Protocol

import keras
import tensorflow as tf

from bert_keras import __version__
from bert_keras.checkpoints import run_directory, run_weights, training_state
from bert_keras.core import files, ownership, provenance, stores
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import strict
from bert_keras.training.step import replicas, self_check, stopping, watcher
from bert_keras.training.step.learner import Learner
from bert_keras.training.tensorboard import curves, event_files, progress_line

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Makes steps and evaluations, whatever the task, the devices and the framework."""

    errors: tuple[type[Exception], ...]
    """Errors of steps and evaluations that failed to read their batches, among others;
    a step without its batch does not count."""
    is_alone: bool
    """Whether no other process trains with this one."""

    @property
    def step(self) -> int:
        """Returns the steps made so far."""

    def state(self) -> Mapping[str, keras.Variable]:
        """Returns all that a step depends on, by name; a restore assigns to it."""

    def make_steps(
        self,
        stream: Any,
        schedule: Any,
        *,
        before: Callable[[int], None],
        after: Callable[[int, dict[str, float]], bool],
    ) -> None:
        """Makes steps to the schedule's last, or until `after` returns true.

        `before` and `after` surround each execution of some steps.
        """

    def evaluate(
        self, evaluation: Any, *, after_test_batch: Callable[[bool], None]
    ) -> dict[str, float]:
        """Returns metrics; tells after each batch whether a worker asked for a stop."""

    @property
    def request(self) -> Callable[..., None]:
        """Raises a request, `request(name, value=1.0)`, which all workers see in the
        scalars of their next step."""

    def differing(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the names of values that differ between workers."""

    def checksums(self, state: Mapping[str, keras.Variable]) -> Mapping[str, list[int]]:
        """Returns sums of the bits of each variable in this process."""

    def wait_for_all(self) -> None:
        """Waits until all workers have come here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    name: str
    what: Callable[["Loop"], None]
    every_steps: int | None = None
    """Due at the multiples; `None`: at none."""
    at_step: int | None = None
    """Due at this step as well."""
    every_minutes: float | None = None
    """Due when this time has passed since the last time; `None`: never."""
    at_end: bool = True
    """Whether it is due at the last step of a stretch; else it never comes there."""
    is_long: bool = True
    """Whether a signal interrupts it; a resumed run then repeats it."""

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether it comes at this step in every run, resumed or not."""
        if step >= last_step:
            return self.at_end
        if step == self.at_step:
            return True
        return self.every_steps is not None and step % self.every_steps == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps on the same data: a phase of pre-training, or a whole fine-tuning."""

    last_step: int
    enter: Callable[["Loop"], None] = lambda loop: None
    watch: Callable[["Loop"], Sequence[watcher.Watcher]]
    stream_from: Callable[[int], Any]
    """Opens the batches of the steps after a step; they have a `close`."""
    schedule_to: Callable[[int], Any]


class Job:
    """The parts of a run that its kind of training defines.

    `paths` are the inputs as they were given, by name, for the results.
    """

    run: run_directory.Run
    """Made by `prepare`; `build` makes all that follows."""
    engine: Engine
    network: keras.Model
    """The network whose weights are written at the end."""
    state: Mapping[str, keras.Variable]
    checkpoints: training_state.CheckpointDirectory
    events: Sequence[Event]
    stretches: Sequence[Stretch]
    data: Sequence[str | Path] = ()
    """Directories that batches are read from during the training."""

    def __init__(
        self,
        output_dir: str | Path,
        *,
        strategy: tf.distribute.Strategy,
        is_chief: bool,
        paths: Mapping[str, Any],
    ):
        self.output_dir, self.strategy = output_dir, strategy
        self.is_chief, self.paths = is_chief, paths

    @contextlib.contextmanager
    def errors_for_people(self) -> Iterator[None]:
        """Turns errors of devices, data and workers into errors for people."""
        try:
            yield
        except tf.errors.OpError as error:
            if message := stopping.lost_worker_message(error):
                raise InputError(message) from None
            raise

    def prepare(self) -> None:
        """Reads all inputs and makes or checks the directory, alike in all workers."""
        raise NotImplementedError

    def build(self, owner: ownership.Owner | None, writer: futures.Executor) -> None:
        """Makes what is trained, with its first weights."""
        raise NotImplementedError

    def unfinished(self, loop: "Loop") -> list[str]:
        """Returns names of events that were due at a restored step and did not end."""
        raise NotImplementedError

    def begin(self) -> None:
        """Called before the first step of a run, and not when it is resumed."""

    def before_save(self, loop: "Loop") -> None:
        """Called before each checkpoint."""

    def results(self, loop: "Loop") -> dict[str, Any]:
        """Writes the final weights, and returns the content of `results.json`."""
        raise NotImplementedError

    def finish(
        self, results: Mapping[str, Any], stop_signal: stopping.StopSignal
    ) -> None:
        """Ends the run on the chief, once weights and results are written."""

    def _create_run(
        self,
        settings: strict.StrictModel,
        *,
        compared: Mapping[str, Any],
        inputs: Mapping[str, Any],
        changeable: Collection[str],
        **contents: Any,
    ) -> None:
        """Makes or checks the directory; all workers need the same `compared`."""
        directory = files.path(self.output_dir)
        self.run = run_directory.Run(directory=directory, **contents)
        if self.is_chief:
            run_directory.create_run(
                self.run, settings, inputs=inputs, changeable=changeable
            )
        # Everything that decides the outcome, and the devices' own choices.
        values = run_directory.flat(settings.model_dump(mode="json"))
        replicas.check_same(
            self.strategy, {**values, **compared, "version of bert-keras": __version__}
        )
        replicas.wait_for_all(self.strategy)

    def _open_checkpoints(
        self, owner: ownership.Owner | None, **options: Any
    ) -> training_state.CheckpointDirectory:
        return training_state.CheckpointDirectory(
            self.run.directory / run_directory.CHECKPOINTS_NAME,
            is_chief=self.is_chief,
            owner=owner,
            before_writing=event_files.send_all,
            **options,
        )


def run(job: Job) -> dict[str, Any]:
    """Makes or resumes a run, leaves a finished one, and returns its results.

    Raises `Stopped` after a signal, when a checkpoint of the step reached is written.
    """
    output_dir = job.output_dir
    with contextlib.ExitStack() as stack:
        # 1. Claim the directory: one process writes into it.
        owner = None
        if job.is_chief:
            owner = stack.enter_context(ownership.owned(output_dir))
        writer = stack.enter_context(
            futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint_writer")
        )
        stop_signal = stack.enter_context(stopping.StopSignal())
        # Other workers would wait for one that leaves alone.
        stop_signal.ends_at_once = not replicas.is_multi_worker(job.strategy)
        stack.enter_context(job.errors_for_people())
        job.prepare()
        if (results := run_directory.read_results(output_dir)) is not None:
            message = "%s: finished already, at step %d"
            logger.info(message, output_dir, results["steps"])
            return results
        if self_check.is_due(job.strategy):
            self_check.check(job.strategy)
        # 2. Resume from the newest whole checkpoint, else begin with the first weights.
        job.build(owner, writer)
        loop = Loop(job, stop_signal)
        loop.resume()
        # 3. Train to the next event. 4. Save, evaluate, draw, stop: what is due.
        loop.train()
        # 5. Finish: weights, and results last of all.
        results = job.results(loop)
        # Seconds from its end, a run ends well.
        stop_signal.ends_at_once = False
        devices = replicas.describe_devices(job.strategy)
        results["environment"] = provenance.describe(devices=devices, paths=job.paths)
        if job.is_chief:
            run_weights.finish_run(job.run, job.network, results)
            job.finish(results, stop_signal)
        # To the others a worker that leaves early looks as if it had been killed.
        job.engine.wait_for_all()
    names = run_directory.WEIGHTS_NAME, run_directory.RESULTS_NAME
    logger.info("wrote %s and %s in %s", *names, job.run.directory)
    return results


class Loop:
    """A training under way.

    Several workers all do the same at the same step: a worker's request travels with
    the sums of the next step. Only the chief's clock counts.
    """

    def __init__(self, job: Job, stop_signal: stopping.StopSignal):
        self.engine, self.state = job.engine, job.state
        self.checkpoints = job.checkpoints
        self.is_chief = job.is_chief
        self.unfinished: list[str] = []
        self.train_logs: dict[str, float] = {}
        self.is_over = False
        self._job = job
        self._events = {event.name: event for event in job.events}
        # Timers go on from one stretch to the next.
        self._timers = {
            event.name: stopping.Timer(event.every_minutes) for event in job.events
        }
        self._signal = stop_signal
        self._requests: set[str] = set()
        self._stretch: Stretch | None = None
        self._watchers: Sequence[watcher.Watcher] = ()
        self._stream: Any = None

    @property
    def step(self) -> int:
        return self.engine.step

    @property
    def last_step(self) -> int:
        return self._job.stretches[-1].last_step

    def resume(self) -> None:
        step = self.checkpoints.restore_latest(self.state)
        self.unfinished = self._job.unfinished(self)
        values = [step, self.is_over, *self.unfinished]
        if self.engine.differing({"checkpoint": values}):
            raise InputError(
                f"{self._job.output_dir}: the workers found different "
                f"checkpoints, this one that of step {step}: give all of them one "
                "directory that they share"
            )
        if step == 0:
            self._job.begin()
        # Until the next step nothing is lost.
        self._signal.ends_at_once = self.engine.is_alone

    def train(self) -> None:
        """Makes the remaining steps and their events.

        If a store fails, it waits for the data: seed and step determine a batch.
        """
        backoff = None
        with self._checkpoints_are_written():
            while (stretch := self._current_stretch()) is not None:
                step = self.step
                try:
                    if not self.unfinished:
                        self.engine.make_steps(
                            self._batches(stretch),
                            stretch.schedule_to(self._next_event(stretch)),
                            before=self._before_steps,
                            after=self._after_steps,
                        )
                        self.unfinished = self._due(stretch)
                    self._do_what_is_due()
                    backoff = None
                except self.engine.errors as error:
                    # Patience is for one outage: not if steps were made since.
                    backoff = backoff if self.step == step else None
                    backoff = self._wait_for_data(error, backoff)

    def save(self, *, score: float | None = None, is_interim: bool = False) -> None:
        self._job.before_save(self)
        step = self.step
        self.checkpoints.save(step, self.state, score=score, is_interim=is_interim)
        # Until the next step nothing is lost.
        self._signal.ends_at_once = self.engine.is_alone

    def save_as_due(self) -> None:
        """Saves; the next checkpoint replaces one that only the clock asked for."""
        last_step = self._stretch.last_step if self._stretch else self.last_step
        is_due = self._events["save"].is_due(self.step, last_step)
        self.save(is_interim=not is_due)

    def ask(self, name: str) -> None:
        """Has an event done at this step that comes later in the table."""
        if name not in self.unfinished and self.step < self.last_step:
            self.unfinished.append(name)

    def evaluate(self, evaluation: Any) -> dict[str, float]:
        after_test_batch = self._stop_within_evaluation
        metrics = self.engine.evaluate(evaluation, after_test_batch=after_test_batch)
        self.show(metrics)
        return metrics

    def show(self, metrics: Mapping[str, float]) -> None:
        for each in self._watchers:
            each.evaluated(self.step, metrics)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Lets a signal end the run at once inside the block, and saves the state.

        Several workers go on to agree within their evaluation or in their next step.
        """
        if not self.engine.is_alone:
            yield
            return
        try:
            with self._signal.ending_at_once():
                yield
        except Stopped:
            if self.step == self.checkpoints.step:
                raise
            self._save_and_stop()

    @contextlib.contextmanager
    def _checkpoints_are_written(self) -> Iterator[None]:
        try:
            yield
        except Stopped:
            # The message says "resume" only when the checkpoint is written.
            self.checkpoints.wait()
            raise
        finally:
            self._close_batches()
        self.checkpoints.wait()

    def _current_stretch(self) -> Stretch | None:
        """Leaves a finished stretch, and enters the next; `None`: none is left.

        A step that ends a stretch belongs to it until nothing is due any more.
        """
        step = self.step + (not self.unfinished)
        left = (s for s in self._job.stretches if step <= s.last_step)
        stretch = None if self.is_over else next(left, None)
        if stretch is not self._stretch:
            self._close_batches()
            for each in self._watchers:
                each.close()
            self._stretch = stretch
            if stretch is not None:
                stretch.enter(self)
                self._watchers = stretch.watch(self)
        return stretch

    def _batches(self, stretch: Stretch) -> Any:
        """Opens the batches, unless they go on, and the measurement of time."""
        for each in self._watchers:
            each.go_on()
        if self._stream is None:
            self._stream = stretch.stream_from(self.step)
        return self._stream

    def _close_batches(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _next_event(self, stretch: Stretch) -> int:
        intervals = [e.every_steps for e in self._job.events if e.every_steps]
        steps = [(self.step // interval + 1) * interval for interval in intervals]
        steps += [e.at_step for e in self._job.events if (e.at_step or 0) > self.step]
        return min(stretch.last_step, *steps)

    def _before_steps(self, step: int) -> None:
        for each in self._watchers:
            each.before_steps(step)

    def _after_steps(self, step: int, logs: dict[str, float]) -> bool:
        """Notes the steps that were made; returns whether an event is requested."""
        self._signal.ends_at_once = False
        self.checkpoints.check()
        requested = {
            name.removesuffix("_requested")
            for name in logs
            if name.endswith("_requested") and logs[name] > 0
        }
        logs = {k: v for k, v in logs.items() if not k.endswith("_requested")}
        self.train_logs = logs
        for each in self._watchers:
            each.after_steps(step, logs)
        requests = {"stop"} if self._signal.received else set()
        if self.is_chief:
            requests |= {name for name, timer in self._timers.items() if timer.is_due}
        if not self.engine.is_alone:
            for name in requests:
                self.engine.request(f"{name}_requested")
            requests = requested
        self._requests = requests
        return bool(requests)

    def _due(self, stretch: Stretch) -> list[str]:
        return [
            name
            for name, event in self._events.items()
            if name in self._requests or event.is_due(self.step, stretch.last_step)
        ]

    def _do_what_is_due(self) -> None:
        while self.unfinished and not self.is_over:
            event = self._events[self.unfinished[0]]
            if event.is_long:
                self._stop_if_requested()
                with self.interruptible():
                    event.what(self)
            else:
                event.what(self)
            self._timers[event.name].restart()
            if not self.engine.is_alone and event.every_minutes is not None:
                self.engine.request(f"{event.name}_requested", 0.0)
            self.unfinished.remove(event.name)
        # Seconds from its end, a run ends well.
        if self.step < self.last_step and not self.is_over:
            self._stop_if_requested()

    def _stop_if_requested(self) -> None:
        is_requested = "stop" in self._requests
        if is_requested or (self.engine.is_alone and self._signal.received):
            self._save_and_stop()

    def _stop_within_evaluation(self, stop_is_requested: bool) -> None:
        """Leaves an evaluation of several workers between two of its batches."""
        if not self.engine.is_alone:
            if self._signal.received:
                self.engine.request("stop_requested")
            if stop_is_requested:
                self._save_and_stop()

    def _save_and_stop(self) -> None:
        if self.step != self.checkpoints.step:
            self.save(is_interim=True)
        raise self._signal.stopped(self.step)

    def _wait_for_data(
        self, error: Exception, backoff: stores.Backoff | None
    ) -> stores.Backoff:
        """Waits after an error of reading examples; raises any other error again."""
        self._close_batches()
        places = [str(path) for path in self._job.data if files.is_remote(path)]
        schemes = {place.partition("://")[0] for place in places}
        is_of_store = any(f"{scheme}://" in str(error) for scheme in schemes)
        # The others would wait in a sum, and take this worker for lost.
        if not (self.engine.is_alone and is_of_store and stores.is_transient(error)):
            raise error
        # The wait may be long, or end the run.
        event_files.send_all()
        backoff = backoff or stores.Backoff(places[0])
        try:
            with self._signal.ending_at_once():
                backoff.wait(error)
        except Stopped:
            # A store that does not answer would keep the process from ending.
            if not files.is_remote(self._job.output_dir):
                self._save_and_stop()
            raise
        return backoff


def open_watchers(
    loop: Loop,
    *,
    learner: Learner,
    logs: Path,
    limit: stopping.SkipLimit,
    num_train_steps: int,
    batch_size: int,
    tokens_per_example: int | None = None,
    **speeds: Any,
) -> list[watcher.Watcher]:
    """Opens curves and lines of progress, on the chief, beside a limit; see them."""
    if not loop.is_chief:
        return [limit]
    return [
        curves.Curves(
            logs,
            loop.step,
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
            repeats_evaluation="evaluate" in loop.unfinished,
            **speeds,
        ),
        progress_line.ProgressLine(
            num_train_steps=num_train_steps,
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
            start_line=learner.describe(batch_size),
        ),
        limit,
    ]


def compare_workers(loop: Loop) -> None:
    """Ends workers whose states differ, before a state is saved.

    All make the same updates from the same sums: a difference is a fault of a device.
    """
    if loop.engine.is_alone:
        return
    if names := loop.engine.differing(loop.engine.checksums(loop.engine.state())):
        raise InputError(
            f"step {loop.step}: the workers' states differ in {len(names)} variables, "
            f"the first is {names[0]}: a device or its memory is faulty; start all "
            "workers again with the same command to go on from the last checkpoint"
        )
