"""Aceso's tables: what is read of a directory, and what is refused."""

import pytest
from aceso_part import OPS, write_tables

from rhino.ir.cluster.aceso_tables import MEGABYTE, Setting, aceso_models, read_aceso
from rhino.ir.diagnostics import RhinoError


def test_tables_are_read_in_seconds_and_bytes(tmp_path):
    tables = read_aceso(write_tables(tmp_path), "gpt_1_3B")
    assert aceso_models(tmp_path) == ("gpt_1_3B",)
    assert tables.names == tuple(OPS)
    assert sorted(tables.ops, key=str) == sorted(
        (Setting(m, t, f) for m in (1, 2) for t in (1, 2) for f in (0, 1)), key=str
    )
    qkv = tables.ops[Setting(2, 1, 0)][2]
    assert qkv.name == "enc-attention-qkv"
    assert (qkv.forward_s, qkv.backward_s) == pytest.approx((400e-6, 800e-6))
    assert (qkv.input_bytes, qkv.weight_bytes, qkv.stash_bytes) == (16 * MEGABYTE, 6 * MEGABYTE, 24 * MEGABYTE)
    assert tables.collectives["all_gather", 2][10] == pytest.approx(0.25e-3)
    assert tables.within_node[1] == (2.0, 20.0 * (1 << 30))
    assert tables.between_nodes == tables.within_node, "nothing is known of nodes"


def test_what_did_not_run_is_left_out(tmp_path):
    write_tables(tmp_path)
    file = tmp_path / "gpt_1_3B_mbs1_tp1_algo0.csv"
    file.write_text(file.read_text().replace("500.000", "10000000.000"))
    tables = read_aceso(tmp_path, "gpt_1_3B")
    assert tables.ops[Setting(1, 1, 0)][-1] is None
    assert 90 not in tables.collectives["all_gather", 2]


@pytest.mark.parametrize(
    ("name", "old", "new", "place", "what"),
    [
        ("gpt_1_3B_mbs1_tp1_algo0", "op_name", "op", ":1", "the columns are op, forward-compute"),
        ("gpt_1_3B_mbs1_tp1_algo0", "100.000", "fast", ":2", "got 'fast', expected a finite number from 0"),
        ("gpt_1_3B_mbs1_tp1_algo0", "100.000", "-1", ":2", "got '-1', expected a finite number from 0"),
        ("gpt_1_3B_mbs1_tp1_algo0", "100.000,", "", ":2", "8 cells in 9 columns"),
        ("gpt_1_3B_mbs1_tp1_algo0", "encoder-embedding", "", ":2", "the op has no name"),
        ("gpt_1_3B_mbs2_tp1_algo0", "enc-attention-qkv", "qkv", ":4", "not the ops of gpt_1_3B_mbs1_tp1_algo0.csv"),
        ("prim_gpt_1_3B_all_gather_2gpus", "data_size", "size", ":1", "the columns are size(MB)"),
        ("p2p_intra_node", "40.0", "40.0, 50.0", ":2", "5 rates for 4 sizes"),
        ("p2p_intra_node", "1,2", "2,1", ":2", "sizes that do not ascend"),
        ("p2p_intra_node", "10.0, 20.0, 30.0, 40.0\n", "", "", "1 lines, expected 2 at least"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, name, old, new, place, what):
    file = write_tables(tmp_path) / f"{name}.csv"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(RhinoError) as error:
        read_aceso(tmp_path, "gpt_1_3B")
    text = error.value.render()
    assert f"{file}{place}: error: [RHI-CLUSTER-004] Aceso's tables: {what}" in text
    assert "to fix: " in text


def test_a_directory_without_such_tables_is_refused(tmp_path):
    with pytest.raises(RhinoError, match="cannot be read: No such file"):
        aceso_models(tmp_path / "nowhere")
    with pytest.raises(RhinoError, match="no file is named as a table of ops is"):
        aceso_models(tmp_path)
    write_tables(tmp_path)
    with pytest.raises(RhinoError, match=r"no tables of a model 'gpt_13B'\n.*to fix: name one of gpt_1_3B"):
        read_aceso(tmp_path, "gpt_13B")
    (tmp_path / "p2p_intra_node.csv").unlink()
    with pytest.raises(RhinoError, match="the file cannot be read: No such file"):
        read_aceso(tmp_path, "gpt_1_3B")
