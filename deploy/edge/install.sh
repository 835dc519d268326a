#!/usr/bin/env bash
# Make a Debian, Raspberry Pi OS or Jetson machine a Fairbloom client, or upgrade one. Run it as root.
#
#   ./install.sh --bundle site-1.tar.gz --wheels FOLDER     offline, from the folder of wheels.sh
#   ./install.sh --bundle site-1.tar.gz --source CHECKOUT   from a checkout and the network
#   ./install.sh --wheels FOLDER                            upgrade; bundle, data and personal models stay
#   ./install.sh --uninstall                                keeps bundle, data and personal models
#
# To make the key on this device, where it stays: first use --keys NAME instead of --bundle, which prints a request for
# the operator; then use only --bundle, with the bundle that the operator sends back.
#
# A second --bundle replaces client.toml, which is the operator's. The settings of this device's owner (data-dir, allow,
# limits, ...) are in owner.toml next to it. --data-dir creates that file; an existing one is never changed.
#
# More options: --torch SPEC (default: the gathered or locked PyTorch), --system-torch (the device's own PyTorch, as on
# Jetson), --index URL (of CPU wheels), --python PATH (python3), --data-dir DIR, --no-service (no systemd), --root DIR
# (put everything below DIR).
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle='' keys='' wheels='' source='' torch='' system_torch='' index='' python=python3 data='' service=yes root='' uninstall=''
user=fairbloom

say() { printf 'install: %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

read_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --bundle | --keys | --wheels | --source | --torch | --index | --python | --data-dir | --root)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
          --bundle) bundle=$2 ;;
          --keys) keys=$2 ;;
          --wheels) wheels=$2 ;;
          --source) source=$2 ;;
          --torch) torch=$2 ;;
          --index) index=$2 ;;
          --python) python=$2 ;;
          --data-dir) data=$2 ;;
          --root) root=${2%/} ;;
        esac
        shift 2 ;;
      --system-torch) system_torch=yes; shift ;;
      --no-service) service=''; shift ;;
      --uninstall) uninstall=yes; shift ;;
      -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
      *) fail "unknown option $1; --help lists them" ;;
    esac
  done
  opt=$root/opt/fairbloom etc=$root/etc/fairbloom state=$root/var/lib/fairbloom unit=$root/etc/systemd/system/fairbloom-client.service
}

check() {
  [ "$(id -u)" -eq 0 ] || fail "run it as root: sudo $0"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
    || fail "$python is $("$python" --version 2>&1 || true): Python 3.11 or later is needed; name another by --python PATH"
  "$python" -c 'import ensurepip, venv' 2> /dev/null || fail "$python has no venv: apt-get install python3-venv"
  [ -n "$wheels$source" ] || is_installed || fail "say where Fairbloom comes from: --wheels FOLDER or --source CHECKOUT"
  [ -z "$wheels" ] || compgen -G "$wheels/fairbloom-*.whl" > /dev/null || fail "--wheels $wheels has no wheel of fairbloom (wheels.sh)"
  [ -z "$bundle" ] || [ -z "$keys" ] || fail "--keys makes the key for which a bundle is made: give --bundle later"
  [ -z "$bundle" ] || check_bundle
  [ -z "$data" ] || check_data
  [ -z "$keys" ] || [ ! -e "$etc/key" ] || fail "$etc/key is there already, and a federation may know this device by it: delete it first"
  [ -n "$bundle$keys" ] || [ -f "$etc/client.toml" ] || fail "this device has no bundle yet: give it by --bundle (the federation's operator makes it), or begin with --keys NAME"
  local free
  free=$(df -Pk "$(nearest "$opt")" | awk 'NR == 2 {print int($4 / 1024)}')
  [ -z "$wheels$source" ] || [ "$free" -ge 3000 ] || fail "$free MB are free for $opt: 3000 MB are needed"
}

is_installed() { # and the command is about a bundle or keys, for which the libraries can stay
  [ -n "$bundle$keys" ] && [ -x "$opt/venv/bin/python" ]
}

check_bundle() {
  local files
  [ -f "$bundle" ] || fail "--bundle $bundle: file not found"
  files=$("$python" -I "$here/unpack.py" "$bundle") || exit 1
  [[ " $files " == *" key "* ]] || [ -f "$etc/key" ] || fail "--bundle $bundle has no key, and this device has none: make it first, by --keys NAME"
}

check_data() {
  [ -d "$data" ] || fail "--data-dir $data: folder not found"
  data=$(cd "$data" && pwd)
  [ ! -e "$etc/owner.toml" ] || fail "--data-dir $data: $etc/owner.toml is there and is yours: write data-dir into it"
  [[ $data != *[\"\\%]* ]] || fail "--data-dir $data: settings and systemd cannot hold a path with these signs: name it by a link"
}

nearest() { # the nearest folder that exists
  local folder=$1
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  echo "$folder"
}

make_user() {
  id "$user" > /dev/null 2>&1 || useradd --system --home-dir /var/lib/fairbloom --shell /usr/sbin/nologin "$user"
  # For cameras and accelerators; not every system has these groups.
  local group
  for group in video render; do
    if getent group "$group" > /dev/null; then usermod --append --groups "$group" "$user"; fi
  done
}

torch_requirement() { # with hashes, unless --torch names a version that is in no lock file
  if [ -z "$wheels" ]; then
    "$python" "$source/locks/pytorch.py" "${torch:-$(grep -o '^torch==[^ ]*' "$source/locks/torch.lock")}"
  elif [ -n "$torch" ]; then echo "$torch"; else cat "$wheels/torch.txt"; fi
}

install_libraries() { # into a new folder; the old one is used until the new one is complete
  local venv wheel pip locks
  venv=$opt/venv-$(date -u +%Y%m%d%H%M%S)
  mkdir -p "$opt"
  "$python" -m venv ${system_torch:+--system-site-packages} "$venv"
  # shellcheck disable=SC2064 # this folder: the variable is gone when the trap runs
  trap "rm -rf '$venv'" EXIT
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet)
  say "libraries into $venv (minutes on a small device)"
  if [ -n "$wheels" ]; then
    locks=$wheels
    wheel=$(compgen -G "$wheels/fairbloom-*.whl" | tail -1)
    pip+=(--no-index --find-links "$wheels")
  else
    locks=$source/locks
    "$python" -m venv "$venv/build"
    "$venv/build/bin/python" -m pip install --quiet --require-hashes --requirement "$locks/build.lock"
    "$venv/build/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$venv/build" "$source"
    wheel=$(compgen -G "$venv/build/fairbloom-*.whl")
    pip+=(${index:+--extra-index-url "$index"})
  fi
  "${pip[@]}" --require-hashes --requirement "$locks/client.lock"
  if [ -z "$system_torch" ]; then
    torch_requirement > "$venv/torch.txt"
    "${pip[@]}" --requirement "$venv/torch.txt"
  fi
  "${pip[@]}" --no-deps "$wheel" # its other dependencies are only for servers
  "$venv/bin/python" -c 'import torch, flwr' || fail "PyTorch or Flower cannot be loaded; the old installation, if any, is in place"
  trap - EXIT
  ln -sfn "$(basename "$venv")" "$opt/venv.new"
  mv -T "$opt/venv.new" "$opt/venv"
  find "$opt" -mindepth 1 -maxdepth 1 -name 'venv-*' ! -name "$(basename "$venv")" -exec rm -rf {} +
}

make_folders() {
  install -d -m 750 -o root -g "$user" "$etc"
  install -d -m 700 -o "$user" -g "$user" "$state" "$state-accounts"
}

make_keys() {
  local made
  made=$(mktemp -d)
  # shellcheck disable=SC2064 # this folder, whatever the variable is then
  trap "rm -rf '$made'" EXIT
  (cd / && "$opt/venv/bin/python" -P -m fairbloom.deploy client keys "$keys" --out "$made") || fail "no key was made"
  install -T -m 600 -o "$user" -g "$user" "$made/key" "$etc/key"
  install -T -m 644 "$made/$keys.request" "$etc/$keys.request"
  say "the line above is the request; once the bundle has come back: $0 --bundle FILE"
}

install_files() { # of a bundle that was unpacked into this folder
  local file
  for file in ca.crt certificate client.toml; do install -T -m 644 "$1/$file" "$etc/$file"; done
  [ ! -f "$1/key" ] || install -T -m 600 -o "$user" -g "$user" "$1/key" "$etc/key"
}

install_bundle() {
  local unpacked
  if [ -n "$bundle" ]; then
    unpacked=$(mktemp -d)
    # shellcheck disable=SC2064 # this folder, whatever the variable is then
    trap "rm -rf '$unpacked'" EXIT
    "$python" -I "$here/unpack.py" "$bundle" "$unpacked" > /dev/null || exit 1
    install_files "$unpacked"
    rm -rf "$unpacked"
    trap - EXIT
  fi
  [ -z "$data" ] || [ -e "$etc/owner.toml" ] || printf 'data-dir = "%s"\n' "$data" > "$etc/owner.toml"
}

install_service() {
  local packaged
  packaged=$(compgen -G "$opt/venv/lib/python3*/site-packages/fairbloom/deploy/edge/fairbloom-client.service")
  install -D -m 644 "$packaged" "$unit"
  if [ -n "$data" ]; then # may lie below /home, which the unit does not see
    install -d -m 755 "$unit.d"
    printf '[Service]\nBindReadOnlyPaths="%s"\n' "$data" > "$unit.d/data.conf"
  fi
  [ -n "$service" ] || { say "without systemd start it by: $(command_line)"; return; }
  systemctl daemon-reload
  systemctl enable --quiet fairbloom-client
  systemctl restart fairbloom-client
  say "running; see it by: journalctl --follow --unit fairbloom-client"
}

command_line() { echo "runuser -u $user -- $opt/venv/bin/python -P -m fairbloom.deploy client $etc/client.toml --state-dir $state"; }

remove() {
  if [ -n "$service" ] && [ -f "$unit" ]; then systemctl disable --quiet --now fairbloom-client; fi
  rm -rf "$opt" "$unit" "$unit.d"
  [ -z "$service" ] || systemctl daemon-reload
  say "removed; $etc and $state are left: delete them by hand if this device is never to return"
}

main() {
  read_options "$@"
  if [ -n "$uninstall" ]; then remove; exit; fi
  check
  make_user
  [ -z "$wheels$source" ] || install_libraries
  make_folders
  if [ -n "$keys" ]; then make_keys; exit; fi
  install_bundle
  install_service
  cd "$state" # doctor checks the disk of the current folder
  runuser -u "$user" -- "$opt/venv/bin/python" -P -m fairbloom.deploy doctor --client "$etc/client.toml" \
    || say "the client is installed and keeps trying; see to the faults above"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || main "$@"
