"""Capture: which names are meant, whose memory a cached tensor is, and that hooks go as they came, whatever happens."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

import interp
from analyses import capture
from models import DecoderConfig, HookedDecoder


class Toy(HookedRootModule):
    """Writes into its own activations after the hooks have seen them, splits heads, and flattens rows before one hook."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.drop = nn.Dropout(0.5)
        self.hook_embed = HookPoint()
        self.hook_heads = HookPoint()
        self.hook_heads.pos_dim = 2
        self.hook_flat = HookPoint()
        self.hook_dead = HookPoint()
        self.setup()
        self.eval()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.hook_embed(self.drop(self.embed(tokens)))
        heads = self.hook_heads(x.unflatten(-1, (2, 3)).transpose(1, 2))  # (b, h, t, e)
        x = heads.transpose(1, 2).flatten(-2)
        x = self.hook_flat(x.flatten(0, 1)).view(x.shape)
        if not torch.is_grad_enabled():
            x.mul_(100)
        return x * 2


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def decoder(mixer: str) -> HookedDecoder:
    torch.manual_seed(0)
    config = DecoderConfig(n_layers=2, d_model=8, n_ctx=9, d_vocab=11, n_heads=2, mixer=mixer, mixer_bias=True, unembed_bias=True)
    model = HookedDecoder(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model.eval()


@pytest.fixture(scope="module")
def llama(hf_folder: Callable[[str], Any]) -> Any:
    return interp.load_model(hf_folder("llama"))


# ---- names ----


@pytest.mark.parametrize("names_filter", ["hook_embd", "hook_embd*", ["hook_embed", "hook_haeds"], ["hook_embed", "nothing.*"]])
def test_an_unmatched_name_raises_and_is_not_an_empty_cache(names_filter: Any) -> None:
    with pytest.raises(ValueError, match=r"Toy has no hook '(hook_embd\*?|hook_haeds|nothing\.\*)'"):
        capture.run_with_cache(Toy(), IDS, names_filter=names_filter)


def test_a_mistyped_name_is_answered_with_the_nearest_real_ones() -> None:
    with pytest.raises(ValueError, match="nearest: hook_embed"):
        capture.resolve(Toy(), "hook_embd")
    with pytest.raises(ValueError, match=r"blocks\.1\.hook_resid_post"):
        capture.resolve(decoder("ishe"), "blocks.1.hook_resid_pots")


def test_a_predicate_that_accepts_nothing_and_an_empty_list_raise() -> None:
    with pytest.raises(ValueError, match="accepts none of the 4 hook names of Toy"):
        capture.resolve(Toy(), lambda name: False)
    with pytest.raises(ValueError, match="empty list"):
        capture.resolve(Toy(), [])
    with pytest.raises(TypeError, match="names_filter"):
        capture.resolve(Toy(), [3])  # type: ignore[list-item]


def test_names_globs_lists_and_predicates_mean_the_same_hooks() -> None:
    model = decoder("ishe")
    posts = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    assert capture.resolve(model, posts) == posts
    assert capture.resolve(model, "blocks.?.hook_resid_post") == posts
    assert capture.resolve(model, ["blocks.1.hook_resid_post", "blocks.*.hook_resid_post"]) == posts[::-1]
    assert capture.resolve(model, lambda name: name.endswith("resid_post")) == posts


@pytest.mark.parametrize("mixer", ["mha", "she", "ishe", "he", "ihe"])
def test_the_default_is_every_hook_of_our_decoders_once(mixer: str) -> None:
    model = decoder(mixer)
    names = capture.resolve(model, None)
    assert sorted(names) == sorted(model.hook_dict)
    _, cache = capture.run_with_cache(model, IDS)
    assert list(cache.keys()) == names


def test_a_bridge_gives_each_tensor_once_under_transformerlens_names(llama: Any) -> None:
    names = capture.resolve(llama, None)
    points = [id(llama.hook_dict[name]) for name in names]
    assert len(set(points)) == len(points)
    assert "hook_pos_embed" not in names  # rotary angles, not something added to the stream
    assert {"blocks.2.hook_attn_out", "blocks.0.attn.hook_z", "blocks.1.mlp.hook_post", "ln_final.hook_normalized"} <= set(names)


def test_a_glob_over_aliases_reaches_each_hook_point_once(llama: Any) -> None:
    names = capture.resolve(llama, "blocks.0.*")
    points = [id(llama.hook_dict[name]) for name in names]
    assert len(set(points)) == len(points)
    assert "blocks.0.hook_resid_pre" in names
    assert "blocks.0.hook_in" not in names


def test_an_alias_and_its_canonical_name_are_each_keyed_as_asked_for(llama: Any) -> None:
    asked = ["blocks.0.attn.q.hook_out", "blocks.0.attn.hook_q"]
    _, cache = capture.run_with_cache(llama, IDS, names_filter=asked)
    assert list(cache.keys()) == asked
    assert torch.equal(cache[asked[0]], cache[asked[1]])
    assert cache[asked[0]].data_ptr() != cache[asked[1]].data_ptr()


def test_cached_tensors_of_a_bridge_have_transformerlens_shapes(llama: Any) -> None:
    _, cache = capture.run_with_cache(llama, IDS)
    shapes = {name: tuple(cache[f"blocks.1.attn.{name}"].shape) for name in ("hook_q", "hook_k", "hook_v", "hook_z", "hook_pattern")}
    assert shapes == {
        "hook_q": (2, 3, 4, 8),
        "hook_k": (2, 3, 2, 8),
        "hook_v": (2, 3, 2, 8),
        "hook_z": (2, 3, 4, 8),
        "hook_pattern": (2, 4, 3, 3),
    }


def test_a_hook_that_is_switched_off_or_never_fires_is_named(llama: Any) -> None:
    with pytest.raises(ValueError, match=r"hook_result' is switched off on tiny-llama: .*use_attn_result"):
        capture.resolve(llama, "blocks.0.attn.hook_result")
    with pytest.raises(ValueError, match="'hook_dead' of Toy carried no tensor"):
        capture.run_with_cache(Toy(), IDS, names_filter=["hook_embed", "hook_dead"])
    with pytest.raises(ValueError, match="none of the 1 hooks"):
        capture.run_with_cache(Toy(), IDS, names_filter="*dead")


# ---- values ----


def test_a_cached_tensor_does_not_change_when_the_model_writes_into_its_own() -> None:
    model = Toy()
    _, cache = capture.run_with_cache(model, IDS, names_filter="hook_*")
    expected = model.embed(IDS)
    assert torch.equal(cache["hook_embed"], expected)
    assert torch.equal(cache["hook_heads"], expected.unflatten(-1, (2, 3)).transpose(1, 2))


def test_no_cached_tensor_shares_memory_with_another_or_with_a_weight() -> None:
    for model in (decoder("mha"), decoder("ishe")):
        _, cache = capture.run_with_cache(model, IDS)
        storages = [t.untyped_storage().data_ptr() for t in (*cache.cache_dict.values(), *model.parameters())]
        assert len(set(storages)) == len(storages)


def test_rows_that_a_model_flattens_come_back_by_prompt_and_position() -> None:
    model = Toy()
    _, cache = capture.run_with_cache(model, IDS, names_filter="hook_flat")
    assert torch.equal(cache["hook_flat"], model.embed(IDS))


@pytest.mark.parametrize("mixer", ["mha", "ishe"])
def test_a_batch_of_one_equals_its_row_in_a_batch_of_many(mixer: str) -> None:
    model = decoder(mixer)
    with capture.explicit(model):
        logits, cache = capture.run_with_cache(model, IDS)
        alone, one = capture.run_with_cache(model, IDS[1:])
    assert alone.shape == (1, 3, 11)
    torch.testing.assert_close(alone, logits[1:], rtol=1e-6, atol=1e-6)
    for name, value in one.items():
        torch.testing.assert_close(value, cache[name][1:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mixer", ["mha", "she", "ishe", "he", "ihe"])
def test_a_prompt_in_a_padded_batch_has_the_cache_it_has_alone(mixer: str, side: str) -> None:
    model = decoder(mixer)
    short, long = torch.tensor([[3, 1, 4]]), torch.tensor([[1, 5, 9, 2, 6, 5, 3]])
    pad, real = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 3, dtype=torch.long)
    row, mask = ([pad, short], [pad, real]) if side == "left" else ([short, pad], [real, pad])
    batch = torch.cat([torch.cat(row, 1), long])
    masks = torch.cat([torch.cat(mask, 1), torch.ones_like(long)])
    with capture.explicit(model):
        _, together = capture.run_with_cache(model, batch, attention_mask=masks)
        for i, prompt in enumerate((short, long)):
            _, alone = capture.run_with_cache(model, prompt)
            cut = together.prompt(i)
            assert torch.equal(cut.tokens, prompt)
            for name, value in alone.items():
                torch.testing.assert_close(cut[name], value, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_positions_are_cut_where_the_hook_has_them_and_not_where_its_name_suggests() -> None:
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    _, cache = capture.run_with_cache(Toy(), tokens, attention_mask=mask, names_filter="hook_heads")  # (b, h, t, e), e == t
    cut = cache.prompt(0)["hook_heads"]
    assert cut.shape == (1, 2, 2, 3)
    assert torch.equal(cut, cache["hook_heads"][:1, :, 1:])


def test_prompt_refuses_rows_that_are_not_there() -> None:
    _, cache = capture.run_with_cache(Toy(), IDS, names_filter="hook_embed")
    assert torch.equal(cache.prompt(-1).tokens, IDS[1:])
    with pytest.raises(ValueError, match="holds 2 prompt"):
        cache.prompt(2)


def test_gradients_flow_through_the_cache_only_when_asked_for() -> None:
    model = decoder("ishe")
    logits, cache = capture.run_with_cache(model, IDS)
    assert not logits.requires_grad
    assert not any(value.requires_grad for value in cache.values())
    logits, cache = capture.run_with_cache(model, IDS, grad=True)
    loss = logits.square().sum()
    (through,) = torch.autograd.grad(cache["blocks.1.hook_resid_post"].square().sum(), model.embed.W_E, retain_graph=True)
    (whole,) = torch.autograd.grad(loss, model.embed.W_E)
    assert through.abs().sum() > 0
    assert whole.abs().sum() > 0


def test_a_cache_frees_its_tensors_with_it() -> None:
    model = decoder("mha")
    gc.collect()
    gc.disable()  # freed by the last reference, not by the collector: no cycle keeps activations alive
    try:
        logits, cache = capture.run_with_cache(model, IDS)
        watched = [weakref.ref(value) for value in cache.values()] + [weakref.ref(logits)]
        del logits, cache
        assert not [ref for ref in watched if ref() is not None]
    finally:
        gc.enable()


# ---- hooks ----


class StopError(Exception):
    pass


def census(model: Any) -> dict[str, tuple[Any, ...]]:
    """Every hook on every hook point, by identity."""
    return {
        name: (
            [id(h) for h in point.fwd_hooks],
            [id(h) for h in point.bwd_hooks],
            list(point._forward_hooks),
            list(point._backward_hooks),
            list(point._forward_pre_hooks),
        )
        for name, point in model.hook_dict.items()
    }


@pytest.mark.parametrize("ending", ["normal", "exception in a hook", "KeyboardInterrupt", "nested"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("which", ["mha", "ishe", "bridge"])
def test_hooks_are_the_same_before_and_after(which: str, direction: str, ending: str, llama: Any) -> None:
    model = llama if which == "bridge" else decoder(which)
    name = "blocks.1.hook_resid_post"
    point = model.hook_dict[name]
    theirs = [
        point.add_hook(lambda t, hook: None),
        point.add_hook(lambda t, hook: None, dir="bwd"),
        point.add_hook(lambda t, hook: None, level=1),
    ]
    raw = point.register_forward_hook(lambda *_: None)
    before = census(model)
    seen = []

    def listen(tensor: Any, hook: Any) -> None:
        seen.append(hook)
        if ending == "exception in a hook":
            raise StopError
        if ending == "KeyboardInterrupt":
            raise KeyboardInterrupt

    def work() -> None:
        pairs = [(name, listen)]
        ours = {"hooks": [], "backward": pairs} if direction == "backward" else {"hooks": pairs}
        with capture.hooked(model, **ours):  # type: ignore[arg-type]
            assert census(model) != before
            if ending == "nested":
                with capture.hooked(model, [("blocks.*.hook_resid_post", lambda t, hook: None)]):
                    capture.run_with_cache(model, IDS)
            logits, _ = capture.run_with_cache(model, IDS, grad=direction == "backward")
            if direction == "backward":
                logits.sum().backward()

    try:
        if ending in ("normal", "nested"):
            work()
        else:
            with pytest.raises(StopError if ending == "exception in a hook" else KeyboardInterrupt):
                work()
        assert seen
        assert census(model) == before
    finally:
        raw.remove()
        for handle, listed in zip(theirs, (point.fwd_hooks, point.bwd_hooks, point.fwd_hooks), strict=True):
            handle.hook.remove()
            listed[:] = [other for other in listed if other is not handle]


def test_a_hook_that_somebody_adds_meanwhile_stays() -> None:
    model = Toy()
    with capture.hooked(model, [("hook_embed", lambda t, hook: None)]):
        handle = model.hook_embed.add_hook(lambda t, hook: None)
    assert model.hook_embed.fwd_hooks == [handle]
    assert len(model.hook_embed._forward_hooks) == 1


def test_a_wrong_name_among_several_adds_no_hook_at_all() -> None:
    model = Toy()
    before = census(model)
    with pytest.raises(ValueError, match="hook_nothing"), capture.hooked(model, [("hook_embed", print), ("hook_nothing", print)]):
        pass
    assert census(model) == before


def test_a_hook_replaces_the_activation_and_the_cache_shows_what_was_used() -> None:
    model = decoder("ishe")
    clean, _ = capture.run_with_cache(model, IDS)
    with capture.hooked(model, [("blocks.0.hook_resid_post", lambda t, hook: t * 0)]):
        edited, cache = capture.run_with_cache(model, IDS)
    assert not torch.equal(clean, edited)
    assert cache["blocks.0.hook_resid_post"].abs().sum() == 0


# ---- the door ----


def test_training_mode_is_refused_wherever_it_is() -> None:
    with pytest.raises(ValueError, match=r"Toy is in training mode.*model\.eval\(\)"):
        capture.run_with_cache(Toy().train(), IDS)
    model = Toy()
    model.drop.train()
    with pytest.raises(ValueError, match="in training mode"):
        capture.run_with_cache(model, IDS)


def test_masks_and_tokens_are_checked() -> None:
    model = Toy()
    with pytest.raises((ValueError, TypeError), match="attention_mask"):
        capture.run_with_cache(model, IDS, attention_mask=IDS[:, :2])
    with pytest.raises(ValueError, match="1 for a real token and 0"):
        capture.run_with_cache(model, IDS, attention_mask=IDS)
    with pytest.raises(ValueError, match="a row is all padding"):
        capture.run_with_cache(model, IDS, attention_mask=torch.tensor([[0, 0, 0], [1, 1, 1]]))
    with pytest.raises(ValueError, match="at least one token"):
        capture.run_with_cache(model, IDS[:, :0])


def test_the_cache_says_what_was_fed() -> None:
    fed = IDS.clone()
    _, cache = capture.run_with_cache(Toy(), fed, names_filter="hook_embed", str_tokens=(("a", "b", "c"), ("d", "e", "f")))
    fed.zero_()
    assert torch.equal(cache.tokens, IDS)
    assert cache.attention_mask.all()
    assert cache.str_tokens is not None
    assert cache.str_tokens[1] == ("d", "e", "f")
    assert cache.model_name == "Toy"
