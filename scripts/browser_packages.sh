#!/usr/bin/env bash
# The tests of the dashboard drive a real Chromium. Install it where that is possible, else say what is missing:
# those tests are skipped then.
set -euo pipefail

command -v chromium >/dev/null && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing chromium for the tests of the dashboard"
  if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends -o DPkg::Lock::Timeout=120 chromium; then
    exit 0
  fi
fi
echo "The tests of the dashboard are skipped without: sudo apt-get install chromium" >&2
