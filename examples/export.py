"""Write a model's training step in a form that a StableHLO compiler reads.

    python examples/export.py gpt --layers=2 --hidden=256 -o step.mlir
    python examples/export.py gpt --preset=gpt-medium --batch=4 --format=portable -o step.mlirbc
    python examples/export.py gpt --help      (the configuration of one model)
    python examples/export.py --list          (every model and preset, with its number of parameters)

Only shapes are used, never values: GPT-6.7B exports on a laptop, in seconds.

    format      what it is                                                     names  donation  scopes  pytrees
    text        the StableHLO module as MLIR text                              yes    yes       yes     no
    bytecode    the same module as MLIR bytecode, for the same jaxlib          yes    yes       yes     no
    portable    VHLO bytecode, for StableHLO 12 weeks older than this or newer yes    yes       yes     no
    jax-export  `jax.export` blob: a portable artifact and how to call it      yes    yes       yes     yes

Names are the locations of the arguments of `main`: `loc("state.params['embed']")`. Donation is an argument's attribute
`tf.aliasing_output`: the result that takes over its buffer. Scopes are the locations of ops (`jax.named_scope`, file,
line). Pytrees are the structures of arguments and results; in a `jax-export` blob the state is a plain tuple (params,
mu, nu, step), so that the blob opens without this folder. `Exported.call` by itself donates nothing;
`jax.jit(exported.call, donate_argnums=0)` does. The format needs the package `flatbuffers`.
"""

from __future__ import annotations

import argparse
import difflib
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import bert
import clip
import dit
import dlrm
import forward_forward
import gnmt
import gpt
import jax
import jax.export
import llama
import llava
import mamba
import mixtral
import mlp
import moe
import resnet
import t5
import towers
import two_tower
import unet
import vgg
import vit
import wav2vec2
import zoo
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from training import Model, abstract_state, export_step, jit_step, lower_step, num_params

Config = Any  # an instance of the frozen dataclass of a model's file
Hint = Any  # the type of one of its fields


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that can be exported: its configuration class, what builds it from one, and named configurations."""

    config: type[Config]
    model: Callable[[Config], Model]
    presets: Mapping[str, Config]


def entry(tiny: Config, model: Callable[[Config], Model], presets: Mapping[str, Config]) -> Entry:
    """Returns the entry of a model with its configuration in the zoo, and with those of papers."""
    name = model(tiny).name
    return Entry(type(tiny), model, {f"{name}-tiny": tiny, **presets})


MODELS: Final = {
    "bert": entry(zoo.BERT, bert.model, bert.PRESETS),
    "clip": entry(zoo.CLIP, clip.model, clip.PRESETS),
    "dit": entry(zoo.DIT, dit.model, dit.PRESETS),
    "dlrm": entry(zoo.DLRM, dlrm.model, dlrm.PRESETS),
    "forward-forward": entry(zoo.FORWARD, forward_forward.model, forward_forward.PRESETS),
    "gnmt": entry(zoo.GNMT, gnmt.model, gnmt.PRESETS),
    "gpt": entry(zoo.GPT, gpt.model, gpt.TABLE1),
    "llama": entry(zoo.LLAMA, llama.model, llama.PRESETS),
    "llava": entry(zoo.LLAVA, llava.model, llava.PRESETS),
    "mamba": entry(zoo.MAMBA, mamba.model, mamba.PRESETS),
    "mixtral": entry(zoo.MIXTRAL, mixtral.model, mixtral.PRESETS),
    "mlp": entry(zoo.MLP, mlp.model, mlp.PRESETS),
    "moe": entry(zoo.MOE, moe.model, moe.TABLE2 | moe.M6_PRESETS),
    "resnet": entry(zoo.RESNET, resnet.model, resnet.PRESETS),
    "t5": entry(zoo.T5, t5.model, t5.PRESETS),
    "towers": entry(zoo.MANY_TOWERS, towers.model, towers.PRESETS),
    "two-tower": entry(zoo.TOWERS, two_tower.model, two_tower.PRESETS),
    "unet": entry(zoo.UNET, unet.model, unet.PRESETS),
    "vgg": entry(zoo.VGG, vgg.model, vgg.PRESETS),
    "vit": entry(zoo.VIT, vit.model, vit.PRESETS),
    "wav2vec2": entry(zoo.WAV2VEC2, wav2vec2.model, wav2vec2.PRESETS),
}


def lower_ir(model: Model) -> ir.Module:
    """Returns the training step as an MLIR module."""
    module: ir.Module | None = lower_step(model).compiler_ir()
    assert module is not None
    return module


def write_text(model: Model) -> bytes:
    """Returns the training step as StableHLO text with locations."""
    return export_step(model).encode()


def write_bytecode(model: Model) -> bytes:
    """Returns the training step as MLIR bytecode."""
    stream = io.BytesIO()
    lower_ir(model).operation.write_bytecode(stream)
    return stream.getvalue()


def write_portable(model: Model) -> bytes:
    """Returns the training step as a StableHLO portable artifact, at the version that `jax.export` targets too."""
    version = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_12)
    return bytes(mlir.serialize_portable_artifact(lower_ir(model), version))


def write_jax_export(model: Model) -> bytes:
    """Returns the training step as a `jax.export` blob called as `((params, mu, nu, step), batch)`."""
    state, batch = abstract_state(model), model.batch
    exported = jax.export.export(jit_step(model), platforms=(model.platform,))(state, batch)
    # A blob cannot name `State`. The plain tuple has the same leaves in the same order, so only the trees change.
    plain = tuple(state)
    exported = replace(
        exported, in_tree=jax.tree.structure(((plain, batch), {})), out_tree=jax.tree.structure((plain, 0))
    )
    return bytes(exported.serialize())


FORMATS: Final[dict[str, Callable[[Model], bytes]]] = {
    "text": write_text,
    "bytecode": write_bytecode,
    "portable": write_portable,
    "jax-export": write_jax_export,
}


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Says that `name` is not a known `kind`, and which name is closest to it."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown {kind} {name!r}; " + (f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}")


def one_of(kind: str, known: Sequence[str]) -> Callable[[str], str]:
    """Returns a parser of one of the names in `known`."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(unknown(kind, text, known))
        return text

    return parse


def parse_ints(text: str) -> tuple[int, ...]:
    """Returns the integers of "a,b,c"."""
    return tuple(int(part) for part in text.split(","))


def value_parser(name: str, hint: Hint) -> tuple[Callable[[str], Any], str]:
    """Returns how to parse a configuration field of type `hint`, and how to show its values."""
    origin: object = get_origin(hint)
    if origin is Literal:
        return one_of(name, get_args(hint)), "|".join(get_args(hint))
    if hint is bool:
        parse = one_of(name, ("true", "false"))
        return lambda text: parse(text) == "true", "true|false"
    if origin is tuple:
        return parse_ints, "INT,INT,..."
    return hint, hint.__name__.upper()


def option(name: str) -> str:
    """Returns the option of a configuration field."""
    return "--" + name.replace("_", "-")


def show(value: object) -> str:
    """Returns the text of a field's value on the command line."""
    return (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def show_changes(cfg: Config) -> str:
    """Returns the options that make `cfg` out of the default configuration."""
    default = type(cfg)()
    changed = [field.name for field in fields(cfg) if getattr(cfg, field.name) != getattr(default, field.name)]
    return " ".join(f"{option(name)}={show(getattr(cfg, name))}" for name in changed)


def make_parser(name: str, entry: Entry) -> argparse.ArgumentParser:
    """Returns the command line of one model: an option for each field of its configuration, and where to write what."""
    parser = argparse.ArgumentParser(prog=f"export.py {name}", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    default, hints = entry.config(), get_type_hints(entry.config)
    sizes = parser.add_argument_group("configuration", entry.config.__doc__)
    for field in fields(entry.config):
        parse, shown = value_parser(field.name, hints[field.name])
        text = f"default {show(getattr(default, field.name))}"
        sizes.add_argument(option(field.name), dest=field.name, type=parse, metavar=shown, help=text)
    presets = tuple(entry.presets)
    parser.add_argument(
        "--preset", type=one_of("preset", presets), help=f"start from {' | '.join(presets)}", default=None
    )
    parser.add_argument(
        "--format", type=one_of("format", tuple(FORMATS)), help=" | ".join(FORMATS) + " (default text)", default="text"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write, or - for stdout")
    return parser


def read_config(entry: Entry, args: argparse.Namespace) -> Config:
    """Returns the preset's (or the default) configuration with the fields given on the command line."""
    base = entry.presets[args.preset] if args.preset else entry.config()
    return replace(base, **{field.name: getattr(args, field.name) for field in fields(base) if field.name in args})


def table() -> str:
    """Returns a line for each model and preset: name, millions of parameters, options that differ from the defaults."""
    rows = [
        (name, entry, cfg)
        for model, entry in MODELS.items()
        for name, cfg in {model: entry.config(), **entry.presets}.items()
    ]
    return "\n".join(
        f"{name:22} {num_params(entry.model(cfg)) / 1e6:10,.1f} M  {show_changes(cfg)}".rstrip()
        for name, entry, cfg in rows
    )


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code.

    The code is 0, or 1 if the output cannot be written (2, by argparse: bad usage).
    """
    top = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument(
        "model",
        nargs="?",
        type=one_of("model", tuple(MODELS)),
        help=" | ".join(MODELS) + "; the options of one: MODEL --help",
    )
    top.add_argument("--list", action="store_true", help="print every model and preset, and exit")
    args = top.parse_args(argv[:1])
    if args.list:
        print(table())
        return 0
    if args.model is None:
        top.error("name a model")
    return run_model(args.model, argv[1:])


def run_model(name: str, argv: Sequence[str]) -> int:
    """Exports one model; `argv` is what follows its name."""
    entry = MODELS[name]
    parser = make_parser(name, entry)
    args, rest = parser.parse_known_args(argv)
    if rest:
        known = ["--preset", "--format", "--output", *(option(field.name) for field in fields(entry.config))]
        parser.error(unknown("option", rest[0].split("=")[0], known))
    try:
        cfg = read_config(entry, args)
    except ValueError as error:
        parser.error(str(error))
    try:
        blob = FORMATS[args.format](entry.model(cfg))
    except ModuleNotFoundError as error:  # Of the formats, only jax-export needs more than JAX itself.
        parser.exit(1, f"{parser.prog}: {args.format} needs the package {error.name}\n")
    return write(args.output, blob)


def write(path: str, blob: bytes) -> int:
    """Writes `blob` to the file at `path`, or to stdout for "-"."""
    if path == "-":
        sys.stdout.buffer.write(blob)
        sys.stdout.buffer.flush()
        return 0
    try:
        Path(path).write_bytes(blob)
    except OSError as error:
        print(f"export.py: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def main() -> None:
    """Runs the process's command line."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
