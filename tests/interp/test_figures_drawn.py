"""Figures as a browser draws them: nothing overlaps, nothing is cut off; from one head and two tokens to 64 layers and 512 tokens."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest
import torch
from plotly.offline import get_plotlyjs

import interp
from analyses.drive import Drive
from analyses.equivalence import EquivalenceRow
from analyses.ledger import Entry
from analyses.lens import Lens
from interp import figures
from models.config import DecoderConfig
from models.decoder import HookedDecoder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the browser driver's own unclosed pipes
PROSE = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife"


def toy(mixer):
    """One layer, one head."""
    torch.manual_seed(0)
    config = DecoderConfig(n_layers=1, d_model=16, n_ctx=16, d_vocab=23, mixer=mixer, layout="serial", n_heads=1, mixer_bias=True)
    model = HookedDecoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def of_a_model(model, text):
    """Every figure that the model has."""
    batch = torch.randint(0, 23, (24, 16), generator=torch.Generator().manual_seed(0))
    by_source = interp.ledger(model, text, by="source")
    drawn = {
        "ledger": figures.ledger(interp.ledger(model, text, by="head+source")),
        "map": figures.sources(interp.ledger(model, text, by="head+source")),
        "bars": figures.sources(by_source),
        "tokens": figures.tokens(by_source),
        "lags": figures.sources(interp.ledger(model, text, by="lag")),
        "equivalence": figures.equivalence(interp.equivalence(model, text)),
        "lens": figures.lens(interp.lens(model, text)),
        "drive": figures.drive(interp.drive(model, text)),
        "variance": figures.variance(interp.variance_profile(model, batch)),
    }
    if hasattr(model.blocks[0].attn, "W_O"):
        drawn["heads"] = figures.heads(interp.ledger(model, text, by="head"))
        drawn["attention"] = figures.attention(interp.run_with_cache(model, text)[1])
    else:
        drawn["kernels"] = figures.kernels(model)
    return drawn


def of_the_largest(layers=64, heads=32, tokens=512):
    """Figures of results larger than any model here, made of random numbers."""
    rng = np.random.default_rng(0)
    real = toy("mha")
    ids = torch.tensor([[3, 1]])
    names = tuple(f" w{i}" for i in range(tokens))
    ledger = interp.ledger(real, ids, by="head")
    mlps = tuple(Entry(label=f"L{i} mlp", kind="mlp", layer=i) for i in range(layers))
    last = (Entry(label="rounding", kind="rounding"),)

    def made(by, entries):
        values = rng.normal(size=(len(entries), 1))
        many = {"by": by, "tokens": names, "token_ids": tuple(range(tokens)), "positions": (tokens - 1,), "entries": entries}
        return dataclasses.replace(ledger, values=values, total=values.sum(0), **many)

    by_head = tuple(Entry(label=f"L{i}H{h}", kind="head", layer=i, head=h) for i in range(layers) for h in range(heads))
    by_source = tuple(Entry(label=f"from {i}", kind="source", source=i) for i in range(tokens))
    both = tuple(
        Entry(label=f"L{i}H0 <- {j}", kind="source", layer=i, head=0, source=j) for i in range(layers) for j in range(0, tokens, 3)
    )
    rows = tuple(
        EquivalenceRow(layer=i, axis="heads", gap=1e-15, bound=1e-13, ratio=0.01, native_gap=1e-6, native_bound=1e-4, native_ratio=0.01)
        for i in range(layers)
    )
    way = np.linspace(1, 0, 2 * layers + 1)[:, None].repeat(tokens, 1)
    streams = (*(f"blocks.{i}.hook_resid_pre" for i in range(layers)), f"blocks.{layers - 1}.hook_resid_post")
    pattern = np.tril(np.ones((layers, 4, tokens, tokens), dtype=np.float32))
    return {
        "heads": figures.heads(made("head", (*by_head, *mlps, *last))),
        "ledger": figures.ledger(made("head", (*by_head, *mlps, *last))),
        "map": figures.sources(made("head+source", (*both, *mlps, *last))),
        "bars": figures.sources(made("source", (*by_source, *mlps, *last))),
        "tokens": figures.tokens(made("source", (*by_source, *mlps, *last))),
        "equivalence": figures.equivalence(dataclasses.replace(interp.equivalence(real, ids), tokens=names, rows=rows)),
        "attention": figures.attention((pattern / pattern.sum(-1, keepdims=True), names)),
        "drive": figures.drive(
            Drive(
                model="large",
                tokens=names,
                streams=("start", *(f"L{i // 2} {'mlp' if i % 2 else 'attn'}" for i in range(2 * layers))),
                layers=(-1, *(i // 2 for i in range(2 * layers))),
                distance=way,
                cosine=1 - way,
                null_distance=way[:, :4].T,
                null_cosine=1 - way[:, :4].T,
            )
        ),
        "lens": figures.lens(
            Lens(
                model="large",
                tokens=names,
                positions=(tokens - 1,),
                answer=" a",
                against=None,
                streams=streams,
                values=rng.normal(size=(layers + 1, 1)),
                top=tuple(((1, 2, 3, 4, 5),) for _ in streams),
            )
        ),
    }


# Texts that are seen: their boxes against the picture's edge and against one another. The boxes of labels that lean alike overlap without
# the labels doing so: there the distance of their feet counts.
LOOK = """
async (specs) => {
  const found = [];
  for (const [name, spec] of Object.entries(specs)) {
    const div = document.createElement("div");
    document.body.append(div);
    await Plotly.newPlot(div, spec.data, spec.layout, {staticPlot: true});
    const edge = div.querySelector(".main-svg").getBoundingClientRect();
    const texts = [...div.querySelectorAll("text")].filter((t) => t.textContent.trim() && t.getBoundingClientRect().width > 0
      && getComputedStyle(t).visibility !== "hidden" && getComputedStyle(t).opacity > 0 && !t.closest(".table"));
    const boxes = texts.map((t) => {
      const turned = /rotate\\((-?[1-9][\\d.]*)/.exec(t.getAttribute("transform") || "");
      const size = parseFloat(getComputedStyle(t).fontSize);
      return {box: t.getBoundingClientRect(), text: t.textContent.slice(0, 40), turned: turned ? parseFloat(turned[1]) : 0, size};
    });
    for (const {box, text} of boxes) {
      const out = [edge.left - box.left, box.right - edge.right, edge.top - box.top, box.bottom - edge.bottom];
      if (Math.max(...out) > 1) found.push(`${name}: cut off: ${text} (${out.map(Math.round)})`);
    }
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const leaning = a.turned && a.turned === b.turned && Math.abs(a.turned) < 89;
      if (leaning) {
        const feet = Math.abs(a.box.right - b.box.right) * Math.abs(Math.sin(a.turned * Math.PI / 180));
        if (feet < 0.8 * a.size) found.push(`${name}: crowded: ${a.text} | ${b.text}`);
        continue;
      }
      const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (a.turned || b.turned || across <= 1.5 || down <= 0.35 * Math.min(a.size, b.size)) continue;
      found.push(`${name}: overlap: ${a.text} | ${b.text}`);
    }
    div.remove();
  }
  return found;
}
"""


async def looked_at(page, specs):
    choreographer = pytest.importorskip("choreographer")
    if choreographer.browsers.chromium.get_browser_path(("chromium", "chromium-browser", "google-chrome", "chrome")) is None:
        pytest.skip("no Chromium is installed")
    async with choreographer.Browser(headless=True) as chromium:
        tab = await chromium.create_tab("about:blank")
        await tab.send_command("Page.enable")
        await tab.send_command("Runtime.enable")
        await tab.send_command("Page.navigate", {"url": page.as_uri()})
        for _ in range(600):
            answer = await tab.send_command("Runtime.evaluate", {"expression": "!!window.Plotly && !!document.body"})
            if answer.get("result", {}).get("result", {}).get("value"):
                break
            await asyncio.sleep(0.1)
        found = []
        for name, spec in specs.items():  # one figure a message: messages have a largest size
            expression = f"({LOOK})({json.dumps({name: spec})}).then(JSON.stringify)"
            answer = await tab.send_command("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
            found += json.loads(answer["result"]["result"]["value"])
    return found


def problems(tmp_path, drawn):
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body><script>{get_plotlyjs()}</script>")
    specs = {name: {key: json.loads(fig.to_json())[key] for key in ("data", "layout")} for name, fig in drawn.items()}
    for spec in specs.values():
        spec["layout"].pop("template", None)
    return asyncio.run(looked_at(page, specs))


@pytest.mark.parametrize("name", ["mha-austen", "ishe-austen"])
def test_figures_of_a_shipped_decoder(name, tmp_path):
    assert problems(tmp_path, of_a_model(interp.load_model(name), PROSE)) == []


@pytest.mark.parametrize("mixer", ["mha", "he"])
def test_figures_of_one_layer_and_one_head(mixer, tmp_path):
    assert problems(tmp_path, of_a_model(toy(mixer), torch.tensor([[3, 1]]))) == []


def test_figures_of_64_layers_and_512_tokens(tmp_path):
    assert problems(tmp_path, of_the_largest()) == []


def test_the_look_sees_an_overlap_and_a_cut(tmp_path):
    fig = figures.ledger(interp.ledger(toy("mha"), torch.tensor([[3, 1]]), by="component"))
    fig.add_annotation(text="over the title", x=0.05, y=1, yshift=75, xref="paper", yref="paper", showarrow=False, xanchor="left")
    fig.add_annotation(text="beyond the edge of the picture", x=1, y=0.5, xref="paper", yref="paper", showarrow=False, xanchor="left")
    found = problems(tmp_path, {"bad": fig})
    assert any("overlap" in line and "over the title" in line for line in found)
    assert any("cut off: beyond the edge" in line for line in found)
