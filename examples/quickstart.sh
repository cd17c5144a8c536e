#!/usr/bin/env bash
# Sets Rhino up in .venv, exports a small GPT training step, shards it for eight devices, and compares three training steps of the
# sharded program, on eight host devices, with the one-device program. Needs Python 3.11 or newer. Results are in out/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/venv.sh

if [[ ! -x .venv/bin/rhino-opt ]]; then
  make_venv .venv
  install_into .venv .
fi
mkdir -p out
.venv/bin/python examples/export.py gpt --layers 2 --hidden 64 --heads 8 --ffn 256 --vocab 512 --seq 32 --batch 8 -o out/gpt.mlir
.venv/bin/rhino-opt --auto-shard --cluster=cpu8 out/gpt.mlir -o out/gpt.sharded.mlir --remarks-filter=gap
.venv/bin/rhino-run out/gpt.sharded.mlir --devices=8 --compare=out/gpt.mlir --steps=3
