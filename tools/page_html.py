"""The HTML of the page of a plan: one file, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rhino.ir.plan.plan import Plan
from rhino.passes.planner.why import Why
from rhino.tools.plan_page import plan_page

_TEMPLATES: Final = Path(__file__).parent / "templates"


def frame_html(plan: Plan) -> str:
    """Returns the page of a plan as an element of another page, such as a notebook's, whose styles it leaves alone."""
    return f'<iframe srcdoc="{escape(page_html(plan))}" width="100%" height="800" style="border:0"></iframe>'


def page_html(plan: Plan, reasons: Sequence[Why] = ()) -> str:
    """Returns the page of a plan; `reasons` are what else was possible, where somebody has asked."""
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("plan.html").render(page=plan_page(plan, reasons))
