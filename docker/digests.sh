#!/usr/bin/env bash
# Write the digests that the registry has today behind the tags of other people's images (make digests).
#
#   docker/digests.sh FILE...     Dockerfiles with ARG BASE=NAME:TAG and compose files with image: NAME:TAG
set -euo pipefail

images=$(sed -nE 's/^(ARG BASE=| *image: )([^ @]+:[^ @]+).*/\2/p' "$@" | sort -u)
for image in $images; do
  digest=$(docker buildx imagetools inspect "$image" --format '{{json .Manifest.Digest}}' | tr -d '"')
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "digests: $image: not a digest: $digest" >&2; exit 1; }
  sed -i -E "s#^(ARG BASE=| *image: )${image//./\\.}(@sha256:[0-9a-f]{64})?\$#\1$image@$digest#" "$@"
  echo "$image@$digest"
done
