"""A bidirectional LSTM that ignores padding (Hochreiter and Schmidhuber, 1997), with
the forget gates of Keras and PyTorch. `keras` and `keras.ops` only."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import layers


@keras.saving.register_keras_serializable(package="bert_keras")
class BiLSTM(keras.layers.Layer):
    """Reads each sequence forwards and backwards.

    Keras runs the loop over the tokens. One product over all tokens computes the
    input's share of the gates first: within the loop, every token would cost a small
    product, and a sum over the gradients of the whole kernel. cuDNN is not used, so
    that an exported model runs without a GPU. The states add up over the sequence and
    are float32 in every precision.

    Args:
        units: cells in each direction.
        return_sequences: whether to return the outputs of all tokens, not only the last
            output of each direction.

    Call arguments:
        inputs: `(batch_size, sequence_length, input_size)`.
        input_mask: `(batch_size, sequence_length)`, 1 for a token, 0 for padding, which
            neither direction reads.

    Returns:
        `(batch_size, sequence_length, 2 * units)`, forward before backward, meaningless
        at padding; or `(batch_size, 2 * units)`: forward after the last token, backward
        after the first.
    """

    def __init__(
        self,
        input_size: int,
        units: int,
        *,
        return_sequences: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.return_sequences = return_sequences
        self.directions = [
            keras.layers.RNN(
                _Cell(
                    input_size,
                    units,
                    seed=layers.derive_seed(seed, name),
                    name="cell",
                    dtype="float32",
                ),
                return_sequences=True,
                go_backwards=name == "backward",
                name=name,
                dtype="float32",
            )
            for name in ("forward", "backward")
        ]

    def build(self, input_shape=None):
        for direction in self.directions:
            direction.build((None, None, 4 * self.units))

    def call(self, inputs, input_mask):
        mask = ops.cast(input_mask, "bool")
        forward, backward = (
            direction(direction.cell.project(inputs), mask=mask)
            for direction in self.directions
        )
        if not self.return_sequences:
            # A direction keeps its state at padding. The backward outputs come in the
            # order in which they are computed.
            forward, backward = forward[:, -1], backward[:, -1]
        else:
            backward = ops.flip(backward, axis=1)
        outputs = ops.concatenate([forward, backward], axis=-1)
        return ops.cast(outputs, self.compute_dtype)


class _Cell(keras.layers.Layer):
    """One step of an LSTM, for the loop of `keras.layers.RNN`.

    Weights have columns for the input gate, the forget gate, the candidate and the
    output gate, in Keras's order and with Keras's initial values. `projected` is
    `(batch_size, 4 * units)`, one token of `project`'s result; `states` are the output
    and the cell state after the previous token, `(batch_size, units)` each.
    """

    def __init__(
        self, input_size: int, units: int, *, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.input_size = input_size
        self.units = units
        self.seed = seed
        # Attributes that the loop asks for.
        self.state_size = [units, units]
        self.output_size = units

    def build(self, input_shape=None):
        size = 4 * self.units
        self.kernel, self.recurrent_kernel = (
            self.add_weight(
                (num_rows, size),
                initializer(seed=layers.derive_seed(self.seed, name)),
                name=name,
            )
            for name, num_rows, initializer in (
                ("kernel", self.input_size, keras.initializers.GlorotUniform),
                ("recurrent_kernel", self.units, keras.initializers.Orthogonal),
            )
        )

        def remembering(shape, dtype=None):
            # 1 for the forget gate: at first the cell forgets little.
            return ops.cast(ops.arange(shape[0]) // self.units == 1, dtype)

        self.bias = self.add_weight((size,), remembering, name="bias")

    def project(self, inputs):
        """Returns the inputs' share of the gates, `(batch_size, length, 4 * units)`."""
        # One list of all tokens: see `layers.FeedForward`.
        tokens = ops.reshape(inputs, (-1, self.input_size))
        projected = ops.matmul(tokens, self.kernel) + self.bias
        return ops.reshape(projected, (-1, ops.shape(inputs)[1], 4 * self.units))

    def call(self, projected, states):
        output, state = states
        gates = projected + ops.matmul(output, self.recurrent_kernel)
        accept, remember, candidate, show = ops.split(gates, 4, axis=-1)
        state = ops.sigmoid(remember) * state
        state = state + ops.sigmoid(accept) * ops.tanh(candidate)
        output = ops.sigmoid(show) * ops.tanh(state)
        return output, [output, state]
