#!/usr/bin/env bash
# Checks and measures Fairbloom on a card within six minutes: `benchmarks/gpu.sh`, in a checkout.
# Its tests, the engines against a plain loop, and networks against pfl-research. The packages of benchmarks/pfl.txt are
# imported from runs/pfl, or from where Python finds them: a machine without a package index needs their wheels.
# --device cpu --rounds 1 --repeats 1 tries the script without a card, on two cores within six minutes, too.
# Tables and logs lie below $OUT, by default runs/gpu. The exit status is that of the first part that failed.
set -uo pipefail
cd "$(dirname "$0")/.."

device=cuda
rounds=4
repeats=2
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2 ;;
    --rounds) rounds=$2 ;;
    --repeats) repeats=$2 ;;
    *) echo "unknown option $1: there are --device, --rounds and --repeats" >&2; exit 2 ;;
  esac
  shift 2 || exit 2
done

out=${OUT:-runs/gpu}
mkdir -p "$out"
python=${PYTHON:-python3}
sides=(--engines loop stacked --precisions float32 bfloat16)
processes=(1 4)
seconds=(110 40 205)
if [ "$device" = cpu ]; then # a round of the two larger networks takes half a minute and more there
  sides=(--workloads cnn --engines loop)
  processes=(1)
  seconds=(150 60 140)
  export OMP_NUM_THREADS=1 # on a busy machine threads of the plain loop wait for each other
fi
export FAIRBLOOM_TEST_CUDA=1
status=0

part() { # NAME SECONDS COMMAND…: at most so many seconds; the first failure becomes the exit status
  local name=$1 seconds=$2
  shift 2
  local started=$SECONDS
  timeout -k 1 "$seconds" "$@" >"$out/$name.txt" 2>"$out/$name.log"
  local code=$?
  cat "$out/$name.txt"
  [ $code -eq 0 ] || tail -n 20 "$out/$name.log"
  echo "$name: exit status $code, $((SECONDS - started)) s"
  [ $status -ne 0 ] || status=$code
}

part tests "${seconds[0]}" "$python" -m pytest -q -p no:cacheprovider -p no:benchmark -n 4 -m gpu --device "$device" tests/gpu
part engines "${seconds[1]}" "$python" -m benchmarks.engines --device "$device" --repeats "$repeats" --rounds "$rounds" \
  --workloads logistic mlp --engines loop stacked --csv
part networks "${seconds[2]}" "$python" -m benchmarks.pfl --device "$device" --repeats "$repeats" --rounds "$rounds" \
  --processes "${processes[@]}" "${sides[@]}" --csv
exit $status
