"""How good plans are that autotuning finds, what finding them takes, and how steps are cut in stages."""

from __future__ import annotations

import sys
from typing import Final

import every_plan
import offload
import papers
import patterns
import precision
import ranks
import stages
import tighten
import uneven
import unlike
from report import run

import strategies

QUESTIONS: Final = {
    "papers": papers.QUESTION,
    "every": every_plan.QUESTION,
    "tighten": tighten.QUESTION,
    "strategies": strategies.QUESTION,
    "stages": stages.QUESTION,
    "precision": precision.QUESTION,
    "offload": offload.QUESTION,
    "unlike": unlike.QUESTION,
    "uneven": uneven.QUESTION,
    "ranks": ranks.QUESTION,
    "placed": ranks.PLACED_QUESTION,
    "patterns": patterns.QUESTION,
    "stage-times": stages.DEEP_QUESTION,
}

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
