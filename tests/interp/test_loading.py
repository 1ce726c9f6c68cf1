"""The front door's loading, tokens and runs: what comes in, and that what must not come in is refused in one line."""

import json
import logging
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import interp
from interp.huggingface import quiet
from models import DecoderConfig, HookedDecoder

IOI = "When Mary and John went to the store, John gave a drink to"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def llama(hf_folder: Callable[[str], Path]) -> Any:
    return interp.load_model(hf_folder("llama"))


@pytest.fixture
def copy(hf_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a Hugging Face folder, to damage."""
    return Path(shutil.copytree(hf_folder("llama"), tmp_path / "copy"))


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def our_folder(folder: Path, tokenizer: Any) -> HookedDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(n_layers=2, d_model=8, n_ctx=10, d_vocab=tokenizer.get_vocab_size(), mixer="ishe", mixer_bias=True)
    model = HookedDecoder(config, tokenizer=tokenizer).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture
def plain_tokenizer(hf_folder: Callable[[str], Path]) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(hf_folder("llama") / "tokenizer.json"))


# ---- which model a name means ----


def test_an_unknown_name_is_refused_with_near_misses_and_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.loading.list_models", lambda: ["ishe-austen", "mha-austen"])
    monkeypatch.setattr("interp.huggingface.fetch", lambda name: pytest.fail("the network was asked"))
    with pytest.raises(ValueError, match="did you mean 'ishe-austen'") as error:
        interp.load_model("ishe-austn")
    one_line(error)
    for name in ("", "no such", "../missing/folder/x", "/nowhere", "missing/model.gguf"):
        with pytest.raises(ValueError, match="no model"):
            interp.load_model(name)
    with pytest.raises(TypeError, match="name_or_path"):
        interp.load_model(3)  # type: ignore[arg-type]


def test_a_hub_id_offline_is_one_line_that_names_it() -> None:
    with pytest.raises(ValueError, match="cannot fetch 'nobody/nothing' from the hub") as error:
        interp.load_model("nobody/nothing")
    assert "local folder" in one_line(error)


def test_a_hub_id_loads_what_the_hub_hands_over(monkeypatch: pytest.MonkeyPatch, hf_folder: Callable[[str], Path]) -> None:
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(hf_folder("gpt2"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = interp.load_model("owner/tiny")
    assert interp.model_name(model) == "owner/tiny"
    assert [name for name, _ in asked] == ["owner/tiny"]
    assert not [p for p in asked[0][1] if p.endswith((".py", ".bin", ".pt")) or p == "*"]


def test_our_own_folder_loads_bit_equal(tmp_path: Path, plain_tokenizer: Any) -> None:
    saved = our_folder(tmp_path / "mine", plain_tokenizer)
    model = interp.load_model(tmp_path / "mine")
    assert interp.model_name(model) == "mine"
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids), saved(ids))
    assert not model.training


def test_a_shipped_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, plain_tokenizer: Any, hf_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    our_folder(tmp_path / "zoo", plain_tokenizer)
    shutil.copytree(hf_folder("gpt2"), tmp_path / "ishe-austen")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("models.zoo.names", lambda: ["ishe-austen"])
    monkeypatch.setattr("models.zoo.path", lambda name: tmp_path / "zoo")
    assert isinstance(interp.load_model("ishe-austen"), HookedDecoder)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_dtype_is_what_the_weights_have(hf_folder: Callable[[str], Path], dtype: Any) -> None:
    model = interp.load_model(hf_folder("llama"), dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16 if dtype == "bfloat16" else dtype}
    logits, _ = interp.run_with_cache(model, IOI, "hook_embed")
    assert logits.isfinite().all()


def test_device_and_dtype_are_checked(copy: Path) -> None:
    for device in ("cuda:99", "gpu"):
        with pytest.raises(ValueError, match=f"device: '{device}' cannot be used here"):
            interp.load_model(copy, device=device)
    for dtype in ("float8", torch.int32):
        with pytest.raises(ValueError, match="dtype must be one of float32"):
            interp.load_model(copy, dtype=dtype)


def test_loading_prints_nothing_and_leaves_logging_as_it_was(
    hf_folder: Callable[[str], Path], tmp_path: Path, plain_tokenizer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging as transformers_logging

    before = (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled(), logging.root.manager.disable)
    interp.load_model(hf_folder("gpt2"))
    our_folder(tmp_path / "mine", plain_tokenizer)
    interp.load_model(tmp_path / "mine")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled(), logging.root.manager.disable)


def test_what_a_model_cannot_be_trusted_with_is_named_at_load(
    family: str, hf_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interp.load_model(hf_folder(family)).limits == {}
    if family == "llama":
        from interp import analysis

        def no_view(model: Any) -> Any:
            raise TypeError("layer 0 has no hook_attn_out")

        monkeypatch.setattr(analysis, "prove", no_view)
        model = interp.load_model(hf_folder(family))
        assert model.limits == {"stream": "layer 0 has no hook_attn_out"}
        assert len(interp.run_with_cache(model, IOI)[1]) > 50  # its activations can be kept all the same


# ---- what is refused ----


def test_nan_and_inf_weights_are_named(copy: Path) -> None:
    for bad in (float("nan"), float("inf")):
        tensors = load_file(copy / WEIGHTS)
        tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = bad
        save_file(tensors, copy / WEIGHTS, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=r"down_proj\.weight' holds NaN or inf") as error:
            interp.load_model(copy)
        assert str(copy) in one_line(error)


def test_a_truncated_checkpoint_is_refused(copy: Path) -> None:
    whole = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="truncated or no safetensors file") as error:
        interp.load_model(copy)
    assert "intact copy" in one_line(error)


def test_a_missing_weight_is_refused_and_not_left_random(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    save_file(tensors, copy / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weight\(s\), 'model\.layers\.1\.self_attn\.v_proj\.weight'") as error:
        interp.load_model(copy)
    one_line(error)


def test_a_weight_of_another_shape_is_refused(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, copy / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="cannot read the model") as error:
        interp.load_model(copy)
    one_line(error)


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", WEIGHTS])
def test_a_pickle_is_refused_by_name_or_content_and_never_opened(copy: Path, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    (copy / WEIGHTS).unlink()
    (copy / name).write_bytes(pickle.dumps(Bomb(trace)))
    for target in (copy, copy / name):
        with pytest.raises(ValueError, match="is a pickle, which can run code and is never loaded") as error:
            interp.load_model(target)
        assert name in one_line(error)
    assert not trace.exists()


def test_a_torch_archive_under_another_name_is_refused(copy: Path) -> None:
    torch.save({"x": torch.zeros(2)}, copy / WEIGHTS)
    with pytest.raises(ValueError, match="is a pickle"):
        interp.load_model(copy)


def test_a_safetensors_file_whose_length_begins_like_a_pickle_is_loaded(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    for pad in range(256):
        save_file(tensors, copy / WEIGHTS, metadata={"format": "pt", "pad": "x" * pad})
        if (copy / WEIGHTS).read_bytes()[:1] == b"\x80":
            break
    else:
        pytest.fail("no padding gives that length")
    assert interp.load_model(copy).cfg.n_layers == 3


def test_a_folder_without_tokenizer_weights_or_configuration_says_which(copy: Path, tmp_path: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer.*save_pretrained") as error:
        interp.load_model(copy)
    one_line(error)
    (copy / WEIGHTS).unlink()
    with pytest.raises(ValueError, match="holds no weights"):
        interp.load_model(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON") as error:
        interp.load_model(copy)
    one_line(error)
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        interp.load_model(copy)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="file of another kind"):
        interp.load_model(tmp_path / "notes.txt")


def test_our_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_ctx=10, d_vocab=20, mixer="ishe")).save_pretrained(tmp_path / "mine")
    with pytest.raises(ValueError, match="has no tokenizer") as error:
        interp.load_model(tmp_path / "mine")
    one_line(error)


def test_an_altered_checkpoint_of_ours_is_refused(tmp_path: Path, plain_tokenizer: Any) -> None:
    our_folder(tmp_path / "mine", plain_tokenizer)
    file = tmp_path / "mine" / WEIGHTS
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="fingerprint") as error:
        interp.load_model(tmp_path / "mine")
    one_line(error)


def test_code_that_a_checkpoint_brings_is_never_run(copy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (copy / "evil.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((copy / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    assert interp.load_model(copy).cfg.n_layers == 3  # a built-in type needs no code of its own
    config["model_type"] = "evil"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"'evil' and brings its own code \(auto_map\), which is never run") as error:
        interp.load_model(copy)
    one_line(error)
    assert not trace.exists()


def test_a_damaged_gguf_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for content, message in ((b"PK\x03\x04", "is no GGUF file"), (b"GGUF\x03\x00\x00\x00" + bytes(8), "cannot read")):
        file.write_bytes(content)
        for attempt in (lambda: interp.convert_gguf(file, tmp_path / "out"), lambda: interp.load_model(file)):
            with pytest.raises(ValueError, match=message) as error:
                attempt()
            one_line(error)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_convert_refuses_a_taken_folder_and_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(ValueError, match="no file"):
        interp.convert_gguf(file, tmp_path / "out")
    file.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="already there and not empty"):
        interp.convert_gguf(file, tmp_path)
    with pytest.raises(ValueError, match="cannot write"):
        interp.convert_gguf(file, file / "out")


# ---- tokens ----


def test_tokens_are_those_of_transformerlens(llama: Any) -> None:
    for prepend in (None, True, False):
        tokens = interp.encode(llama, IOI, prepend)
        assert torch.equal(tokens.ids, llama.to_tokens(IOI, prepend_bos=prepend))
        assert "".join(tokens.str_tokens[0]) == ("" if prepend is False else "<bos>") + IOI


def test_bos_never_comes_twice(llama: Any) -> None:
    once = interp.encode(llama, "<bos>" + IOI)
    assert torch.equal(once.ids, interp.encode(llama, IOI, True).ids)


def test_our_decoders_have_no_bos(tmp_path: Path, plain_tokenizer: Any) -> None:
    our_folder(tmp_path / "mine", plain_tokenizer)
    model = interp.load_model(tmp_path / "mine")
    assert interp.encode(model, "a drink").str_tokens[0][0] != "<bos>"
    with pytest.raises(ValueError, match="mine has no BOS token"):
        interp.encode(model, "a drink", True)


def test_empty_text_is_refused_and_not_turned_into_bos(llama: Any) -> None:
    for text in ("", [], [""], ["a", ""], [[]], torch.zeros(0, dtype=torch.long), torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(ValueError, match="at least one token"):
            interp.encode(llama, text)


def test_text_that_is_too_long_is_refused_with_the_cut_that_fits(llama: Any) -> None:
    text = f"{IOI} Mary. " * 12
    with pytest.raises(ValueError, match=r"more than the 64 that tiny-llama can read \(n_ctx\): the first \d+ characters fit") as error:
        interp.encode(llama, text)
    cut = int(one_line(error).split("text[:")[1].rstrip("]"))
    assert interp.encode(llama, text[:cut]).ids.shape[1] == 64
    with pytest.raises(ValueError, match="more than the 64"):
        interp.encode(llama, text[: cut + 8])
    with pytest.raises(ValueError, match=r"65 ids are more than the 64.*keep ids\[:64\]"):
        interp.encode(llama, torch.ones(65, dtype=torch.long))


def test_ids_are_fed_as_they_are(llama: Any) -> None:
    for ids in ([5, 6, 7], torch.tensor([5, 6, 7]), torch.tensor([[5, 6, 7]])):
        assert interp.encode(llama, ids).ids.tolist() == [[5, 6, 7]]
    assert interp.encode(llama, torch.tensor([[5, 6], [7, 8]])).ids.tolist() == [[5, 6], [7, 8]]
    with pytest.raises(ValueError, match="prepend_bos=True is for text"):
        interp.encode(llama, [5, 6], True)
    for wrong in ([5, 320], [-1]):
        with pytest.raises(ValueError, match=r"is not in the vocabulary of tiny-llama, which has ids 0\.\.319"):
            interp.encode(llama, wrong)
    for wrong_type in (3, 2.5, None, torch.tensor([0.5]), [1.5], [True, False]):
        with pytest.raises(TypeError):
            interp.encode(llama, wrong_type)  # type: ignore[arg-type]


def test_prompts_of_several_lengths_are_padded_with_a_mask(llama: Any) -> None:
    right = interp.encode(llama, [IOI, "to", [5, 6]], False)
    left = interp.encode(llama, [IOI, "to", [5, 6]], False, padding_side="left")
    lengths = [len(row) for row in right.str_tokens]
    assert right.attention_mask.sum(1).tolist() == left.attention_mask.sum(1).tolist() == lengths
    assert right.attention_mask[1].tolist() == left.attention_mask[1].tolist()[::-1] == [1] * lengths[1] + [0] * (lengths[0] - lengths[1])
    assert right.ids[2, :2].tolist() == left.ids[2, -2:].tolist() == [5, 6]
    with pytest.raises((ValueError, TypeError), match="padding_side"):
        interp.encode(llama, IOI, padding_side="middle")  # type: ignore[arg-type]


def test_an_answer_is_exactly_one_token_or_an_id(llama: Any) -> None:
    mary = interp.resolve_answer(llama, " Mary")
    assert interp.resolve_answer(llama, mary) == mary
    with pytest.raises(ValueError, match=r"answer ' Mary Mary' is 2 tokens \[' Mary', ' Mary'\], not one: choose one") as error:
        interp.resolve_answer(llama, " Mary Mary")
    one_line(error)
    with pytest.raises(ValueError, match="is 0 tokens"):
        interp.resolve_answer(llama, "")
    for outside in (320, -1):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            interp.resolve_answer(llama, outside)
    for wrong in (True, 2.0, None):
        with pytest.raises(TypeError, match="answer"):
            interp.resolve_answer(llama, wrong)  # type: ignore[arg-type]


# ---- runs ----


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_prompt_of_a_padded_batch_gets_what_it_gets_alone(family: str, side: Any, hf_folder: Callable[[str], Path]) -> None:
    model = interp.load_model(hf_folder(family))
    prompts = [IOI, "John gave", " the store"]
    together, cache = interp.run_with_cache(model, prompts, padding_side=side)
    for i, prompt in enumerate(prompts):
        alone, one = interp.run_with_cache(model, prompt)
        cut = cache.prompt(i)
        torch.testing.assert_close(together[i, cache.attention_mask[i].bool()], alone[0], rtol=1e-4, atol=1e-4)
        assert cut.str_tokens == one.str_tokens
        assert torch.equal(cut.tokens, one.tokens)
        for name, value in one.items():
            reached = value > -1e30  # a masked score is the smallest number there is
            torch.testing.assert_close(cut[name][reached], value[reached], rtol=1e-4, atol=1e-4, msg=lambda t, name=name: f"{name}: {t}")


def test_left_padding_without_positions_over_real_tokens_would_show(hf_folder: Callable[[str], Path]) -> None:
    model = interp.load_model(hf_folder("gpt2"))
    tokens = interp.encode(model, [IOI, "John gave"], padding_side="left")
    alone, _ = interp.run_with_cache(model, "John gave", "hook_embed")
    with torch.no_grad():
        wrong = model(tokens.ids)
    assert (wrong[1, -1] - alone[0, -1]).abs().max() > 0.1


def test_the_tokens_fed_are_kept_with_the_cache(llama: Any) -> None:
    _, cache = interp.run_with_cache(llama, IOI, "hook_embed")
    assert cache.str_tokens is not None
    assert cache.str_tokens[0][:2] == ("<bos>", "When")
    assert cache.model_name == "tiny-llama"


# ---- the real model ----


@pytest.mark.smollm2
def test_smollm2_ranks_mary_first(smollm2: Any) -> None:
    mary = interp.resolve_answer(smollm2, " Mary")
    for prepend, value in ((None, 9.2125), (True, 9.2125), (False, 11.0370)):
        logits, cache = interp.run_with_cache(smollm2, IOI, "blocks.29.hook_resid_post", prepend_bos=prepend)
        assert int(logits[0, -1].argmax()) == mary
        assert logits[0, -1, mary].item() == pytest.approx(value, abs=2e-3)
        assert torch.equal(cache.tokens, smollm2.to_tokens(IOI, prepend_bos=prepend))
    assert interp.model_name(smollm2) == "SmolLM2-135M"
    assert smollm2.cfg.n_key_value_heads == 3


@pytest.mark.smollm2
def test_smollm2_text_beyond_its_context_is_refused_and_not_cut(smollm2: Any) -> None:
    with pytest.raises(ValueError, match=r"text has 9002 tokens, more than the 8192 that SmolLM2-135M can read"):
        interp.encode(smollm2, "store " * 9000)
