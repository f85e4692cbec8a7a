#!/usr/bin/env bash
# On a fresh runner: the locked environment, and a browser unless DRIVER_BROWSER names one.
# What can be kept from run to run lies under CACHE (~/.cache/driver-ci).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CACHE=${CACHE:-$HOME/.cache/driver-ci}
export PIP_CACHE_DIR=$CACHE/pip DRIVER_CACHE=$CACHE/build PLAYWRIGHT_BROWSERS_PATH=$CACHE/browsers
. .ci/setup
driver setup ${DRIVER_BROWSER:+--browser "$DRIVER_BROWSER"}
# Later steps find both.
if [ -n "${GITHUB_ENV:-}" ]; then
  printf '%s\n' "DRIVER_CACHE=$DRIVER_CACHE" "PLAYWRIGHT_BROWSERS_PATH=$PLAYWRIGHT_BROWSERS_PATH" \
    >>"$GITHUB_ENV"
  printf '%s\n' "$VENV/bin" >>"$GITHUB_PATH"
fi
