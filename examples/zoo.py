"""Every example model at a size that eight host devices run in a second.

Tests and benchmarks compare these with one device.

Every size that can be split is a multiple of eight, so that eight devices can take equal parts of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import bert
import clip
import dit
import dlrm
import forward_forward
import gnmt
import gpt
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
from training import Model

GPT: Final = gpt.GPTConfig(layers=2, hidden=32, heads=8, ffn=64, vocab=64, seq=16, batch=8)
LLAMA: Final = llama.LlamaConfig(layers=1, hidden=128, heads=16, kv_heads=8, ffn=64, vocab=64, seq=16, batch=8)
MOE: Final = moe.MoEConfig(layers=2, hidden=32, heads=8, ffn=64, experts=8, vocab=64, seq=16, batch=8)
MLP: Final = mlp.MLPConfig(sizes=(16, 64, 64, 32), batch=16)
TOWERS: Final = two_tower.TwoTowerConfig(
    features=16, feature_sizes=(64, 32), vocab=64, seq=8, layers=1, hidden=32, heads=8, ffn=64, embed=16, batch=16
)
MANY_TOWERS: Final = towers.TowersConfig(
    hiddens=(32, 16, 24), seqs=(8, 16, 8), layers=1, head=8, vocab=64, embed=16, batch=16
)
VGG: Final = vgg.VGGConfig(channels=(8, 16), convs=(1, 2), hidden=64, classes=128, image=32, batch=8, dropout=0.0)
BERT: Final = bert.BERTConfig(layers=1, hidden=32, heads=8, ffn=64, vocab=64, seq=16, batch=8)
RESNET: Final = resnet.ResNetConfig(blocks=(1, 1), channels=8, width_factor=2, classes=64, image=16, batch=8)
T5: Final = t5.T5Config(
    layers=1, hidden=32, heads=8, head_dim=8, ffn=64, vocab=64, encoder_seq=32, decoder_seq=16, batch=8
)
VIT: Final = vit.ViTConfig(image=16, patch=4, layers=1, hidden=32, heads=8, ffn=64, classes=64, batch=8)
CLIP: Final = clip.CLIPConfig(
    image=16,
    patch=4,
    image_layers=1,
    image_hidden=32,
    image_heads=8,
    vocab=64,
    seq=8,
    text_layers=1,
    text_hidden=32,
    text_heads=8,
    embed=16,
    batch=16,
)
FORWARD: Final = forward_forward.ForwardForwardConfig(sizes=(32, 64, 64), classes=8, batch=16)
UNET: Final = unet.UNetConfig(channels=16, multipliers=(1, 2), blocks=1, groups=8, image=16, batch=8)
MAMBA: Final = mamba.MambaConfig(layers=1, hidden=32, state=8, expand=1, vocab=64, seq=16, batch=8)
DLRM: Final = dlrm.DLRMConfig(tables=(64, 24, 8), features=8, embed=16, lower=(32,), upper=(32,), batch=16)
GNMT: Final = gnmt.GNMTConfig(layers=2, hidden=16, vocab=64, encoder_seq=8, decoder_seq=8, batch=8)
WAV2VEC2: Final = wav2vec2.Wav2Vec2Config(
    windows=(5, 2),
    strides=(4, 2),
    channels=16,
    layers=1,
    hidden=32,
    heads=8,
    ffn=64,
    position_window=4,
    position_groups=8,
    entries=16,
    coded=16,
    distractors=8,
    samples=128,
    batch=8,
)
MIXTRAL: Final = mixtral.MixtralConfig(
    layers=2, hidden=64, heads=16, kv_heads=8, ffn=64, vocab=64, seq=16, batch=8, group=8, scan=True
)
DIT: Final = dit.DiTConfig(image=8, channels=8, layers=2, hidden=32, heads=8, ffn=64, classes=8, batch=8, scan=True)
LLAVA: Final = llava.LlavaConfig(
    layers=2,
    hidden=128,
    heads=16,
    kv_heads=8,
    ffn=64,
    vocab=64,
    seq=8,
    batch=8,
    image=16,
    patch=4,
    image_hidden=32,
    scan=True,
)
M6: Final = moe.MoEConfig(
    layers=1, hidden=32, heads=8, ffn=64, experts=8, vocab=64, seq=8, batch=8, every=1, patches=8, pixels=16
)

ZOO: Final[dict[str, Model]] = {
    "bert": bert.model(BERT),
    "clip": clip.model(CLIP),
    "dit": dit.model(DIT),
    "dlrm": dlrm.model(DLRM),
    "dnabert": bert.model(replace(BERT, convs=1)),
    "forward-forward": forward_forward.model(FORWARD),
    "gnmt": gnmt.model(GNMT),
    "gpt": gpt.model(GPT),
    "gpt-scan": gpt.model(replace(GPT, scan=True)),
    "gpt-fused": gpt.model(replace(GPT, layers=1, fused_qkv=True)),
    "gpt-dropout": gpt.model(replace(GPT, layers=1, dropout=0.1)),
    "gpt-bf16": gpt.model(replace(GPT, layers=1, dtype="bf16")),
    "llama": llama.model(LLAMA),
    "llama-scan-fused": llama.model(replace(LLAMA, layers=2, scan=True, fused_gate_up=True)),
    "llama-remat": llama.model(replace(LLAMA, remat=True)),
    "llama-decode": llama.model(replace(LLAMA, layers=2, scan=True, phase="decode")),
    "llava": llava.model(LLAVA),
    "m6": moe.model(M6),
    "mamba": mamba.model(MAMBA),
    "mixtral": mixtral.model(MIXTRAL),
    "mixtral-prefill": mixtral.model(replace(MIXTRAL, phase="prefill", prompt=8)),
    "mlp": mlp.model(replace(MLP, dropout=0.0)),
    "mlp-dropout": mlp.model(MLP),
    "moe": moe.model(MOE),
    "resnet": resnet.model(RESNET),
    "t5": t5.model(T5),
    "towers": towers.model(MANY_TOWERS),
    "two-tower": two_tower.model(TOWERS),
    "unet": unet.model(UNET),
    "vgg": vgg.model(VGG),
    "vit": vit.model(VIT),
    "wav2vec2": wav2vec2.model(WAV2VEC2),
}
