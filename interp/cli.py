"""The command line: `interp --help` lists the commands.

A thin layer over the front door: parse, call, print. Heavy imports happen inside the commands, so `interp --help` loads no torch.
Exit codes: 0 fine, 1 a check whose conditions are met fails, 2 bad usage or input (one line on stderr), 130 interrupted.
With `--json` exactly one object goes to stdout; a number that is not finite is null there.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from . import console

DEFAULT_MODEL = "ishe-austen"
SHOWN_ROWS = 25
MIXERS = ("mha", "she", "ishe", "kshe", "he", "ihe", "khe")

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability whose numbers carry their own proof.",
    epilog='Example:  interp ledger ishe-austen --text "It is a truth universally acknowledged" --by source',
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _models(incomplete: str) -> list[str]:
    """Names of shipped decoders, for the shell's completion; read from the folder, since importing the models takes a second."""
    from ._models import BESIDE

    return sorted(place.parent.name for place in (BESIDE / "zoo").glob("*/config.json") if place.parent.name.startswith(incomplete))


def _one_of(*values: str) -> Callable[[str], list[str]]:
    """A completion among fixed values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Argument(help="A shipped name, a folder, a .gguf file, or a hub id owner/name.", metavar="MODEL", autocompletion=_models),
]
Text = Annotated[str, typer.Option("--text", help="The prompt.", metavar="TEXT")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Device = Annotated[
    str,
    typer.Option("--device", help="Where to compute: cpu, cuda, mps.", metavar="DEVICE", autocompletion=_one_of("cpu", "cuda", "mps")),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="float32, float64, bfloat16 or float16.",
        metavar="DTYPE",
        autocompletion=_one_of("float32", "float64", "bfloat16", "float16"),
    ),
]
Answer = Annotated[str | None, typer.Option("--answer", help="A text of one token; by default the model's top token.", metavar="TOK")]
Against = Annotated[str | None, typer.Option("--against", help="Explain the difference to this token's logit.", metavar="TOK")]
Position = Annotated[int, typer.Option("--position", help="Which token's prediction, from 0; negative from the end.", metavar="N")]
Bos = Annotated[bool | None, typer.Option("--bos/--no-bos", help="Put BOS in front or not; by default as TransformerLens does.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; never shows a traceback for bad usage or bad input."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = app(args=args, prog_name="interp", standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as stop:
        code = stop.code
    except Exception as error:
        # Usage errors of typer (whose classes moved between versions) know how to say themselves and which code they end with.
        if not isinstance(error, ValueError | TypeError | OSError) and not hasattr(error, "format_message"):
            if type(error).__name__ != "Abort":
                raise
            code = 130
        else:
            console.fail(error.format_message() if hasattr(error, "format_message") else error)
            code = 2
    if code == 130:
        console.fail("interrupted")
    return code if isinstance(code, int) else 0


@app.command("models", epilog="Example:  interp models --json")
def list_models(json: Json = False, device: Device = "cpu", dtype: Dtype = "float32") -> int:
    """List the decoders that come with the package."""
    _only_defaults("models", device, dtype, "lists names")
    from ._models import wing

    zoo = wing("zoo")
    rows = [_shipped(name, zoo.path(name)) for name in zoo.names()]
    if json:
        console.emit({"models": rows})
        return 0
    columns = ("name", "mixer", "n_layers", "d_model", "n_ctx", "d_vocab", "steps", "loss")
    console.table(columns, [[row[c] for c in columns] for row in rows])
    console.say("loss: nats per token on held-out text; one seed and unlike numbers of steps, so no comparison.")
    console.say("Also accepted: a folder, a .gguf file, a hub id owner/name.")
    return 0


@app.command(epilog="Example:  interp convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2")
def convert(
    file: Annotated[Path, typer.Argument(help="The GGUF file.", metavar="FILE.gguf")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="FOLDER")],
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Turn a GGUF file into a folder that loads in seconds."""
    _only_defaults("convert", device, dtype, "writes float32 on the CPU")
    from .huggingface import check_gguf, convert_gguf
    from .progress import waiting

    check_gguf(file)
    with waiting(f"converting {console.visible(file.name)} (about half a minute for 135M parameters)"):
        written = convert_gguf(file, folder)
    if json:
        console.emit({"model": str(written), "path": str(written)})
    else:
        console.say(str(written))
    return 0


@app.command(epilog='Example:  interp generate mha-austen --text "It is a truth" --new 40')
def generate(
    model: Model,
    text: Text,
    new: Annotated[int, typer.Option("--new", help="How many tokens to add.", min=1, metavar="N")] = 40,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.", min=0.0)] = 0.8,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample among the K likeliest only.", min=1, metavar="K")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampling.")] = 0,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Continue a text."""
    from .generation import generate as continue_text

    loaded = _load(model, device, dtype)
    with _waiting("generating"):
        result = continue_text(loaded, text, new, temperature=temperature, top_k=top_k, seed=seed)
    if json:
        console.emit({"model": result.model, "tokens": result.tokens, "new": result.new, "text": result.text, "seed": seed})
    else:
        console.say(result.text)
    return 0


@app.command(epilog='Example:  interp equivalence mha-austen --text "It is a truth universally acknowledged"')
def equivalence(
    text: Text,
    model: Model = DEFAULT_MODEL,
    bos: Bos = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Check project-then-sum against concatenate-then-project, over heads or over lags, in every layer."""
    from .analysis import equivalence as check

    loaded = _load(model, device, dtype)
    with _waiting("checking every layer"):
        result = check(loaded, text, prepend_bos=bos)
    names = ("layer", "axis", "gap", "bound", "ratio", "native_gap", "native_bound", "native_ratio", "holds")
    rows = [{name: getattr(row, name) for name in names} for row in result.rows]
    if json:
        facts = {"model": result.model, "tokens": result.tokens, "token_ids": result.token_ids, "dtype": result.dtype}
        console.emit({**facts, "holds": result.holds, "worst_ratio": result.worst_ratio, "rows": rows, "skipped": result.skipped})
    else:
        console.say(f"{result.model}, {len(result.tokens)} tokens {_quoted(result.tokens)}")
        shown = [[row[n] for n in names[:-1]] + [console.verdict(row["holds"])] for row in rows]
        console.table(names, shown)
        console.say(str(result), *(f"not checked: {reason}" for reason in result.skipped))
    return 0 if result.holds else 1


@app.command(epilog='Example:  interp ledger mha-austen --text "It is a truth universally acknowledged" --by head')
def ledger(
    text: Text,
    model: Model = DEFAULT_MODEL,
    answer: Answer = None,
    against: Against = None,
    by: Annotated[
        str,
        typer.Option(
            help="component, head, source, head+source, lag or neuron.",
            metavar="BY",
            autocompletion=_one_of("component", "head", "source", "head+source", "lag", "neuron"),
        ),
    ] = "head",
    position: Position = -1,
    csv: Annotated[Path | None, typer.Option(help="Write the rows as CSV.", metavar="FILE")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the figure as one HTML file.", metavar="FILE")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the figure as PNG (needs kaleido and a browser).", metavar="FILE")] = None,
    bos: Bos = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Account for a logit, or a difference of two, as a signed sum with its certificate."""
    targets = {option: path for option, path in (("--csv", csv), ("--html", html), ("--png", png)) if path is not None}
    if len(targets) > 1:
        raise ValueError(f"{' and '.join(targets)}: give one of them at a time")
    for option, path in targets.items():
        _check_writable(path, option)
    from .analysis import ledger as account

    loaded = _load(model, device, dtype)
    with _waiting("accounting"):
        result = account(loaded, text, answer, against, position, by, on_gap="report", prepend_bos=bos)  # type: ignore[arg-type]
        _write_ledger(result, targets)
    values = [float(value) for value in result.values[:, 0]]
    if json:
        from .payload import ledger_payload

        console.emit(ledger_payload(result, values))
        return 0 if result.holds else 1
    console.say(f"{result.model}, {len(result.tokens)} tokens {_quoted(result.tokens)}")
    console.say(f"{_goal(result)} at position {result.positions[0]}, by {result.by}: {float(result.total[0]):.6g}")
    if not result.holds:
        console.say("WARNING: this ledger is not complete; a check below fails.")
    order = sorted(range(len(values) - 1), key=lambda i: -abs(values[i]))
    rows = [[result.labels[i], result.entries[i].kind, values[i]] for i in order[:SHOWN_ROWS]]
    if rest := order[SHOWN_ROWS:]:
        rows.append([f"{len(rest)} smaller rows together", "", sum(values[i] for i in rest)])
    rows += [[result.labels[-1], result.entries[-1].kind, values[-1]], ["total", "", float(result.total[0])]]
    console.table(("row", "kind", "logits"), rows, signed=("logits",))
    console.say(*result.certificate.summary(), *result.notes, *(f"written: {path}" for path in targets.values()))
    return 0 if result.holds else 1


@app.command(epilog='Example:  interp lens mha-austen --text "It is a truth universally acknowledged"')
def lens(
    text: Text,
    model: Model = DEFAULT_MODEL,
    answer: Answer = None,
    against: Against = None,
    position: Position = -1,
    top_k: Annotated[int, typer.Option("--top-k", help="How many of the likeliest tokens of each stream.", min=1, metavar="K")] = 5,
    bos: Bos = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Read every residual stream as if the model stopped there: the logit and the likeliest tokens. It does not add up; a ledger does."""
    from .analysis import lens as look

    loaded = _load(model, device, dtype)
    with _waiting("reading every stream"):
        result = look(loaded, text, answer, against, position, top_k=top_k, prepend_bos=bos)
    values = [float(value) for value in result.values[:, 0]]
    words = [row[0] for row in result.words]
    if json:
        rows = [{"stream": s, "value": v, "top": t} for s, v, t in zip(result.streams, values, words, strict=True)]
        facts = {"model": result.model, "tokens": result.tokens, "position": result.positions[0]}
        console.emit({**facts, "answer": result.answer, "against": result.against, "rows": rows, "note": result.note})
        return 0
    console.say(f"{result.model}, {len(result.tokens)} tokens {_quoted(result.tokens)}")
    console.say(f"{_goal(result)} at position {result.positions[0]}, read at every stream")
    shown = [[s, v, *(repr(word) for word in t)] for s, v, t in zip(result.streams, values, words, strict=True)]
    console.table(("stream", "logit", *(f"{rank}." for rank in range(1, len(words[0]) + 1))), shown, signed=("logit",))
    console.say(result.note)
    return 0


@app.command(epilog='Example:  interp ablate mha-induction --text "c1 h4 a0 p7 e5 k2 b3 d6 c1" --sources 1')
def ablate(
    text: Text,
    model: Model = DEFAULT_MODEL,
    heads: Annotated[str | None, typer.Option(help="Heads, such as L1H1,L1H3.", metavar="NAMES")] = None,
    sources: Annotated[str | None, typer.Option(help="Source tokens by position, in every layer, or L2:1.", metavar="NAMES")] = None,
    lags: Annotated[str | None, typer.Option(help="Lags of an Extractor, in every layer, or L2:0.", metavar="NAMES")] = None,
    neurons: Annotated[str | None, typer.Option(help="Neurons, such as L0N12.", metavar="NAMES")] = None,
    how: Annotated[
        str, typer.Option(help="zero, or mean over the prompt.", metavar="HOW", autocompletion=_one_of("zero", "mean"))
    ] = "zero",
    answer: Answer = None,
    against: Against = None,
    position: Position = -1,
    bos: Bos = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Remove heads, source tokens, lags or neurons: what the ledger predicts, what the logit does, and what follows downstream."""
    spelled = {"heads": heads, "sources": sources, "lags": lags, "neurons": neurons}
    given = {kind: _targets(kind, names) for kind, names in spelled.items() if names is not None}
    if len(given) != 1:
        raise ValueError(f"one of --heads, --sources, --lags, --neurons is needed, got {', '.join(f'--{k}' for k in given) or 'none'}")
    from .analysis import ablate as remove

    loaded = _load(model, device, dtype)
    with _waiting("ablating"):
        result = remove(loaded, text, answer, against, position, how=how, prepend_bos=bos, **given)  # type: ignore[arg-type]
    _refuse_unread(given, result.position)
    names = ("baseline", "predicted", "direct", "after", "total")
    if json:
        facts = {"model": result.model, "tokens": result.tokens, "position": result.position, "answer": result.answer}
        removed = {"against": result.against, "kind": result.kind, "how": result.how, "removed": result.labels}
        check = {name: getattr(result.check, name) for name in ("name", "gap", "bound", "ratio", "holds", "kind")}
        console.emit({**facts, **removed, **{name: getattr(result, name) for name in names}, "holds": result.holds, "check": check})
        return 0 if result.holds else 1
    console.say(f"{result.model}, {len(result.tokens)} tokens {_quoted(result.tokens)}")
    console.say(f"{_goal(result)} at position {result.position}; {', '.join(result.labels)} set to {result.how}")
    told = (
        ("the logit as printed", result.baseline),
        ("predicted fall: the ledger's entries", result.predicted),
        ("measured fall: those writes taken from the last stream", result.direct),
        ("the logit with everything downstream run again", result.after),
        ("whole fall", result.total),
    )
    console.table(("", "logits"), told, signed=("logits",))
    console.say(f"prediction against measurement: {result.check}")
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp variance she-austen --init")
def variance(
    model: Model = DEFAULT_MODEL,
    init: Annotated[bool, typer.Option("--init", help="Measure fresh weights of the same configuration, over several draws.")] = False,
    file: Annotated[Path | None, typer.Option(help="The text to measure on; by default one that ships.", metavar="FILE")] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Measure variance along the sequence, its log-log slope and what theory says."""
    text = None if file is None else _read_text(file, "--file")
    from .claims import variance_profile
    from .progress import step_bar

    loaded = _load(model, device, dtype)
    with step_bar() as on_step:
        result = variance_profile(loaded, text, init=init, on_step=on_step)
    names = ("site", "layer", "slope", "interval", "r2", "power_law", "theory_slope", "spread", "prediction_error", "note")
    rows = [{name: getattr(row, name) for name in names} for row in result.rows]
    if json:
        facts = {"model": result.model, "init": result.init, "sequences": result.sequences, "seeds": result.seeds, "holds": result.holds}
        length = max((int(row.positions[-1]) for row in result.rows), default=0)
        console.emit({**facts, "tokens": result.sequences * length, "rows": rows})
        return 0 if result.holds else 1
    what = f"fresh weights, {result.seeds} draws" if result.init else "as trained"
    console.say(f"{result.model}, {what}, {result.sequences} sequences")
    shown = [[r["layer"], r["site"], r["slope"], _interval(r["interval"]), r["r2"], r["theory_slope"], r["note"]] for r in rows]
    console.table(("layer", "site", "slope", "interval", "r2", "theory", "note"), shown)
    if not result.holds:
        console.say("WARNING: an identity that must hold fails.")
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp verify ishe-austen")
def verify(
    model: Model = DEFAULT_MODEL,
    file: Annotated[Path | None, typer.Option(help="The text to measure on; by default one that ships.", metavar="FILE")] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Measure every claim of the sources and say which hold."""
    text = None if file is None else _read_text(file, "--file")
    from .claims import verify as measure
    from .progress import step_bar

    loaded = _load(model, device, dtype)
    with step_bar() as on_step:
        result = measure(loaded, text, on_step=on_step)
    names = ("id", "claim", "state", "verdict", "measured", "bound", "note")
    rows = [{name: getattr(row, name) for name in names} for row in result.rows]
    if json:
        console.emit({"model": result.model, "holds": result.holds, "rows": rows})
    else:
        console.say(f"{result.model}: {sum(row['verdict'] == 'fails' for row in rows)} of {len(rows)} claims fail")
        shown = [n for n in names if n not in ("claim", "verdict")]
        console.table(["verdict", *shown], [[console.judged(row["verdict"]), *(row[n] for n in shown)] for row in rows])
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp selftest")
def selftest(json: Json = False, device: Device = "cpu", dtype: Dtype = "float32") -> int:
    """Plant faults in small models, one at a time, and show which check catches each."""
    _only_defaults("selftest", device, dtype, "runs in float32 on the CPU")
    from .faults import selftest as plant
    from .progress import step_bar

    with step_bar() as on_step:
        result = plant(on_step=on_step)
    names = ("model", "fault", "planted", "caught_by", "factor", "caught")
    if json:
        rows = {part: [{n: getattr(row, n) for n in names} for row in getattr(result, part)] for part in ("controls", "rows")}
        console.emit({"holds": result.holds, **rows})
    else:
        console.table(names, [[getattr(row, n) for n in names] for row in (*result.controls, *result.rows)])
        console.say(f"{len(result.rows) - len(result.missed)} of {len(result.rows)} faults caught; {len(result.controls)} controls")
    return 0 if result.holds else 1


@app.command(epilog='Example:  interp report ishe-austen --text "It is a truth universally acknowledged" -o report.html')
def report(
    model: Model = DEFAULT_MODEL,
    text: Annotated[str | None, typer.Option("--text", help="The prompt; by default a sentence.", metavar="TEXT")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that holds the prompt.", metavar="FILE")] = None,
    answer: Answer = None,
    against: Against = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.", metavar="FILE")] = Path("report.html"),
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Put every analysis of one prompt into one HTML file that opens with what was checked."""
    if text is not None and file is not None:
        raise ValueError("--text and --file: give one of them")
    prompt = text if file is None else _read_text(file, "--file")
    _check_writable(output, "--output")
    from .progress import step_bar
    from .report import report as write

    loaded = _load(model, device, dtype)
    with step_bar() as on_step:
        result = write(loaded, prompt, answer=answer, against=against, output=output, spelled=model, on_step=on_step)
    if json:
        console.emit({"model": _name(loaded), **result.to_dict()})
    else:
        rows = [[v.what, console.verdict(v.holds), v.gap, v.bound, v.ratio] for v in result.verdicts]
        console.table(("checked", "verdict", "gap", "bound", "ratio"), rows)
        console.say(str(result.path))
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp explore mha-austen ./smollm2")
def explore(
    models: Annotated[
        list[str] | None, typer.Argument(help="Shipped names, folders, .gguf files or hub ids.", metavar="[MODEL ...]")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; another than 127.0.0.1 lets others in.", metavar="HOST")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option("--port", help="By default 8050, or another where that is taken.", min=0, max=65535)] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="The secret part of the address; by default random.", metavar="TOKEN")
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Explore models in the browser: ledgers at every zoom, ablations, claims. The models that ship are always offered."""
    from .explorer import serve

    def ready(url: str, names: Sequence[str]) -> None:
        if json:
            console.emit({"url": url, "models": list(names)})
        else:
            console.say(f"models: {', '.join(names)}", f"open {url}", "Ctrl+C ends it")
        sys.stdout.flush()

    serve(models or [], host=host, port=port, token=token, device=device, dtype=dtype, on_ready=ready)
    return 0


@app.command(epilog="Example:  interp train --mixer ishe --text corpus.txt -o my-ishe")
def train(
    mixer: Annotated[str, typer.Option(help=f"One of {', '.join(MIXERS)}.", metavar="MIXER", autocompletion=_one_of(*MIXERS))],
    text: Annotated[Path, typer.Option("--text", help="A text file: works in paragraphs.", metavar="FILE")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make.", metavar="FOLDER")],
    steps: Annotated[int | None, typer.Option(help="Optimisation steps.", min=1, metavar="N")] = None,
    n_layers: Annotated[int | None, typer.Option(help="Layers.", min=1, metavar="N")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width.", min=1, metavar="N")] = None,
    n_ctx: Annotated[int | None, typer.Option(help="Longest sequence.", min=2, metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and data order.", min=0, metavar="N")] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Train a small decoder on a text file: tokenizer, weights, recipe and log in one folder."""
    _only_defaults("train", device, dtype, "trains in float32 on the CPU")
    corpus = _read_text(text, "--text")
    from ._models import wing
    from .progress import training_bar

    training = wing("training")
    given = {"steps": steps, "n_layers": n_layers, "d_model": d_model, "n_ctx": n_ctx, "seed": seed}
    config = training.TrainingConfig(mixer=mixer, **{key: value for key, value in given.items() if value is not None})
    with training_bar(config.steps) as on_step:
        result = training.train(config, corpus, output, on_step)
    if json:
        facts = {"folder": str(result.folder), "steps": result.steps, "loss": result.loss}
        console.emit({**facts, "model": result.folder.name, "tokens": result.training_tokens, "seconds": result.seconds})
    else:
        console.say(f"{result.folder}: {result.steps} steps, {result.seconds:.0f} s, validation loss {result.loss:.4f} nats per token")
    return 0


@app.command(epilog="Example:  interp compare --mixers mha,she,ishe,he,ihe --seeds 3 --text corpus.txt -o compared")
def compare(
    text: Annotated[Path, typer.Option("--text", help="A text file: works in paragraphs.", metavar="FILE")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make, or to go on with.", metavar="FOLDER")],
    mixers: Annotated[
        str, typer.Option(help="Names with commas: mha, she, ishe, kshe, he, ihe, khe.", metavar="NAMES")
    ] = "mha,she,ishe,he,ihe",
    seeds: Annotated[int, typer.Option(help="Runs a mixer.", min=1, metavar="N")] = 3,
    steps: Annotated[int | None, typer.Option(help="Optimisation steps of a run.", min=1, metavar="N")] = None,
    lrs: Annotated[str | None, typer.Option(help="The learning rates to try, with commas.", metavar="RATES")] = None,
    n_layers: Annotated[int | None, typer.Option(help="Layers.", min=1, metavar="N")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width.", min=1, metavar="N")] = None,
    n_ctx: Annotated[int | None, typer.Option(help="Longest sequence.", min=2, metavar="N")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny decoders, few steps: to see it work, not to learn from.")] = False,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Train several mixers under equal conditions and compare them; stopped, it goes on where it was."""
    _only_defaults("compare", device, dtype, "trains in float32 on the CPU")
    corpus = _read_text(text, "--text")
    from ._models import wing
    from .comparison import PAGE_FILE
    from .comparison import compare as compare_mixers
    from .progress import comparison_bar

    sizes = {"steps": 20, "probe_steps": 5, "batch": 4, "validate_every": 10, "n_layers": 1, "d_model": 16, "n_ctx": 16, "d_vocab": 300}
    given = {"steps": steps, "n_layers": n_layers, "d_model": d_model, "n_ctx": n_ctx, "lrs": None if lrs is None else _rates(lrs)}
    chosen = (sizes if quick else {}) | {key: value for key, value in given.items() if value is not None}
    plan = wing("comparison").ComparisonPlan(mixers=tuple(name.strip() for name in mixers.split(",")), seeds=seeds, **chosen)
    with comparison_bar() as (on_progress, on_question):
        result = compare_mixers(corpus, output, plan=plan, on_progress=on_progress, on_question=on_question)
    rows = [{str(key): value for key, value in row.items()} for row in result.to_dataframe().to_dict("records")]
    said = [{key: getattr(s, key) for key in ("id", "text", "source", "verdict", "mean", "interval", "limit")} for s in result.statements]
    page = output / PAGE_FILE
    if json:
        console.emit(
            {
                "folder": str(output),
                "page": str(page),
                "rows": rows,
                "statements": said,
                "notes": result.notes,
                "environment": result.environment,
            }
        )
        return 0
    shown = {
        "mixer": "mixer",
        "loss": "validation_loss",
        "sd": "sd_over_seeds",
        "lr": "lr",
        "parameters": "parameters",
        "multiply-adds/token": "multiply_adds_per_token",
        "tokens/CPU s": "tokens_per_cpu_second",
    }
    console.table(list(shown), [[row[key] for key in shown.values()] for row in rows])
    columns = ("verdict", "statement", "difference", "95 % interval")
    console.table(columns, [[s["verdict"], s["text"], f"{s['mean']:+.4f}", _interval(s["interval"])] for s in said])
    console.say(*result.notes, f"losses in nats per token; differences paired by seed. The page: {page}")
    return 0


def _rates(spelled: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in spelled.split(","))
    except ValueError:
        raise ValueError(f"--lrs: numbers with commas between are needed, such as 3e-3,6e-3; got {spelled!r}") from None


@app.command("shapes", epilog="Example:  interp shapes --batch 1 --seq 20 --vocab 50000 --d-model 512 --heads 8")
def show_shapes(
    batch: Annotated[int, typer.Option(help="Sequences.", min=1, metavar="N")] = 1,
    seq: Annotated[int, typer.Option(help="Tokens in each.", min=1, metavar="N")] = 20,
    vocab: Annotated[int, typer.Option(help="Vocabulary.", min=1, metavar="N")] = 50000,
    d_model: Annotated[int, typer.Option(help="Width.", min=1, metavar="N")] = 512,
    heads: Annotated[int, typer.Option(help="Heads.", min=1, metavar="N")] = 8,
    n_layers: Annotated[int, typer.Option(help="Layers.", min=1, metavar="N")] = 1,
    mixer: Annotated[str, typer.Option(help=f"One of {', '.join(MIXERS)}.", metavar="MIXER", autocompletion=_one_of(*MIXERS))] = "mha",
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Every tensor's shape in a forward pass: concatenate then project beside project then sum."""
    _only_defaults("shapes", device, dtype, "runs on the meta device, where nothing is computed")
    from ._models import wing
    from .shapes import shapes

    sizes = {"n_layers": n_layers, "d_model": d_model, "n_ctx": seq, "d_vocab": vocab, "n_heads": heads}
    config_module = wing("config")
    if mixer not in config_module.MIXERS:
        raise ValueError(f"--mixer: unknown {mixer!r}: {config_module.near_misses(mixer, config_module.MIXERS)}")
    result = shapes(config_module.DecoderConfig(mixer=mixer, **sizes), batch=batch, seq=seq)
    if json:
        console.emit({"mixer": result.mixer, "rows": result.to_dataframe().to_dict("records")})
        return 0
    shown = [[r.step, r.hook or "", _shape(r.concatenated), _shape(r.summed), "<- differs" if r.differs else ""] for r in result.rows]
    console.table(("step", "hook", "concatenate, project", "project, sum", ""), shown)
    console.say(
        "From a hooked run on the meta device: shapes only. That both readings give the same numbers is what interp equivalence checks."
    )
    return 0


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else str(shape)


def _refuse_unread(given: dict[str, Any], row: int) -> None:
    """Removing what the row cannot read changes nothing, exactly: a null experiment, which must not look like a check that held."""
    for kind in given.keys() & {"sources", "lags"}:
        late = [index for index in (t[1] if isinstance(t, tuple) else t for t in given[kind]) if index > row]
        if late:
            raise ValueError(f"--{kind}: position {row} reads no {kind.removesuffix('s')} {late[0]}; name some of 0..{row}")


def _load(model: str, device: str, dtype: str) -> Any:
    with _waiting(f"loading {console.visible(model)}"):
        from .loading import load_model

        return load_model(model, device=device, dtype=dtype)


def _waiting(what: str) -> AbstractContextManager[None]:
    from .progress import waiting

    return waiting(what)


def _goal(result: Any) -> str:
    """The number explained, as a line names it: `' Mary' against ' John'`."""
    return repr(result.answer) + (f" against {result.against!r}" if result.against is not None else "")


_TARGETS = {
    "heads": (r"L(\d+)H(\d+)", "L1H3"),
    "neurons": (r"L(\d+)N(\d+)", "L0N12"),
    "sources": (r"(?:L(\d+):)?(-?\d+)", "1 (in every layer) or L2:1"),
    "lags": (r"(?:L(\d+):)?(\d+)", "0 (in every layer) or L2:0"),
}


def _targets(kind: str, spelled: str) -> list[int | tuple[int, int]]:
    """`L1H1,L1H3` as (layer, index) pairs; a source or lag without its layer is one number, meant in every layer."""
    pattern, example = _TARGETS[kind]
    found: list[int | tuple[int, int]] = []
    for name in spelled.split(","):
        match = re.fullmatch(pattern, name.strip())
        if match is None:
            raise ValueError(f"--{kind}: names such as {example}, with commas between, are needed; got {name.strip()!r}")
        layer, index = match.groups()
        found.append(int(index) if layer is None else (int(layer), int(index)))
    return found


def _name(model: Any) -> str:
    from .tokens import model_name

    return model_name(model)


def _only_defaults(command: str, device: str, dtype: str, does: str) -> None:
    if device != "cpu" or dtype != "float32":
        raise ValueError(f"{command} {does}: leave out --device and --dtype")


def _read_text(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {str(file)!r} is not UTF-8 text ({error.reason} at byte {error.start}); convert it first") from None
    except OSError as error:
        raise ValueError(f"{option}: cannot read {str(file)!r}: {error.strerror or error}") from None


def _check_writable(path: Path, option: str) -> None:
    """Raise ValueError unless a file can be made at `path`; asked before computing, by making one beside it."""
    if str(path) in ("", ".", "-"):
        raise ValueError(f"{option}: the name of a file is needed, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"{option}: {str(path)!r} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{option}: {str(path)!r} is a device or a pipe, which a file would replace; name a regular file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{option}: cannot write {str(path)!r}: {error.strerror or error}; choose another place") from None
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{option}: {str(path)!r} is write-protected; choose another file")


def _write_ledger(result: Any, targets: dict[str, Path]) -> None:
    for option, path in targets.items():
        from .figures import ledger as draw
        from .figures.writing import write_atomic, write_html, write_image

        if option == "--csv":
            write_atomic(path, result.to_dataframe().to_csv(index=False).encode())
        elif option == "--html":
            write_html(draw(result), path)
        else:
            if path.suffix.lower() != ".png":
                raise ValueError(f"--png: {str(path)!r} does not end in .png")
            try:
                write_image(draw(result), path)
            except (ImportError, RuntimeError) as error:  # no kaleido, or no browser for it
                raise ValueError(f"--png: {error}") from None


def _shipped(name: str, folder: Path) -> dict[str, Any]:
    import json

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    recipe = folder / "recipe.json"
    told = json.loads(recipe.read_text(encoding="utf-8")) if recipe.is_file() else {}
    facts = {key: config[key] for key in ("mixer", "n_layers", "d_model", "n_ctx", "d_vocab")}
    trained = {"steps": told.get("training", {}).get("steps"), "loss": told.get("validation", {}).get("loss")}
    return {"name": name, **facts, **trained, "path": str(folder)}


def _interval(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.3f}, {interval[1]:.3f}]"


def _quoted(tokens: Sequence[str]) -> str:
    shown = [repr(token) for token in tokens[:40]]
    return " ".join(shown) + (f" .. ({len(tokens) - 40} more)" if len(tokens) > 40 else "")


if __name__ == "__main__":
    sys.exit(main())
