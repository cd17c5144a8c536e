"""The driver of `rhino-opt`, in process: streams, exit codes, and files that are whole or not there."""

import io
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rhino.ir.diagnostics import Place, RhinoError
from rhino.tools import opt as tool
from rhino.tools.ending import exit_code_of, heard_at_once
from rhino.tools.expected import UNKNOWN, Diagnostic, Expectation, compare, diagnostics_of, read_expectations
from rhino.tools.files import check_writable, write_output

MODULE = """\
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = stablehlo.tanh %x : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
"""


def run(*argv: str, text: str | bytes = MODULE) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    stdin, stdout, stderr = io.BytesIO(text.encode() if isinstance(text, str) else text), io.BytesIO(), io.StringIO()
    code = tool.run(argv, stdin, stdout, stderr)
    return code, stdout.getvalue().decode(), stderr.getvalue()


def test_without_passes_a_module_comes_out_as_it_went_in():
    code, out, err = run()
    assert (code, err) == (0, "")
    assert run(text=out)[1] == out


def test_output_file_replaces_the_old_one_and_keeps_its_mode(tmp_path: Path):
    target = tmp_path / "out.mlir"
    target.write_text("old")
    target.chmod(0o640)
    assert run("-o", str(target)) == (0, "", "")
    assert "stablehlo.tanh" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["out.mlir"]


def test_output_through_a_link_leaves_the_link(tmp_path: Path):
    (tmp_path / "real.mlir").write_text("old")
    (tmp_path / "link.mlir").symlink_to("real.mlir")
    assert run("-o", str(tmp_path / "link.mlir"))[0] == 0
    assert (tmp_path / "link.mlir").is_symlink()
    assert "stablehlo.tanh" in (tmp_path / "real.mlir").read_text()


def test_input_and_output_may_be_one_file(tmp_path: Path):
    path = tmp_path / "m.mlir"
    path.write_text(MODULE)
    assert run("--auto-shard", "--cluster=cpu4", str(path), "-o", str(path))[0] == 0
    assert "sdy.mesh" in path.read_text()


def test_failed_work_leaves_the_old_file_and_no_other(tmp_path: Path):
    target = tmp_path / "out.mlir"
    target.write_text("old")
    code, out, err = run("--auto-shard", "--cluster=cpu4", "--budget=10B", "-o", str(target))
    assert (code, out) == (3, "")
    assert err.startswith("<stdin>: error: [RHI-SOLVE-001]")
    assert target.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_write_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "replace", full)
    code, _, err = run("-o", str(tmp_path / "out.mlir"))
    assert code == 1
    assert "[RHI-CLI-003] cannot write the output: No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_unwritable_output_is_refused_before_the_input_is_read(tmp_path: Path):
    for target in (tmp_path, tmp_path / "none" / "out.mlir"):
        code, _, err = run(str(tmp_path / "absent.mlir"), "-o", str(target))
        assert code == 1
        assert "[RHI-CLI-003]" in err


def test_pipes_and_devices_are_written_to(tmp_path: Path):
    write_output(os.devnull, b"x", io.BytesIO())
    assert not Path(os.devnull).is_file()
    check_writable("-")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--auto-shart",), "did you mean --auto-shard?"),
        (("--cluter=cpu4",), "did you mean --cluster?"),
        (("-lcalize",), "did you mean --localize?"),
        (("--qqqqqq",), "see rhino-opt --help"),
        (("--recompute=0.5",), "give --remat=R, the share that is recomputed: 1 - K of --recompute=K"),
        (("--whole=table",), "give --no-batch=N, which is its name now"),
        (("a.mlir", "b.mlir"), "'b.mlir' is one too many"),
        (("-o",), "expected one argument"),
        (("-O1", "--auto-shard"), "invalid choice: '1'"),
        (("-O2",), "-O is given, and no pass that takes it"),
        (("--budget=1GiB", "--rhino-annotate-candidates"), "--budget is given, and no pass that takes it"),
        (("--cluster=cpu4",), "--cluster is given, and no pass that takes it"),
        (("--mesh=0", "--auto-shard"), "every axis size at least 1"),
        (("--mesh=2y", "--auto-shard"), "mesh: got '2y'"),
        (("--budget=none", "--auto-shard"), "size: got 'none'"),
        (("--budget=16XB", "--auto-shard"), "size: got '16XB'"),
        (("--remarks-filter=(",), "argument --remarks-filter: '(' is no regular expression"),
        (("--emit-bytecode", "--split-input-file"), "--emit-bytecode writes one module"),
        (("--pass-pipeline=cse", "--cluster=cpu4"), "--pass-pipeline and --cluster exclude each other"),
        (("--pass-pipeline=cse", "--auto-shard"), "--pass-pipeline and --auto-shard exclude each other"),
        (("--pass-pipeline=nope",), "[RHI-PASS-001] unknown pass 'nope'"),
        (
            ("--pass-pipeline=func.func(cse",),
            "[RHI-PASS-001] the pipeline does not parse: ')' is missing at character 14 of func.func(cse",
        ),
        (
            ("--pass-pipeline=auto-shard{clutser=cpu4}",),
            "[RHI-PASS-001] 'auto-shard' has no option 'clutser'; its options: cluster, mesh, budget",
        ),
        (
            ("--pass-pipeline=auto-shard{level=high}",),
            "[RHI-PASS-001] option 'level' of 'auto-shard' takes a whole number, not 'high'",
        ),
        (
            ("--pass-pipeline=func.func(rhino-strip)",),
            "'rhino-strip' runs on a whole module, not inside 'func.func(rhino-strip)'",
        ),
        (("--rhino-normalize=deep=1",), "'rhino-normalize' has no option 'deep'"),
    ],
)
def test_usage_errors_exit_2_and_say_what_was_meant(argv: tuple[str, ...], said: str):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert said in err


def test_steps_run_in_the_order_given_but_localize_after_auto_shard():
    both = run("--auto-shard", "--localize", "--cluster=cpu4")
    assert both[0] == 0
    assert run("--localize", "--auto-shard", "--cluster=cpu4") == both
    assert run("--localize", "--auto-shard=cluster=cpu4") == both
    assert "no mesh" in run("--localize")[2]


def test_shared_options_give_way_to_those_of_a_step():
    assert '<["x"=2]>' in run("--auto-shard=mesh=2", "--cluster=cpu4", "--mesh=4")[1]


def test_locations_go_to_files_and_not_to_stdout(tmp_path: Path):
    assert "loc(" not in run()[1]
    assert "loc(" in run("--mlir-print-debuginfo")[1]
    run("-o", str(tmp_path / "a.mlir"))
    run("--no-mlir-print-debuginfo", "-o", str(tmp_path / "b.mlir"))
    assert "loc(" in (tmp_path / "a.mlir").read_text()
    assert (tmp_path / "b.mlir").read_text() == run()[1]


def test_every_bad_part_of_a_split_input_is_reported_with_its_line():
    bad = "func.func @main() {\n  return %a : tensor<1xf32>\n}\n"
    code, out, err = run("--split-input-file", text=f"{bad}// -----\n{MODULE}// -----\n{bad}")
    assert (code, out) == (1, "")
    assert re.findall(r"^<stdin>:(\d+):", err, re.MULTILINE) == ["2", "11"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (MODULE, 1),
        (f"// a comment\n// -----\n{MODULE}", 1),
        (f"{MODULE}// -----\n\n", 1),
        (f"{MODULE}// ----- \n{MODULE}", 2),
        (f"{MODULE} // -----\n", 1),
        ("// nothing\n", 1),
        ("", 1),
    ],
)
def test_split_input_skips_parts_without_a_module(text: str, count: int):
    assert len(tool.split_input(text.encode())) == count


def test_split_input_keeps_line_numbers():
    first, second = tool.split_input(b"a\n// -----\nb\nc\n")
    assert first.decode().splitlines()[0] == "a"
    assert second.decode().split() == ["b", "c"]
    assert second.startswith(b"\n\nb\n")
    assert tool.split_input(b"ML\xefR// -----\n") == (b"ML\xefR// -----\n",)


class Closed(io.BytesIO):
    """A stdout whose reader has gone."""

    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_ends_quietly():
    stderr = io.StringIO()
    assert tool.run([], io.BytesIO(MODULE.encode()), Closed(), stderr) == 141
    assert stderr.getvalue() == ""


def test_a_bug_exits_70_with_a_way_to_repeat_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken(*args: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(tool, "read_module", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run("--rhino-normalize")
    assert (code, out) == (70, "")
    assert "KeyError: 'lost'" in err
    kept = re.search(r"to reproduce it: rhino-opt --rhino-normalize (\S+)", err)
    assert kept is not None
    assert Path(kept[1]).read_text() == MODULE
    given = tmp_path / "given.mlir"
    given.write_text(MODULE)
    assert f"to reproduce it: rhino-opt {given}\n" in run(str(given))[2]


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "read_module", interrupted)
    assert run() == (130, "", "rhino-opt: interrupted\n")


def test_an_interrupt_is_heard_at_once_and_a_second_one_ends_the_command(tmp_path: Path):
    file = tmp_path / "stderr"
    # what a shell has started in the background ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def work() -> int:
        with heard_at_once("in a while", stderr):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert file.read_text() == "in a while\n"
            with suppress(KeyboardInterrupt):  # who makes do with what there is hears of the first alone
                signal.raise_signal(signal.SIGINT)
        return 0

    try:
        with file.open("w") as stderr:
            assert exit_code_of("tool", work, str, io.BytesIO(), stderr) == 130
        assert file.read_text() == "in a while\ntool: interrupted\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


class Terminal(io.BytesIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_asked_for_input_and_spared_bytecode():
    stdout, stderr = Terminal(), io.StringIO()
    assert tool.run(["--emit-bytecode"], Terminal(MODULE.encode()), stdout, stderr) == 2
    assert stdout.getvalue() == b""
    assert tool.run([], Terminal(MODULE.encode()), stdout, stderr) == 0
    assert "reading the module from the terminal" in stderr.getvalue()


# Expected diagnostics


def test_expectations_name_their_lines():
    text = "\n".join(
        [
            "// expected-error {{one}}",  # 1
            "op",
            "// expected-warning@+2 {{two}}",  # 3
            "// expected-note@-2 {{three}}",
            "// expected-remark@2 {{four}}",
            "// expected-error@above {{five}}",  # 6: the nearest line above without an expectation
            "// expected-error@below {{six}}",
            "// expected-error @below {{s{{ev}}en}}",
            "op",  # 9
            "// expected-error@unknown {{eight}}",
        ]
    )
    lines = [(e.kind, e.line, e.part, e.written_at) for e in read_expectations(text, "f")]
    assert lines == [
        ("error", 1, "one", 1),
        ("warning", 5, "two", 3),
        ("note", 2, "three", 4),
        ("remark", 2, "four", 5),
        ("error", 2, "five", 6),
        ("error", 9, "six", 7),
        ("error", 9, "s{{ev}}en", 8),
        ("error", UNKNOWN, "eight", 10),
    ]


@pytest.mark.parametrize(
    "line",
    ["// expected-error@next {{a}}", "// expected-error", "// expected-note {a}", "// x expected-remark@+ {{a}}"],
)
def test_an_expectation_that_cannot_be_read_is_an_error(line: str):
    with pytest.raises(RhinoError) as caught:
        read_expectations(f"\n{line}\n", "f")
    assert caught.value.id == "RHI-CLI-004"
    assert caught.value.place == Place("f", 2)


def diagnostic(kind: str, line: int, message: str, file: str = "f") -> Diagnostic:
    return Diagnostic(kind, Place(file, line, 1), message)


EXPECTED = Expectation("error", 3, "bad", 2)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ([diagnostic("error", 3, "a bad op")], []),
        ([diagnostic("error", 3, "bad"), diagnostic("error", 3, "bad again")], []),
        ([], ["was not produced: bad"]),
        ([diagnostic("error", 4, "bad")], ["unexpected error: bad", "was not produced"]),
        ([diagnostic("warning", 3, "bad")], ["unexpected warning: bad", "was not produced"]),
        ([diagnostic("error", 3, "good")], ["unexpected error: good", "was not produced"]),
        ([diagnostic("error", 3, "bad", "other")], ["unexpected error: bad", "was not produced"]),
        ([diagnostic("error", 3, "bad"), diagnostic("note", 3, "why")], ["unexpected note: why"]),
    ],
)
def test_comparison_wants_every_expected_one_and_no_other(said: list[Diagnostic], wrong: list[str]):
    found = compare([EXPECTED], said, "f")
    assert len(found) == len(wrong)
    for error, part in zip(found, wrong, strict=True):
        assert part in error.what


def test_two_expectations_take_two_diagnostics():
    both = [EXPECTED, Expectation("error", 3, "", 2)]
    said = [diagnostic("error", 3, "bad"), diagnostic("error", 3, "worse")]
    assert compare(both, said, "f") == ()
    assert len(compare(both, said[:1], "f")) == 1


def test_an_error_without_a_line_is_expected_as_unknown():
    error = RhinoError("RHI-READ-005", "no entry", Place("f"), ("why",), "how")
    said = diagnostics_of(error)
    assert [(one.kind, one.message) for one in said] == [
        ("error", "[RHI-READ-005] no entry"),
        ("note", "why"),
        ("note", "to fix: how"),
    ]
    assert compare([Expectation(kind, UNKNOWN, "", 1) for kind in ("error", "note", "note")], said, "f") == ()
