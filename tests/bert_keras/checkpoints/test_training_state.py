import contextlib
import errno
import io
import json
import logging
import math
import os
import re
import threading
from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import training_state
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.checkpoints.training_state import Facts
from bert_keras.core import files
from bert_keras.core.errors import InputError
from tests.bert_keras.checkpoints.formats import making


def state(value=0.0):
    """Variables of the types that a training has, all told by one number."""
    return {
        "weights/kernel": keras.Variable(np.full((3, 2), value, np.float32)),
        "weights/bias": keras.Variable(np.full(2, value / 3, np.float32)),
        "non_trainable/skipped_steps": keras.Variable(np.int32(value), dtype="int32"),
        "optimizer/iteration": keras.Variable(np.int64(value), dtype="int64"),
    }


def save_state(path, variables, *, step=0):
    training_state.save_state(path, variables, facts=Facts(step=step))


def values(variables):
    return {name: keras.ops.convert_to_numpy(v) for name, v in variables.items()}


def network(*layers):
    model = keras.Sequential([keras.Input((2,)), *layers], name="network")
    optimizer = keras.optimizers.SGD(momentum=0.9, name="sgd")
    optimizer.build(model.trainable_variables)
    return model, optimizer


class TestNamedVariables:
    def test_names_say_role_and_path(self):
        for _ in range(2):  # The second model of a process has the same names.
            norm = keras.layers.BatchNormalization(name="norm", scale=False)
            named = training_state.named_variables(*network(norm))
            assert set(named) == {
                "weights/network/norm/beta",
                "non_trainable/network/norm/moving_mean",
                "non_trainable/network/norm/moving_variance",
                "optimizer/sgd/iteration",
                "optimizer/sgd/learning_rate",
                "optimizer/sgd/network_norm_beta_momentum",
            }

    def test_a_seed_generator_that_keras_numbers(self):
        with pytest.raises(
            ValueError, match="got '.*seed_generator.*': name its layer"
        ):
            training_state.named_variables(*network(keras.layers.Dropout(0.5)))

    def test_two_variables_of_one_path(self):
        dense = [keras.layers.Dense(2, name="dense") for _ in range(2)]
        model = keras.Model()
        model.first, model.second = dense
        for layer in dense:
            layer.build((None, 2))
        with pytest.raises(ValueError, match="got 'dense/kernel': name its layer"):
            training_state.named_variables(model, keras.optimizers.SGD())


class TestOneFile:
    def test_bit_for_bit(self, tmp_path):
        odd = np.array([[-0.0, np.inf], [np.nan, 1e-45], [0.1, -3e38]], np.float32)
        odd.view(np.uint32)[1, 0] |= 0x1234  # A NaN of its own.
        saved = state(7)
        saved["weights/kernel"].assign(odd)
        saved["optimizer/iteration"].assign(2**53 + 1)
        facts = Facts(step=7, scores_since=90, is_interim=True)
        training_state.save_state(tmp_path / "s.safetensors", saved, facts=facts)
        restored = state()
        found = training_state.restore_state(tmp_path / "s.safetensors", restored)
        assert found == facts
        making.assert_same_arrays(values(restored), values(saved))

    def test_from_two_replicas_to_one_and_back(self, tmp_path):
        """Inside the strategy's scope, or outside."""
        mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        with mirrored.scope():
            on_two, inside, outside = state(5), state(), state()
        save_state(tmp_path / "two.safetensors", on_two)
        on_one = state()
        training_state.restore_state(tmp_path / "two.safetensors", on_one)
        making.assert_same_arrays(values(on_one), values(on_two))
        training_state.restore_state(tmp_path / "two.safetensors", outside)
        with mirrored.scope():
            training_state.restore_state(tmp_path / "two.safetensors", inside)
        for name, value in values(on_one).items():
            for variables in (inside, outside):
                copies = mirrored.experimental_local_results(variables[name].value)
                assert len(copies) == 2
                for copy in copies:
                    np.testing.assert_array_equal(copy, value)

    def test_another_model_names_the_first_ten_differences(self, tmp_path):
        path = tmp_path / "s.safetensors"
        old = {f"w{n:02}": np.zeros(n) for n in range(12)}
        save_state(path, old | {"a": np.float32([1]), "b": np.zeros(2)})
        new = {f"w{n:02}": np.zeros(n + 1) for n in range(12)}
        new |= {"a": np.int32([1]), "c": np.int32(0)}
        with pytest.raises(InputError) as raised:
            training_state.restore_state(path, new)
        differences = [
            f"w{n:02}: ({n},) in the file, ({n + 1},) here" for n in range(7)
        ]
        assert str(raised.value) == (
            f"{path}: a checkpoint of another model, 15 variables differ: "
            "a: float32 in the file, int32 here; b: (2,) in the file, nothing here; "
            f"c: nothing in the file, () here; {'; '.join(differences)}; "
            "give the configuration that it was made with, or another directory"
        )
        assert not isinstance(raised.value, safetensors_files.DamagedFile)

    def test_damage_changes_nothing(self, tmp_path):
        path = tmp_path / "s.safetensors"
        save_state(path, state(7))
        data = bytearray(path.read_bytes())
        # Of the array that is read last.
        data[data.rindex(np.int64(7).tobytes())] ^= 1
        path.write_bytes(data)
        variables = state(1)
        with pytest.raises(
            safetensors_files.DamagedFile, match="s.safetensors: cannot be read as sa"
        ):
            training_state.restore_state(path, variables)
        making.assert_same_arrays(values(variables), values(state(1)))


# Step and evaluation loss of each checkpoint, and what is there after it with 2 newest
# and 1 best kept.
SCORES = (3.0, 2.0, 2.5, 2.6, 1.9, 1.9, math.nan)
SAVES = [*zip(range(5, 40, 5), SCORES, strict=True)]
KEPT = [[5], [5, 10], [10, 15], [10, 15, 20], [20, 25], [25, 30], [25, 30, 35]]


def opened(directory, *, keep=2, keep_best=1, **options):
    return training_state.CheckpointDirectory(
        directory, keep=keep, keep_best=keep_best, **options
    )


def steps(checkpoints):
    return [int(path.stem.removeprefix("step-")) for path in checkpoints.paths()]


def save(checkpoints, step, score):
    """Saves a state and its evaluation loss, as a run does."""
    path = checkpoints.save(step, state(step))
    checkpoints.record_score(step, score)
    return path


class TestWhatIsKept:
    def test_the_newest_and_the_best(self, tmp_path):
        checkpoints = opened(tmp_path / "made" / "here")
        assert checkpoints.paths() == []
        assert checkpoints.best() is None
        assert checkpoints.restore_latest(state()) == 0
        found = []
        for step, score in SAVES:
            path = save(checkpoints, step, score)
            assert path.name == f"step-{step:010}.safetensors"
            found.append(steps(checkpoints))
        assert found == KEPT
        assert checkpoints.paths()[-1] == path
        assert checkpoints.best().name == "step-0000000025.safetensors"

    def test_some_steps_in_any_case(self, tmp_path):
        checkpoints = opened(tmp_path, keep=1, keep_best=0, always=[10, 12])
        for step, _ in SAVES:
            checkpoints.save(step, state(step))
        assert steps(checkpoints) == [10, 35]
        opened(tmp_path, keep=1, always=[10]).restore_latest(state())
        assert steps(checkpoints) == [10, 35]

    def test_as_if_never_broken_off(self, tmp_path):
        """A new process between two checkpoints, where an interim one is saved, before
        the score of each, and after it."""
        found, before = [], 0
        for step, score in SAVES:
            checkpoints, variables = opened(tmp_path), state()
            assert checkpoints.restore_latest(variables) == before
            making.assert_same_arrays(values(variables), values(state(before)))
            assert not before or checkpoints.has_score(before)
            checkpoints.save(step - 3, state(step - 3), is_interim=True)
            assert step - 3 in steps(checkpoints)
            checkpoints = opened(tmp_path)
            assert checkpoints.restore_latest(state()) == step - 3
            checkpoints.save(step, state(step))
            checkpoints = opened(tmp_path)
            assert checkpoints.restore_latest(state()) == step
            assert not checkpoints.has_score(step)
            checkpoints.record_score(step, score)
            checkpoints.record_score(step - 1, 0.0)
            assert checkpoints.has_score(step)
            found.append(steps(checkpoints))
            before = step
        assert found == KEPT
        assert checkpoints.best().name == "step-0000000025.safetensors"
        scores = json.loads((tmp_path / "scores.json").read_text())
        assert scores == {"25": 1.9, "30": 1.9, "35": None}

    def test_scores_of_damaged_checkpoints_do_not_count(self, tmp_path):
        checkpoints = opened(tmp_path, keep=3)
        for step in (5, 10):
            save(checkpoints, step, step)
        path = tmp_path / "step-0000000010.safetensors"
        path.write_bytes(path.read_bytes()[:100])
        checkpoints = opened(tmp_path, keep=3)
        assert checkpoints.restore_latest(state()) == 5
        checkpoints.save(10, state(10))
        assert not checkpoints.has_score(10)

    @pytest.mark.parametrize(
        "content", [b"[", b"[]", b"[" * 100_000, b"\xff", b'{"5": "x"}', b'{"a": 1.0}']
    )
    def test_damaged_scores_count_as_none(self, tmp_path, content, caplog):
        checkpoints = opened(tmp_path, keep=3)
        save(checkpoints, 5, 1.0)
        assert checkpoints.best().name == "step-0000000005.safetensors"
        (tmp_path / "scores.json").write_bytes(content)
        checkpoints = opened(tmp_path, keep=3)
        checkpoints.restore_latest(state())
        assert checkpoints.best() is None
        assert "scores.json: damaged; it counts as empty" in caplog.text

    def test_killed_before_the_old_ones_were_deleted(self, tmp_path):
        checkpoints = opened(tmp_path)
        for step, score in SAVES[:4]:
            save(checkpoints, step, score)
        path = tmp_path / "step-0000000025.safetensors"
        save_state(path, state(25), step=25)
        checkpoints = opened(tmp_path)
        assert steps(checkpoints) == [10, 15, 20, 25]
        assert checkpoints.restore_latest(state()) == 25
        assert steps(checkpoints) == [10, 20, 25]

    @pytest.mark.parametrize("is_resumed", [False, True])
    def test_scores_of_an_earlier_phase_do_not_count(self, tmp_path, is_resumed):
        saves = [(5, 1.0), (10, 2.0), (15, 3.0)]
        saves += [(20, 9.0), (25, 8.0), (30, 8.5), (35, 9.5)]
        kept = [[5], [5, 10], [5, 10, 15], [15, 20], [20, 25], [25, 30], [25, 30, 35]]
        checkpoints, found = opened(tmp_path), []
        for step, score in saves:
            if is_resumed:
                checkpoints = opened(tmp_path)
                checkpoints.restore_latest(state())
            if steps(checkpoints)[-1:] == [15]:
                checkpoints.forget_scores()
            save(checkpoints, step, score)
            found.append(steps(checkpoints))
        assert found == kept
        assert opened(tmp_path).best().name == "step-0000000025.safetensors"


class TestWrittenInAThread:
    """While the training goes on."""

    @pytest.fixture
    def writer(self):
        with futures.ThreadPoolExecutor(1) as writer:
            yield writer

    def test_the_state_is_that_of_its_step(self, tmp_path, writer, monkeypatch):
        may_write = threading.Event()
        write = safetensors_files.write

        def wait_and_write(*args, **options):
            assert may_write.wait(60)
            write(*args, **options)

        monkeypatch.setattr(safetensors_files, "write", wait_and_write)
        checkpoints, variables = opened(tmp_path, writer=writer), state(5)
        checkpoints.save(5, variables)
        for name, value in state(6).items():
            variables[name].assign(value)
        checkpoints.record_score(5, 1.0)
        checkpoints.check()
        assert list(tmp_path.iterdir()) == []
        may_write.set()
        checkpoints.wait()
        assert checkpoints.best().name == "step-0000000005.safetensors"
        expected = tmp_path / "expected.safetensors"
        save_state(expected, state(5), step=5)
        saved = (tmp_path / "step-0000000005.safetensors").read_bytes()
        assert saved == expected.read_bytes()

    def test_what_could_not_be_written_is_told(self, tmp_path, writer, monkeypatch):
        def refuse(*_, **options):
            raise InputError("the disk is full")

        checkpoints = opened(tmp_path, writer=writer)
        monkeypatch.setattr(safetensors_files, "write", refuse)
        checkpoints.save(5, state(5))
        futures.wait(checkpoints._unwritten)
        with pytest.raises(InputError, match="the disk is full"):
            checkpoints.check()
        checkpoints.check()


class TestTakenUp:
    @pytest.fixture
    def checkpoints(self, tmp_path):
        made = opened(tmp_path, keep=3)
        for step in (5, 10, 15):
            made.save(step, state(step))
        return made

    def damage(self, checkpoints, *damaged):
        for path in checkpoints.paths():
            if int(path.stem[-2:]) in damaged:
                path.write_bytes(path.read_bytes()[:-70])

    @pytest.mark.parametrize("damaged, expected", [((15,), 10), ((10, 15), 5)])
    def test_the_newest_that_can_be_read(self, checkpoints, caplog, damaged, expected):
        self.damage(checkpoints, *damaged)
        variables = state()
        assert checkpoints.restore_latest(variables) == expected
        making.assert_same_arrays(values(variables), values(state(expected)))
        warnings = [r.getMessage() for r in caplog.records if r.levelno > logging.INFO]
        assert len(warnings) == len(damaged)
        assert re.search(
            r"step-0000000015.safetensors: cannot be read as safetensors: .+; trying "
            "the checkpoint before it",
            warnings[0],
        )
        assert steps(checkpoints) == [5, 10, 15]

    def test_a_damaged_one_is_not_met_again(self, checkpoints, tmp_path):
        self.damage(checkpoints, 15)
        checkpoints.restore_latest(state())
        checkpoints.save(12, state(12), is_interim=True)
        assert steps(checkpoints) == [5, 10, 12]
        assert opened(tmp_path).restore_latest(state()) == 12

    def test_a_damaged_one_is_kept_when_its_step_is_saved_again(
        self, checkpoints, tmp_path
    ):
        """Twice, as two runs may meet it."""
        for number in ("", "2"):
            self.damage(checkpoints, 15)
            damaged = (tmp_path / "step-0000000015.safetensors").read_bytes()
            resumed = opened(tmp_path, keep=3)
            assert resumed.restore_latest(state()) == 10
            resumed.save(15, state(15))
            aside = tmp_path / f"step-0000000015.safetensors.damaged{number}"
            assert aside.read_bytes() == damaged
            assert opened(tmp_path).restore_latest(state()) == 15

    def test_a_later_one_that_is_not_known_stops_the_run(self, checkpoints, tmp_path):
        """As if the disk had shown an empty directory, or another run had come."""
        (tmp_path / "step-0000000015.safetensors").rename(tmp_path / "away")
        resumed = opened(tmp_path, keep=3)
        assert resumed.restore_latest(state()) == 10
        (tmp_path / "away").rename(tmp_path / "step-0000000015.safetensors")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(
            InputError, match="15.safetensors: is newer than step 12, .*resume"
        ):
            resumed.save(12, state(12))
        assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    @pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
    @pytest.mark.parametrize("name", ["stat", "listdir", "scandir"])
    def test_a_failing_request_does_not_begin_the_run_again(
        self, checkpoints, tmp_path, monkeypatch, name, number
    ):
        request = getattr(os, name)

        def refuse(path, *args, **options):
            if str(path) == str(tmp_path):
                raise OSError(number, os.strerror(number), str(path))
            return request(path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            # An answer or an error, and never an empty directory.
            with contextlib.suppress(OSError):
                assert checkpoints.restore_latest(state(1)) == 15

    def test_a_name_that_tells_another_step(self, checkpoints, tmp_path):
        """Neither resumed, nor deleted, nor taken for the best one."""
        path = tmp_path / "step-0000000015.safetensors"
        renamed = path.rename(tmp_path / "step-0000000025.safetensors")
        message = f"{renamed}: has the state after 15 steps, .* to {path.name}"
        with pytest.raises(InputError, match=message):
            opened(tmp_path).restore_latest(state())
        with pytest.raises(InputError, match=message):
            opened(tmp_path).best()
        assert steps(checkpoints) == [5, 10, 25]

    def test_a_damaged_old_one_is_set_aside(self, checkpoints, tmp_path):
        path = tmp_path / "step-0000000005.safetensors"
        damaged = path.read_bytes()[:100]
        path.write_bytes(damaged)
        reopened = opened(tmp_path, keep=3)
        assert reopened.restore_latest(state()) == 15
        assert steps(reopened) == [10, 15]
        assert (tmp_path / f"{path.name}.damaged").read_bytes() == damaged

    @pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
    def test_a_disk_that_does_not_answer_is_no_damage(
        self, checkpoints, tmp_path, monkeypatch, number
    ):
        """Neither when the newest is opened nor while it is read."""

        class Failing(io.FileIO):
            num_reads: int

            def read(self, size=-1):
                Failing.num_reads -= 1
                if Failing.num_reads < 0:
                    raise OSError(number, os.strerror(number))
                return super().read(size)

        kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        for num_reads in (0, 1, 2, 4):
            variables = state(1)
            Failing.num_reads = num_reads
            with monkeypatch.context() as patch:
                patch.setattr(files, "open_to_read", Failing)
                with pytest.raises(
                    InputError, match="15.safetensors: cannot be read: .* again"
                ):
                    checkpoints.restore_latest(variables)
            making.assert_same_arrays(values(variables), values(state(1)))
        assert kept == {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def test_none_can_be_read(self, checkpoints, tmp_path):
        self.damage(checkpoints, 5, 10, 15)
        variables = state(1)
        message = (
            f"{tmp_path}: none of its 3 checkpoints can be read: .*15.safetensors: "
            "cannot be read as .*; restore a copy, or delete them to start over"
        )
        with pytest.raises(InputError, match=message):
            checkpoints.restore_latest(variables)
        making.assert_same_arrays(values(variables), values(state(1)))

    def test_a_directory_that_another_process_took_over(self, checkpoints, tmp_path):
        class Lost:
            def check(self):
                raise InputError("in use by process 4711")

        lost = opened(tmp_path, keep=1, owner=Lost())
        with pytest.raises(InputError, match="4711"):
            lost.save(20, state(20))
        assert steps(checkpoints) == [5, 10, 15]

    def test_another_model_is_no_reason_to_go_back(self, checkpoints):
        other = {"weights/kernel": keras.Variable(np.zeros((3, 2)))}
        checkpoints.save(20, other)
        with pytest.raises(
            InputError, match="20.safetensors: a checkpoint of another model"
        ):
            checkpoints.restore_latest(state())

    def test_files_of_others_are_left_alone(self, checkpoints, tmp_path):
        for name in (
            "step-latest.safetensors",
            "notes.txt",
            ".step-0000000020.safetensors.ab.tmp",
        ):
            (tmp_path / name).write_text("mine")
        assert checkpoints.restore_latest(state()) == 15
        checkpoints.save(20, state(20))
        assert {p.name for p in tmp_path.iterdir()} == {
            "step-0000000010.safetensors",
            "step-0000000015.safetensors",
            "step-0000000020.safetensors",
            "step-latest.safetensors",
            "notes.txt",
        }

    def test_other_workers_read_and_do_not_write(self, checkpoints, tmp_path):
        worker = opened(tmp_path, keep=1, is_chief=False)
        variables = state()
        assert worker.restore_latest(variables) == 15
        making.assert_same_arrays(values(variables), values(state(15)))
        assert worker.save(20, state(20)) == tmp_path / "step-0000000020.safetensors"
        assert steps(worker) == [5, 10, 15]
        assert opened(tmp_path / "missing", is_chief=False).restore_latest(state()) == 0
        assert not (tmp_path / "missing").exists()
