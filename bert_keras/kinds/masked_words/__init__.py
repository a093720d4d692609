"""Words at masked places: a pre-trained model."""

from bert_keras.kinds.kind import LOSS, Kind, Metric, Names, Usage

_TRANSFORM, _NORM, _BIAS, _NEXT = (
    "masked_lm_head/transform",
    "masked_lm_head/layer_norm",
    "masked_lm_head/output_bias",
    "next_sentence_head/classifier",
)


class MaskedWords(Kind):
    """Answers with the words that a masked place may hold, and the next sentence."""

    name = "pretraining"
    names = Names(
        hugging_face="BertForPreTraining",
        pipeline="fill-mask",
        heads={
            "hugging_face": {
                _TRANSFORM: "cls.predictions.transform.dense",
                _NORM: "cls.predictions.transform.LayerNorm",
                _BIAS: "cls.predictions.bias",
                _NEXT: "cls.seq_relationship",
            },
            "google": {
                _TRANSFORM: "cls/predictions/transform/dense",
                _NORM: "cls/predictions/transform/LayerNorm",
                _BIAS: "cls/predictions/output_bias",
                _NEXT: "cls/seq_relationship/output",
            },
            "model_garden": {
                _TRANSFORM: "masked_lm/dense",
                _NORM: "masked_lm/layer_norm",
                _BIAS: "masked_lm/bias",
                _NEXT: "next_sentence",
            },
        },
    )
    parts = ("encoder/", "masked_lm_head/", "next_sentence_head/")
    unused = ("encoder/", "next_sentence_head/")
    metrics = (
        LOSS,
        Metric("perplexity", "", "less"),
        Metric("masked_lm_accuracy"),
        Metric("next_sentence_accuracy"),
        Metric("minimal_pairs_accuracy"),
    )
    example = Usage(
        text='"A [MASK] text."',
        more='inputs["masked_lm_positions"] = np.array([[0]], "int32")\n',
    )

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.model import pretrainer

        return pretrainer.BertPretrainer(bert_config, **shared)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.masked_words import served_words

        return served_words.MaskedWords(trained, top_k=top_k)
