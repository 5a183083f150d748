"""The real scheduler on a virtual clock: what a load, a policy or a limit comes to, without a model and in seconds.

    from lorad import simulate

    flood = simulate.Scenario.named("flood")
    for run in simulate.run(simulate.cases([flood], policies=["fair", "arrival"], seeds=3)):
        print(run.case.policy, run.case.seed, run.tokens_per_s, run.report.all.ttft_us.p99)

`lorad simulate` is this for a terminal. Nothing in here needs torch.
"""

from __future__ import annotations

from lorad._core import PromiseBroken
from lorad.simulate.broken import Broken
from lorad.simulate.case import Case, cases, random_cases
from lorad.simulate.policy import POLICIES
from lorad.simulate.report import Numbers, Report, Requests, Times
from lorad.simulate.run import Run, run
from lorad.simulate.scenario import Scenario
from lorad.simulate.summary import Summary, summaries

__all__ = [
    "POLICIES",
    "Broken",
    "Case",
    "Numbers",
    "PromiseBroken",
    "Report",
    "Requests",
    "Run",
    "Scenario",
    "Summary",
    "Times",
    "cases",
    "random_cases",
    "run",
    "summaries",
]
