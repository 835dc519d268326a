#!/usr/bin/env bash
# Gather the files that an edge device needs in one folder, on a machine with network, for install.sh --wheels.
#
#   deploy/edge/wheels.sh FOLDER [PIP OPTIONS]
#
# For a device of another kind than this machine, name its platform. For example, a Raspberry Pi with a 64-bit system:
#
#   deploy/edge/wheels.sh wheels --only-binary=:all: --python-version 3.11 \
#     --platform manylinux_2_34_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64
#
# TORCH is the requirement of PyTorch: the locked one by default, "" for none; a CPU build is gigabytes smaller than a
# CUDA build. Every file is checked against the hashes in locks/, except a TORCH that is not in locks/.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
locks=$source/locks
folder=${1:?usage: wheels.sh FOLDER [PIP OPTIONS]}
shift
python=${PYTHON:-python3}
torch=${TORCH-$(grep -o '^torch==[^ ]*' "$locks/torch.lock")}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --require-hashes --requirement "$locks/build.lock"
mkdir -p "$folder"
rm -f "$folder"/fairbloom-*.whl "$folder/torch.txt"
"$tools/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$folder" "$source"
cp "$locks/client.lock" "$folder"
gather() { "$python" -m pip download --quiet --dest "$folder" "$@"; }
locked=(--require-hashes --requirement "$folder/client.lock")
[ -z "$torch" ] || "$python" "$locks/pytorch.py" "$torch" > "$folder/torch.txt"
if [ -n "$torch" ] && grep -q -e --hash "$folder/torch.txt"; then
  gather "${locked[@]}" --requirement "$folder/torch.txt" "$@"
else
  gather "${locked[@]}" "$@"
  [ -z "$torch" ] || gather --requirement "$folder/torch.txt" "$@"
fi
cp "$here/install.sh" "$here/unpack.py" "$folder"
echo "$folder: $(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sh "$folder" | cut -f1); copy it to the device with the client's bundle"
