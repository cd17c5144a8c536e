"""The page of a plan: one file of HTML with all that is known of it, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rhino.ir.plan.folder import WholePlan
from rhino.ir.plan.spmd_plan import SpmdPlan
from rhino.passes.planner.why import Why
from rhino.tools.page_spmd import spmd_page
from rhino.tools.page_whole import whole_page

_TEMPLATES: Final = Path(__file__).parent / "templates"


def report_html(plan: SpmdPlan | WholePlan, reasons: Sequence[Why] = ()) -> str:
    """Returns the page of a plan; `reasons` are what else was possible, where somebody has asked."""
    page = spmd_page(plan, reasons) if isinstance(plan, SpmdPlan) else whole_page(plan, reasons)
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("plan.html").render(page=page)
