#!/usr/bin/env bash
# Campaigns on a machine with many cores and two or more GPUs: how the rate grows with --jobs,
# what thousands of examples find, and which known defects show on NCCL.
# Usage: benchmarks/campaigns.sh OUTPUT_FOLDER [SEED [gloo|nccl|known ...]]
# (fsdpfuzz must be importable; all three parts unless some are named.)
# ONE and MANY are the seconds of drawing with one pool and with several.
# A run that finds something is none that failed: what it found stands in its JSON.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
seed=${2:-1}
parts=("${@:3}")
[ ${#parts[@]} -gt 0 ] || parts=(gloo nccl known)
one=${ONE:-30} many=${MANY:-120}
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

known() { # Side by side: one needs GPUs, the other processors.
  for backend in nccl gloo; do
    timeout -s INT 95 python3 -m fsdpfuzz corpus known check --backend "$backend" \
      >"$out/known-$backend.txt" 2>&1 &
  done
  wait
  for backend in nccl gloo; do
    echo "== known defects on $backend"
    cat "$out/known-$backend.txt"
  done
}

for part in "${parts[@]}"; do
  case $part in
    gloo)
      CUDA_VISIBLE_DEVICES='' campaign gloo-one "$one" --backend gloo
      CUDA_VISIBLE_DEVICES='' campaign gloo-auto "$many" --backend gloo --jobs auto \
        --max-examples 20000
      ;;
    nccl)
      campaign nccl-one "$one" --backend nccl
      campaign nccl-4 "$many" --backend nccl --jobs 4 --max-examples 4000
      ;;
    known) known ;;
    *) echo "$part: name gloo, nccl or known" >&2 && exit 2 ;;
  esac
done
rm -rf "$work"
