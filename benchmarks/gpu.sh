#!/usr/bin/env bash
# Everything that needs GPUs, in one go: fuzz on NCCL, the properties, restart times.
# Usage: benchmarks/gpu.sh OUTPUT_FOLDER   (fsdpfuzz must be importable; two or more GPUs)
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
cd "$work" || exit 1
failed=0
note() { echo "== $*"; }

note doctor
python3 -m fsdpfuzz doctor || failed=1
note "fuzz on nccl, 250 examples"
timeout 240 python3 -m fsdpfuzz run --profile dev --max-examples 250 --seed 1 --backend nccl \
  --output "$out/run" --json "$out/run.json" || failed=1
note "restart after a death and after a hang"
timeout 120 python3 "$here/restart.py" --backend nccl --json "$out/restart.json" || failed=1
note "properties"
timeout 400 python3 -m pytest --pyargs fsdpfuzz.properties --hypothesis-profile=fsdpfuzz-smoke \
  -p no:cacheprovider -q --durations=10 -rs || failed=1
rm -rf "$work"
note "failed=$failed"
exit "$failed"
