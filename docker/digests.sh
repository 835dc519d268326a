#!/usr/bin/env bash
# Append the registry's current digest to the tag of the base image (make digests).
#
#   docker/digests.sh DOCKERFILE     a Dockerfile with ARG BASE=NAME:TAG
set -euo pipefail

image=$(sed -nE 's/^ARG BASE=([^ @]+:[^ @]+).*/\1/p' "$1")
digest=$(docker buildx imagetools inspect "$image" --format '{{json .Manifest.Digest}}' | tr -d '"')
[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "digests: $image: not a digest: $digest" >&2; exit 1; }
sed -i -E "s#^ARG BASE=.*#ARG BASE=$image@$digest#" "$1"
echo "$image@$digest"
