"""Words at masked places: a pre-trained model."""

from bert_keras.kinds.kind import Kind


class MaskedWords(Kind):
    """Answers with the words that a masked place may hold, and the next sentence."""

    name = "pretraining"
    parts = ("encoder/", "masked_lm_head/", "next_sentence_head/")
    unused = ("encoder/", "next_sentence_head/")

    @property
    def purpose(self):
        return "filling masks"

    def network(self, bert_config, task, *, head, scale, **shared):
        from bert_keras.model import pretrainer

        return pretrainer.BertPretrainer(bert_config, **shared)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.masked_words import served_words

        return served_words.MaskedWords(trained, top_k=top_k)
