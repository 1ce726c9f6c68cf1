"""The command line: `interp models | convert | generate | report | equivalence | ledger | variance | verify | selftest | train`.

A thin layer over the front door: parse, call, print. Heavy imports happen inside the commands, so `interp --help` loads no torch.
Exit codes: 0 fine, 1 a check whose conditions are met fails, 2 bad usage or input (one line on stderr), 130 interrupted.
With `--json` exactly one object goes to stdout; a number that is not finite is null there.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import console

DEFAULT_MODEL = "ishe-austen"
SHOWN_ROWS = 25

app = typer.Typer(
    name="interp",
    help="Mechanistic interpretability whose numbers carry their own proof.",
    epilog='Example:  interp ledger ishe-austen --text "It is a truth universally acknowledged" --by source',
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str, typer.Argument(help="A shipped name, a folder, a .gguf file, or a hub id owner/name.", metavar="MODEL")]
ModelOrDefault = Annotated[str, typer.Argument(help="A shipped name, a folder, a .gguf file, or a hub id owner/name.", metavar="MODEL")]
Text = Annotated[str, typer.Option("--text", help="The prompt.", metavar="TEXT")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, mps.", metavar="DEVICE")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, float64, bfloat16 or float16.", metavar="DTYPE")]
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

    check_gguf(file)
    console.err().print(f"converting {console.visible(file.name)} (about half a minute for 135M parameters)", markup=False)
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
    result = continue_text(loaded, text, new, temperature=temperature, top_k=top_k, seed=seed)
    if json:
        console.emit({"model": result.model, "tokens": result.tokens, "new": result.new, "text": result.text, "seed": seed})
    else:
        console.say(result.text)
    return 0


@app.command(epilog='Example:  interp equivalence mha-austen --text "It is a truth universally acknowledged"')
def equivalence(
    text: Text,
    model: ModelOrDefault = DEFAULT_MODEL,
    bos: Bos = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Check project-then-sum against concatenate-then-project, over heads or over lags, in every layer."""
    from .analysis import equivalence as check

    result = check(_load(model, device, dtype), text, prepend_bos=bos)
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
    model: ModelOrDefault = DEFAULT_MODEL,
    answer: Annotated[str | None, typer.Option(help="A text of one token; by default the model's top token.", metavar="TOK")] = None,
    against: Annotated[str | None, typer.Option(help="Explain the difference to this token's logit.", metavar="TOK")] = None,
    by: Annotated[str, typer.Option(help="component, head, source, head+source, lag or neuron.", metavar="BY")] = "head",
    position: Annotated[int, typer.Option(help="Which token's prediction, from 0; negative from the end.", metavar="N")] = -1,
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
    result = account(loaded, text, answer, against, position, by, on_gap="report", prepend_bos=bos)  # type: ignore[arg-type]
    _write_ledger(result, targets)
    values = [float(value) for value in result.values[:, 0]]
    if json:
        console.emit(_ledger_object(result, values))
        return 0 if result.holds else 1
    goal = repr(result.answer) + (f" against {result.against!r}" if result.against is not None else "")
    console.say(f"{result.model}, {len(result.tokens)} tokens {_quoted(result.tokens)}")
    console.say(f"{goal} at position {result.positions[0]}, by {result.by}: {float(result.total[0]):.6g}")
    if not result.holds:
        console.say("WARNING: this ledger is not complete; a check below fails.")
    order = sorted(range(len(values) - 1), key=lambda i: -abs(values[i]))
    rows = [[result.labels[i], result.entries[i].kind, values[i]] for i in order[:SHOWN_ROWS]]
    if rest := order[SHOWN_ROWS:]:
        rows.append([f"{len(rest)} smaller rows together", "", sum(values[i] for i in rest)])
    rows += [[result.labels[-1], result.entries[-1].kind, values[-1]], ["total", "", float(result.total[0])]]
    console.table(("row", "kind", "value"), rows)
    console.say(*result.certificate.summary(), *result.notes, *(f"written: {path}" for path in targets.values()))
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp variance she-austen --init")
def variance(
    model: ModelOrDefault = DEFAULT_MODEL,
    init: Annotated[bool, typer.Option("--init", help="Measure fresh weights of the same configuration, over several draws.")] = False,
    file: Annotated[Path | None, typer.Option(help="The text to measure on; by default one that ships.", metavar="FILE")] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Measure variance along the sequence, its log-log slope and what theory says."""
    text = None if file is None else _read_text(file, "--file")
    from .claims import variance_profile

    result = variance_profile(_load(model, device, dtype), text, init=init)
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
    model: ModelOrDefault = DEFAULT_MODEL,
    file: Annotated[Path | None, typer.Option(help="The text to measure on; by default one that ships.", metavar="FILE")] = None,
    json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> int:
    """Measure every claim of the sources and say which hold."""
    text = None if file is None else _read_text(file, "--file")
    from .claims import verify as measure

    result = measure(_load(model, device, dtype), text)
    names = ("id", "claim", "state", "verdict", "measured", "bound", "note")
    rows = [{name: getattr(row, name) for name in names} for row in result.rows]
    if json:
        console.emit({"model": result.model, "holds": result.holds, "rows": rows})
    else:
        console.say(f"{result.model}: {sum(row['verdict'] == 'fails' for row in rows)} of {len(rows)} claims fail")
        shown = [n for n in names if n != "claim"]
        console.table(shown, [[row[n] for n in shown] for row in rows])
    return 0 if result.holds else 1


@app.command(epilog="Example:  interp selftest")
def selftest(json: Json = False, device: Device = "cpu", dtype: Dtype = "float32") -> int:
    """Plant faults in small models, one at a time, and show which check catches each."""
    _only_defaults("selftest", device, dtype, "runs in float32 on the CPU")
    from .faults import selftest as plant

    result = plant()
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
    model: ModelOrDefault = DEFAULT_MODEL,
    text: Annotated[str | None, typer.Option("--text", help="The prompt; by default a sentence.", metavar="TEXT")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that holds the prompt.", metavar="FILE")] = None,
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
    from .report import report as write

    loaded = _load(model, device, dtype)
    result = write(loaded, prompt, output=output, on_step=lambda step: console.err().print(f"{step} ..", markup=False))
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
    mixer: Annotated[str, typer.Option(help="mha, she, ishe, kshe, he, ihe or khe.", metavar="MIXER")],
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
    rows = result.to_dataframe().to_dict("records")
    said = [{key: getattr(s, key) for key in ("id", "text", "source", "verdict", "mean", "interval", "limit")} for s in result.statements]
    page = output / PAGE_FILE
    if json:
        console.emit({"folder": str(output), "page": str(page), "rows": rows, "statements": said, "environment": result.environment})
        return 0
    console.table(list(rows[0]), [list(row.values()) for row in rows])
    columns = ("verdict", "statement", "difference", "95 % interval")
    console.table(columns, [[s["verdict"], s["text"], f"{s['mean']:+.4f}", _interval(s["interval"])] for s in said])
    console.say(f"losses in nats per token; differences paired by seed. The page: {page}")
    return 0


def _rates(spelled: str) -> tuple[float, ...]:
    try:
        return tuple(float(rate) for rate in spelled.split(","))
    except ValueError:
        raise ValueError(f"--lrs: numbers with commas between are needed, such as 3e-3,6e-3; got {spelled!r}") from None


def _load(model: str, device: str, dtype: str) -> Any:
    from .loading import load_model

    return load_model(model, device=device, dtype=dtype)


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


def _ledger_object(result: Any, values: list[float]) -> dict[str, Any]:
    certificate = result.certificate
    names = ("label", "kind", "layer", "head", "source", "lag", "neuron")
    checks = ("name", "gap", "bound", "ratio", "holds", "proved", "kind", "where")
    return {
        "model": result.model,
        "tokens": result.tokens,
        "token_ids": result.token_ids,
        "by": result.by,
        "position": result.positions[0],
        "answer": result.answer,
        "against": result.against,
        "total": result.total[0],
        "certificate": {
            **{name: getattr(certificate, name) for name in ("printed", "explained", "rounding", "holds")},
            "checks": [{name: getattr(check, name) for name in checks} for check in certificate.checks],
        },
        "rows": [
            {**{name: getattr(entry, name) for name in names}, "value": value} for entry, value in zip(result.entries, values, strict=True)
        ],
        "notes": result.notes,
    }


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
