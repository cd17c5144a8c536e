"""Instructions and layouts in a few words, for errors."""

from __future__ import annotations

from rhino.ir.graph.graph import DEVICE
from rhino.ir.plan.instructions import Feed, Fetch, Free, Global, Layout, Run, Step, Transfer


def instruction_text(step: Step, one: Global) -> str:
    """Returns an instruction in a few words."""
    match one:
        case Run(program=program, task=task):
            name = f" ({step.programs[program].name})" if program in range(len(step.programs)) else ""
            return f"{task}, program {program}{name}"
        case Transfer(uid, source, target):
            return f"transfer {uid} from slot {source} to slot {target}"
        case Free(slots):
            return f"free of slots {', '.join(map(str, slots))}"
        case Feed(argument, target):
            return f"feed of argument {argument} to slot {target}"
        case Fetch(source, result):
            return f"fetch of result {result} from slot {source}"


def layout_text(layout: Layout) -> str:
    """Returns a layout in a few words."""
    split = ", ".join("x".join(axes) if axes else "-" for axes in layout.dims)
    where = "" if layout.memory == DEVICE else f" in {layout.memory}"
    words = f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"
    return words + (f" split [{split}]" if any(layout.dims) else "") + where
