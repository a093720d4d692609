"""The network of a pre-training with its optimizer, ready to be trained."""

import keras
import tensorflow as tf

from bert_keras.core.settings import architecture, pretraining
from bert_keras.data import features
from bert_keras.model import pretrainer
from bert_keras.training.pretraining import phases
from bert_keras.training.step import learner, optimization, replicas


def build_learner(
    settings: pretraining.PretrainingConfig,
    bert_config: architecture.BertConfig,
    phase: phases.Phase,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)
    zeros = {
        feature.name: tf.zeros(
            [1, feature.length],
            tf.int32 if feature.dtype == "int64" else tf.float32,
        )
        for feature in features.batch_features(phase.examples)
    }
    compile_step = settings.jit_compile
    if compile_step is None:
        compile_step = replicas.are_gpus(strategy)
    return learner.build_learner(
        lambda: pretrainer.BertPretrainer(
            bert_config,
            seed=settings.seed,
            next_sentence=settings.next_sentence
            and phase.examples.packing == "sentence_pairs",
            dtype=settings.precision,
            # Part of the variables' names, which Keras would number otherwise.
            name="bert_pretrainer",
        ),
        zeros,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer,
            num_train_steps=settings.num_train_steps,
            precision=settings.precision,
        ),
        strategy=strategy,
        max_grad_norm=settings.optimizer.max_grad_norm,
        steps_per_execution=settings.steps_per_execution,
        recompute=settings.recompute,
        compile_step=compile_step,
        scales_loss=settings.precision == "mixed_float16",
    )
