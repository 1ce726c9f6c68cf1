"""Saving and loading: bit-equal, strict, silent; whatever is not exactly what was saved is one line that names the file and the fix."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models import HookedDecoder, checkpoint

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture
def folder(make, tmp_path, tokenizer):
    make("ishe", d_vocab=tokenizer.get_vocab_size(), tokenizer=tokenizer).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(folder, message):
    with pytest.raises(ValueError, match=message) as caught:
        HookedDecoder.from_pretrained(folder)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("mixer", ["mha", "she", "ishe", "he", "ihe", "kshe", "khe", ("mha", "ihe")])
@pytest.mark.parametrize("bias", [True, False])
def test_reloaded_logits_are_bit_equal(make, tmp_path, mixer, bias):
    """TL#1587, TL#1725, SAELens#553: round trips that load nothing or something else."""
    model = make(mixer, mixer_bias=bias, unembed_bias=bias, layout=("swapped", "parallel"), norm="rms", dropout=0.1)
    model.save_pretrained(tmp_path / "a")
    loaded = HookedDecoder.from_pretrained(tmp_path / "a")
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert loaded.config == model.config and loaded.fingerprint() == model.fingerprint() and not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "model.safetensors"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_weights_stored_narrower_are_widened_exactly(make, tmp_path, stored):
    model = make("ishe")
    model.save_pretrained(tmp_path / "a", dtype=stored)
    assert {t.dtype for t in load_file(tmp_path / "a" / "model.safetensors").values()} == {stored}
    loaded = HookedDecoder.from_pretrained(tmp_path / "a")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    rounded = model.to(stored).to(torch.float32)
    assert torch.equal(loaded(TOKENS), rounded(TOKENS)) and loaded.fingerprint() == rounded.fingerprint()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_keep_their_type(make, tmp_path, dtype):
    model = make("he").to(dtype)
    model.save_pretrained(tmp_path / "a")
    loaded = HookedDecoder.from_pretrained(str(tmp_path / "a"))
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert torch.equal(loaded(TOKENS), model(TOKENS))


def test_silent_and_leaves_the_random_state_alone(folder, capfd):
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HookedDecoder.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_loaded_weights_are_the_models_own(folder):
    """Training a loaded decoder must not reach the file it came from."""
    before = (folder / "model.safetensors").read_bytes()
    model = HookedDecoder.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (folder / "model.safetensors").read_bytes() == before
    model.save_pretrained(folder)
    assert HookedDecoder.from_pretrained(folder).fingerprint() == model.fingerprint()


def test_saving_over_a_folder_replaces_ours_and_leaves_the_rest(make, folder):
    (folder / "README.md").write_text("a card")
    model = make("she", seed=1)
    model.save_pretrained(folder)
    assert HookedDecoder.from_pretrained(folder).fingerprint() == model.fingerprint()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]  # its tokenizer went too


def test_the_fingerprint_sees_every_tensor_and_the_config(make):
    model = make("mha")
    seen = {model.fingerprint(), make("mha", norm_eps=1e-6).fingerprint()}
    for parameter in model.parameters():
        with torch.no_grad():
            flat = parameter.view(-1)
            flat[-1] = torch.nextafter(flat[-1], torch.tensor(9.0))
        seen.add(model.fingerprint())
    assert len(seen) == 2 + len(list(model.parameters()))


def test_a_truncated_file_is_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(folder, "model.safetensors' is truncated or no safetensors file.*take an intact copy")
    path.write_bytes(b"")
    refused(folder, "truncated")


def test_an_altered_weight_is_refused(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    refused(folder, "was altered.*take an intact copy")


def test_an_altered_config_is_refused(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "norm_eps": 1e-3}))
    refused(folder, "was altered")
    (folder / "config.json").write_text(json.dumps({**values, "surprise": 1}))
    refused(folder, "config.json' is no decoder's configuration: unknown key 'surprise'")
    (folder / "config.json").write_text(json.dumps({**values, "n_layers": 0}))
    refused(folder, "config.json' is no decoder's configuration: n_layers must be at least 1, got 0")
    for broken in ("{", "[]", "null"):
        (folder / "config.json").write_text(broken)
        refused(folder, "config.json' is no decoder's configuration")


def test_a_nan_weight_is_refused_on_the_way_in_and_out(make, folder, tmp_path):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["blocks.0.attn.W_adj"][0, 0] = torch.nan
    save_file(tensors, path)
    refused(folder, "weight 'blocks.0.attn.W_adj' holds NaN or inf")
    model = make("ishe")
    with torch.no_grad():
        model.unembed.W_U[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"weight 'unembed.W_U' is not finite"):
        model.save_pretrained(tmp_path / "b")
    with torch.no_grad():
        model.unembed.W_U[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"weight 'unembed.W_U' is not finite as torch.float16"):
        model.save_pretrained(tmp_path / "b", dtype=torch.float16)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_weights_that_are_not_the_configurations_are_refused(folder, change):
    """The mixin loads with strict=False: a missing tensor stays random."""
    config, tensors, tokenizer = checkpoint.read(folder)
    if change == "missing":
        del tensors["ln_final.w"]
    elif change == "extra":
        tensors["ln_final.c"] = torch.ones(2)
    else:
        tensors["ln_final.w"] = torch.ones(9)
    checkpoint.write(folder, checkpoint.Checkpoint(config, tensors, tokenizer))
    refused(
        folder, {"missing": "'ln_final.w' is missing", "extra": "'ln_final.c' is .* wants none", "shape": r"'ln_final.w' is \(9,\)"}[change]
    )


def test_a_pickle_is_never_loaded(folder, make):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    torch.save({"x": Bomb()}, folder / "pytorch_model.bin")
    refused(folder / "pytorch_model.bin", "pytorch_model.bin' is a pickle, which is never loaded")
    (folder / "model.safetensors").unlink()
    refused(folder, "pytorch_model.bin' is a pickle, which is never loaded: save the weights as model.safetensors")
    shutil.move(folder / "pytorch_model.bin", folder / "model.safetensors")
    refused(folder, "truncated or no safetensors file")


def test_missing_files_are_named(folder, tmp_path):
    refused(tmp_path / "nowhere", "no folder .*nowhere")
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("true", "false", 1))
    refused(folder, "tokenizer.json' is not the tokenizer the decoder was saved with")
    (folder / "tokenizer.json").unlink()
    refused(folder, "tokenizer.json' is missing")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")


def test_a_decoder_without_tokenizer_saves_and_loads_and_refuses_text(make, tmp_path):
    make("ishe").save_pretrained(tmp_path / "a")
    model = HookedDecoder.from_pretrained(tmp_path / "a")
    assert model.tokenizer is None
    for call in (model, model.to_tokens, model.generate):
        with pytest.raises(ValueError, match=r"this decoder has no tokenizer.*give token ids, or set model.tokenizer"):
            call("a cat")


def test_an_unwritable_place_is_one_line_and_leaves_nothing(make, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"cannot write .*choose a folder you may write to") as caught:
            make("ishe").save_pretrained(target)
        assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "file"] and (tmp_path / "file").read_text() == "in the way"


def test_a_failure_while_writing_leaves_the_old_checkpoint(make, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ValueError, match="No space left on device"):
        make("she", seed=1).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_unknown_keywords_raise(make, folder, tmp_path):
    """TL#1680: swallowed keywords."""
    with pytest.raises(TypeError, match="'dtyp'"):
        make("ishe").save_pretrained(tmp_path / "a", dtyp=torch.float16)
    with pytest.raises(TypeError, match="'mixer'"):
        HookedDecoder.from_pretrained(folder, mixer={})


class GatedMovingAverage(nn.Module):
    """A user's own mixer, as the documentation shows one."""

    def __init__(self, config, layer):
        super().__init__()
        self.W_gate = nn.Parameter(torch.randn(config.d_model, config.d_model) / config.d_model**0.5)

    def forward(self, x, attention_mask=None):
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return x.cumsum(1) / count * (x @ self.W_gate)


def test_a_mixer_of_ones_own(make, tmp_path):
    model = make(("gma", "mha"), mixers={"gma": GatedMovingAverage})
    assert model.config.layer_mixers == ("gma", "mha")
    model.save_pretrained(tmp_path / "a")
    loaded = HookedDecoder.from_pretrained(tmp_path / "a", mixers={"gma": GatedMovingAverage})
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    refused(tmp_path / "a", r"unknown mixer 'gma' .*one of your own goes in mixers=\{'gma': cls\}")
    with pytest.raises(ValueError, match="'she' is built in, your own would never be called"):
        make("she", mixers={"she": GatedMovingAverage})
    with pytest.raises(ValueError, match=r"unknown mixer 'gma' \(did you mean .*'gmb'"):
        HookedDecoder.from_pretrained(tmp_path / "a", {"gmb": GatedMovingAverage})
