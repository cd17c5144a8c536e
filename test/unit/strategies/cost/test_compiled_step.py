"""The seconds of compiled programs, against schedules worked out by hand."""

from dataclasses import replace

import pytest

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.graph.rules import CallWork
from rhino.strategies.cost.compiled_step import compiled_step
from rhino.strategies.cost.target import TARGETS

CLUSTER = load_cluster("v5e-8")
DEVICE = replace(
    CLUSTER.device, flops_per_s=(("bf16", 1e9),), matmul_efficiency=1.0, hbm_bytes_per_s=1e9, memory_efficiency=1.0
)
LEVEL = replace(CLUSTER.levels[0], port_bytes_per_s=1e9, efficiency=1.0, latency_s=0.0)
CLUSTER = replace(CLUSTER, device=DEVICE, levels=(LEVEL,))
HEAD = "HloModule step, is_scheduled=true, num_partitions=8\n"
GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}"


def step(lines, inside=""):
    text = f"{HEAD}\n{inside}\nENTRY %main (x: f32[1]) -> f32[1] {{\n{lines}\n}}\n"
    return compiled_step(text, CLUSTER, TARGETS["tpu"])


GATHER = f"""  %a = f32[1000] parameter(0)
  %g = (f32[1000], f32[8000]) all-gather-start(%a), channel_id=1, {GROUPS}, dimensions={{0}}
  %n = f32[1000] negate(%a)
  %d = f32[8000] all-gather-done(%g)
"""
WIRE_S = 7 / 8 * 32000e-9
NEGATE_S = 8000e-9


def test_what_is_computed_meanwhile_hides_an_asynchronous_collective():
    found = step(GATHER)
    assert found.kernels_s == pytest.approx(NEGATE_S)
    assert found.step_s == pytest.approx(WIRE_S)
    assert found.exposed_s == pytest.approx(WIRE_S - NEGATE_S)
    (sent,) = found.collectives
    assert (sent.kind, sent.dtype, sent.is_async, tuple(sent.count)) == ("all_gather", "f32", True, (1, 32000))


def test_a_synchronous_collective_is_waited_for_and_waits_for_the_wire():
    lines = GATHER + f"  %r = f32[1000] all-reduce(%n), channel_id=2, {GROUPS}, to_apply=%add\n"
    assert step(lines).step_s == pytest.approx(WIRE_S + 2 * 7 / 8 * 4000e-9)


def test_a_loop_takes_its_trips():
    body = f"%body (p: f32[1000]) -> f32[1000] {{\n{GATHER}}}\n"
    loop = '  %w = f32[1000] while(%x), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}\n'
    found = step("  %x = f32[1000] parameter(0)\n" + loop, body)
    assert found.step_s == pytest.approx(3 * WIRE_S)
    assert found.collectives[0].count.num == 3


def test_a_collective_fused_in_parts_counts_once_and_is_waited_for_at_its_end():
    config = 'backend_config={"async_collective_fusion_config":{"flag_end":"8","flag_start":"2"}}'
    gather = f"all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}"
    inside = f"""%first (p: f32[1000]) -> f32[8000] {{
  %p = f32[1000] parameter(0)
  %g = f32[8000] {gather}
  ROOT %c = f32[8000] custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%middle (p: f32[1000]) -> f32[1000] {{
  %p = f32[1000] parameter(0)
  %g = f32[8000] {gather}, {config}
  ROOT %d = f32[1000] convolution(%p, %p), dim_labels=bf_io->bf
}}

%last (p: f32[1000]) -> f32[8000] {{
  %p = f32[1000] parameter(0)
  %g = f32[8000] {gather}, {config}
  ROOT %c = f32[8000] custom-call(%g), custom_call_target="AsyncCollectiveDone"
}}
"""
    lines = """  %a = f32[1000] parameter(0)
  %s = f32[8000] fusion(%a), kind=kCustom, calls=%first
  %e = f32[8000] fusion(%a), kind=kCustom, calls=%last
"""
    found = step(lines, inside)
    assert found.collectives[0].count.num == 1
    assert found.step_s == pytest.approx(WIRE_S)


@pytest.mark.parametrize(("precision", "passes"), [("", 1), (", operand_precision={high,high}", 3)])
def test_products_of_f32_take_the_passes_of_their_precision(precision, passes):
    operands = "  %a = f32[1000,1000]{1,0:S(1)} parameter(0)\n"
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    found = step(f"{operands}  %r = f32[1000,1000]{{1,0:S(1)}} dot(%a, %a), {dims}{precision}\n")
    assert found.flops == 2e9
    assert found.step_s == pytest.approx(2.0 * passes)


@pytest.mark.parametrize(("size", "left_s"), [(500, 0.0), (2000, 1.0)])
def test_a_copy_beforehand_goes_on_while_products_leave_the_memory_idle(size, left_s):
    # 1000 rows of f32 take 4 ms on their way, and the product takes 4 ms without the memory
    shape = f"(f32[{size},1000]{{1,0:S(1)}}, f32[{size},1000]{{1,0}}, u32[]{{:S(2)}})"
    lines = f"""  %a = f32[{size},1000]{{1,0}} parameter(0)
  %b = f32[2,1000]{{1,0:S(1)}} parameter(1)
  %c = f32[1000,1000]{{1,0:S(1)}} parameter(2)
  %s = {shape} copy-start(%a)
  %r = f32[2,1000]{{1,0:S(1)}} dot(%b, %c), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %d = f32[{size},1000]{{1,0:S(1)}} copy-done(%s)
"""
    assert step(lines).kernels_s == pytest.approx(4e-3 + left_s * 4e-3)


@pytest.mark.parametrize("call", [True, False])
def test_a_collective_behind_an_asynchronous_start_is_hidden_whether_it_is_called_or_not(call):
    gather = f"  ROOT %g = f32[8000] all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}\n"
    inside = f"%gather (p: f32[1000]) -> f32[8000] {{\n  %p = f32[1000] parameter(0)\n{gather}}}\n"
    if call:
        body = "  %q = f32[1000] parameter(0)\n  ROOT %c = f32[8000] call(%q), to_apply=%gather\n"
        inside += f"\n%wrapped (q: f32[1000]) -> f32[8000] {{\n{body}}}\n"
    lines = f"""  %a = f32[1000] parameter(0)
  %s = ((f32[1000]), f32[8000]) async-start(%a), calls=%{"wrapped" if call else "gather"}
  %n = f32[1000] negate(%a)
  %d = f32[8000] async-done(%s)
"""
    found = step(lines, inside)
    assert found.step_s == pytest.approx(WIRE_S)
    assert found.kernels_s == pytest.approx(NEGATE_S)
    assert [(one.kind, one.is_async, one.count.num) for one in found.collectives] == [("all_gather", True, 1)]


def test_a_collective_on_a_sparse_core_begins_where_it_is_given_its_operands():
    gather = f"  ROOT %g = f32[8000] all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}\n"
    inside = f"%gather (p: f32[1000]) -> f32[8000] {{\n  %p = f32[1000] parameter(0)\n{gather}}}\n"
    call = '  ROOT %c = f32[8000] custom-call(%q), custom_call_target="", called_computations={%gather}\n'
    inside += f"\n%loaded (q: f32[1000]) -> f32[8000] {{\n  %q = f32[1000] parameter(0)\n{call}}}\n"
    lines = """  %a = f32[1000] parameter(0)
  %s = ((), (), s32[8]) async-start(), async_execution_thread="sparsecore", calls=%loaded
  %m = f32[1000] negate(%a)
  %u = ((f32[1000]), f32[8000], s32[8]) async-update(%s, %m)
  %n = f32[1000] negate(%m)
  %d = f32[8000] async-done(%u)
"""
    found = step(lines, inside)
    assert found.step_s == pytest.approx(NEGATE_S + WIRE_S)
    assert found.kernels_s == pytest.approx(2 * NEGATE_S)
    assert [(one.kind, one.is_async, one.count.num) for one in found.collectives] == [("all_gather", True, 1)]


def test_what_is_received_is_waited_for_until_it_is_sent():
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,0}}"}'
    found = step(f"""  %a = f32[1000] parameter(0)
  %t = token[] after-all()
  %r = (f32[1000], u32[], token[]) recv(%t), channel_id=3, {pairs}
  %s = (f32[1000], u32[], token[]) send(%a, %t), channel_id=3, {pairs}
  %b = f32[10] parameter(1)
  %n = f32[10] negate(%b)
  %sd = token[] send-done(%s), channel_id=3
  %rd = (f32[1000], token[]) recv-done(%r), channel_id=3
""")
    assert [(one.kind, one.dtype, one.is_async, tuple(one.count)) for one in found.collectives] == [
        ("collective_permute", "f32", True, (1, 4000))
    ]
    assert found.kernels_s == pytest.approx(80e-9)
    assert found.step_s == pytest.approx(found.collectives[0].seconds)
    assert found.step_s > found.kernels_s


def test_what_comes_from_host_memory_is_hidden_by_what_is_computed_and_goes_both_ways_at_once(monkeypatch):
    monkeypatch.setattr("rhino.strategies.cost.cost_model.HOST_TRANSFER_S", 0.0)
    monkeypatch.setitem(globals(), "CLUSTER", replace(CLUSTER, device=replace(DEVICE, host_bytes_per_s=1e8)))
    lines = """  %h = f32[1000]{0:S(5)} parameter(0)
  %a = f32[1000] parameter(1)
  %i = (f32[1000]{0}, f32[1000]{0:S(5)}, u32[]) copy-start(%h)
  %o = (f32[1000]{0:S(5)}, f32[1000]{0}, u32[]) copy-start(%a)
  %n = f32[1000] negate(%a)
  %d = f32[1000]{0} copy-done(%i)
  %e = f32[1000]{0:S(5)} copy-done(%o)
  %s = f32[1000]{0:S(5)} copy(%d)
"""
    found = step(lines)
    assert found.kernels_s == pytest.approx(NEGATE_S)
    assert found.step_s == pytest.approx(2 * 4000e-8)


def test_a_kernel_of_the_program_takes_what_it_says_and_not_its_operands_alone():
    text = """HloModule m, is_scheduled=true

ENTRY %main (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  ROOT %c = f32[1024]{0} custom-call(%p), custom_call_target="tpu_custom_call", backend_config={"call":{"body":"a{b"}}
}
"""
    asked = []

    def work(config):
        asked.append(config)
        return CallWork(3e9, 2e9, "bf16", 1e9)

    step = compiled_step(text, CLUSTER, TARGETS["tpu"], (), work)
    assert asked == ['{"call":{"body":"a{b"}}']
    device = CLUSTER.device
    others_s = 1e9 / (device.vector_per_s or device.peak_flops_per_s("f32"))
    products_s = 2e9 / TARGETS["tpu"].product_flops_per_s(device, "bf16", "default")
    assert step.step_s == pytest.approx(
        max(others_s, products_s, 1e9 / device.memory_bytes_per_s) + (device.op_s or 0.0)
    )
    assert step.flops == 2e9
    assert compiled_step(text, CLUSTER, TARGETS["tpu"]).step_s < step.step_s / 100
