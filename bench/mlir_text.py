"""Programs written as text: types, and functions around a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def tensor(shape: Sequence[int], dtype: str = "f32") -> str:
    """Returns the text of a tensor type."""
    return f"tensor<{'x'.join([*map(str, shape), dtype])}>"


def function(body: str, arguments: Mapping[str, str], results: Mapping[str, str]) -> str:
    """Returns the text of `@main` of `body`: `arguments` by name with their types, `results` likewise."""
    inputs = ", ".join(f"%{name}: {kind}" for name, kind in arguments.items())
    outputs = ", ".join(results.values())
    returned = f"return {', '.join(f'%{name}' for name in results)} : {outputs}" if results else "return"
    return f"func.func @main({inputs}) -> ({outputs}) {{\n{body}\n{returned}\n}}"
