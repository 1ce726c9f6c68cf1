"""Results as plain objects for JSON, the same wherever they are written."""

from typing import Any


def ledger_payload(result: Any, values: list[float]) -> dict[str, Any]:
    """A ledger at one position as the command line and the explorer write it: certificate, checks, rows with `values`, notes."""
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
