"""What a pass is: a frozen dataclass whose fields are its options, run by MLIR's own PassManager."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, passmanager

_WORD = re.compile(r"""(?:[^\s"]|"(?:[^"\\]|\\.)*")+""")
_PLAIN = re.compile(r"[^\s\"{}(),]*")
_OPTION_SYNTAX = "options read as name=value, in braces: rhino-pass{name=value}"


def opt(default: Any, help: str) -> Any:  # noqa: ANN401 - a dataclass field stands in for every option type
    """Returns a dataclass field for a pass option; `help` is shown by `--list-passes`."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Pass:
    """A module pass. Subclasses set `name`, say in `errors` which ids they raise, and implement `run`."""

    name: ClassVar[str] = ""
    errors: ClassVar[tuple[str, ...]] = ()

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Transforms `module` in place. Raises RhinoError for a user's error."""
        raise NotImplementedError

    def text(self) -> str:
        """Returns the textual form, with every option, that parses back to this pass."""
        named = zip(option_names(type(self)), dataclasses.fields(self), strict=True)
        options = " ".join(f"{name}={_spell(getattr(self, f.name))}" for name, f in named)
        return f"{self.name}{{{options}}}" if options else self.name


Item = Pass | str
"""A step of a pipeline: one of our passes, or the textual form of MLIR's own."""


def pipeline_text(items: Sequence[Item]) -> str:
    """Returns the textual form of a pipeline, which parses back to it."""
    return ",".join(item if isinstance(item, str) else item.text() for item in items)


def run_pipeline(items: Sequence[Item], module: ir.Operation, remarks: Remarks) -> None:
    """Runs passes on a module, as a pass does that has some as an option."""
    manager = passmanager.PassManager("builtin.module", module.context)
    for item in items:
        if isinstance(item, Pass):
            add_to(manager, item, remarks)
        else:
            manager.add(item)
    manager.run(module)


@dataclass(frozen=True)
class Remark:
    """A sentence of a pass about one op: why something was done, or not."""

    pass_name: str
    place: Place
    text: str

    def __str__(self) -> str:
        head = f"{self.place}: " if str(self.place) else ""
        return f"{head}remark: [{self.pass_name}] {self.text}"


Result = TypeVar("Result")


@dataclass
class Remarks:
    """Where passes leave remarks and their results; a tool decides what to show.

    MLIR's pass manager hands nothing back, so a pass records what it found, one value of a type of its own.
    """

    file: str = ""
    items: list[Remark] = field(default_factory=list)
    results: dict[type, object] = field(default_factory=dict)

    def add(self, pass_name: str, place: Place, text: str) -> None:
        """Records one remark."""
        self.items.append(Remark(pass_name, place, text))

    def record(self, result: object) -> None:
        """Records the result of a pass, in place of an earlier one of its type."""
        self.results[type(result)] = result

    def find(self, kind: type[Result]) -> Result | None:
        """Returns the recorded result of a type, None where there is none."""
        found = self.results.get(kind)
        return found if isinstance(found, kind) else None

    def result(self, kind: type[Result]) -> Result:
        """Returns the recorded result of a type, which a pass that ran has left."""
        found = self.find(kind)
        assert found is not None, f"no pass has left a {kind.__name__}"
        return found


def _spell(value: object) -> str:
    text = _text(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return pipeline_text(value)
    return str(value)


def option_names(cls: type[Pass]) -> tuple[str, ...]:
    """Returns the names of a pass's options, as textual pipelines spell them."""
    return tuple(f.name.replace("_", "-") for f in dataclasses.fields(cls))


def option_texts(cls: type[Pass]) -> dict[str, tuple[str, str]]:
    """Returns the default and the description of each option of a pass, by name, in the words of textual pipelines."""
    return {
        name: (_text(f.default), f.metadata["help"])
        for name, f in zip(option_names(cls), dataclasses.fields(cls), strict=True)
    }


def read_options(owner: str, text: str) -> dict[str, str]:
    """Returns the `name=value` words between the braces of a textual pipeline.

    A value in double quotes may contain spaces and any other character.
    """
    if _WORD.sub("", text).strip():
        raise RhinoError(
            "RHI-PASS-001", f"a quote is not closed in the options of '{owner}': {text}", fix=_OPTION_SYNTAX
        )
    values = {}
    for word in _WORD.findall(text):
        key, equals, value = word.partition("=")
        if not equals:
            raise RhinoError("RHI-PASS-001", f"'{word}' is no option of '{owner}'", fix=_OPTION_SYNTAX)
        values[key] = _unquote(value)
    return values


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        raise RhinoError(
            "RHI-PASS-001", f"{value} is no quoted text", fix='inside quotes, write \\" for a quote'
        ) from None


def make_pass(cls: type[Pass], options: Mapping[str, str], owner: str = "") -> Pass:
    """Returns the pass with these options; `owner` is who was given them, if not the pass itself."""
    fields = dict(zip(option_names(cls), dataclasses.fields(cls), strict=True))
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise RhinoError(
                "RHI-PASS-001", f"'{owner or cls.name}' has no option '{key}'; its options: {known}", fix=_OPTION_SYNTAX
            )
        values[fields[key].name] = _convert(owner or cls.name, fields[key], value)
    return cls(**values)


def make_passes(classes: Sequence[type[Pass]], options: Mapping[str, str], owner: str) -> tuple[Pass, ...]:
    """Returns a pass of each class; each takes of the options those that it has, and none may be left over."""
    known = {name: cls for cls in classes for name in option_names(cls)}
    for key in options:
        if key not in known:
            raise RhinoError(
                "RHI-PASS-001", f"'{owner}' has no option '{key}'; its options: {', '.join(known)}", fix=_OPTION_SYNTAX
            )
    return tuple(
        make_pass(cls, {key: options[key] for key in options if key in option_names(cls)}, owner) for cls in classes
    )


def _convert(owner: str, option: dataclasses.Field[Any], value: str) -> Any:  # noqa: ANN401
    match option.default:
        case bool():
            if value in ("true", "false"):
                return value == "true"
        case int():
            if re.fullmatch("-?[0-9]+", value):
                return int(value)
        case tuple():
            return (value,) if value else ()  # passes/textual_pipelines.py parses it
        case _:
            return value
    wanted = "true or false" if isinstance(option.default, bool) else "a whole number"
    raise RhinoError(
        "RHI-PASS-001", f"option '{option.name}' of '{owner}' takes {wanted}, not '{value}'", fix=_OPTION_SYNTAX
    )


def add_to(manager: passmanager.PassManager, item: Pass, remarks: Remarks | None = None) -> None:
    """Adds `item` to any PassManager anchored on `builtin.module`; its RhinoErrors come out of `run` unchanged."""
    sink = remarks if remarks is not None else Remarks()
    manager.add(_callback(item, sink), name=item.name, argument=item.name, description=type(item).__doc__ or "")


def _callback(item: Pass, remarks: Remarks) -> Callable[[ir.Operation, object], None]:
    def call(op: ir.Operation, handle: object) -> None:
        with op.context, op.location:
            item.run(op, remarks)

    return call
