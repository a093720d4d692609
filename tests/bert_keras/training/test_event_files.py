from concurrent import futures

from tensorflow.python.ops import gen_summary_ops

from bert_keras import files
from bert_keras.report import event_log
from bert_keras.training import event_files


def test_all_is_sent_while_a_writer_closes(memory_store, monkeypatch):
    """The thread that writes checkpoints asks for it between TensorFlow's deletion of
    the writer and its note of that."""
    directory = files.path(f"{memory_store}/events")
    writer = event_files.open_writer(directory, 0)
    event_files.write_scalars(writer, {"loss": 2.0}, 1)
    close = gen_summary_ops.close_summary_writer
    with futures.ThreadPoolExecutor() as thread:
        sent = []

        def close_slowly(resource):
            close(resource)
            sent.append(thread.submit(event_files.send_all))
            futures.wait(sent, timeout=0.3)

        monkeypatch.setattr(gen_summary_ops, "close_summary_writer", close_slowly)
        writer.close()
        sent[0].result()
    assert not event_files._OF_STORES
    (file,) = directory.glob("events.out.tfevents.*")
    steps = [event_files._step_of(record) for record in event_log.read_records(file)]
    assert steps == [0, 1]
    file.unlink()
