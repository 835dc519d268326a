#!/usr/bin/env bash
# Gather all that an edge device needs into one folder, on a machine with network, for install.sh --wheels.
#
#   deploy/edge/wheels.sh FOLDER [PIP OPTIONS]
#
# For a device of another kind than this machine, say which. A Raspberry Pi with a 64-bit system, for example:
#
#   deploy/edge/wheels.sh wheels --only-binary=:all: --platform manylinux_2_28_aarch64 --python-version 3.11
#
# TORCH is the PyTorch to take, "torch" by default, "" for none; a CPU build is smaller than a CUDA one by gigabytes.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
folder=${1:?usage: wheels.sh FOLDER [PIP OPTIONS]}
shift
python=${PYTHON:-python3}
torch=${TORCH-torch}

mkdir -p "$folder"
rm -f "$folder"/fairbloom-*.whl
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$source"
wheel=$(echo "$folder"/fairbloom-*.whl)
"$python" "$here/requirements.py" "$wheel" > "$folder/client.txt"
grep -v '^torch==' "$source/requirements.lock" > "$folder/constraints.txt"
"$python" -m pip download --quiet --dest "$folder" --constraint "$folder/constraints.txt" \
  --requirement "$folder/client.txt" ${torch:+"$torch"} "$@"
cp "$here/install.sh" "$here/requirements.py" "$folder"
echo "$folder: $(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sh "$folder" | cut -f1); copy it to the device with the client's bundle"
