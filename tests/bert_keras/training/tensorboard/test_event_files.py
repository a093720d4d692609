from concurrent import futures

import pytest
from tensorflow.python.ops import gen_summary_ops

from bert_keras.core import files, stores
from bert_keras.report import scalar_log
from bert_keras.training.tensorboard import event_files


def test_all_is_sent_while_a_writer_closes(memory_store, monkeypatch):
    """The thread that writes checkpoints asks for it between TensorFlow's deletion of
    the writer and its note of that."""
    directory = files.path(f"{memory_store}/events")
    writer = event_files.EventWriter(directory, 0)
    writer.write_scalars({"loss": 2.0}, 1)
    close = gen_summary_ops.close_summary_writer
    with futures.ThreadPoolExecutor() as thread:
        sent = []

        def close_slowly(resource):
            close(resource)
            sent.append(thread.submit(writer.send))
            futures.wait(sent, timeout=0.3)

        monkeypatch.setattr(gen_summary_ops, "close_summary_writer", close_slowly)
        writer.close()
        sent[0].result()
    assert writer not in event_files._OF_STORES
    (file,) = directory.glob("events.out.tfevents.*")
    steps = [event_files._step_of(record) for record in event_files.read_records(file)]
    assert steps == [0, 1]
    file.unlink()


def test_only_the_open_file_is_sent_again(memory_store, monkeypatch):
    """A file that is large enough is sent once more, and a new one is begun."""
    monkeypatch.setattr(event_files, "_MAX_SENT_BYTES", 1000)
    sent, put = [], stores.put

    def put_and_note(local, path):
        sent.append((path, local.stat().st_size))
        put(local, path)

    monkeypatch.setattr(stores, "put", put_and_note)
    directory = files.path(f"{memory_store}/events")
    writer = event_files.EventWriter(directory, 0)
    for step in range(1, 101):
        writer.write_scalars({"loss": step}, step)
        writer.send()
    (local,) = writer._local.glob("events.*")
    assert local.stat().st_size < 2000
    writer.close()
    # All of the file so far is sent with each step, and a step has some 60 bytes.
    assert sum(size for path, size in sent if "events." in path) < 100 * 1100
    log = scalar_log.read_log(directory)
    assert len(files.list_directory(directory)) > 4 and log.restarts == ()
    (curve,) = log.scalars.values()
    assert curve.steps.tolist() == curve.values.tolist() == [*range(1, 101)]
    files.delete_tree(directory)


@pytest.mark.parametrize("is_on_a_store", [False, True])
def test_a_killed_log_goes_on_after_the_checkpoint(
    memory_store, tmp_path, is_on_a_store, monkeypatch
):
    """Lines of steps beyond it and a line that is cut off are dropped."""
    monkeypatch.setattr(event_files.time, "time", lambda: 5.0)
    monkeypatch.setattr(event_files, "_PROCESS", "one")
    directory = files.path(f"{memory_store}/log" if is_on_a_store else tmp_path)
    writer = event_files.EventWriter(directory, 0)
    for step in range(1, 4):
        writer.write_scalars({"loss": 1 / step}, step)
    writer.write_scalars({"loss": float("inf")}, 4)
    writer.close()
    path = directory / "scalars.jsonl"
    text = files.read_text(path)
    assert text == (
        '{"step": 0, "time": 5.0, "start": "one"}\n'
        '{"step": 1, "time": 5.0, "loss": 1.0}\n'
        '{"step": 2, "time": 5.0, "loss": 0.5}\n'
        '{"step": 3, "time": 5.0, "loss": 0.3333333333333333}\n'
        '{"step": 4, "time": 5.0, "loss": null}\n'
    )
    files.write_atomically(path, text[:-9].encode())
    monkeypatch.setattr(event_files, "_PROCESS", "other")
    writer = event_files.EventWriter(directory, 2)
    writer.write_scalars({"loss": 7.0}, 3)
    writer.close()
    assert files.read_text(path) == "".join(
        [
            *text.splitlines(keepends=True)[:3],
            '{"step": 2, "time": 5.0, "start": "other"}\n',
            '{"step": 3, "time": 5.0, "loss": 7.0}\n',
        ]
    )
    files.delete_tree(directory)
