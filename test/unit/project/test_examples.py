"""The example models train, agree with their own variants, and export in every format."""

import contextlib
import dataclasses
import functools
import io
import re
import resource
import subprocess
import sys
from pathlib import Path

import bert
import clip
import dit
import dlrm
import export
import forward_forward
import gnmt
import gpt
import jax
import jax.export
import jax.numpy as jnp
import layers
import llama
import llava
import mamba
import mixtral
import mlp
import moe
import numpy as np
import pytest
import resnet
import t5
import transformer
import two_tower
import unet
import vgg
import vit
import wav2vec2
import zoo
from long_cases import one_in
from training import Adam, init_state, jit_step, lower_step

from rhino.ir.mlir.bindings import ir, make_context, stablehlo

GPT = gpt.GPTConfig(layers=2, hidden=16, heads=2, ffn=32, vocab=32, seq=8, batch=4)
TOWERS = two_tower.TwoTowerConfig(
    features=8, feature_sizes=(16,), vocab=32, seq=6, layers=1, hidden=16, heads=2, ffn=32, embed=8, batch=8
)
LLAMA = llama.LlamaConfig(layers=1, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=32, seq=8, batch=4)
T5 = t5.T5Config(layers=1, hidden=16, heads=2, head_dim=4, ffn=32, vocab=32, encoder_seq=12, decoder_seq=8, batch=4)
CLIP = clip.CLIPConfig(
    image=8,
    patch=4,
    image_layers=1,
    image_hidden=16,
    image_heads=2,
    vocab=32,
    seq=6,
    text_layers=1,
    text_hidden=16,
    text_heads=2,
    embed=8,
    batch=8,
)
FORWARD = forward_forward.ForwardForwardConfig(sizes=(16, 32, 32), classes=4, batch=16)
VIT = vit.ViTConfig(image=8, patch=4, layers=1, hidden=16, heads=2, ffn=32, classes=6, batch=4)
UNET = unet.UNetConfig(channels=4, multipliers=(1, 2), blocks=1, groups=2, image=8, batch=4)
MIXTRAL = mixtral.MixtralConfig(
    layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, experts=4, vocab=32, seq=8, batch=4, capacity=4.0, scan=True
)
MODELS = {
    "bert": bert.model(bert.BERTConfig(layers=1, hidden=16, heads=2, ffn=32, vocab=32, seq=32, batch=4)),
    "dlrm": dlrm.model(zoo.DLRM),
    "bert-scan-convs": bert.model(
        bert.BERTConfig(layers=2, hidden=16, heads=2, ffn=32, vocab=32, seq=32, batch=4, scan=True, convs=1)
    ),
    "forward-forward": forward_forward.model(FORWARD),
    "gpt": gpt.model(GPT),
    "gpt-scan-dropout": gpt.model(dataclasses.replace(GPT, scan=True, fused_qkv=True, dropout=0.1)),
    "gpt-bf16": gpt.model(dataclasses.replace(GPT, dtype="bf16")),
    "mlp-classify": mlp.model(mlp.MLPConfig(sizes=(8, 32, 32, 4), batch=16)),
    "mlp-regress": mlp.model(mlp.MLPConfig(sizes=(8, 32, 4), task="regress", batch=16, dropout=0.0)),
    "llama": llama.model(LLAMA),
    "llama-scan-fused": llama.model(dataclasses.replace(LLAMA, layers=2, scan=True, fused_gate_up=True)),
    "moe": moe.model(moe.MoEConfig(layers=2, hidden=16, heads=2, ffn=32, experts=4, vocab=32, seq=8, batch=4)),
    "mixtral": mixtral.model(dataclasses.replace(MIXTRAL, group=4)),
    "dit": dit.model(dataclasses.replace(zoo.DIT, batch=4)),
    "llava": llava.model(dataclasses.replace(zoo.LLAVA, layers=1, image_layers=1, hidden=32, heads=4, kv_heads=2)),
    "resnet": resnet.model(
        resnet.ResNetConfig(blocks=(1, 1), channels=4, width_factor=2, classes=6, image=16, batch=4)
    ),
    "t5": t5.model(T5),
    "t5-scan-dropout": t5.model(dataclasses.replace(T5, layers=2, scan=True, dropout=0.1)),
    "two-tower": two_tower.model(TOWERS),
    "unet": unet.model(UNET),
    "vgg": vgg.model(vgg.VGGConfig(channels=(4, 6), convs=(1, 2), hidden=16, classes=6, image=8, batch=4, dropout=0.0)),
    "vit": vit.model(VIT),
}
ARGS = ["mlp", "--sizes=8,16,4", "--batch=4"]
ARGUMENT_NAMES = ["state.params[0]['bias']", "state.mu[1]['weight']", "state.step", "batch['x']", "batch['y']"]


LONG = ("dit", "llava", "mixtral")


@pytest.fixture(
    params=one_in(2, [pytest.param(model, id=name) for name, model in MODELS.items() if name not in LONG])
    + [pytest.param(MODELS[name], id=name, marks=pytest.mark.long) for name in LONG]
)
def model(request):
    return request.param


@functools.cache
def jit_gpt_loss(cfg):
    return jax.jit(functools.partial(gpt.loss, cfg))


def gpt_loss(cfg, *args):
    return float(jit_gpt_loss(cfg)(*args))


def start(model):
    """Returns a state and a batch; compiled whole, which takes less time than op by op."""
    return jax.jit(lambda: (init_state(model, jax.random.key(1)), model.sample(jax.random.key(2))))()


def test_twenty_steps_on_one_batch_learn_it(model):
    step = jit_step(model, Adam(learning_rate=1e-2))
    state, batch = start(model)
    losses = []
    for _ in range(20):
        state, loss = step(state, batch)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.9 * losses[0]
    assert int(state.step) == 20


def test_every_leaf_of_the_state_is_donated_and_named(model):
    main = next(
        line for line in lower_step(model).as_text(debug_info=True).splitlines() if "func.func public @main" in line
    )
    num_leaves = len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
    assert main.count("tf.aliasing_output") == 3 * num_leaves + 1
    assert main.count(' loc("state.params') == num_leaves


def test_dropout_draws_anew_at_each_step_and_alike_at_each_run():
    model = mlp.model(mlp.MLPConfig(sizes=(8, 32, 4), batch=16, dropout=0.5))
    step = jax.jit(lambda state, batch: jit_step(model, Adam(learning_rate=0.0))(state, batch))
    first, batch = start(model)
    second, loss1 = step(first, batch)
    _, loss2 = step(second, batch)
    assert loss1 != loss2
    assert step(first, batch)[1] == loss1


def test_scan_and_unrolled_layers_start_and_lose_alike():
    unrolled, scan = dataclasses.replace(GPT, layers=3), dataclasses.replace(GPT, layers=3, scan=True)
    key, tokens = jax.random.key(3), gpt.sample(GPT, jax.random.key(4))
    params = gpt.init(unrolled, key)
    stacked = {**params, "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}
    jax.tree.map(np.testing.assert_array_equal, stacked, gpt.init(scan, key))
    assert gpt_loss(scan, stacked, tokens, key) == pytest.approx(gpt_loss(unrolled, params, tokens, key), abs=1e-5)


def test_fused_and_separate_projections_agree():
    fused = dataclasses.replace(GPT, fused_qkv=True)
    key, tokens = jax.random.key(5), gpt.sample(GPT, jax.random.key(6))
    params = jax.tree.map(lambda p: 8 * p, gpt.init(GPT, key))  # Larger weights, or attention barely moves the loss.
    layers = [{**p, "qkv": jnp.concatenate([p["q"], p["k"], p["v"]], axis=1)} for p in params["layers"]]
    swapped = [{**p, "qkv": jnp.concatenate([p["v"], p["k"], p["q"]], axis=1)} for p in params["layers"]]
    want = gpt_loss(GPT, params, tokens, key)
    assert gpt_loss(fused, {**params, "layers": layers}, tokens, key) == pytest.approx(want, abs=1e-5)
    assert gpt_loss(fused, {**params, "layers": swapped}, tokens, key) != pytest.approx(want, abs=1e-5)


def test_only_a_causal_layer_hides_the_future():
    key = jax.random.key(7)
    x = jax.random.normal(key, (1, 6, 16))
    changed = x.at[0, 3, 0].add(1.0)

    def num_equal_prefix(causal):
        cfg = transformer.BlockConfig(hidden=16, heads=2, ffn=32, causal=causal)
        params = transformer.init_block(cfg, key)
        rows = (transformer.block(cfg, x, params, key) == transformer.block(cfg, changed, params, key)).all(-1)[0]
        return int(jnp.argmin(rows))

    assert num_equal_prefix(causal=True) == 3
    assert num_equal_prefix(causal=False) == 0


def test_bf16_computes_in_bf16_and_keeps_float32_state():
    text = lower_step(MODELS["gpt-bf16"]).as_text()
    dots = re.findall(r"stablehlo.dot_general.*-> tensor<[0-9x]*(\w+)>", text)
    assert set(dots) == {"bf16"}
    main = next(line for line in text.splitlines() if "func.func public @main" in line)
    assert "bf16" not in main
    key, tokens = jax.random.key(9), gpt.sample(GPT, jax.random.key(10))
    params = gpt.init(GPT, key)
    narrow = gpt_loss(dataclasses.replace(GPT, dtype="bf16"), params, tokens, key)
    assert narrow == pytest.approx(gpt_loss(GPT, params, tokens, key), rel=1e-2)


def test_partners_in_the_batch_lose_less_than_strangers():
    model = MODELS["two-tower"]
    state, batch = start(model)
    step, loss = jit_step(model, Adam(learning_rate=1e-2)), jax.jit(model.loss)
    for _ in range(20):
        state, _ = step(state, batch)
    strangers = {**batch, "tokens": jnp.roll(batch["tokens"], 1, axis=0)}
    key = jax.random.key(3)
    assert loss(state.params, batch, key) < 0.5 * loss(state.params, strangers, key)


def test_a_patch_is_a_square_of_the_image():
    images = jnp.arange(2 * 4 * 4 * 3.0).reshape(2, 4, 4, 3)
    patches = vit.cut(2, images)
    np.testing.assert_array_equal(patches[1, 2].reshape(2, 2, 3), images[1, 2:, :2])


def test_a_text_is_what_its_end_has_seen():
    """Nothing after the largest token counts, everything before it does."""
    key = jax.random.key(16)
    tokens = jnp.array([[3, 5, 31, 7, 2, 1], [4, 5, 31, 7, 2, 1], [3, 5, 31, 8, 2, 1]])
    first, other_start, other_rest = jax.jit(
        lambda: clip.encode_text(CLIP, clip.init(CLIP, key)["text"], tokens, key)
    )()
    assert (first != other_start).any()
    np.testing.assert_allclose(first, other_rest, atol=1e-6)


def test_no_gradient_goes_from_a_layer_to_the_one_before():
    key = jax.random.key(17)
    layers, batch = mlp.init_layers(FORWARD.sizes, key), forward_forward.sample(FORWARD, key)
    grad = jax.jit(jax.grad(functools.partial(forward_forward.loss, FORWARD)))
    alone, both = grad(layers[:1], batch, key), grad(layers, batch, key)
    np.testing.assert_allclose(alone[0]["weight"], both[0]["weight"], rtol=1e-6)
    assert jnp.abs(both[1]["weight"]).max() > 0
    assert (batch["wrong"] != batch["y"]).all()


def test_fused_and_separate_gates_agree():
    fused = dataclasses.replace(LLAMA, fused_gate_up=True)
    key, tokens = jax.random.key(5), llama.sample(LLAMA, jax.random.key(6))
    params = jax.tree.map(lambda p: 8 * p, llama.init(LLAMA, key))
    layers = [{**p, "gate_up": jnp.concatenate([p["gate"], p["up"]], axis=1)} for p in params["layers"]]
    got, want = llama.loss(fused, {**params, "layers": layers}, tokens, key), llama.loss(LLAMA, params, tokens, key)
    assert float(got) == pytest.approx(float(want), abs=1e-5)


def test_queries_of_a_group_share_their_keys_and_values():
    q, k, v = (
        jax.random.normal(jax.random.key(seed), (2, 6, *heads, 4)) for seed, heads in enumerate([(2, 3), (2,), (2,)])
    )
    shared = transformer.attend(q, k, v, transformer.causal_mask(6))
    repeated = transformer.attend(
        q.reshape(2, 6, 6, 4), jnp.repeat(k, 3, axis=2), jnp.repeat(v, 3, axis=2), mask=transformer.causal_mask(6)
    )
    np.testing.assert_allclose(shared.reshape(2, 6, 6, 4), repeated, atol=1e-6)


def test_rotated_scores_depend_on_the_distance_alone():
    q, k = (jnp.broadcast_to(jax.random.normal(jax.random.key(seed), (4,)), (1, 8, 2, 4)) for seed in (0, 1))
    angles = llama.rotary_angles(LLAMA, jnp.arange(8))
    scores = jnp.einsum("bqhd,bkhd->qk", llama.rotate(q, angles), llama.rotate(k, angles))
    for distance in range(-7, 8):
        diagonal = jnp.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, jnp.full_like(diagonal, diagonal[0]), atol=1e-5)
    assert abs(float(scores[0, 0] - scores[0, 3])) > 0.01


def test_a_masked_token_is_hidden_and_alone_counts():
    cfg = bert.BERTConfig(layers=1, hidden=16, heads=2, ffn=32, vocab=32, seq=6, batch=2)
    key = jax.random.key(12)
    params, tokens = jax.tree.map(lambda p: 8 * p, bert.init(cfg, key)), bert.sample(cfg, key)["tokens"]
    masked = jnp.zeros((2, 6), bool).at[1, 3].set(True)
    loss = jax.jit(lambda token: bert.loss(cfg, params, {"tokens": tokens.at[1, 3].set(token), "masked": masked}, key))
    probabilities = [float(jnp.exp(-loss(token))) for token in range(cfg.vocab)]
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert max(probabilities) > 1.1 / cfg.vocab


def test_distances_have_the_buckets_worked_by_hand():
    """Both ways, 16 buckets a side: 0 to 7 by themselves, then 8 that each reach the eighth root of 16 farther."""
    distances = jnp.array([0, -1, -7, -8, -11, -12, -45, -90, -91, -500, 1, 7, 500])
    assert t5.bucket(distances, both_ways=True).tolist() == [0, 1, 7, 8, 8, 9, 12, 14, 15, 15, 17, 23, 31]
    assert t5.bucket(jnp.array([5, 0, -15, -16, -500]), both_ways=False).tolist() == [0, 0, 15, 16, 31]


def test_a_decoder_sees_all_of_its_source_and_nothing_of_its_future():
    key = jax.random.key(13)
    params, batch = t5.init(T5, key), t5.sample(T5, key)
    inputs, previous = batch["inputs"], batch["targets"][:, :-1]
    predict = jax.jit(lambda inputs, previous: t5.predict(T5, params, inputs, previous, key)[0])
    logits = predict(inputs, previous)
    other_source, other_token = (
        inputs.at[0, -1].set((inputs[0, -1] + 1) % 32),
        previous.at[0, 3].set((previous[0, 3] + 1) % 32),
    )
    assert (predict(other_source, previous) != logits).any(-1).all()
    assert (predict(inputs, other_token) != logits).any(-1).tolist() == [False] * 3 + [True] * 5


def test_skips_bring_each_pixel_its_surroundings():
    """Also where the smallest images pass nothing on; far pixels then meet in the norms alone."""
    cfg = dataclasses.replace(UNET, image=32)
    params = unet.init(cfg, jax.random.key(14))
    cut = {**params, "up": [{**size, "double": jax.tree.map(jnp.zeros_like, size["double"])} for size in params["up"]]}
    predict = jax.jit(lambda x: unet.predict(cfg, cut, x, jnp.zeros(1))[0])
    x = jax.random.normal(jax.random.key(15), (1, 32, 32, 3))
    moved = jnp.abs(predict(x.at[0, 0, 0, 0].add(1.0)) - predict(x)).max(-1)
    assert moved[0, 0] > 100 * moved[31, 31]


def test_states_are_those_of_a_loop_over_tokens():
    decay, added = jax.random.uniform(jax.random.key(0), (2, 2, 7, 3))
    state, states = jnp.zeros((2, 3)), []
    for at in range(7):
        state = decay[:, at] * state + added[:, at]
        states.append(state)
    np.testing.assert_allclose(mamba.recurrence(decay, added), jnp.stack(states, axis=1), rtol=1e-6)


def test_a_mamba_sees_its_past_alone():
    params, tokens = mamba.init(zoo.MAMBA, jax.random.key(0)), mamba.sample(zoo.MAMBA, jax.random.key(1))[:1, :-1]
    (p,) = params["layers"]
    see = jax.jit(lambda tokens: mamba.layer(zoo.MAMBA, params["embed"][tokens], p, jax.random.key(2))[0])
    changed = (see(tokens) != see(tokens.at[0, 9].set(0))).any(-1)
    assert changed[:12].tolist() == [False] * 9 + [True] * 3


def test_each_pair_of_features_meets_once():
    dense, looked_up = jnp.array([[1.0, 2.0]]), jnp.array([[[3.0, 5.0], [7.0, 11.0]]])
    assert dlrm.interact(dense, looked_up).tolist() == [[1.0, 2.0, 13.0, 29.0, 76.0]]


def test_an_lstm_is_that_of_its_equations_from_either_end():
    key = jax.random.key(3)
    p, x = gnmt.init_lstm(3, 4, key), jax.random.normal(key, (2, 5, 3))
    hidden, memory, found = np.zeros((2, 4)), np.zeros((2, 4)), []
    for at in range(5):
        gates = [np.asarray(x[:, at] @ p["in"][:, g] + hidden @ p["again"][:, g] + p["bias"][g]) for g in range(4)]
        enter, forget, leave = (1 / (1 + np.exp(-gate)) for gate in gates[:3])
        memory = forget * memory + enter * np.tanh(gates[3])
        hidden = leave * np.tanh(memory)
        found.append(hidden)
    np.testing.assert_allclose(gnmt.lstm(p, x), np.stack(found, axis=1), rtol=1e-5)
    np.testing.assert_allclose(gnmt.lstm(p, x[:, ::-1], reverse=True), np.stack(found, axis=1)[:, ::-1], rtol=1e-5)


def test_a_masked_step_of_a_sound_is_hidden_from_what_predicts_it():
    cfg = zoo.WAV2VEC2
    params, batch = wav2vec2.init(cfg, jax.random.key(4)), wav2vec2.sample(cfg, jax.random.key(5))
    features = jax.jit(lambda sound: wav2vec2.listen(cfg, params, sound))(batch["sound"])
    codes, uneven = jax.jit(lambda x: wav2vec2.quantize(cfg, params, x, jax.random.key(6)))(features)
    assert features.shape == (cfg.batch, cfg.steps, cfg.channels)
    assert 0 <= uneven < 1
    every = params["codes"]  # each half of what is said of a step is one of the entries
    halves = codes.reshape(cfg.batch, cfg.steps, cfg.codes, -1)
    apart = jnp.abs(halves[:, :, :, None] - every).max(-1).min(-1)
    np.testing.assert_allclose(apart, 0, atol=1e-6)


def test_images_come_before_texts_and_nobody_predicts_them():
    params, batch = moe.init(zoo.M6, jax.random.key(7)), moe.sample(zoo.M6, jax.random.key(8))
    loss = jax.jit(lambda batch: moe.loss(zoo.M6, params, batch, jax.random.key(9)))
    assert loss(batch) != loss({**batch, "patches": 10 * batch["patches"]})
    assert params["positions"].shape == (zoo.M6.patches + zoo.M6.seq, zoo.M6.hidden)
    assert all("experts" in layer for layer in params["layers"])


def route_by_hand(places, gates):
    """GShard's algorithm 1 for one sequence, token by token."""
    order = np.argsort(-gates, axis=1)
    combine, taken = np.zeros((*gates.shape, places)), np.zeros(gates.shape[1], int)
    for choice in (0, 1):
        for token, expert in enumerate(order[:, choice]):
            if taken[expert] < places:
                combine[token, expert, taken[expert]] = gates[token, expert] / gates[token, order[token, :2]].sum()
            taken[expert] += 1
    return combine


@pytest.mark.parametrize("places", [1, 3, 12])
def test_tokens_are_routed_as_by_hand(places):
    gates = jax.nn.softmax(2 * jax.random.normal(jax.random.key(11), (3, 12, 4)))
    got, _ = moe.route(places, gates)
    np.testing.assert_allclose(got, [route_by_hand(places, each) for each in np.asarray(gates)], rtol=1e-6)


def test_uneven_choices_cost_more():
    even = jnp.tile(jnp.eye(4), (2, 3, 1)) * 0.96 + 0.01
    assert moe.route(3, even)[1] == pytest.approx(1.0)
    assert moe.route(3, jnp.roll(even, 1, axis=2))[1] == pytest.approx(1.0)
    assert moe.route(3, jnp.broadcast_to(even[:, :1], even.shape))[1] > 3


@functools.cache
def listed():
    """The lines of `--list`, by the name of model or preset."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert export.run(["--list"]) == 0
    return {line.split()[0]: line for line in out.getvalue().splitlines()}


# Where a paper's table and the name in it disagree, the name is meant.
@pytest.mark.parametrize(
    ("name", "preset", "millions"),
    [
        ("gpt", "gpt-medium", 350),
        ("gpt", "gpt-large", 760),
        ("gpt", "gpt-xl", 1300),
        ("gpt", "gpt-2.7b", 2700),
        ("gpt", "gpt-6.7b", 6700),
        ("moe", "moe-8e-380m", 380),
        ("moe", "moe-8e-760m", 760),
        ("moe", "moe-16e-1.3b", 1300),
        ("moe", "moe-16e-2.4b", 2400),
        ("moe", "moe-32e-10b", 10000),
        ("bert", "bert-base", 110),
        ("bert", "bert-large", 340),
        ("bert", "dnabert", 162),
        ("llama", "llama-3-8b", 8030.261),
        ("llama", "llama-3-70b", 70553.706),
        ("llama", "llama-3-405b", 405853.4),
        ("mixtral", "mixtral-8x7b", 46702.8),
        ("dit", "dit-b-2", 130),
        ("dit", "dit-xl-2", 675),
        ("llava", "llava-7b", 7060),
        ("resnet", "resnet50-100k-classes", 228.4),
        ("resnet", "wr-0.5b", 500),
        ("resnet", "wr-6.8b", 6800),
        ("resnet", "wr-13b", 13000),
        ("t5", "t5-large", 737.7),
        ("t5", "t5-3b", 2850),
        ("t5", "t5-11b", 11300),
        ("unet", "unet-33m", 33),
        ("vgg", "vgg-1m-classes", 4200),
        ("vit", "vit-b16", 86),
        ("vit", "vit-l16", 307),
        ("vit", "vit-h14", 632),
        ("clip", "clip-b32", 151.3),
        ("clip", "clip-l14", 427.6),
        ("wav2vec2", "wav2vec2-base", 95),
        ("wav2vec2", "wav2vec2-large", 317),
        ("mamba", "mamba-130m", 130),
        ("mamba", "mamba-2.8b", 2800),
        ("dlrm", "dlrm-kaggle", 540),
        ("moe", "m6-100b", 100_000),
    ],
)
def test_presets_have_the_papers_parameter_counts(name, preset, millions):
    assert preset in export.MODELS[name].presets
    assert float(listed()[preset].split()[1].replace(",", "")) == pytest.approx(millions, rel=0.04)


def read_back(fmt, blob):
    """Returns the module in `blob` as text with locations."""
    with make_context() as context:
        if fmt == "jax-export":
            blob = jax.export.deserialize(bytearray(blob)).mlir_module_serialized
        read = (
            ir.Module.parse
            if fmt in ("text", "bytecode")
            else functools.partial(stablehlo.deserialize_portable_artifact, context)
        )
        return read(blob).operation.get_asm(enable_debug_info=True)


def export_to(path, *args):
    assert export.run([*args, "-o", str(path)]) == 0
    return path.read_bytes()


@pytest.mark.parametrize("fmt", export.FORMATS)
def test_each_format_keeps_names_and_donation(fmt, tmp_path):
    text = read_back(fmt, export_to(tmp_path / "step", *ARGS, f"--format={fmt}"))
    main = next(line for line in text.splitlines() if "func.func public @main" in line)
    for name in ARGUMENT_NAMES:
        assert f'loc("{name}")' in main
    assert re.findall(r"tf.aliasing_output = (\d+)", main) == [str(i) for i in range(3 * 4 + 1)]
    assert "jvp(layer1)/dot_general" in text


def test_a_jax_export_blob_runs_without_the_class_of_the_state(tmp_path):
    exported = jax.export.deserialize(bytearray(export_to(tmp_path / "step", *ARGS, "--format=jax-export")))
    model = mlp.model(mlp.MLPConfig(sizes=(8, 16, 4), batch=4))
    state, batch = start(model)
    got_state, got_loss = exported.call(tuple(state), batch)
    want_state, want_loss = jit_step(model)(state, batch)
    assert float(got_loss) == pytest.approx(float(want_loss), rel=1e-5)
    for got, want in zip(jax.tree.leaves(got_state), jax.tree.leaves(want_state), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_fields_override_the_preset(tmp_path):
    text = export_to(
        tmp_path / "step", "gpt", "--preset=gpt-large", "--batch=3", "--scan=true", "--fused-qkv=true"
    ).decode()
    assert "tensor<3x1025xi32>" in text
    assert "tensor<24x1536x4608xf32>" in text


def test_a_state_of_80_gigabytes_exports_without_being_allocated(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = export_to(tmp_path / "step", "gpt", "--preset=gpt-6.7b").decode()
    assert "tensor<51200x4096xf32> {tf.aliasing_output = 0" in text
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2e9


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gtp"], "unknown model 'gtp'; did you mean 'gpt'?"),
        (["gpt", "--hiden=4", "-o-"], "unknown option '--hiden'; did you mean '--hidden'?"),
        (["gpt", "--preset=gpt-medum", "-o-"], "unknown preset 'gpt-medum'; did you mean 'gpt-medium'?"),
        (["gpt", "--format=txt", "-o-"], "unknown format 'txt'; did you mean 'text'?"),
        (["gpt", "--dtype=bf61", "-o-"], "unknown dtype 'bf61'; did you mean 'bf16'?"),
        (["gpt", "--layers=two", "-o-"], "argument --layers: invalid int value: 'two'"),
        (["gpt", "--heads=3", "-o-"], "hidden (1024) is not divisible by heads (3)"),
        (["gpt"], "required: -o/--output"),
        ([], "name a model"),
    ],
)
def test_a_wrong_name_is_answered_with_the_closest(args, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        export.run(args)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unwritable_file_is_an_error_of_one_line(tmp_path, capsys):
    assert export.run([*ARGS, "-o", str(tmp_path / "absent" / "step")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_list_names_every_model_and_preset():
    assert list(listed()) == [name for model, entry in export.MODELS.items() for name in (model, *entry.presets)]
    assert (
        listed()["gpt-xl"]
        == f"{'gpt-xl':22} {'1,315.4':>10} M  --layers=24 --hidden=2048 --heads=32 --ffn=8192 --batch=64"
    )


def test_the_script_writes_to_stdout_and_is_deterministic():
    script = Path(export.__file__)
    runs = [
        subprocess.run([sys.executable, script, *ARGS, "-o", "-"], capture_output=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert b"func.func public @main" in runs[0]


@pytest.mark.parametrize(("family", "cfg"), [(llama, LLAMA), pytest.param(mixtral, MIXTRAL, marks=pytest.mark.long)])
def test_prefill_and_decode_give_what_the_layers_give_at_once(family, cfg):
    """The logits behind a prompt of five tokens, and behind each of three more, are those of the whole sequence."""
    params = family.init(cfg, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (cfg.batch, cfg.seq), 0, cfg.vocab)
    each = functools.partial(family.layer, cfg, llama.rotary_angles(cfg, jnp.arange(cfg.seq)))
    x = params["embed"][tokens]
    start = (x, 0.0) if family is mixtral else x
    out = transformer.run_layers(each, start, params["layers"], cfg.layers, jax.random.key(0))
    x = out[0] if family is mixtral else out
    wanted = layers.rms_norm(params["final"], x) @ params["head"]
    fill = family.model(dataclasses.replace(cfg, phase="prefill", prompt=5))
    decode = family.model(dataclasses.replace(cfg, phase="decode"))
    state = {**fill.init(jax.random.key(0)), "params": params}
    for at, (model, part) in enumerate([(fill, tokens[:, :5]), *((decode, tokens[:, n, None]) for n in (5, 6, 7))], 4):
        state, logits = jit_step(model)(state, part)
        np.testing.assert_allclose(logits, wanted[:, at], rtol=1e-4, atol=1e-5)
    assert int(state["cache"]["length"]) == cfg.seq
