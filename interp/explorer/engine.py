"""Every number on the page, by calls to the front door that a user could type (`snippets.py` spells them).

In here: the models that are offered, loaded once and used by one request at a time (hooks hang on the model itself); what a `View` asks of
them; what is refused before it is computed, and beside which control that is said. Not in here: markup, pictures.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float

from analyses.ledger import SPLITS, Ledger
from analyses.protocols import is_additive_mixer
from analyses.views import Attention

from .._models import is_ours
from ..analysis import ablate, ledger, ledger_without, load_view
from ..figures.kernels import lag_gain
from ..loading import list_models, load_model
from ..running import run_with_cache
from ..tokens import encode, model_name, resolve_answer, strings, text_ids
from .view import Cell, Problem, View

T = TypeVar("T")

EXAMPLES = {"mha-induction": "c1 h4 a0 p7 e5 k2 b3 d6 c1"}
AUSTEN_EXAMPLE = "She was not at all surprised to see him; but she had never seen him so"
EXAMPLE = "When Mary and John went to the store, John gave a drink to"

MAX_ACTIVATIONS = 2**29
"""Bytes of activations that one prompt may take; a long prompt is refused before it fills the memory."""

MAX_CHARACTERS = 200_000
KEPT = 400_000
"""Entries of ledgers kept (some 100 MB), so that a second look costs nothing; the oldest results go first."""

PREDICTIONS = 10


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model that is offered: its name on the page, and where it comes from: what `load_model` takes, or the model itself."""

    name: str
    place: str | None = None
    model: Any = None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the page needs to know about a loaded model."""

    name: str
    layers: int
    context: int
    megabytes: float
    chat: bool
    bos: bool | None
    splits: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt as fed. `text` is what the model is given (the template applied), `place` the destination from the front."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    at: int
    templated: bool
    bos: bool | None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One token that may come next: `rank` from 1, `typed` what names it in an answer box."""

    id: int
    token: str
    typed: str
    rank: int
    logit: float
    probability: float


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What removing parts does: the front door's `Ablation`, the ledgers before and after, and what comes next in both runs."""

    ablation: Any
    before: Ledger
    after: Ledger
    likely: tuple[tuple[Prediction, ...], tuple[Prediction, ...]]
    named: tuple[tuple[Prediction, Prediction], ...]


@dataclass
class Engine:
    """The models on offer and everything that is asked of them. Safe to call from several threads."""

    sources: tuple[Source, ...]
    device: str = "cpu"
    dtype: str = "float32"
    _loaded: dict[str, Any] = field(default_factory=dict)
    _locks: dict[str, threading.RLock] = field(default_factory=dict)
    _kept: "OrderedDict[tuple[Any, ...], Any]" = field(default_factory=OrderedDict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    # ---- models

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.sources)

    def source(self, name: str) -> Source:
        """Raises Problem for a name that is not offered: nothing that comes from a page is ever taken for a path."""
        for source in self.sources:
            if source.name == name:
                return source
        raise Problem("model", f"No model {name[:60]!r} here. Choose one of the list, or start the explorer with its folder.")

    def model(self, name: str) -> Any:
        """The model, loaded on first use and once."""
        source = self.source(name)
        with self.lock(name):
            if name not in self._loaded:
                try:
                    self._loaded[name] = (
                        source.model if source.place is None else load_model(source.place, device=self.device, dtype=self.dtype)
                    )
                except (ValueError, OSError) as error:
                    raise Problem("model", f"{name} cannot be loaded: {error}") from error
            return self._loaded[name]

    def lock(self, name: str) -> threading.RLock:
        with self._guard:
            return self._locks.setdefault(name, threading.RLock())

    def place(self, name: str) -> str:
        """Where another process finds a model.

        Raises:
            Problem: it was handed over as an object and lies nowhere.
        """
        source = self.source(name)
        if source.place is None:
            raise Problem(
                "job",
                f"{name} lives in the memory of this session only. Call interp.verify(model) or interp.variance_profile(model) there.",
            )
        return source.place

    def facts(self, name: str) -> Facts:
        """Raises Problem when the model is not offered or cannot be loaded."""
        model = self.model(name)
        return self._once(("facts", name), name, lambda: _facts(name, model))

    def memory(self) -> tuple[tuple[tuple[str, float], ...], float | None]:
        """Megabytes of the weights of each loaded model, and of the whole process where the system tells."""
        with self._guard:
            loaded = dict(self._loaded)
        return tuple((name, _megabytes(model)) for name, model in loaded.items()), _resident()

    # ---- one prompt

    def example(self, name: str) -> str:
        """The prompt a model is shown with before anything is typed."""
        return EXAMPLES.get(name, AUSTEN_EXAMPLE if name in list_models() else EXAMPLE)

    def prompt(self, view: View) -> Prompt:
        """The prompt as fed.

        Raises:
            Problem: an empty box, a text that the model cannot read or that is too long, a destination outside it.
        """
        model = self.model(view.model)
        key = ("prompt", view.model, view.text, view.chat, view.bos)
        text, ids, tokens = self._once(key, view.model, lambda: self._fed(model, view))
        if not -len(ids) <= view.at < len(ids):
            raise Problem("position", f"Position {view.at} is outside the prompt of {len(ids)} tokens: use 0 to {len(ids) - 1}.")
        return Prompt(text=text, ids=ids, tokens=tokens, at=view.at % len(ids), templated=view.chat, bos=view.bos)

    def _fed(self, model: Any, view: View) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
        typed = self.example(view.model) if view.text is None else view.text
        if not typed:
            raise Problem("prompt", "The box is empty. Type a prompt and press Read.")
        if len(typed) > MAX_CHARACTERS:
            raise Problem("prompt", f"{len(typed):,} characters are too many to look at; keep to {MAX_CHARACTERS:,}.")
        try:
            text = templated(model, typed) if view.chat else typed
            fed = encode(model, text, view.bos)
        except (ValueError, TypeError) as error:
            raise Problem("prompt", _sentence(error)) from error
        ids = tuple(int(i) for i in fed.ids[0])
        self._refuse_long(model, len(ids))
        return text, ids, fed.str_tokens[0]

    def _refuse_long(self, model: Any, length: int) -> None:
        def needed(t: int) -> int:
            return 4 * int(model.cfg.n_layers) * t * (8 * int(model.cfg.d_model) + (int(getattr(model.cfg, "n_heads", 0) or 0)) * t)

        if needed(length) > MAX_ACTIVATIONS:
            fits = next(t for t in range(length, 0, -1) if needed(t) <= MAX_ACTIVATIONS or t == 1)
            raise Problem(
                "prompt",
                f"The prompt has {length:,} tokens; its activations would take {needed(length) / 2**30:.1f} GB. "
                f"The explorer keeps to {MAX_ACTIVATIONS / 2**30:g} GB: at most {fits:,} tokens of this model.",
            )

    def logits(self, view: View) -> Float[np.ndarray, " v"]:
        """(v,) float64, what the model printed at the destination."""
        prompt = self.prompt(view)
        return self._once(("logits", view.model, prompt.ids, prompt.at), view.model, lambda: self._logits(view, prompt))

    def _logits(self, view: View, prompt: Prompt) -> Float[np.ndarray, " v"]:
        model = self.model(view.model)
        logits, _ = run_with_cache(model, torch.tensor([prompt.ids], device=_device(model)), load_view(model).embeds[0])
        return logits[0, prompt.at].double().cpu().numpy()

    def predictions(self, view: View, k: int = PREDICTIONS) -> tuple[Prediction, ...]:
        """The `k` likeliest next tokens at the destination, likeliest first."""
        logits = self.logits(view)
        return self.rank(view.model, logits, np.argsort(-logits, kind="stable")[:k].tolist())

    def rank(self, name: str, logits: Float[np.ndarray, " v"], ids: Sequence[int]) -> tuple[Prediction, ...]:
        """The given tokens among all, in the order given."""
        model = self.model(name)
        shifted = np.exp(logits - logits.max())
        share = shifted / shifted.sum()
        texts = strings(model, ids)
        return tuple(
            Prediction(
                id=int(i),
                token=text,
                typed=self.spell(name, int(i), text),
                rank=int((logits > logits[i]).sum()) + 1,
                logit=float(logits[i]),
                probability=float(share[i]),
            )
            for i, text in zip(ids, texts, strict=True)
        )

    def spell(self, name: str, token: int, text: str | None = None) -> str:
        """What names a token in an answer box: its text where that reads back as this token, else `#id`."""
        model = self.model(name)
        text = strings(model, [token])[0] if text is None else text
        plain = text.isprintable() and text != "" and not text.startswith("#")
        try:
            return text if plain and text_ids(model, text) == [token] else f"#{token}"
        except ValueError:
            return f"#{token}"

    def answers(self, view: View) -> tuple[int, int | None]:
        """The ids of answer (the top token where none is named) and against.

        Raises:
            Problem: a text of no or several tokens, or the same token twice.
        """
        model = self.model(view.model)
        found = [self._answer(model, text, place) for text, place in ((view.answer, "answer"), (view.against, "against"))]
        answer = int(self.logits(view).argmax()) if found[0] is None else found[0]
        if answer == found[1]:
            raise Problem("against", "Answer and against are the same token; their difference is zero by definition. Choose another.")
        return answer, found[1]

    def _answer(self, model: Any, text: str | None, place: str) -> int | None:
        if text is None:
            return None
        by_id = text.startswith("#") and text[1:].isdecimal() and len(text) < 12  # a token spelled like that is named by its own id
        try:
            return resolve_answer(model, int(text[1:]) if by_id else text)
        except (ValueError, TypeError) as error:
            raise Problem(place, _sentence(error)) from error

    def near_miss(self, view: View, text: str) -> str | None:
        """The same word with a space before it, where that is one token and likelier: what most often was meant."""
        model = self.model(view.model)
        if text.startswith(" "):
            return None
        try:
            spaced = text_ids(model, " " + text)
            bare = text_ids(model, text)
        except ValueError:
            return None
        if len(spaced) != 1 or spaced == bare:
            return None
        logits = self.logits(view)
        return " " + text if len(bare) != 1 or logits[spaced[0]] > logits[bare[0]] else None

    def token(self, view: View, typed: str) -> int:
        """The id that a text in an answer box names."""
        return resolve_answer(self.model(view.model), typed)

    # ---- ledgers

    def ledger(self, view: View, by: str | None = None) -> Ledger:
        """The ledger that the view asks for, or the same split otherwise; a failed certificate comes with it and is shown.

        Raises:
            Problem: what `prompt` and `answers` refuse, or a split that this model does not have.
        """
        prompt = self.prompt(view)
        answer, against = self.answers(view)
        split = by or view.by
        key = ("ledger", view.model, prompt.ids, prompt.at, answer, against, split)
        return self._once(
            key,
            view.model,
            lambda: self._asked(
                "by",
                lambda: ledger(self.model(view.model), list(prompt.ids), answer, against, prompt.at, split, on_gap="report"),  # type: ignore[arg-type]
            ),
        )

    def removal(self, view: View) -> Removal:
        """Both runs, with and without what `view.out` names.

        Raises:
            Problem: nothing is removed, or what cannot be.
        """
        if not view.out:
            raise Problem("out", "Nothing is removed yet.")
        prompt = self.prompt(view)
        answer, against = self.answers(view)
        key = ("removal", view.model, prompt.ids, prompt.at, answer, against, view.by, view.out, view.how)
        return self._once(key, view.model, lambda: self._removal(view, prompt, answer, against))

    def _removal(self, view: View, prompt: Prompt, answer: int, against: int | None) -> Removal:
        model, ids, targets = self.model(view.model), list(prompt.ids), view.targets
        asked = (answer, against, prompt.at)

        def run() -> tuple[Any, Ledger]:
            done = ablate(model, ids, *asked, how=view.how, **targets)  # type: ignore[arg-type]
            return done, ledger_without(model, ids, *asked, view.by, how=view.how, on_gap="report", **targets)  # type: ignore[arg-type]

        before = self.ledger(view)
        ablation, after = self._asked("out", run)
        both = [row.double().cpu().numpy() for row in ablation.logits]
        named = [answer] if against is None else [answer, against]
        one, other = (self.rank(view.model, logits, named) for logits in both)
        likely = [self.rank(view.model, logits, np.argsort(-logits, kind="stable")[:5].tolist()) for logits in both]
        return Removal(
            ablation=ablation, before=before, after=after, likely=(likely[0], likely[1]), named=tuple(zip(one, other, strict=True))
        )

    # ---- one part

    def check_cell(self, view: View, cell: Cell) -> None:
        """Raises Problem when the model or the prompt has no such part."""
        try:
            self._cell(view, cell)
        except ValueError as error:
            raise Problem("look", _sentence(error)) from error

    def _cell(self, view: View, cell: Cell) -> None:
        model, prompt = self.model(view.model), self.prompt(view)
        sublayers = {(s.layer, "mlp" if s.slot == "mlp" else "mixer"): s for s in load_view(model).sublayers}
        layers = 1 + max(layer for layer, _ in sublayers)
        if cell.layer is not None and cell.layer >= layers:
            raise ValueError(f"There is no layer {cell.layer}; {view.model} has layers 0 to {layers - 1}")
        for what, index in (("position", cell.source), ("lag", cell.lag)):
            if index is not None and index > prompt.at:
                raise ValueError(f"{what} {index} is outside what token {prompt.at} reads: 0 to {prompt.at}")
        if cell.layer is None:
            return
        slot = "mlp" if cell.neuron is not None or cell.slot == "mlp" else "mixer"
        sublayer = sublayers.get((cell.layer, slot))
        if sublayer is None:
            raise ValueError(f"layer {cell.layer} of {view.model} has no {'FFN' if slot == 'mlp' else 'sublayer that mixes positions'}")
        if cell.head is not None:
            heads = len(sublayer.parts.kv_head) if isinstance(sublayer.parts, Attention) else 0
            if cell.head >= heads:
                has = f"heads 0 to {heads - 1}" if heads else "no heads; look at its sources or lags"
                raise ValueError(f"layer {cell.layer} of {view.model} has {has}")
        if cell.neuron is not None:
            count = 0 if sublayer.parts is None else int(sublayer.parts.W_out.shape[0])  # type: ignore[union-attr]
            if cell.neuron >= count:
                raise ValueError(f"layer {cell.layer} of {view.model} has neurons 0 to {count - 1}")

    def pattern(self, view: View, layer: int) -> Float[np.ndarray, "h t t"]:
        """(head, reading token, source token), the attention weights of one layer."""
        prompt = self.prompt(view)
        return self._once(("pattern", view.model, prompt.ids, layer), view.model, lambda: self._pattern(view, prompt, layer))

    def _pattern(self, view: View, prompt: Prompt, layer: int) -> Float[np.ndarray, "h t t"]:
        name = f"blocks.{layer}.attn.hook_pattern"
        model = self.model(view.model)
        _, cache = run_with_cache(model, torch.tensor([prompt.ids], device=_device(model)), name)
        return cache[name][0].float().cpu().numpy()

    def activations(self, view: View, layer: int, neuron: int) -> Float[np.ndarray, " t"]:
        """(t,), what one neuron puts out at each position of the prompt (after the activation function)."""
        prompt = self.prompt(view)
        key = ("activations", view.model, prompt.ids, layer, neuron)
        return self._once(key, view.model, lambda: self._activations(view, prompt, layer, neuron))

    def _activations(self, view: View, prompt: Prompt, layer: int, neuron: int) -> Float[np.ndarray, " t"]:
        model = self.model(view.model)
        name = next(s.parts.post for s in load_view(model).sublayers if s.layer == layer and s.slot == "mlp")  # type: ignore[union-attr]
        _, cache = run_with_cache(model, torch.tensor([prompt.ids], device=_device(model)), name)
        return cache[name][0, :, neuron].double().cpu().numpy()

    def extractor(self, view: View, layer: int) -> Any | None:
        """The mixer of a layer, where it is an Extractor."""
        mixer = getattr(self.model(view.model).blocks[layer], "attn", None)
        return mixer if mixer is not None and is_additive_mixer(mixer) and (hasattr(mixer, "W_ext") or hasattr(mixer, "w_lag")) else None

    def gains(self, view: View, layer: int) -> Float[np.ndarray, " lag"] | None:
        """(lag,), the root-mean-square gain of an Extractor's kernel a lag; None where the layer has none."""
        mixer = self.extractor(view, layer)
        return None if mixer is None else lag_gain(mixer)

    # ---- inside

    def _asked(self, place: str, compute: Callable[[], T]) -> T:
        try:
            return compute()
        except (ValueError, TypeError) as error:
            raise Problem(place, _sentence(error)) from error

    def _once(self, key: tuple[Any, ...], name: str, compute: Callable[[], T]) -> T:
        """`compute()` under the model's lock, or what it gave before. A failure is not kept."""
        with self.lock(name):
            with self._guard:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    kept: T = self._kept[key]
                    return kept
            value = compute()
            with self._guard:
                self._kept[key] = value
                while len(self._kept) > 1 and sum(map(_entries, self._kept.values())) > KEPT:
                    self._kept.popitem(last=False)
            return value


def offered(places: Sequence[str | Path | Any]) -> tuple[Source, ...]:
    """What the explorer offers: the given models first (names, folders or loaded models), then those that ship.

    Raises:
        ValueError: a name that is neither shipped, nor a path, nor a hub id.
    """
    sources: list[Source] = []
    taken: set[str] = set()
    for place in places:
        if not isinstance(place, str | Path):
            sources.append(Source(name=_free(model_name(place), taken), model=place))
            continue
        spelled = str(place)
        path = Path(spelled).expanduser()
        if spelled not in list_models() and not path.exists():
            load_model(spelled) if "/" not in spelled or path.is_absolute() else None  # its own words for what is not there
        name = spelled if spelled in list_models() else path.resolve().name if path.exists() else spelled
        if name in list_models() and spelled in taken:
            continue
        sources.append(
            Source(name=_free(name, taken), place=spelled if spelled in list_models() or not path.exists() else str(path.resolve()))
        )
    shipped = sorted(list_models(), key=lambda name: not name.startswith("mha"))  # what has heads is met most often
    sources += [Source(name=name, place=name) for name in shipped if name not in taken]
    return tuple(sources)


def _free(name: str, taken: set[str]) -> str:
    free, n = name, 2
    while free in taken:
        free, n = f"{name} ({n})", n + 1
    taken.add(free)
    return free


def templated(model: Any, text: str) -> str:
    """A text as the user's turn of the model's chat template, the assistant's turn opened.

    Raises:
        ValueError: the model has no chat template, or it refuses the text.
    """
    tokenizer = model.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"{model_name(model)} has no chat template; switch it off")
    try:
        return str(tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of the model's author and may raise anything
        raise ValueError(f"the chat template of {model_name(model)} fails: {' '.join(str(error).split())[:200]}") from error


def _facts(name: str, model: Any) -> Facts:
    view = load_view(model)
    tokenizer = getattr(model, "tokenizer", None)
    has_bos = not is_ours(model) and getattr(tokenizer, "bos_token", None) is not None
    mixing = [s for s in view.sublayers if s.slot != "mlp"]
    reasons: dict[str, str] = {str(by): "" for by in SPLITS}
    if not any(isinstance(s.parts, Attention) for s in mixing):
        reasons["head"] = "this model has no heads: its rows show one channel a layer"
    for by in SPLITS:
        concerned = [s for s in view.sublayers if (s.slot == "mlp") == (by == "neuron")]
        if by != "component" and not concerned:
            reasons[by] = "this model has no such sublayer"
    return Facts(
        name=name,
        layers=len(view.blocks),
        context=int(model.cfg.n_ctx),
        megabytes=_megabytes(model),
        chat=bool(getattr(tokenizer, "chat_template", None)),
        bos=bool(getattr(model.cfg, "default_prepend_bos", False)) if has_bos else None,
        splits=reasons,
    )


def _entries(result: Any) -> int:
    """How much a result weighs in memory, in entries of a ledger (about 256 bytes)."""
    if isinstance(result, Removal):
        return len(result.before.entries) + len(result.after.entries)
    return len(result.entries) if isinstance(result, Ledger) else getattr(result, "nbytes", 0) // 256 + 1


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device


def _megabytes(model: Any) -> float:
    seen = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sum(seen.values()) / 2**20


def _resident() -> float | None:
    """Megabytes that this process holds in memory; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _sentence(error: BaseException) -> str:
    text = str(error)
    return (text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else "."))[:600]
