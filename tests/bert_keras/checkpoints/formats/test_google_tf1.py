"""Checkpoints of google-research/bert: published indexes, their converter, damage."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import companions, google_tf1
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from bert_keras.model import weight_shapes
from tests.bert_keras.checkpoints.formats import making

SPECIAL = features.SPECIAL_TOKENS
CASED = tokenization.Vocabulary((*SPECIAL, *"abcDEF"))
WITHOUT_CASE = tokenization.Vocabulary((*SPECIAL, "一", "二"))

BASE = architecture.BertConfig(vocab_size=119547).model_dump(exclude={"attention"})


def save(prefix, tensors):
    """Writes a checkpoint as TensorFlow's saver does, beside ours."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )


def load(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
    }


# === Published files ===

PUBLISHED = {
    "uncased_L-8_H-512_A-8/bert_model.ckpt": ("pretraining", 142),
    "chinese_L-12_H-768_A-12/bert_model.ckpt": ("pretraining", 206),
    "uncased_L-12_H-768_A-12_with_adam_slots/bert_model.ckpt": ("pretraining", 206),
    "multi_cased_squad_finetuned/bert_model.ckpt": ("span", 201),
    "multi_cased_squad_finetuned/model.ckpt-6910": ("span", 201),
}


def published_index(folder, name, directory):
    """Puts a published index beside a file of zeros that is as long as its data."""
    source = folder / f"{name}.index"
    prefix = directory / source.name.removesuffix(".index")
    shutil.copy(source, f"{prefix}.index")
    config = source.parent / "bert_config.json"
    values = json.loads(config.read_text()) if config.exists() else BASE
    (directory / "bert_config.json").write_text(json.dumps(values))
    tensors = json.loads((folder / f"{name}.tensors.json").read_text())
    sizes = [
        np.prod(tensor["shape"], dtype=int) * np.dtype(tensor["dtype"]).itemsize
        for tensor in tensors
    ]
    with open(f"{prefix}.data-00000-of-00001", "wb") as file:
        file.truncate(sum(sizes))
    return prefix, tensors


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_indexes(name, shared_data, tmp_path):
    kind, num_weights = PUBLISHED[name]
    prefix, tensors = published_index(
        shared_data / "checkpoint_indexes", name, tmp_path
    )
    assert google_tf1.recognizes(prefix)
    checkpoint = google_tf1.read(prefix)

    names = {tensor["name"] for tensor in tensors}
    slots = {name for name in names if name.endswith(("/adam_m", "/adam_v"))}
    steps = names & {"global_step"}
    assert checkpoint.unused == {
        **dict.fromkeys(slots, "optimizer slot"),
        **dict.fromkeys(steps, "step counter"),
    }
    assert len(checkpoint.arrays) == num_weights == len(names - slots - steps)
    # All that a network of the task has.
    shapes = weight_shapes.all_shapes(checkpoint.bert_config)
    unneeded = "head/" if kind == "pretraining" else ("masked_lm", "next_sentence")
    assert set(checkpoint.arrays) == {n for n in shapes if not n.startswith(unneeded)}
    assert checkpoint.task == tasks.Task(kind=kind, has_text_pair=kind == "span")
    assert checkpoint.bert_config.hidden_act == "gelu_tanh"
    # Zeros are not what was written there.
    with pytest.raises(InputError, match=r"index: cannot be read .*Checksum"):
        checkpoint.arrays["encoder/pooler/kernel"]


def test_writes_the_published_names(shared_data, tmp_path):
    google_tf1.write(making.make_checkpoint(), tmp_path)
    path = shared_data / "checkpoint_indexes/chinese_L-12_H-768_A-12"
    published = json.loads((path / "bert_model.ckpt.tensors.json").read_text())
    sizes = {21128: 40, 768: 16, 3072: 24, 512: 32, 2: 2}
    assert {
        name: (a.shape, a.dtype.name)
        for name, a in load(tmp_path / "bert_model.ckpt").items()
    } == {
        tensor["name"]: (tuple(sizes[n] for n in tensor["shape"]), tensor["dtype"])
        for tensor in published
        if not any(f"layer_{i}/" in tensor["name"] for i in range(2, 12))
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "vocab.txt",
    ]


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_equals_the_converter_of_model_garden(make_batch, tmp_path):
    """The converter to TF 2 reads what we write, and its model agrees with ours."""
    pytest.importorskip("official.nlp.modeling.networks")
    from official.legacy.bert import configs
    from official.nlp.tools import tf2_bert_encoder_checkpoint_converter as converter

    checkpoint = making.make_checkpoint()
    google_tf1.write(checkpoint, tmp_path)
    theirs_config = configs.BertConfig.from_json_file(tmp_path / "bert_config.json")
    converter.convert_checkpoint(
        theirs_config,
        str(tmp_path / "converted" / "ckpt"),
        str(tmp_path / "bert_model.ckpt"),
        converted_model="pretrainer",
    )
    reference = converter._create_bert_pretrainer_model(theirs_config)
    status = tf.train.Checkpoint(model=reference).read(
        str(tmp_path / "converted" / "ckpt-1")
    )
    status.assert_existing_objects_matched().expect_partial()
    batch = make_batch(making.CONFIG)
    theirs = reference(
        {
            "input_word_ids": batch["input_ids"],
            "input_mask": batch["input_mask"],
            "input_type_ids": batch["segment_ids"],
            "masked_lm_positions": batch["masked_lm_positions"],
        }
    )
    result = google_tf1.read(tmp_path)
    network = registry.build_network(result.bert_config, result.task)
    assert weights.assign(network, result.arrays) == []
    logits = network(batch)["masked_lm_logits"]
    np.testing.assert_allclose(logits, theirs["mlm_logits"], atol=1e-5)
    pooled = network.encoder(batch)["pooled_output"]
    np.testing.assert_allclose(pooled, theirs["pooled_output"], atol=1e-5)


# === Tasks ===


def test_no_place(tmp_path):
    checkpoint = making.make_checkpoint()
    checkpoint = dataclasses.replace(checkpoint, task=making.TASKS["encoder"])
    heads = [name for name in checkpoint.arrays if not name.startswith("encoder/")]
    reason = "not part of Google's checkpoints for encoder"
    assert google_tf1.write(checkpoint, tmp_path) == dict.fromkeys(heads, reason)


def test_unused(tmp_path):
    google_tf1.write(making.make_checkpoint(), tmp_path)
    tensors = load(tmp_path / "bert_model.ckpt")
    more = {
        "bert/pooler/dense/kernel/Adam": np.float32(0),
        "beta1_power": np.float32(0),
        "global_step": np.int64(7),
        "crf/transitions": np.float32(0),
        "output_weights": tensors["cls/seq_relationship/output_weights"],
        "output_bias": tensors["cls/seq_relationship/output_bias"],
    }
    save(tmp_path / "bert_model.ckpt", tensors | more)
    result = google_tf1.read(tmp_path)
    assert result.task == tasks.Task(kind="classification", labels=("0", "1"))
    heads = [name for name in tensors if name.startswith("cls/")]
    assert result.unused == {
        **dict.fromkeys(
            heads, "a pre-training head, which the fine-tuned one replaces"
        ),
        "bert/pooler/dense/kernel/Adam": "optimizer slot",
        "beta1_power": "optimizer slot",
        "global_step": "step counter",
        "crf/transitions": "not part of BERT",
    }


# === Configuration and vocabulary ===


@pytest.mark.parametrize(("theirs", "ours"), [("relu", "relu"), ("gelu", "gelu_tanh")])
def test_config(theirs, ours, tmp_path):
    bert_config = making.CONFIG.model_copy(update={"hidden_act": ours})
    companions.write(making.make_checkpoint(bert_config=bert_config), tmp_path)
    values = {**BASE, **making.SIZES, "hidden_act": theirs}
    text = json.dumps(values, indent=2, sort_keys=True)
    assert (tmp_path / "bert_config.json").read_text() == text + "\n"
    assert companions.read_config(tmp_path) == bert_config


@pytest.mark.parametrize(
    ("vocabulary", "do_lower_case", "shown"),
    [
        (making.VOCABULARY, True, True),
        (CASED, False, False),
        (WITHOUT_CASE, None, None),
        (WITHOUT_CASE, True, None),
        (WITHOUT_CASE, False, None),
        (None, None, None),
    ],
)
def test_casing(vocabulary, do_lower_case, shown, tmp_path, caplog):
    """What the letters do not show, a file says."""
    tokenizer = {"vocabulary": vocabulary, "do_lower_case": do_lower_case}
    companions.write(making.make_checkpoint(**tokenizer), tmp_path)
    assert caplog.text == ""
    assert companions.read_tokenizer(tmp_path) == (vocabulary, do_lower_case)
    path = tmp_path / "tokenizer_config.json"
    assert path.exists() == (shown != do_lower_case)
    path.unlink(missing_ok=True)
    assert companions.read_tokenizer(tmp_path) == (vocabulary, shown)
    path.write_text('{"do_lower_case": false}')
    assert companions.read_tokenizer(tmp_path) == (vocabulary, False)
    path.write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: expected JSON"):
        companions.read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "do_lower_case"),
    [("uncased", True), ("cased", False), ("chinese", True), ("multi_cased", False)],
)
def test_casing_of_published_vocabularies(name, do_lower_case, shared_data):
    path = shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    assert companions.casing_of(vocabulary) is do_lower_case


# === Which checkpoint ===


@pytest.fixture
def two_checkpoints(tmp_path):
    """A directory with `bert_model.ckpt` and `model.ckpt-2`, whose pooler is zero."""
    google_tf1.write(making.make_checkpoint(), tmp_path)
    tensors = load(tmp_path / "bert_model.ckpt")
    tensors["bert/pooler/dense/bias"] *= 0
    save(tmp_path / "model.ckpt-2", tensors)
    return tmp_path


def is_second(checkpoint):
    return not checkpoint.arrays["encoder/pooler/bias"].any()


def test_prefixes(two_checkpoints):
    assert not is_second(google_tf1.read(two_checkpoints / "bert_model.ckpt"))
    assert is_second(google_tf1.read(two_checkpoints / "model.ckpt-2"))
    assert is_second(google_tf1.read(two_checkpoints / "model.ckpt-2.index"))
    assert google_tf1.recognizes(two_checkpoints)
    message = r"several checkpoints: bert_model\.ckpt, model\.ckpt-2; give one, such as"
    with pytest.raises(InputError, match=message):
        google_tf1.read(two_checkpoints)


def test_state_file(two_checkpoints):
    """Only the last part of its path counts: it may be another machine's."""
    state = two_checkpoints / "checkpoint"
    for folder in ("", "/content/out/", "../elsewhere/"):
        named = f'model_checkpoint_path: "{folder}model.ckpt-2"\n'
        state.write_text(f"{named}all_{named}")
        assert is_second(google_tf1.read(two_checkpoints))
    for named in ("model.ckpt-9", "..", "", "\\0"):
        state.write_text(f'model_checkpoint_path: "{named}"\n')
        with pytest.raises(InputError, match="several checkpoints"):
            google_tf1.read(two_checkpoints)


def test_recognizes(tmp_path):
    assert not google_tf1.recognizes(tmp_path)
    assert not google_tf1.recognizes(tmp_path / "missing")
    assert not google_tf1.recognizes(tmp_path / "missing" / "model.ckpt-1")
    (tmp_path / "faiss.index").write_bytes(b"something else")
    assert not google_tf1.recognizes(tmp_path)
    (tmp_path / "faiss.index").unlink()
    save(tmp_path / "other", {"electra/embeddings/word_embeddings": np.zeros(2)})
    assert not google_tf1.recognizes(tmp_path)
    google_tf1.write(making.make_checkpoint(), tmp_path)
    assert google_tf1.recognizes(tmp_path / "bert_model.ckpt")
    assert not google_tf1.recognizes(tmp_path / "other")


# === Damage ===


@pytest.fixture
def written(tmp_path):
    google_tf1.write(making.make_checkpoint(), tmp_path)
    return tmp_path


def test_missing_data(written):
    path = written / "bert_model.ckpt.data-00000-of-00001"
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name}: missing; put it next to"):
        google_tf1.read(written)
    (written / "bert_model.ckpt.data-00001-of-00002").write_bytes(b"")
    message = r"bert_model\.ckpt\.data-00000-of-00002: missing"
    with pytest.raises(InputError, match=message):
        google_tf1.read(written)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint" * 100])
def test_damaged_index(content, written):
    (written / "bert_model.ckpt.index").write_bytes(content)
    assert google_tf1.recognizes(written)
    message = r"bert_model\.ckpt\.index: cannot be read as a TensorFlow checkpoint: "
    with pytest.raises(InputError, match=message):
        google_tf1.read(written)


def test_path_that_tensorflow_cannot_read(written, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "run[1]"
    shutil.copytree(written, directory)
    with pytest.raises(InputError, match=r"reads no path with any of \[ \] \* \? "):
        google_tf1.read(directory)


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"found no \*\.index"):
        google_tf1.read(tmp_path)
    with pytest.raises(InputError, match=r"model\.ckpt-1\.index: no such checkpoint"):
        google_tf1.read(tmp_path / "model.ckpt-1")
    # A directory is in the way of the file that is written.
    (tmp_path / "bert_model.ckpt.index/x").mkdir(parents=True)
    with pytest.raises(InputError, match=r"bert_model\.ckpt: cannot be written: "):
        google_tf1.write(making.make_checkpoint(vocabulary=None), tmp_path)


def test_other_models(written):
    save(written / "bert_model.ckpt", {"electra/embeddings/x": np.float32(0)})
    message = r"expected the names of google-research/bert.*found electra/embeddings/x"
    with pytest.raises(InputError, match=message):
        google_tf1.read(written)
    # The embeddings of an ALBERT have the names of a BERT.
    layer = "bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query"
    tensors = {
        "bert/embeddings/word_embeddings": np.zeros((40, 8), "f4"),
        f"{layer}/kernel": np.zeros((16, 16), "f4"),
    }
    save(written / "bert_model.ckpt", tensors)
    assert google_tf1.recognizes(written)
    message = r"bert_model\.ckpt\.index: the model is an ALBERT, .*, not a BERT"
    with pytest.raises(InputError, match=message):
        google_tf1.read(written)
    google_tf1.write(making.make_checkpoint(), written)
    (written / "bert_config.json").unlink()
    with pytest.raises(InputError, match=r"bert_config\.json: missing: copy bert_c"):
        google_tf1.read(written)
