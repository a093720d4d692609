"""One run of training, from its directory to its results, for all kinds of runs.

`run` has the steps in order. A `Job` has what pre-training or fine-tuning starts from
and the table of events; an `Engine` makes steps, with whatever framework, and knows
neither. This file imports no TensorFlow and no Keras: an engine of plain numbers runs
its tests.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NoReturn, Protocol

from bert_keras import __version__
from bert_keras.checkpoints import run_directory, training_state
from bert_keras.core import files, ownership, provenance, stores
from bert_keras.core.errors import InputError, Stopped, Unavailable
from bert_keras.core.settings import strict
from bert_keras.training.step import stopping

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Makes steps and evaluations, whatever the task, the devices and the framework.

    What is about devices and workers can be asked at once; what is about steps, when
    the job has built what is trained.
    """

    errors: tuple[type[Exception], ...]
    """Errors of steps and evaluations that failed to read their batches, among others;
    a step without its batch does not count."""

    @property
    def is_alone(self) -> bool:
        """Whether no other process trains with this one."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files: the first one, or the only one."""

    def describe(self) -> str:
        """Returns the devices, for people and `results.json`."""

    def self_check(self) -> None:
        """Raises an `InputError` if the devices do not add up right."""

    def differing(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the names of values that differ between workers.

        All workers call it at the same point, with the same names.
        """

    def wait_for_all(self) -> None:
        """Waits until all workers have come here."""

    def in_words(self, error: Exception) -> str | None:
        """Returns a line for people on one of its own errors; `None`: it has none."""

    @property
    def step(self) -> int:
        """Returns the steps made so far."""

    def state(self) -> Mapping[str, training_state.AssignableVariable]:
        """Returns all that a step depends on, by name; a restore assigns to it."""

    def checksums(self) -> Mapping[str, Any]:
        """Returns sums of the bits of each variable of the state in this process."""

    def make_steps(
        self,
        stream: Any,
        last_step: int,
        *,
        before: Callable[[int], None],
        after: Callable[[int, dict[str, float]], bool],
    ) -> None:
        """Makes steps to `last_step`, or until `after` returns true.

        `before` and `after` surround each execution of some steps.
        """

    def evaluate(
        self, evaluation: Any, *, after_test_batch: Callable[[bool], None]
    ) -> dict[str, float]:
        """Returns metrics; tells after each batch whether a worker asked for a stop."""

    def request(self, name: str, value: float = 1.0) -> None:
        """Raises a request, which all workers see in the scalars of their next step."""

    def finish(self, run: run_directory.Run, results: Mapping[str, Any]) -> None:
        """Writes the weights of a run and then its results, which end it."""


class Watcher:
    """Follows a run from one event to the next; each method may do nothing.

    Steps are the optimizer's, counted from 1.
    """

    def resume(self) -> None:
        """Notes that steps follow, after time that was spent on something else."""

    def before_steps(self, step: int) -> None:
        """Prepares for the execution of steps that follows `step`."""

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        """Takes the scalars of the last step of an execution."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation."""

    def send(self) -> None:
        """Sends to a store what is written so far; called from another thread, too."""

    def close(self) -> None:
        """Writes what is left; not called where a run is interrupted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    name: str
    what: Callable[["Loop"], None]
    every_steps: Sequence[int] = ()
    """Due at the multiples of each."""
    at_step: int | None = None
    """Due at this step as well."""
    every_minutes: float | None = None
    """Due when this time has passed since the last time; `None`: never."""
    at_end: bool = True
    """Whether it is due at the last step of a stretch; else it never comes there."""
    is_done: Callable[["Loop"], bool] | None = None
    """Whether an earlier process ended it at the restored step: if not, the resumed run
    begins with it. `None`: it leaves nothing behind that could be missing. An event
    that has it may take long, and a signal interrupts it."""

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether it comes at this step in every run, resumed or not."""
        if step >= last_step:
            return self.at_end
        return step == self.at_step or any(step % n == 0 for n in self.every_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps on the same data: a phase of pre-training, or a whole fine-tuning."""

    last_step: int
    enter: Callable[["Loop"], Sequence[Watcher]]
    """Called before its first step in a process; returns what watches its steps."""
    stream_from: Callable[[int], Any]
    """Opens the batches of the steps after a step; they have a `close`."""


class Job:
    """The parts of a run that its kind of training defines.

    `paths` are the inputs as they were given, by name, for the results.
    """

    run: run_directory.Run
    """Made by `prepare`; `build` makes all that follows."""
    state: Mapping[str, training_state.AssignableVariable]
    checkpoints_to_keep: Mapping[str, Any]
    """`keep`, `keep_best` and `always` of `training_state.CheckpointDirectory`."""
    events: Sequence[Event]
    """In the order in which they come at one step."""
    stretches: Sequence[Stretch]
    data: Sequence[str | Path] = ()
    """Directories that batches are read from during the training."""

    def __init__(
        self, output_dir: str | Path, *, engine: Engine, paths: Mapping[str, Any]
    ):
        self.output_dir, self.engine, self.paths = output_dir, engine, paths
        self.is_chief = engine.is_chief

    def in_words(self, error: Exception) -> Exception | None:
        """Returns what people are told of an error; `None`: the error itself."""
        message = self.engine.in_words(error)
        return InputError(message) if message else None

    def prepare(self) -> None:
        """Reads all inputs and makes or checks the directory, alike in all workers."""
        raise NotImplementedError

    def build(self) -> None:
        """Makes what is trained, with its first weights."""
        raise NotImplementedError

    def begin(self, loop: "Loop") -> None:
        """Called before the first step of a process, new or resumed."""

    def is_over(self, loop: "Loop") -> bool:
        """Whether the training ends before its last step."""
        return False

    def before_save(self) -> None:
        """Called before each checkpoint."""

    def results(self, loop: "Loop") -> dict[str, Any]:
        """Takes the final weights, and returns the content of `results.json`."""
        raise NotImplementedError

    def finish(
        self, results: Mapping[str, Any], stop_signal: stopping.StopSignal
    ) -> None:
        """Ends the run on the chief, once weights and results are written."""

    def delete_leftovers(self) -> None:
        """Deletes what a finished run does not keep; asked again if the process was
        killed meanwhile."""

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
                self.run,
                settings,
                inputs=inputs,
                changeable=changeable,
                in_words=self._difference_in_words,
            )
            # What a killed process was writing; a store has no such files.
            patterns = () if files.is_remote(directory) else (".*.tmp", ".partial.*")
            for pattern in patterns:
                for path in Path(directory).rglob(pattern):
                    # The heartbeat of this process writes its file at any time.
                    if not path.name.startswith(f".{ownership.OWNER_NAME}"):
                        path.unlink()
        # Everything that decides the outcome, and the devices' own choices.
        values = run_directory.flat(settings.model_dump(mode="json"))
        values |= {**compared, "version of bert-keras": __version__}
        if names := self.engine.differing(values):
            here = "; ".join(
                f"{name} is {values[name]!r} on this one" for name in names[:3]
            )
            raise InputError(
                f"the workers differ in {len(names)} things: {here}: start all of them "
                "with the same command and files, on devices of one kind"
            )
        self.engine.wait_for_all()

    def _difference_in_words(self, key: str) -> str | None:
        """Returns what to do if a resumed run has another value of a key."""
        if key.endswith("_sha256"):
            option = key.removesuffix("_sha256")
            return (
                f"begun by another run, with other contents of --{option}: give the "
                "same as before, or choose another directory"
            )
        is_finished = run_directory.read_results(self.output_dir) is not None
        if is_finished and key in ("num_train_steps", "num_train_epochs"):
            return (
                f"finished already, with another `{key}`: to train its model further, "
                f"give `--init {self.output_dir}` and a new --output_dir"
            )
        return None


def run(job: Job) -> dict[str, Any]:
    """Makes or resumes a run, leaves a finished one, and returns its results.

    Raises `Stopped` after a signal, when a checkpoint of the step reached is written.
    """
    with contextlib.ExitStack() as stack:
        # One process writes into a directory, and one thread of it checkpoints.
        owner = None
        if job.is_chief:
            owner = stack.enter_context(ownership.owned(job.output_dir))
        writer = stack.enter_context(
            futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint_writer")
        )
        loop = Loop(job, owner, writer)
        stack.enter_context(_errors_in_words(job))
        stack.enter_context(loop.signal)
        job.prepare()
        if (results := run_directory.read_results(job.output_dir)) is not None:
            message = "%s: finished already, at step %d"
            logger.info(message, job.output_dir, results["steps"])
            if job.is_chief:
                job.delete_leftovers()
            return results
        job.engine.self_check()
        # 1. Resume from the newest whole checkpoint, else begin with the first weights.
        job.build()
        loop.resume()
        # 2. Train to the next event; save, evaluate, draw, stop: what is due.
        loop.train()
        # 3. Finish: weights, and results last of all.
        results = job.results(loop)
        # Seconds from its end, a run ends well.
        loop.is_ending = True
        results["environment"] = provenance.describe(
            devices=job.engine.describe(), paths=job.paths
        )
        if job.is_chief:
            job.engine.finish(job.run, results)
            job.finish(results, loop.signal)
        # To the others a worker that leaves early looks as if it had been killed.
        job.engine.wait_for_all()
        names = run_directory.WEIGHTS_NAME, run_directory.RESULTS_NAME
        logger.info("wrote %s and %s in %s", *names, job.run.directory)
        return results


@contextlib.contextmanager
def _errors_in_words(job: Job) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (described := job.in_words(error)) is None:
            raise
        raise described from error


class Loop:
    """A training under way.

    Several workers all do the same at the same step: a worker's request travels with
    the sums of the next step. Only the chief's clock counts.
    """

    checkpoints: training_state.CheckpointDirectory

    def __init__(
        self, job: Job, owner: ownership.Owner | None, writer: futures.Executor
    ):
        self.engine, self.is_chief = job.engine, job.is_chief
        self.due: list[str] = []
        """Names of the events that come before the next step, in their order."""
        self.signal = stopping.StopSignal(self._may_end_at_once)
        self._job, self._owner, self._writer = job, owner, writer
        self._has_unsaved_steps = False
        self.is_ending = False
        """Whether a signal comes too late to stop the run."""
        self._requests: set[str] = set()
        self._stretch: Stretch | None = None
        self._watchers: Sequence[Watcher] = ()
        self._stream: Any = None

    @property
    def step(self) -> int:
        return self.engine.step

    def resume(self) -> None:
        """Restores the newest whole checkpoint, and finds what is due at its step."""
        job = self._job
        self._events = {event.name: event for event in job.events}
        # The clocks go on from one stretch to the next.
        self._last_times = dict.fromkeys(self._events, time.monotonic())
        self.checkpoints = training_state.CheckpointDirectory(
            job.run.directory / run_directory.CHECKPOINTS_NAME,
            is_chief=self.is_chief,
            owner=self._owner,
            writer=self._writer,
            # A checkpoint on a store must not come before its curves.
            before_writing=self._send_curves,
            **job.checkpoints_to_keep,
        )
        step = self.checkpoints.restore_latest(job.state)
        job.begin(self)
        if step:
            last_step = next(s.last_step for s in job.stretches if step <= s.last_step)
            self.due = [
                event.name
                for event in job.events
                if event.is_done is not None
                and event.is_due(step, last_step)
                and not event.is_done(self)
            ]
        values = [step, not self.due and job.is_over(self), *self.due]
        if self.engine.differing({"checkpoint": values}):
            raise InputError(
                f"{job.output_dir}: the workers found different checkpoints, this one "
                f"that of step {step}: give all of them one directory that they share"
            )

    def train(self) -> None:
        """Makes the remaining steps and their events.

        If a store fails, it waits for the data: seed and step determine a batch.
        """
        backoff = None
        try:
            while (stretch := self._current_stretch()) is not None:
                step = self.step
                try:
                    if not self.due:
                        self._make_steps(stretch)
                        self.due = [
                            name
                            for name, event in self._events.items()
                            if name in self._requests
                            or event.is_due(self.step, stretch.last_step)
                        ]
                    self._do_what_is_due()
                    backoff = None
                except self.engine.errors as error:
                    # Patience is for one outage: not if steps were made since.
                    backoff = backoff if self.step == step else None
                    backoff = self._wait_for_data(error, backoff)
        except Stopped as stopped:
            # The message says "resume" only when the checkpoint is written.
            try:
                self.checkpoints.wait()
            except Exception as error:
                kind = Unavailable if isinstance(error, Unavailable) else InputError
                reason = str(stopped).partition(";")[0]
                raise kind(
                    f"{reason}; its last checkpoint was not written, so the run "
                    f"resumes from the one before it: {error}"
                ) from error
            raise
        finally:
            self._close_batches()
        self.checkpoints.wait()

    def _current_stretch(self) -> Stretch | None:
        """Leaves a finished stretch, and enters the next; `None`: none is left.

        A step that ends a stretch belongs to it until nothing is due any more.
        """
        is_over = not self.due and self._job.is_over(self)
        step = self.step + (not self.due)
        left = (s for s in self._job.stretches if step <= s.last_step)
        stretch = None if is_over else next(left, None)
        if stretch is not self._stretch:
            self._close_batches()
            for each in self._watchers:
                each.close()
            self._stretch = stretch
            if stretch is not None:
                self._watchers = stretch.enter(self)
        return stretch

    def _make_steps(self, stretch: Stretch) -> None:
        """Makes steps to the next event, or until one is requested."""
        step = self.step
        stops = [stretch.last_step]
        for event in self._job.events:
            stops += [(step // n + 1) * n for n in event.every_steps]
            if event.at_step is not None and event.at_step > step:
                stops.append(event.at_step)
        for each in self._watchers:
            each.resume()
        # The batches go on from one event to the next.
        if self._stream is None:
            self._stream = stretch.stream_from(step)
        self.engine.make_steps(
            self._stream,
            min(stops),
            before=self._before_steps,
            after=self._after_steps,
        )

    def _before_steps(self, step: int) -> None:
        for each in self._watchers:
            each.before_steps(step)

    def _after_steps(self, step: int, logs: dict[str, float]) -> bool:
        """Notes the steps that were made; returns whether an event is requested."""
        self._has_unsaved_steps = True
        self.checkpoints.check()
        asked = {k: v for k, v in logs.items() if k.endswith("_requested")}
        logs = {k: v for k, v in logs.items() if k not in asked}
        for each in self._watchers:
            each.after_steps(step, logs)
        requests = {"stop"} if self.signal.received else set()
        if self.is_chief:
            now = time.monotonic()
            for name, event in self._events.items():
                minutes = event.every_minutes
                if minutes is not None and now - self._last_times[name] >= 60 * minutes:
                    requests.add(name)
        if not self.engine.is_alone:
            for name in requests:
                self.engine.request(f"{name}_requested")
            requests = {k.removesuffix("_requested") for k, v in asked.items() if v > 0}
        self._requests = requests
        return bool(requests)

    def _do_what_is_due(self) -> None:
        while self.due:
            event = self._events[self.due[0]]
            is_long = event.is_done is not None
            if is_long:
                self._stop_if_requested()
            try:
                with contextlib.ExitStack() as stack:
                    # A signal ends a long event at once. Several workers go on, to
                    # agree within their evaluation or in their next step.
                    if is_long and self.engine.is_alone:
                        stack.enter_context(self.signal.ending_at_once())
                    event.what(self)
            except Stopped:
                if not self._has_unsaved_steps:
                    raise
                self._save_and_stop()
            self._last_times[event.name] = time.monotonic()
            if not self.engine.is_alone and event.every_minutes is not None:
                self.engine.request(f"{event.name}_requested", 0.0)
            self.due.remove(event.name)
        # Seconds from its end, a run ends well.
        is_left = self.step < self._job.stretches[-1].last_step
        if is_left and not self._job.is_over(self):
            self._stop_if_requested()

    def save(self) -> None:
        """Saves the state; the next checkpoint replaces one not due by its step."""
        last_step = (self._stretch or self._job.stretches[-1]).last_step
        event = self._events["save"]
        is_due = event.name in self.due and event.is_due(self.step, last_step)
        self._job.before_save()
        self.checkpoints.save(self.step, self._job.state, is_interim=not is_due)
        self._has_unsaved_steps = False

    def evaluate(self, evaluation: Any) -> dict[str, float]:
        """Returns and logs metrics; several workers may leave it between batches."""

        def after_test_batch(stop_is_requested: bool) -> None:
            if not self.engine.is_alone:
                if self.signal.received:
                    self.engine.request("stop_requested")
                if stop_is_requested:
                    self._save_and_stop()

        metrics = self.engine.evaluate(evaluation, after_test_batch=after_test_batch)
        self.log_metrics(metrics)
        return metrics

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        for each in self._watchers:
            each.evaluated(self.step, metrics)

    def _may_end_at_once(self) -> bool:
        """Whether a signal may end the process wherever it is: nothing would be lost,
        and no other worker would wait for this one."""
        return self.engine.is_alone and not (self._has_unsaved_steps or self.is_ending)

    def _stop_if_requested(self) -> None:
        is_received = self.engine.is_alone and self.signal.received
        if is_received or "stop" in self._requests:
            self._save_and_stop()

    def _save_and_stop(self) -> NoReturn:
        if self._has_unsaved_steps:
            self.save()
        raise self.signal.stopped(self.step)

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
        self._send_curves()
        backoff = backoff or stores.Backoff(places[0])
        try:
            with self.signal.ending_at_once():
                backoff.wait(error)
        except Stopped:
            # A store that does not answer would keep the process from ending.
            if not files.is_remote(self._job.output_dir):
                self._save_and_stop()
            raise
        return backoff

    def _close_batches(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _send_curves(self) -> None:
        for each in self._watchers:
            each.send()


def compare_workers(loop: Loop) -> None:
    """Ends workers whose states differ, before a state is saved.

    All make the same updates from the same sums: a difference is a fault of a device.
    """
    if loop.engine.is_alone:
        return
    if names := loop.engine.differing(loop.engine.checksums()):
        raise InputError(
            f"step {loop.step}: the workers' states differ in {len(names)} variables, "
            f"the first is {names[0]}: a device or its memory is faulty; start all "
            "workers again with the same command to go on from the last checkpoint"
        )
