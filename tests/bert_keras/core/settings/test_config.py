import re

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    finetuning,
    loading,
    pipelines,
    pretraining,
    strict,
    sweeps,
)


def load(*overrides, config_type=pretraining.PretrainingConfig, source=None):
    return loading.load(config_type, source, overrides)


def test_numbers_that_yaml_reads_as_text(tmp_path):
    """PyYAML takes 1e-4 and 2e-05 for strings."""
    path = tmp_path / "c.yaml"
    path.write_text("optimizer: {learning_rate: 1e-4, epsilon: 2e-05}\n")
    loaded = load("optimizer.weight_decay_rate=3e-3", source=path)
    assert loaded.optimizer.learning_rate == 1e-4
    assert loaded.optimizer.epsilon == 2e-5
    assert loaded.optimizer.weight_decay_rate == 3e-3


def test_saved_configuration_is_read_back_unchanged(tmp_path):
    written = load("model.hidden_size=64", "model.num_attention_heads=4", "seed=3")
    loading.save(written, tmp_path / "config.yaml")
    read = load(source=tmp_path / "config.yaml")
    assert read == written


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lerning_rate=1", "no key 'optimizer.lerning_rate'; did you mean"),
        ("global_batch_sice=8", "no key 'global_batch_sice'; did you mean 'global_bat"),
        ("global_batch_size=many", r"`global_batch_size`: .*got 'many'"),
        ("optimizer.learning_rate=-1", r"`optimizer.learning_rate`: .*greater than 0"),
        ("num_train_steps=10", r"`optimizer.warmup_steps` must be below.*10000 and 10"),
        ("optimizer.decay_steps=990001", "must fit into .* 990001 of 1000000: lower o"),
        ("phases=[{fraction: 0.9}, {fraction: 0.2}]", "must add up to 1, got 1.1"),
        ("model.hidden_size=10", r"multiple of `num_attention_heads`, got 10 and 12"),
        ("seed.a=1", r"`seed`: .*valid integer"),
        ("seed", r"--set takes key=value, got 'seed'"),
        ("seed=[1", r"'\[1' is not a YAML value"),
        ("model=3", r"`model`: .*got 3"),
        # A key at the wrong place names the right one.
        ("learning_rate=1", "no key 'learning_rate'; did you mean 'optimizer.lear"),
        ("lerning_rate=1", "'lerning_rate'; did you mean 'optimizer.learning_rate'"),
        ("hidden_size=8", "no key 'hidden_size'; did you mean 'model.hidden_size'.$"),
        ("model.seed=8", "no key 'model.seed'; did you mean 'seed'.$"),
        ("fraction=1", "no key 'fraction'; did you mean 'phases.fraction'.$"),
        ("model.global_batch_size=8", "'global_batch_size' or 'phases.global_batch_si"),
        ("phases=[{fraction: 1, fractoin: 2}]", r"mean 'fraction'\? \(keys here: fra"),
        ("model.hidden=1", r"'model.hidden'; .*\(keys here: vocab_size, hidden_size"),
        ("seed=true", "`seed`: expected a number, not true or false"),
        ("model.hidden_size=true", "`model.hidden_size`: expected a number"),
        ("phases=[{fraction: true}]", "`phases.0.fraction`: expected a number"),
        ("profile_steps=[true, 3]", "`profile_steps`: expected a number"),
    ],
)
def test_bad_override(override, message):
    with pytest.raises(InputError, match=message):
        load(override)


@pytest.mark.parametrize("separator", ["|", "#", "-", "=", " | ", "\t", "; "])
def test_punctuation_is_text_as_it_is_typed(separator):
    override = f"columns.label_separator={separator}"
    columns = load(override, config_type=finetuning.FinetuningConfig).columns
    assert columns.label_separator == separator


def test_override_below_a_plain_value():
    with pytest.raises(InputError, match="'seed' holds no further keys"):
        load("seed=1", "seed.a=2")
    with pytest.raises(InputError, match="no configuration 'bert_tinny'.*'bert_tiny'"):
        load(source="bert_tinny")


@pytest.mark.parametrize(("length", "slots"), [(128, 20), (512, 77), (64, 10)])
def test_default_number_of_predictions(length, slots):
    assert pipelines.ExamplesConfig(max_seq_length=length).num_predictions == slots


def test_vocabulary_size_comes_from_the_vocabulary():
    assert architecture.ModelConfig().with_vocab_size(8000).vocab_size == 8000
    padded = architecture.ModelConfig(vocab_size=8064).with_vocab_size(8000)
    assert padded.vocab_size == 8064
    with pytest.raises(InputError, match="`model.vocab_size` is 7000.*8000 entries"):
        architecture.ModelConfig(vocab_size=7000).with_vocab_size(8000)


def test_google_bert_config_with_keys_of_other_checkpoints(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text('{"num_attention_heads": 2, "pooler_fc_size": 7}')
    assert loading.read_bert_config(path).num_attention_heads == 2
    path.write_text('{"hidden_sizes": 128}')
    with pytest.raises(InputError, match="'hidden_sizes'; did you mean 'hidden_size'"):
        loading.read_bert_config(path)
    with pytest.raises(InputError, match=r"none\.json: expected JSON, cannot read"):
        loading.read_bert_config(tmp_path / "none.json")


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load().seed = 4


def _aliases(first, line, *, depth=9):
    names = "abcdefghij"
    lines = [first]
    for inner, outer in zip(names, names[1:depth], strict=False):
        lines.append(f"{outer}: &{outer} {line.format(', '.join(['*' + inner] * 9))}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Each costs one line; the aliases would stand for 400 million values.
        (_aliases("a: &a [1, 2]", "[{}]"), "not YAML: expected 10000 values"),
        (_aliases("a: &a {x: 1}", "{{<<: [{}]}}"), "not YAML: expected 10000"),
        ("seed: &a [*a]", "not YAML: expected 10000 values"),
        ("a: " + "[" * 100_000, "not YAML: expected .* 50 lists in each other"),
        ("a: " + "[a, " * 200, "not YAML: expected .* 50 lists in each other"),
        ("- " * 1000, "not YAML: expected .* 50 lists in each other"),
        ("a: " + "x" * 10**6, "not YAML: expected 200000 characters at most"),
        ("seed: 0x" + "f" * 5000, "not YAML: expected integers of 64 bits"),
        ("seed: 2001-99-99", "not YAML: month must be in 1..12"),
        ("seed: !!bool x", "not YAML: 'x'"),
        ("seed: !!timestamp x", "not YAML: "),
        ("1: 2", "`1`: keys should be strings, got 1"),
        ("phases: [{fraction: 1.0, x: 1}]", "no key 'phases.0.x'"),
        ("optimizer: {learning_rate: .inf}", "rate`: input should be a finite num"),
        ("seed: 1\n# \xff\n", "line 2: not UTF-8"),
        ("a: [1\n", "not YAML"),
        ("- 1\n", "expected keys and values"),
    ],
)
def test_bad_yaml_is_refused(tmp_path, text, message):
    (tmp_path / "c.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=rf"c\.yaml: .*{message}") as refused:
        load(source=tmp_path / "c.yaml")
    assert "\n" not in str(refused.value)


def test_brackets_without_end_on_the_command_line():
    message = "^--set 'seed=.*not a YAML value: expected 10000 values"
    with pytest.raises(InputError, match=message):
        load("seed=" + "[" * 9999)


def test_aliases_of_a_few_values_are_read(tmp_path):
    text = "grid: {seed: &seeds [1, 2], batch_size: *seeds}"
    (tmp_path / "c.yaml").write_text(text)
    read = load(source=tmp_path / "c.yaml", config_type=sweeps.SweepConfig)
    assert read.grid == {"seed": (1, 2), "batch_size": (1, 2)}


@pytest.mark.parametrize(
    ("settings", "lengths", "on_tpu"),
    [
        ({}, (), (64, 100)),
        ({"jit_compile": True}, (64, 100), (64, 100)),
        ({"jit_compile": True, "max_seq_length": 512}, *[(64, 128, 384, 512)] * 2),
        ({"jit_compile": True, "length_multiple": 8}, (), (64, 100)),
        ({"lengths": []}, (), ()),
        ({"lengths": [16, 100]}, (16, 100), (16, 100)),
        ({"lengths": [300]}, (100,), (100,)),
    ],
)
def test_lengths_that_fine_tuning_has(settings, lengths, on_tpu):
    made = strict.build_config(
        finetuning.FinetuningConfig, {"max_seq_length": 100} | settings
    )
    assert made.fixed_lengths(on_tpu=False) == lengths
    assert made.fixed_lengths(on_tpu=True) == on_tpu


def test_lengths_that_are_none():
    for lengths in ("[64, 32]", "[8, 8]", "[0, 8]"):
        with pytest.raises(InputError, match=f"ascending .*, got {re.escape(lengths)}"):
            load(f"lengths={lengths}", config_type=finetuning.FinetuningConfig)
    with pytest.raises(InputError, match=r"`length_multiple`, got \[8\] and 8"):
        settings = {"lengths": [8], "length_multiple": 8}
        strict.build_config(finetuning.FinetuningConfig, settings)


@pytest.mark.parametrize(
    ("phases", "batch_size"),
    [
        ([{"fraction": 1, "global_batch_size": 16}], 16),
        # A single directory is read in one phase, which is none of these.
        ([{"fraction": 0.9, "global_batch_size": 16}, {"fraction": 0.1}], None),
    ],
)
def test_a_single_directory_has_a_single_phase(phases, batch_size):
    settings = pretraining.PretrainingConfig(phases=phases, num_train_steps=20_000)
    ((phase, *steps),) = settings.planned_phases(1)
    assert phase == pretraining.PhaseConfig(fraction=1, global_batch_size=batch_size)
    assert steps == [0, 20_000]
