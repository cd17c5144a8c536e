"""What a pass is: a frozen dataclass whose fields are its options, run by MLIR's own PassManager."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir import ir, passmanager

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
        options = " ".join(f"{f.name.replace('_', '-')}={_spell(getattr(self, f.name))}" for f in dataclasses.fields(self))
        return f"{self.name}{{{options}}}" if options else self.name


@dataclass(frozen=True)
class Remark:
    """A sentence of a pass about one op: why something was done, or not."""

    pass_name: str
    place: Place
    text: str

    def __str__(self) -> str:
        head = f"{self.place}: " if str(self.place) else ""
        return f"{head}remark: [{self.pass_name}] {self.text}"


@dataclass
class Remarks:
    """Where passes leave remarks and measurements; a tool decides what to show."""

    file: str = ""
    items: list[Remark] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)

    def add(self, pass_name: str, place: Place, text: str) -> None:
        """Records one remark."""
        self.items.append(Remark(pass_name, place, text))


def _spell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_options(cls: type[Pass], text: str) -> Pass:
    """Returns the pass built from `name=value` words, as between the braces of a textual pipeline."""
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if key not in fields or not equals:
            known = ", ".join(fields) or "none"
            raise RhinoError("RHI-PASS-001", f"pass '{cls.name}' has no option '{word}'; its options: {known}", fix=_OPTION_SYNTAX)
        values[fields[key].name] = _convert(cls, fields[key], value)
    return cls(**values)


def _convert(cls: type[Pass], option: dataclasses.Field[Any], value: str) -> Any:  # noqa: ANN401
    match option.default:
        case bool():
            if value in ("true", "false"):
                return value == "true"
        case int():
            if value.lstrip("-").isdigit():
                return int(value)
        case _:
            return value
    wanted = type(option.default).__name__
    raise RhinoError("RHI-PASS-001", f"option '{option.name}' of pass '{cls.name}' takes a {wanted}, not '{value}'", fix=_OPTION_SYNTAX)


def add_to(manager: passmanager.PassManager, item: Pass, remarks: Remarks | None = None) -> None:
    """Adds `item` to any PassManager anchored on `builtin.module`; its RhinoErrors come out of `run` unchanged."""
    sink = remarks if remarks is not None else Remarks()
    manager.add(_callback(item, sink), name=item.name, argument=item.name, description=type(item).__doc__ or "")


def _callback(item: Pass, remarks: Remarks) -> Callable[[ir.Operation, object], None]:
    def call(op: ir.Operation, handle: object) -> None:
        with op.context, op.location:
            item.run(op, remarks)

    return call
