#!/usr/bin/env bash
# Build, install, try and remove Fairbloom in each form that a stranger may get (make rehearse).
#
# The forms are the repository as a zip and as a tar.gz, the wheel, and the archive of sources; the Pythons are the
# oldest and the newest supported one that is there. Each environment begins empty, with the PyTorch that `make setup`
# chose, and is deleted. FORMS and PYTHONS choose fewer.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export FLWR_HOME=$work/flower FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 PIP_QUIET=2 NO_COLOR=1

git archive --format=zip --prefix=fairbloom/ --output "$work/fairbloom.zip" HEAD
git archive --format=tar.gz --prefix=fairbloom/ --output "$work/fairbloom.tar.gz" HEAD
mkdir "$work/checkout"
tar -xzf "$work/fairbloom.tar.gz" -C "$work/checkout"
(cd "$work/checkout/fairbloom" && "$root/.venv/bin/python" -m hatchling build --directory "$work/built" > "$work/log" 2>&1)
.venv/bin/python -m twine check --strict "$work"/built/*
declare -A file=([zip]=$work/fairbloom.zip [tar.gz]=$work/fairbloom.tar.gz)
file[wheel]=$(ls "$work"/built/*.whl)
file[sdist]=$(ls "$work"/built/*.tar.gz)
modules=$(unzip -l "${file[wheel]}" | grep -c '\.py$')

pythons() { # the oldest and the newest supported Python that can make environments
  local minor python
  for minor in $(sed -n 's/.*Python :: 3\.\([0-9][0-9]*\)",$/\1/p' pyproject.toml | sort -n); do
    for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*/bin/python3; do
      if "$python" -m venv --help > /dev/null 2>&1; then
        echo "$python"
        break
      fi
    done
  done | sed -n '1p;$p' | uniq
}

try() { # try FORM PYTHON: print a row of the table
  local env=$work/env started=$SECONDS installed found
  "$2" -m venv "$env"
  # The build that is locked here need not be there for another Python: pip chooses one below.
  "$env/bin/pip" install --no-deps --requirement .venv/torch.txt 2> "$work/log" || true
  "$env/bin/pip" install "${file[$1]}"
  installed=$((SECONDS - started))
  (
    mkdir "$work/there"
    cd "$work/there"
    PATH=$env/bin:$PATH
    python -c 'import fairbloom; from pathlib import Path; print(len([*Path(fairbloom.__file__).parent.rglob("*.py")]))' > modules
    fairbloom --version
    fairbloom compare --methods fedavg,qfedavg,fedmgdaplus,fedfv --seeds 2 --rounds 5 --set partition=iid \
      --set digits.rotated-clients=3 --out runs/cmp
    fairbloom new my-app
    (cd my-app && python -m my_app num-rounds=2)
    # Ray is an extra
    if pip install "${file[$1]}[ray]"; then
      (cd my-app && flwr run . --stream --run-config 'num-rounds=1 out="runs/simulated"' \
        --federation-config "num-supernodes=8 client-resources-num-cpus=1")
      pkill -f "$FLWR_HOME" || true
      pkill -f flower-superlink || true
      test -f my-app/runs/simulated/model.safetensors
    fi
    du -sm "$env" | cut -f 1 > size
    pip uninstall --yes fairbloom
    cd /
    if python -c 'import fairbloom' 2> /dev/null; then
      echo "fairbloom is still there after pip uninstall"
      exit 1
    fi
  ) > "$work/log" 2>&1 || { cat "$work/log"; return 1; }
  found=$(cat "$work/there/modules")
  if [ "$found" != "$modules" ]; then
    echo "$1: $found modules are installed, and the wheel has $modules"
    return 1
  fi
  printf '%-8s %-8s %8s %10s %10s %10s\n' "$1" "$("$2" -c 'import sys; print("3.%d" % sys.version_info[1])')" \
    "$found" "$installed s" "$((SECONDS - started)) s" "$(cat "$work/there/size") MB"
  rm -rf "$env" "$work/there"
}

printf '%-8s %-8s %8s %10s %10s %10s\n' form Python modules install all size
for form in ${FORMS:-zip tar.gz wheel sdist}; do
  for python in ${PYTHONS:-$(pythons)}; do
    try "$form" "$python"
  done
done

# What pip says of a Python that is not supported yet: dependencies without a wheel for it.
next=$(($(sed -n 's/.*Python :: 3\.\([0-9][0-9]*\)",$/\1/p' pyproject.toml | sort -n | tail -1) + 1))
lacking=()
while read -r requirement; do
  if ! .venv/bin/pip download --no-deps --only-binary :all: --python-version "3.$next" --dest "$work/next" \
    "$requirement" > /dev/null 2>&1; then
    lacking+=("$requirement")
  fi
done < <(sed -n 's/^\([a-z0-9-]*==[0-9.]*\) .*/\1/p' requirements.lock)
echo "Python 3.$next: no wheel of ${lacking[*]:-nothing}"

# The recipe for conda-forge, rendered without its channels.
python3 -m venv "$work/conda"
"$work/conda/bin/pip" install py-rattler-build
"$work/conda/bin/python" - << 'END'
from rattler_build import Stage0Recipe, VariantConfig

(rendered,) = Stage0Recipe.from_file("recipe/recipe.yaml").render(
    VariantConfig.from_yaml("python_min: ['3.11']")
)
recipe = rendered.recipe.to_dict()
print(recipe["package"], len(recipe["requirements"]["run"]), "dependencies")
END
