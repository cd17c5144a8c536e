"""Textual pipelines, in MLIR's syntax.

Our passes and named pipelines are those of the registry; everything else is passed on to MLIR.

    builtin.module(rhino-normalize,func.func(cse),auto-shard{cluster=v100x8})

The list alone, without `builtin.module(...)` around it, means the same. An option's value may stand in double quotes.
Errors: RHI-PASS-001 a pipeline that does not parse, an unknown name, or an option that a pass does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, passmanager
from rhino.passes.base import Item, Pass, Remarks, add_to, pipeline_text, read_options
from rhino.passes.registry import build_named, closest_names, known_names

_ANCHOR: Final = "builtin.module"
_ELEMENT: Final = re.compile(r"([^\s(){}]+)\s*(?:\{(.*)\})?", re.DOTALL)
_WHOLE: Final = re.compile(rf"{re.escape(_ANCHOR)}\s*\((.*)\)", re.DOTALL)
_OPENERS: Final = {"(": ")", "{": "}"}
_LIST: Final = "rhino-opt --list-passes names ours; MLIR's run as mlir-opt would run them"


def parse_pipeline(text: str) -> tuple[Item, ...]:
    """Returns the steps of a textual pipeline, in order; a named pipeline's steps stand in its place."""
    elements = _split(text)
    if len(elements) == 1 and (module := _WHOLE.fullmatch(elements[0])):
        elements = _split(module[1])
    return tuple(item for element in elements for item in _items(element))


def build_pass_manager(
    pipeline: str | Sequence[Item], context: ir.Context, remarks: Remarks | None = None
) -> passmanager.PassManager:
    """Returns MLIR's pass manager, anchored on `builtin.module`, for a pipeline.

    Our passes put their remarks into `remarks`.
    """
    items = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    manager = passmanager.PassManager(_ANCHOR, context)
    for item in items:
        if isinstance(item, Pass):
            add_to(manager, item, remarks)
        else:
            _add_foreign(manager, item)
    return manager


def _items(element: str) -> tuple[Item, ...]:
    for name in _nested_names(element):
        if name in known_names():
            raise RhinoError(
                "RHI-PASS-001",
                f"'{name}' runs on a whole module, not inside '{element}'",
                fix=f"put it outside: {name},...",
            )
    match = _ELEMENT.fullmatch(element)
    if match is None or match[1] not in known_names():
        return (element,)
    items = build_named(match[1], read_options(match[1], match[2] or ""))
    assert items is not None
    return tuple(_with_pipelines(item) for item in items)


def _with_pipelines(item: Item) -> Item:
    """Returns a pass with its options parsed that are pipelines themselves."""
    if not isinstance(item, Pass):
        return item
    values = {one.name: getattr(item, one.name) for one in fields(item)}
    return replace(
        item, **{name: parse_pipeline(pipeline_text(one)) for name, one in values.items() if isinstance(one, tuple)}
    )


def _nested_names(element: str) -> Iterator[str]:
    """The names of the passes that stand between the parentheses of an element."""
    match = re.fullmatch(r"[^\s(){}]+\s*\((.*)\)", element, re.DOTALL)
    for inner in _split(match[1]) if match else ():
        yield re.split(r"[\s({]", inner, maxsplit=1)[0]
        yield from _nested_names(inner)


def _split(text: str) -> list[str]:
    """Cuts a list at its commas, but not inside parentheses, braces or quotes."""
    parts, closers, quoted, start = [], list[str](), False, 0
    for position, char in enumerate(text):
        if char == '"' and text[position - 1 : position] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPENERS:
            closers.append(_OPENERS[char])
        elif char in _OPENERS.values() and (not closers or closers.pop() != char):
            raise _unbalanced(text, position, f"'{char}' closes nothing")
        elif char == "," and not closers:
            parts.append(text[start:position].strip())
            start = position + 1
    if closers or quoted:
        raise _unbalanced(text, len(text), f"""'{'"' if quoted else closers[-1]}' is missing""")
    parts.append(text[start:].strip())
    if parts == [""]:
        return []
    if "" in parts:
        raise RhinoError("RHI-PASS-001", f"a pass is missing between two commas, or at an end: {text}", fix=_LIST)
    return parts


def _unbalanced(text: str, position: int, why: str) -> RhinoError:
    return RhinoError(
        "RHI-PASS-001",
        f"the pipeline does not parse: {why} at character {position + 1} of {text}",
        fix="close what is open: pass{options}, op(pass,pass)",
    )


def _add_foreign(manager: passmanager.PassManager, element: str) -> None:
    try:
        manager.add(element)
    except ValueError as error:
        raise _refused(element, str(error)) from None


def _refused(element: str, message: str) -> RhinoError:
    unknown = re.search(r"'([^']*)' does not refer to a registered pass", message)
    if unknown:
        close = closest_names(unknown[1])
        return RhinoError(
            "RHI-PASS-001",
            f"unknown pass '{unknown[1]}'",
            fix=f"did you mean {' or '.join(close)}?" if close else _LIST,
        )
    reason = next((line.strip() for line in message.splitlines() if line.strip()), "it does not parse")
    reason = reason.removeprefix("MLIR Textual PassPipeline Parser:").removeprefix("<Pass-Options-Parser>: ")
    nest = re.search(r"restricted to '([^']+)'", reason)
    return RhinoError(
        "RHI-PASS-001", f"MLIR refuses '{element}': {reason}", fix=f"write {nest[1]}({element})" if nest else ""
    )
