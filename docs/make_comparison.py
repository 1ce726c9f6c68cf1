"""Writes docs/comparison.md and its pictures from docs/comparison.json of `interp compare`: every number on the page is from there.

python docs/make_comparison.py            the page alone
python docs/make_comparison.py --images   the pictures too (needs kaleido and a Chrome or Chromium)
"""

import sys
from pathlib import Path

import numpy as np

from interp.comparison import Comparison, MixerResult, read_comparison

HERE = Path(__file__).parent
PICTURES = {
    "differences": "paired differences of the validation loss with intervals",
    "curves": "validation loss against optimisation steps",
    "positions": "validation loss by position in the window",
    "lags": "change of the loss with far lags left out",
    "slopes": "slopes of the variance before and after training",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table; columns of numbers to the right."""
    numeric = [all(row[i][:1] in "+-0123456789*" for row in rows) for i in range(len(header))]
    rule = ["---:" if n else "---" for n in numeric]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def losses(result: Comparison) -> str:
    """The table of results, best first."""
    rows = [
        [
            r.mixer,
            f"{r.loss:.4f}",
            f"{r.spread:.4f}",
            f"{r.lr:g}{'*' if r.lr_at_edge else ''}",
            f"{r.parameters:,}",
            f"{r.mixer_parameters:,}",
            f"{r.multiply_adds:,.0f}",
            f"{r.mixer_multiply_adds:,.0f}",
            f"{float(np.median(r.tokens_per_cpu_second)):,.0f}",
        ]
        for r in sorted(result.results, key=lambda r: r.loss)
    ]
    header = [
        "mixer",
        "validation loss",
        "sd",
        "lr",
        "parameters",
        "of one mixer",
        "multiply-adds a token",
        "of one mixer",
        "tokens a CPU second",
    ]
    return table(header, rows)


def decided(result: Comparison) -> str:
    """The statements with their verdicts."""
    rows = [
        [f"**{s.verdict}**", s.text, s.source, f"{s.mean:+.4f}", f"{s.interval[0]:+.4f} .. {s.interval[1]:+.4f}", f"{s.limit:g}"]
        for s in result.statements
    ]
    return table(["verdict", "statement", "whose", "difference", "95 % interval", "limit"], rows)


def tried(result: Comparison) -> str:
    """The learning rates tried and what came out."""
    rates = [lr for lr, _ in result.results[0].tried]
    rows = [[r.mixer, *(f"{dict(r.tried)[lr]:.3f}{' (picked)' if lr == r.lr else ''}" for lr in rates)] for r in result.results]
    return table(["mixer", *(f"lr {lr:g}" for lr in rates)], rows)


def lags(result: Comparison) -> str:
    """Loss with far lags left out, mean over seeds."""
    some = [r for r in result.results if r.by_lags]
    kept = [n for n, _ in some[0].by_lags]
    rows = [[r.mixer, *(f"{np.mean(values):.3f}" for _, values in r.by_lags)] for r in sorted(some, key=lambda r: r.loss)]
    return table(["mixer", *(f"{n} lags" for n in kept)], rows)


def positions(result: Comparison) -> str:
    """Loss by bands of positions, mean over seeds."""
    t = len(result.results[0].by_position[0])
    bands = [(a, b) for a, b in ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128)) if b <= t]
    rows = [
        [r.mixer, *(f"{np.array(r.by_position)[:, a - 1 : b].mean():.3f}" for a, b in bands)]
        for r in sorted(result.results, key=lambda r: r.loss)
    ]
    return table(["mixer", *(f"{a}–{b}" if a != b else f"{a}" for a, b in bands)], rows)


def slopes(result: Comparison) -> str:
    """Variance slopes, range over layers and seeds."""

    def span(r: MixerResult, site: bool, when: str) -> str:
        values = [v for s in r.slopes if (s.site == "hook_attn_out") == site for v in getattr(s, when)]
        return f"{min(values):+.2f} .. {max(values):+.2f}"

    rows = [[r.mixer, *(span(r, site, when) for site in (False, True) for when in ("before", "after"))] for r in result.results]
    return table(["mixer", "sum, before", "sum, after", "sublayer output, before", "sublayer output, after"], rows)


def fast(result: Comparison) -> str:
    """One mixer trained again with the fast sums over lags, which training now takes by itself."""
    again = read_comparison(HERE / "comparison-fast.json")
    lines = []
    for r in again.results:
        before = result[r.mixer]
        moved = [a - b for a, b in zip(r.losses, before.losses, strict=True)]
        most = np.abs(moved).max()
        speed = np.median(r.tokens_per_cpu_second) / np.median(before.tokens_per_cpu_second)
        ends = ", ".join(f"{v:.4f}" for v in r.losses)
        was = ", ".join(f"{v:.4f}" for v in before.losses)
        lines.append(
            f"- **The kernel of the sum over lags changes nothing that matters.** The runs above used the direct sum; training takes\n"
            f"  the DFT or FFT now. `{r.mixer}` trained so (`--mixers {r.mixer} --seeds {again.seeds} --lrs {r.lr:g}`) ends at {ends}\n"
            f"  instead of {was}, seed by seed: a difference of at most {most:.0e}, at {speed:.1f} times the tokens a CPU second."
        )
    return "\n".join(lines)


def picture(show: str) -> str:
    return f"![{PICTURES[show]}](images/comparison-{show}.png)"


def page(result: Comparison) -> str:
    """The whole page."""
    plan = result.plan
    found = (HERE / "comparison.md.in").read_text(encoding="utf-8")
    for name, text in {
        "losses": losses(result),
        "decided": decided(result),
        "tried": tried(result),
        "lags": lags(result),
        "positions": positions(result),
        "slopes": slopes(result),
        **{f"picture-{show}": picture(show) for show in PICTURES},
        "mixers": ",".join(r.mixer for r in result.results),
        "seeds": str(result.seeds),
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens_per_step:,}",
        "fed": f"{result.steps * result.tokens_per_step / 1e6:.1f} million",
        "windows": f"{result.reported_windows:,}",
        "training_tokens": f"{result.training_tokens:,}",
        "probe_steps": f"{plan['probe_steps']}",
        "lrs": ",".join(f"{lr:g}" for lr in plan["lrs"]),
        "shape": f"{plan['n_layers']} layers, width {plan['d_model']}, context {plan['n_ctx']}, {plan['n_heads']} heads for attention",
        "environment": "; ".join(f"{key} {value}" for key, value in result.environment.items()),
        "sha256": plan["text_sha256"],
        "n_ctx": str(plan["n_ctx"]),
        "notes": "\n\n".join(result.notes),
        "fast": fast(result),
    }.items():
        found = found.replace("{{ " + name + " }}", text)
    return found


def main() -> None:
    result = read_comparison(HERE / "comparison.json")
    if "--images" in sys.argv[1:]:
        from interp.figures import comparison, write_image

        (HERE / "images").mkdir(exist_ok=True)
        for show in PICTURES:
            write_image(comparison(result, show=show), HERE / "images" / f"comparison-{show}.png", scale=1.5)
    (HERE / "comparison.md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
