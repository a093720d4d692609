"""What watches the steps of a phase."""

from bert_keras.checkpoints import run_directory
from bert_keras.core.settings import pretraining
from bert_keras.model import flops
from bert_keras.report import diagnosis
from bert_keras.training import run, watching
from bert_keras.training.pretraining import curve_warnings, phases
from bert_keras.training.step import learner, peak_flops, watcher
from bert_keras.training.tensorboard import panels


def open_watchers(
    loop: run.Loop,
    trained: learner.Learner,
    made: run_directory.Run,
    settings: pretraining.PretrainingConfig,
    phase: phases.Phase,
    *,
    sample: diagnosis.TextSample | None,
) -> tuple[list[watcher.Watcher], panels.EvaluationPanels | None]:
    """Opens them; returns the panels again, which have an event of their own."""
    examples, strategy = phase.examples, trained.distribute_strategy
    logs = made.directory / run_directory.LOGS_NAME

    def describe_skipped(first: int, last: int) -> str:
        data = phases.describe_data(settings, phase, first, last)
        return (
            f", whose batches came from {data}; the last checkpoint is "
            f"{max(loop.checkpoints.paths(), default='none')}: lower "
            "`optimizer.learning_rate`, or look at the examples with `bert-keras "
            "inspect`"
        )

    num_predictions = examples.num_row_predictions
    if settings.model.attention == "left_to_right":
        num_predictions = examples.max_seq_length - 1
    watchers = watching.open_watchers(
        loop,
        trained,
        logs=logs,
        num_train_steps=settings.num_train_steps,
        batch_size=phase.batch_size,
        max_skipped_steps=settings.max_skipped_steps,
        describe_skipped=describe_skipped,
        tokens_per_example=examples.max_seq_length,
        flops_per_example=flops.pretraining_flops_per_example(
            made.bert_config,
            max_seq_length=examples.max_seq_length,
            num_predictions=num_predictions,
            next_sentence=trained.network.next_sentence,
            num_instances=examples.num_slots,
        ),
        peak_flops=peak_flops.of_devices(strategy, settings.precision),
    )
    if not loop.is_chief:
        return watchers, None
    flat_settings = run_directory.flat(settings.model_dump(mode="json"))
    watchers.append(
        curve_warnings.CurveWarnings(flat_settings, sample, phase.first_step)
    )
    if settings.profile_steps is not None:
        watchers.append(panels.Profile(logs / "train", trained, settings.profile_steps))
    if not phase.has_evaluation:
        return watchers, None
    batches, _ = phases.whole_evaluation_batches(settings, phase)
    pictures = panels.EvaluationPanels(
        logs,
        loop.step,
        learner=trained,
        tokenizer=made.tokenizer,
        batch=next(batches.as_numpy_iterator()),
        repeats_drawing="draw" in loop.due,
    )
    return [*watchers, pictures], pictures
