"""The shipped decoders are what their cards say."""

import json
import math
import random

import pytest
import torch

from models import HookedDecoder, zoo
from models.corpus import encode
from models.induction import CHANCE, InductionConfig, repeated_blocks, validation_blocks
from models.training import TrainingConfig, mean_loss, next_tokens, validation_windows
from models.zoo.build import AUSTEN, N_SHUFFLES, SAMPLE_BREAK, main, trigram_share, words

AUSTEN_NAMES = [f"{mixer}-austen" for mixer in AUSTEN]
INDUCTION = "mha-induction"
FILES = {"README.md", "config.json", "log.jsonl", "model.safetensors", "recipe.json", "samples.txt", "tokenizer.json"}

# The recorded losses are of the weights as stored, rounded to float16 and widened again, which is exact. So only float32 arithmetic in
# another order is between them and a second measurement: some 1e-7 of the loss, mostly from summing 4,096 terms. The rounding itself moved
# them by 1e-6 to 1e-5.
SAME_LOSS = 5e-6


def recipe(name):
    return json.loads((zoo.path(name) / "recipe.json").read_text())


def loss_of(name, every):
    model = HookedDecoder.from_pretrained(zoo.path(name))
    windows = validation_windows(encode(model.tokenizer, zoo.heldout_text()), model.config.n_ctx)
    return mean_loss(model, next_tokens(windows[::every]))


def test_all_six_ship_with_all_their_files_and_are_small():
    assert zoo.names() == sorted([*AUSTEN_NAMES, INDUCTION])
    sizes = {}
    for name in zoo.names():
        assert {file.name for file in zoo.path(name).iterdir()} == FILES
        sizes[name] = sum(file.stat().st_size for file in zoo.path(name).iterdir())
    assert sizes.pop(INDUCTION) < 1_000_000
    assert sum(sizes.values()) <= 20_000_000


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match="no shipped decoder 'ishe-austin'; did you mean 'ishe-austen'"):
        zoo.path("ishe-austin")


@pytest.mark.parametrize("name", [*AUSTEN_NAMES, INDUCTION])
def test_a_shipped_decoder_loads_and_predicts(name):
    model = HookedDecoder.from_pretrained(zoo.path(name))
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    text = "a0 b1 c2" if name == INDUCTION else "It is a truth universally acknowledged, that a single man"
    logits = model(text)
    assert logits.shape == (1, len(model.to_str_tokens(text)), model.config.d_vocab)
    assert logits.isfinite().all()
    assert set(model.config.layer_mixers) == {name.split("-")[0]}


@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_the_recipe_is_the_one_the_build_uses(name):
    assert TrainingConfig(**recipe(name)["training"]) == AUSTEN[name.removesuffix("-austen")]
    assert len({recipe(other)["text"]["sha256"] for other in AUSTEN_NAMES}) == 1


@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_the_recorded_loss_is_good_enough_and_has_a_log(name):
    validation = recipe(name)["validation"]
    assert validation["loss"] <= 4.0
    assert abs(validation["loss"] - validation["loss_before_rounding_to_storage"]) < 1e-4
    log = [json.loads(line) for line in (zoo.path(name) / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(250, recipe(name)["training"]["steps"] + 1, 250))
    assert log[-1]["validation_loss"] == validation["loss_before_rounding_to_storage"]
    assert log[0]["validation_loss"] > log[-1]["validation_loss"]


@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_the_recorded_loss_is_measured_again_on_every_tenth_window(name):
    assert abs(loss_of(name, every=10) - recipe(name)["validation"]["loss_every_tenth_window"]) < SAME_LOSS


@pytest.mark.slow
@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_the_recorded_loss_is_measured_again_on_everything(name):
    assert abs(loss_of(name, every=1) - recipe(name)["validation"]["loss"]) < SAME_LOSS


@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_samples_share_more_trigrams_with_the_heldout_text_than_a_shuffled_corpus_does(name):
    samples = (zoo.path(name) / "samples.txt").read_text().removesuffix("\n").split(SAMPLE_BREAK)
    rows, heldout = [words(sample) for sample in samples], words(zoo.heldout_text())
    share, recorded = trigram_share(rows, heldout), recipe(name)["trigrams_in_heldout"]
    assert recorded["draws"] == N_SHUFFLES
    assert share == recorded["samples"]
    assert share > recorded["most_of_any_shuffle"]
    # The recorded shuffles are of the training part, which does not ship. The held-out text's own words, shuffled, are a harder rival.
    rng = random.Random(0)
    assert share > max(trigram_share([rng.sample(heldout, len(row)) for row in rows], heldout) for _ in range(5))


@pytest.mark.parametrize("name", AUSTEN_NAMES)
def test_the_card_says_what_was_measured(name):
    card, record = (zoo.path(name) / "README.md").read_text(), recipe(name)
    for value in (
        f"{record['validation']['loss']:.4f}",
        f"{record['trigrams_in_heldout']['samples']:.2%}",
        f"{math.exp(record['validation']['loss']):.1f}",
    ):
        assert value in card
    model = HookedDecoder.from_pretrained(zoo.path(name))
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters" in card


def test_the_heldout_text_is_whole_and_holds_none_of_northanger_abbey():
    text = zoo.heldout_text()
    assert len(text.split("\n\n\n")) == 5
    assert 250_000 < len(text.encode()) < 300_000
    assert "Marianne" in text
    assert "Tilney" not in text


def test_the_induction_decoder_copies_and_its_loss_is_the_recorded_one():
    model = HookedDecoder.from_pretrained(zoo.path(INDUCTION))
    config = InductionConfig(**recipe(INDUCTION)["training"])
    loss = mean_loss(model, validation_blocks(config.n_ctx, config.seed))
    assert abs(loss - recipe(INDUCTION)["validation"]["loss"]) < SAME_LOSS
    assert loss < 0.2 < 2.0 < CHANCE
    assert f"{loss:.4f}" in (zoo.path(INDUCTION) / "README.md").read_text()


def test_the_induction_decoder_reads_the_place_after_the_earlier_occurrence():
    # With the symbol there exchanged for another, it is the other that is predicted: it copies from there and does not count rows.
    model = HookedDecoder.from_pretrained(zoo.path(INDUCTION))
    tokens = repeated_blocks(rows=64, n_ctx=64, seed=(9, 9)).inputs[:, :16]
    tokens = tokens[[len(set(row.tolist())) == 16 for row in tokens]]
    assert len(tokens) > 10
    prompt = torch.cat([tokens, tokens[:, 4:6]], 1)  # what comes next is what stands at 6
    edited = prompt.clone()
    edited[:, 6] = (prompt[:, 6] + 64) % 128
    with torch.no_grad():
        before, after = model(prompt)[:, -1].argmax(-1), model(edited)[:, -1].argmax(-1)
    assert (before == prompt[:, 6]).float().mean() > 0.9
    assert (after == edited[:, 6]).float().mean() > 0.9


def test_the_build_says_what_is_wrong_with_its_input(tmp_path, capsys):
    assert main(["--text", str(tmp_path / "nowhere.txt"), "-o", str(tmp_path / "zoo")]) == 2
    assert "error: text: no file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
