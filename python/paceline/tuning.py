"""Self-tuning of a running job, as ``paceline run --tune`` or the variable ``PACELINE_TUNE`` ask for it.

Worker 0 watches the job's metrics on a thread that stands back behind the training, and proposes other settings where they
promise more speed; all workers change between the same two steps. Where workers come and go, whoever is worker 0 then begins anew. ``PACELINE_TUNE_LOG`` is a file for its decisions, which
``paceline tune explain`` reads; ``PACELINE_TUNE_WEIGHTS`` one of weights that ``autobyte`` predicts by. With ``PACELINE_TUNE_AVERAGES`` strategies that average in groups are among what it chooses from.
"""

from __future__ import annotations

import os

from paceline._native import Worker

OFF = "off"


def method() -> str:
    """How to tune, ``off`` if nobody asked for it."""
    return os.environ.get("PACELINE_TUNE", "").strip() or OFF


def averages() -> bool:
    """Whether a tuner may choose strategies that average in groups."""
    return method() != OFF and os.environ.get("PACELINE_TUNE_AVERAGES", "").strip() not in ("", "0")


def begin(worker: Worker, crosses_step: bool) -> None:
    """Tune the job of this worker, if that was asked for. All workers call it, and only the first call counts.

    ``crosses_step``: whether a forward pass waits for tensors of the step before it.
    """
    if method() != OFF:
        log, weights = (os.environ.get(f"PACELINE_TUNE_{what}") or None for what in ("LOG", "WEIGHTS"))
        worker.tune(method(), log, crosses_step, averages(), weights)


def end(worker: Worker) -> None:
    """This worker leaves in good order: say so if the job was to be tuned, and there was never anything to tune by."""
    if method() != OFF:
        worker.end_tuning(method())
