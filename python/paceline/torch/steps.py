"""Steps of programs that do not say where one begins, as those with DDP: each optimizer's step ends one.

Only where the job tunes itself, has policies or may have other workers in the next step: whoever counts steps must count them alike on all workers, which nobody promised.
"""

from __future__ import annotations

import os
from typing import Any

from torch.optim import optimizer as optimizers

from paceline import policies, tuning, world
from paceline._native import Worker

_attachment: Any = None


def count(worker: Worker) -> None:
    """Begin a step of this worker after each optimizer's, if the job tunes itself or has policies."""
    global _attachment
    named = os.environ.get("PACELINE_POLICY")
    if not worker.elastic and ((tuning.method() == tuning.OFF and not named) or worker.size == 1):
        return
    tuning.begin(worker, crosses_step=False)
    if _attachment is None:
        _attachment = optimizers.register_optimizer_step_post_hook(_step_over)


def _step_over(*_: Any) -> None:
    for membership in world.memberships():
        if not membership.counts_steps:
            policies.begin(membership)
            membership.begin_step()
