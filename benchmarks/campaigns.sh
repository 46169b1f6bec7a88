#!/usr/bin/env bash
# Campaigns on a machine with many cores and two or more GPUs: how the rate grows with --jobs,
# what thousands of examples find, and which known defects show on NCCL.
# Usage: benchmarks/campaigns.sh OUTPUT_FOLDER [SEED]   (fsdpfuzz must be importable)
# A run that finds something is none that failed: what it found stands in its JSON.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
seed=${2:-1}
work=$(mktemp -d)
cd "$work" || exit 1

campaign() { # NAME SECONDS, then options of `fsdpfuzz run`
  local name=$1 seconds=$2
  shift 2
  echo "== $name: $*"
  # Reducing goes on after the time for drawing; a signal then ends it in good order.
  timeout -s INT $((seconds + 40)) python3 -m fsdpfuzz run --seed "$seed" --max-seconds "$seconds" \
    --output "$out/$name" --json "$out/$name.json" "$@"
  echo "== $name exited with $?"
}

CUDA_VISIBLE_DEVICES='' campaign gloo-one 20 --backend gloo
CUDA_VISIBLE_DEVICES='' campaign gloo-auto 130 --backend gloo --jobs auto --max-examples 20000
campaign nccl-one 20 --backend nccl
campaign nccl-4 110 --backend nccl --jobs 4 --max-examples 4000
# Side by side: one needs GPUs, the other processors.
for backend in nccl gloo; do
  timeout -s INT 95 python3 -m fsdpfuzz corpus known check --backend "$backend" \
    >"$out/known-$backend.txt" 2>&1 &
done
wait
for backend in nccl gloo; do
  echo "== known defects on $backend"
  cat "$out/known-$backend.txt"
done
rm -rf "$work"
