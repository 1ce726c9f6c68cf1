"""One HTML file about one prompt: the question, the verdicts, then everything they rest on. Opens offline; nothing in it is fetched.

In here: which analyses are run and how their results are told. Not in here: numbers (analyses/), pictures (figures/), markup
(templates/report.html.j2). Every text that a user or a tokenizer brought in is escaped by jinja2 in HTML and by `figures` in plots; the
page also forbids itself any network access by its Content-Security-Policy.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
import torch
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analyses.claims import verify
from analyses.progress import OnStep, Steps

from . import figures
from ._models import is_ours
from .analysis import drive, equivalence, ledger, lens
from .claims import default_text, prompts, siblings, variance_profile, windows
from .figures._door import entry_label, quantity
from .figures._grid import colour_limit, ink_on, shade
from .figures._text import count, cut, number, visible
from .figures.claims import VERDICTS, field, told
from .figures.lens import place
from .figures.tokens import token_sums
from .figures.writing import refuse_target, write_atomic
from .loading import load_model
from .running import run_with_cache
from .tokens import encode, model_name, strings

DEFAULT_TEXT = "She was not at all surprised to see him; but she had never seen him so"
CHECKS = {
    "continuity": "every sublayer only adds to the stream, and none is missing",
    "algebra": "the entries sum to a float64 replay of the model",
    "rows": "each sublayer's entries sum to what it wrote",
    "native": "nothing but rounding lies between the entries and the printed logit",
    "scale": "the final norm divided by what the stream says",
}
STEPS, STEPS_OF_OURS = 40, 56
"""About how many steps a report takes, of a pretrained model and of one of our decoders."""
SEQUENCES, PRETRAINED_SEQUENCES = 16, 8
"""Windows behind each variance on the page: enough for its intervals to say something, few enough for a report in seconds."""
LONGEST = 64
"""Positions of a variance on the page of a pretrained model, and where every lag has a matrix: what the identity costs grows with
their square."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the first screen: what was checked, whether it held, and by how much. `holds` None: not decided or not applicable."""

    id: str
    what: str
    holds: bool | None
    gap: float | None = None
    bound: float | None = None
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where the report lies, and its verdicts."""

    path: Path
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """No check failed."""
        return all(v.holds is not False for v in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """`path` and `verdicts`, ready for JSON (a number that is not finite becomes null)."""
        rows = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(row).items()} for row in self.verdicts]
        return {"path": str(self.path), "holds": self.holds, "verdicts": rows}


def report(
    model: Any,
    text: Any = None,
    *,
    answer: str | int | None = None,
    against: str | int | None = None,
    output: str | os.PathLike[str] = "report.html",
    spelled: str | None = None,
    on_step: OnStep | None = None,
) -> Report:
    """Writes a self-contained HTML report about what `model` says after `text`.

    Args:
        model: a loaded model, or what `interp.load_model` takes.
        text: a text or ids; by default a sentence.
        answer: the token explained; by default the model's top token.
        against: a token whose logit is subtracted.
        output: the file; it appears whole or not at all.
        spelled: how the command that makes the page again names the model; by default what was given, or the model's own name.
        on_step: called as each step begins, with the steps done, the steps in all and what is done now (for a progress display).

    Returns:
        The path and the verdicts that the report opens with.

    Raises:
        ValueError: an unknown model, a text or answer that does not fit, or an output that cannot be written (found before any work).
    """
    begun = time.perf_counter()
    step = Steps(STEPS, on_step)
    target = _writable(output)
    if isinstance(model, str | os.PathLike):
        spelled = spelled or str(model)
        step("load")
        model = load_model(str(model))
    name = model_name(model)
    fed = DEFAULT_TEXT if text is None else text
    prompt = encode(model, fed)
    if prompt.ids.shape[0] != 1:
        raise ValueError(f"text: a report is about one prompt, got {prompt.ids.shape[0]}; call interp.report.report once for each")

    step("run")
    logits, cache = run_with_cache(model, prompt.ids)
    tokens = tuple(prompt.str_tokens[0])
    capture = (logits, cache)

    def split(by: str) -> Any:
        step(f"ledger by {by}")
        return ledger(model, capture, answer, against, by=by, on_gap="report")  # type: ignore[arg-type]

    whole = _named(split("component"), name, tokens)
    heads = _named(split("head"), name, tokens)
    sources = _named(split("head+source"), name, tokens)
    attends = any(e.kind == "head" for e in heads.entries)
    extracts = any(hasattr(getattr(block, "attn", None), "W_adj") for block in model.blocks)
    lags = _named(split("lag"), name, tokens) if extracts else None
    step("lens and drive")
    through = replace(lens(model, capture, answer, against), model=name, tokens=tokens)
    way = _drive_of(model, capture, name, tokens)
    step("equivalence")
    with _one_thread(is_ours(model)):
        identity = equivalence(model, capture)
    if not identity.tokens:
        identity = replace(identity, tokens=tokens)
    with _one_thread(is_ours(model)):
        if is_ours(model):
            step.total = STEPS_OF_OURS
        profiles = _profiles(model, step)
        claims = _claims(model, step)
    step("pictures")

    sections = [_ledger_section(whole)]
    sections.append(_heads_section(heads if attends else None, lags))
    sections.append(_sources_section(sources))
    sections.append(_mixing_section(cache if attends else None, model if extracts else None))
    sections.append(_lens_section(through))
    if way is not None:
        sections.append(_drive_section(way))
    sections.append(
        Section(
            "equivalence",
            "Equivalence",
            "Mixing sublayers are read here as sums over heads or lags. That reading is exact only if summing projected pieces gives what "
            "the model computes by projecting the whole; this is the check, layer by layer.",
            (_plot("equivalence", figures.equivalence(identity)),),
        )
    )
    sections.append(_variance_section(profiles))
    if claims:
        sections.append(
            Section("claims", "Claims", "Statements of the papers, each judged by a measurement that could have failed.", claims=claims)
        )
    verdicts = (
        *_ledger_verdicts([x for x in (whole, heads, sources, lags) if x is not None]),
        *_equivalence_verdicts(identity),
        *_variance_verdicts(profiles),
        *_claim_verdicts(claims),
    )
    step("write")
    page = _render(
        name=name,
        tokens=tokens,
        ids=[int(i) for i in prompt.ids[0]],
        ledger=whole,
        likely=_likely(model, logits),
        verdicts=verdicts,
        sections=sections,
        environment=_environment(model, name, spelled, fed if isinstance(fed, str) else None, answer, against, begun),
    )
    return Report(path=write_atomic(target, page.encode()), verdicts=verdicts)


# ------------------------------------------------------------------------------------------------------------------ sections


@dataclass(frozen=True)
class Plot:
    """A figure ready for the page: its words as HTML sets them, its traces and layout as JSON."""

    id: str
    title: str
    subtitle: tuple[str, ...]
    notes: tuple[str, ...]
    alarm: str
    alt: str
    height: int
    data: Markup
    choices: tuple[str, ...] = ()
    chosen: str = ""


@dataclass(frozen=True)
class Section:
    """A chapter of the page. `rows` is the table under its figures."""

    id: str
    title: str
    intro: str
    plots: tuple[Plot, ...] = ()
    rows: tuple[tuple[str, str, str], ...] = ()
    chips: tuple[dict[str, str], ...] = ()
    claims: tuple[Any, ...] = ()
    streams: Any = None


@dataclass(frozen=True)
class Streams:
    """The logit lens as a table: its words, and a stream the place, the logit and the likeliest tokens (is it the answer?)."""

    title: str
    subtitle: tuple[str, ...]
    logit: str
    rows: tuple[tuple[str, str, tuple[tuple[str, bool], ...]], ...]


def _plot(plot_id: str, fig: go.Figure, *, prompt_line: bool = True) -> Plot:
    """A figure for the page: its title, notes and alarm become HTML, its slider a list of choices, its width the page's.

    `prompt_line` says that the subtitle begins with model and tokens, which the page has said at its top.
    """
    meta = fig.layout.meta
    sliders = fig.layout.sliders
    choices = tuple(s.label for s in sliders[0].steps) if sliders else ()
    chosen = choices[sliders[0].active] if sliders else ""
    layout = fig.layout.to_plotly_json()
    for key in ("title", "template", "sliders", "width"):
        layout.pop(key, None)
    layout["annotations"] = [a for a in layout.get("annotations", ()) if a.get("name") != "alarm"]
    if choices:
        # the slider's place between overview and large panel goes: a list of choices stands in the HTML above
        _close_gap(layout, 84)
    old = layout["margin"]
    layout["margin"] = {**old, "t": 34, "l": 8, "r": 8}
    layout["height"] = layout["height"] - old["t"] + 34
    layout["autosize"] = True
    whole = json.loads(fig.to_json())
    body = {"data": whole["data"], "layout": _without_arrays(layout), "frames": whole.get("frames", [])}
    return Plot(
        id=plot_id,
        title=meta["title"],
        subtitle=tuple(meta["subtitle"][1 if prompt_line else 0 :]),
        notes=tuple(meta["notes"]),
        alarm=meta["alarm"],
        alt=meta["alt"],
        height=int(layout["height"]),
        data=_json(body),
        choices=choices,
        chosen=chosen,
    )


def _close_gap(layout: dict[str, Any], pixels: float) -> None:
    """Takes `pixels` out of the space between the two panels of the attention figure."""
    old = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    new = old - pixels
    low, high = layout["yaxis"], layout["yaxis2"]
    low["domain"] = [0, low["domain"][1] * old / new]
    high["domain"] = [1 - (1 - high["domain"][0]) * old / new, 1]
    layout["height"] -= pixels


def _without_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_arrays(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else value


def _json(value: Any) -> Markup:
    """JSON that may stand inside a script element: no `<` in it, so that no text can close the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(
        text.replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _named(result: Any, name: str, tokens: tuple[str, ...]) -> Any:
    """A ledger made from a capture, with the name and the tokens that the capture does not carry."""
    return replace(result, model=name, tokens=result.tokens or tokens)


def _ledger_section(whole: Any) -> Section:
    column = 0
    order = np.argsort(-np.nan_to_num(np.abs(whole.values[:, column]), nan=np.inf), kind="stable")
    rows = [(entry_label(whole, int(i)), whole.entries[i].kind, number(whole.values[i, column], 6, signed=True)) for i in order]
    rows.append(("total (printed by the model)", "", number(whole.total[column], 8, signed=True)))
    return Section(
        "ledger",
        "Ledger",
        f"The {quantity(whole)} is a sum: what each part of the model wrote into the last row of the residual stream, read along the "
        "direction of the answer. The rounding of the model's own arithmetic is a row like any other.",
        (_plot("ledger", figures.ledger(whole)),),
        tuple(rows),
    )


def _heads_section(heads: Any | None, lags: Any | None) -> Section:
    plots = []
    intro = []
    if heads is not None:
        intro.append("What every attention head adds to the logit.")
        plots.append(_plot("heads", figures.heads(heads)))
    if lags is not None:
        intro.append(
            "An Extractor has one channel a layer instead of heads; its sum splits by lag, how many rows back a contribution comes from."
        )
        plots.append(_plot("lags", figures.sources(lags)))
    return Section("heads", "Heads" if lags is None else "Lags" if heads is None else "Heads and lags", " ".join(intro), tuple(plots))


def _sources_section(sources: Any) -> Section:
    sums, _ = token_sums(sources, 0)
    limit = colour_limit(sums, None)
    chips = []
    for i, (token, value) in enumerate(zip(sources.tokens, sums, strict=True)):
        colour = shade(float(value), limit)
        told_value = number(float(value), 3, signed=True)
        chips.append(
            {
                "text": visible(token),
                "background": colour,
                "ink": ink_on(colour),
                "title": f"token {i}: {told_value} logits",
                "value": told_value,
            }
        )
    return Section(
        "sources",
        "Source tokens",
        "Which tokens of the prompt the logit draws on, directly: each token with the sum of what reaches the last row from it through "
        "every mixing sublayer. Orange pushes the logit up, blue down; the number under each token says how much.",
        (_plot("sources", figures.sources(sources)),),
        chips=tuple(chips),
    )


def _mixing_section(cache: Any | None, model: Any | None) -> Section:
    plots = []
    intro = []
    if cache is not None:
        intro.append("Where attention looks: every head small, one large. Choose a head from the list or by a click on its thumbnail.")
        plots.append(_plot("attention", figures.attention(cache)))
    if model is not None:
        intro.append("An Extractor mixes with static weights, one for each lag, gated by the present row. Both are read off the weights.")
        plots.append(_plot("kernels", figures.kernels(model), prompt_line=False))
    return Section("mixing", "Mixing", " ".join(intro), tuple(plots))


def _variance_section(profiles: Sequence[Any]) -> Section:
    plots = tuple(_plot(f"variance-{'init' if p.init else 'trained'}", figures.variance(p), prompt_line=False) for p in profiles)
    length = max((int(row.positions[-1]) for p in profiles for row in p.rows), default=0)
    return Section(
        "variance",
        "Variance along the sequence",
        "How the size of activations changes with position. Theory speaks of fresh weights: SHE's extraction grows like the position "
        f"(slope 1), iSHE's stays flat (slope 0). Trained weights obey no law; their slopes are measurements. Positions 1 to {length}.",
        plots,
    )


def _lens_section(through: Any) -> Section:
    words = figures.lens(through).layout.meta
    rows = tuple(
        (place(stream), number(values[0], 4, signed=True), tuple((visible(w), w == through.answer) for w in tops[0]))
        for stream, values, tops in zip(through.streams, through.values, through.words, strict=True)
    )
    return Section(
        "lens",
        "Logit lens",
        "What the model would say if it stopped after each layer: the stream of the last row, read through the final norm and the "
        "unembedding. The answer's cells are marked.",
        streams=Streams(words["title"], tuple(words["subtitle"][1:]), quantity(through), rows),
    )


def _drive_of(model: Any, capture: Any, name: str, tokens: tuple[str, ...]) -> Any | None:
    """The drive of the prompt, or None for a model with a single addition, which has no order."""
    try:
        return replace(drive(model, capture), model=name, tokens=tokens)
    except ValueError:
        return None


def _drive_section(way: Any) -> Section:
    return Section(
        "drive",
        "Drive",
        "How each row of the stream nears the row it ends as, layer by layer. Any sum nears its own end, so the grey null is what to "
        "compare with: the same writes in random order with random signs. Whether the difference holds over prompts, the claims say.",
        (_plot("drive", figures.drive(way)),),
    )


@contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """Thousands of tiny operations gain nothing from more threads, and on a busy machine they wait for one another (8 times slower)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _part(step: Steps, what: str) -> OnStep:
    """What a measurement inside the report tells its steps to."""
    return lambda _, __, part: step(f"{what}: {part}")


def _profiles(model: Any, step: Steps) -> list[Any]:
    """The variance of the model as it is, and of fresh weights where we know how they are drawn."""
    told_of = _part(step, "variance")
    rows = windows(model, default_text(model))
    if not is_ours(model):
        return [variance_profile(model, rows[:PRETRAINED_SEQUENCES, :LONGEST], sites="hook_attn_out", on_step=told_of)]
    dense = any(hasattr(getattr(block, "attn", None), "W_ext") for block in model.blocks)
    rows = rows[: 2 * SEQUENCES, : LONGEST if dense else None]
    half = (len(rows) + 1) // 2
    trained = variance_profile(model, rows[:half], other=rows[half:], on_step=told_of)
    at_init = variance_profile(model, rows[:half], init=True, on_step=_part(step, "variance at initialisation"))
    return [trained, at_init]


def _claims(model: Any, step: Steps) -> tuple[Any, ...]:
    """The claims judged on one of our decoders; all but those about variance, which has a section of its own."""
    if not is_ours(model):
        return ()
    told_of = _part(step, "claims")
    judged = verify(model, prompts(model, default_text(model)), siblings=siblings(model), batches=(), on_step=told_of)
    return tuple(row for row in judged.rows if row.id != "variance")


# ------------------------------------------------------------------------------------------------------------------ verdicts


def _worst(checks: Iterable[Any]) -> Any:
    return max(checks, key=lambda c: math.inf if math.isnan(c.ratio) else c.ratio)


def _ledger_verdicts(ledgers: Sequence[Any]) -> list[Verdict]:
    """One verdict a check, the worst over all ledgers of the page."""
    found: dict[str, list[Any]] = {}
    for one in ledgers:
        for c in one.certificate.checks:
            found.setdefault(c.name, []).append(c)
    verdicts = []
    for name, checks in found.items():
        worst = _worst(checks)
        where = f"{worst.where}; " if worst.where else ""
        verdicts.append(
            Verdict(
                id=name,
                what=CHECKS.get(name, name),
                holds=all(c.holds for c in checks),
                gap=worst.gap,
                bound=worst.bound,
                ratio=worst.ratio,
                note=f"{where}{worst.kind} bound",
            )
        )
    return verdicts


def _equivalence_verdicts(identity: Any) -> list[Verdict]:
    axes = " and ".join(sorted({r.axis for r in identity.rows}))
    layers = count(len(identity.rows), "layer")
    exact = max(identity.rows, key=lambda r: math.inf if math.isnan(r.ratio) else r.ratio)
    native = max(identity.rows, key=lambda r: math.inf if math.isnan(r.native_ratio) else r.native_ratio)
    skipped = "".join(f"; skipped {s}" for s in identity.skipped)
    return [
        Verdict(
            id="equivalence",
            what=f"summing {axes} one by one equals the model's own projection, in float64",
            holds=all(r.ratio <= 1 for r in identity.rows),
            gap=exact.gap,
            bound=exact.bound,
            ratio=exact.ratio,
            note=f"{layers}, worst L{exact.layer}; proved bound{skipped}",
        ),
        Verdict(
            id="equivalence-native",
            what=f"the sum over {axes} equals what the model computed in its own precision",
            holds=all(r.native_ratio <= 1 for r in identity.rows),
            gap=native.native_gap,
            bound=native.native_bound,
            ratio=native.native_ratio,
            note=f"{layers}, worst L{native.layer}; proved bound",
        ),
    ]


def _variance_verdicts(profiles: Sequence[Any]) -> list[Verdict]:
    verdicts = []
    for profile in profiles:
        weights = "fresh" if profile.init else "trained"
        checks = [c for r in profile.rows for c in (r.identity, r.native) if c is not None]
        if checks:
            worst = _worst(checks)
            verdicts.append(
                Verdict(
                    id=f"variance-identity-{weights}",
                    what=f"the formula for an Extractor's second moment equals what its extraction has, {weights} weights",
                    holds=all(c.holds for c in checks),
                    gap=worst.gap,
                    bound=worst.bound,
                    ratio=worst.ratio,
                    note=f"{count(len(checks), 'check')}; {worst.kind} bound",
                )
            )
        lawful = [r for r in profile.rows if r.site == "attn.hook_extraction" and r.theory_slope is not None] if profile.init else []
        if lawful:
            off = max(lawful, key=lambda r: abs(r.slope - r.theory_slope))
            gap = abs(off.slope - off.theory_slope)
            undecided = off.interval[0] <= off.theory_slope <= off.interval[1]
            slopes = f"slope {number(off.slope, 2, signed=True)} for {number(off.theory_slope)}"
            verdicts.append(
                Verdict(
                    id="variance-slope",
                    what="with fresh weights the extraction's variance follows the slope of theory",
                    holds=True if gap <= 0.02 else None if undecided else False,
                    gap=gap,
                    bound=0.02,
                    ratio=gap / 0.02,
                    note=f"worst {off.label}, {slopes}, mean over {count(profile.seeds, 'seed')}",
                )
            )
    return verdicts


def _claim_verdicts(claims: Sequence[Any]) -> list[Verdict]:
    """All claims in one line; their own section has them one by one."""
    if not claims:
        return []
    told_ids = {state: [str(row.id) for row in claims if row.verdict == state] for state in VERDICTS}
    failed = told_ids["fails"]
    tally = ", ".join(f"{len(ids)} {'not applicable' if state == 'n/a' else state}" for state, ids in told_ids.items() if ids)
    return [
        Verdict(
            id="claims",
            what="the claims of the papers, each by a measurement that could have failed",
            holds=not failed,
            note=tally.replace("holds", "hold") + (f"; fails: {', '.join(failed)}" if failed else ""),
        )
    ]


# ---------------------------------------------------------------------------------------------------------------------- page


def _likely(model: Any, logits: torch.Tensor) -> list[dict[str, str]]:
    """The model's five likeliest next tokens."""
    chances, ids = torch.softmax(logits[0, -1].double(), -1).topk(min(5, logits.shape[-1]))
    names = strings(model, [int(i) for i in ids])
    return [
        {"token": visible(t), "chance": f"{float(p):.1%}", "logit": number(float(logits[0, -1, int(i)]), 5, signed=True)}
        for t, p, i in zip(names, chances, ids, strict=True)
    ]


def _fingerprint(model: Any) -> str:
    """The model's own fingerprint, or sha256 over the names and bytes of its tensors."""
    if callable(getattr(model, "fingerprint", None)):
        return str(model.fingerprint())
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _environment(
    model: Any, name: str, spelled: str | None, text: str | None, answer: Any, against: Any, begun: float
) -> list[tuple[str, str]]:
    """What is needed to get this page again."""
    command = f"interp report {shlex.quote(spelled or name)}"
    command += f" --text {shlex.quote(text)}" if text is not None else ""
    command += f" --answer {shlex.quote(str(answer))}" if answer is not None else ""
    command += f" --against {shlex.quote(str(against))}" if against is not None else ""
    size = sum(p.numel() for p in model.parameters())
    like = next(model.parameters())
    command += f" --dtype {str(like.dtype).removeprefix('torch.')}" if like.dtype != torch.float32 else ""
    command += f" --device {like.device}" if like.device.type != "cpu" else ""
    versions = [("Python", platform.python_version())]
    for package in ("addition-machine", "torch", "transformer-lens", "transformers", "numpy", "plotly"):
        try:
            versions.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            versions.append((package, "not installed as a package"))
    return [
        ("Command", command + " -o report.html"),
        ("Model", f"{name}, {size:,} parameters, {str(like.dtype).removeprefix('torch.')} on {like.device}"),
        ("Model fingerprint (sha256)", _fingerprint(model)),
        ("Versions", ", ".join(f"{package} {version}" for package, version in versions)),
        ("Machine", f"{platform.system()} {platform.machine()}, {count(torch.get_num_threads(), 'thread')}"),
        ("Made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC in {time.perf_counter() - begun:.1f} s"),
    ]


def _writable(output: str | os.PathLike[str]) -> Path:
    """The output path, checked before the work that would be lost.

    Raises:
        ValueError: a folder, a missing or read-only parent folder.
    """
    target = Path(output)
    refuse_target(target, "output")
    parent = target.parent
    if not parent.is_dir():
        raise ValueError(f"output: the folder {parent} does not exist; make it first or choose another place")
    if not os.access(parent, os.W_OK):
        raise ValueError(f"output: cannot write in {parent}; choose another place")
    return target


def _render(
    *, name: str, tokens: tuple[str, ...], ids: list[int], ledger: Any, likely: Any, verdicts: Any, sections: Any, environment: Any
) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["number"] = lambda v: "–" if v is None else number(v, 2)
    # a gap just inside its bound does not become "1"
    templates.filters["ratio"] = lambda v: "–" if v is None else number(v, 4 if 0.99 < v < 1.01 else 2)
    answer = visible(ledger.answer)
    against = None if ledger.against is None else visible(ledger.against)
    failed = [v.id for v in verdicts if v.holds is False]
    findings = ("claims", "variance-slope")  # what a model may fail although every number is sound
    certificate = ledger.certificate
    return templates.get_template("report.html.j2").render(
        name=name,
        answer=answer,
        against=against,
        last=cut(visible(tokens[-1]), 24),
        total=number(float(ledger.total[0]), 7, signed=True),
        explained=number(certificate.explained, 8, signed=True),
        rounding=number(certificate.rounding, 2, signed=True),
        dtype=certificate.dtype,
        chips=[{"text": visible(t), "title": f"token {i}, id {n}"} for i, (t, n) in enumerate(zip(tokens, ids, strict=True))],
        likely=likely,
        verdicts=verdicts,
        failed=failed,
        broken=[name for name in failed if name not in findings],
        held=sum(v.holds is True for v in verdicts),
        sections=sections,
        environment=environment,
        verdict_words=VERDICTS,
        field=field,
        told=told,
        plotlyjs=Markup(get_plotlyjs()),
    )
