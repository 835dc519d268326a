#!/usr/bin/env bash
# Write requirements.lock and the lock files in this folder (make lock).
#
# Locked versions stay as long as pyproject.toml allows them; --upgrade takes the newest. All lock files are parts of one
# solution for all systems, with the hashes of all files of a version; only wheels are installed, nothing is built.
# torch-cpu.lock is edited by hand, because these builds are in a separate index.
set -euo pipefail

cd "$(dirname "$0")/.."
all=.venv/all.lock

compile() {
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
    --only-binary :all: --emit-build-options --generate-hashes --no-annotate --custom-compile-command 'make lock' "$@"
}

part() { # write the part of the solution for these inputs: part FILE INPUT...
  compile --constraint "$all" --output-file "$@"
}

extras() { # print extras without the project's dependencies, most of which are for simulation and figures
  python3 -c '
import sys, tomllib
from pathlib import Path
extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
print(*(line for name in sys.argv[1:] for line in extras[name]), sep="\n")' "$@"
}

cat requirements.lock locks/{audit,build,client,docs,inventory,publish,server,torch}.lock > "$all"
compile "$@" --output-file "$all" pyproject.toml --extra all --extra client --extra server \
  --group dev --group docs --group build --group inventory --group audit --group publish

printf 'torch\n' | part locks/torch.lock -
# PyTorch is installed separately, with the libraries that its build needs only on Linux: CUDA.
mapfile -t apart < <(sed -n "s/^\([^= ]*\)==.*sys_platform == 'linux'.*/--no-emit-package=\1/p" locks/torch.lock)
apart+=(--no-emit-package=torch)
part requirements.lock pyproject.toml --extra all --extra client --extra server --group dev --group build "${apart[@]}"
extras client | part locks/client.lock - "${apart[@]}"
extras client server | part locks/server.lock - "${apart[@]}"
for group in docs build inventory audit publish; do part "locks/$group.lock" --group "$group"; done
