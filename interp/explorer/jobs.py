"""Long computations, each in a process of its own: it can be watched, it can be stopped at any moment, and its death is only a message.

In here: starting, watching, stopping (`Jobs`). The other end of the pipe is `worker.py`. The worker ends by itself when this process does,
because its standard input closes.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

State = Literal["running", "done", "failed", "cancelled"]
KINDS = ("claims", "variance", "init")
AT_ONCE = 2
"""Workers at a time, over all browsers: each holds a model of its own."""
KEPT = 16


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a computation stands. `share` is from 0 to 1, None before the first step; `result` is there when `state` is "done"."""

    model: str
    kind: str
    state: State = "running"
    share: float | None = None
    step: str = "starting"
    seconds: float = 0.0
    message: str = ""
    result: Any = None


@dataclass
class _Job:
    process: "subprocess.Popen[str]"
    begun: float
    status: Status
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=12))


class Jobs:
    """The computations of this server. An id is as hard to guess as the server's address, and only its page knows it."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._guard = threading.Lock()

    def start(self, *, name: str, place: str, kind: str, device: str, dtype: str) -> str:
        """Start one; returns its id.

        Args:
            name: what the page calls the model.
            place: what `load_model` takes.
            kind: one of `KINDS`.
            device, dtype: as for `load_model`.

        Raises:
            ValueError: an unknown kind, or as many workers run as may.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: one of {', '.join(KINDS)} is needed, got {kind!r}")
        with self._guard:
            if sum(job.status.state == "running" for job in self._jobs.values()) >= AT_ONCE:
                raise ValueError(
                    f"{AT_ONCE} computations are running already, perhaps in another window; wait for one to end, or cancel it"
                )
            done = [key for key, job in self._jobs.items() if job.status.state != "running"]
            for key in done[: max(0, len(self._jobs) - KEPT + 1)]:
                del self._jobs[key]
            process = subprocess.Popen(
                [sys.executable, "-m", "interp.explorer.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            )
            key = secrets.token_urlsafe(12)
            job = self._jobs[key] = _Job(process=process, begun=time.monotonic(), status=Status(model=name, kind=kind))
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # a worker that died at once is noticed by whoever reads its output
            process.stdin.write(json.dumps({"place": place, "kind": kind, "device": device, "dtype": dtype}) + "\n")
            process.stdin.flush()
        threading.Thread(target=self._read_errors, args=(job,), daemon=True).start()
        threading.Thread(target=self._read, args=(job,), daemon=True).start()
        return key

    def status(self, key: str) -> Status | None:
        """None for an id that this server does not know (it was restarted, or the result was dropped)."""
        with self._guard:
            job = self._jobs.get(key)
            if job is None:
                return None
            running = job.status.state == "running"
            return replace(job.status, seconds=time.monotonic() - job.begun) if running else job.status

    def cancel(self, key: str) -> None:
        """Stop one. Nothing happens to one that has ended or is not known."""
        with self._guard:
            job = self._jobs.get(key)
            if job is None or job.status.state != "running":
                return
            job.status = replace(job.status, state="cancelled", seconds=time.monotonic() - job.begun)
        job.process.kill()

    def close(self) -> None:
        """Stop all, and wait until they are gone."""
        for key in list(self._jobs):
            self.cancel(key)
        for job in self._jobs.values():
            job.process.wait(timeout=10)

    def _read(self, job: _Job) -> None:
        assert job.process.stdout is not None and job.process.stdin is not None
        told: dict[str, Any] = {}
        for line in job.process.stdout:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
            if "step" in told:
                self._update(job, share=told["share"], step=told["step"])
        code = job.process.wait()
        with contextlib.suppress(OSError):
            job.process.stdin.close()
        job.process.stdout.close()
        if "result" in told and code == 0:
            self._update(job, state="done", result=told["result"], share=1.0, step="done")
        elif "refused" in told and code == 0:
            self._update(job, state="failed", message=told["refused"])
        else:
            said = f" Its last words: {job.errors[-1].strip()[:300]}" if job.errors else ""
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._update(
                job, state="failed", message=f"The computation died ({how}). Nothing else is affected; it can be started again.{said}"
            )

    def _read_errors(self, job: _Job) -> None:
        assert job.process.stderr is not None
        with job.process.stderr as stream:
            job.errors.extend(line for line in stream if line.strip())

    def _update(self, job: _Job, **changes: Any) -> None:
        with self._guard:
            if job.status.state == "running":
                job.status = replace(job.status, **changes, seconds=time.monotonic() - job.begun)
