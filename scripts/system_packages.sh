#!/usr/bin/env bash
# Rendering without a screen needs Mesa's EGL. Install it where that is possible, else say what is missing.
set -euo pipefail
packages=(libegl1 libegl-mesa0 libgl1-mesa-dri)

missing=()
for package in "${packages[@]}"; do
  if command -v dpkg-query >/dev/null 2>&1; then
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  elif ! ldconfig -p 2>/dev/null | grep -q 'libEGL\.so\.1'; then
    missing=("EGL (Mesa)")
    break
  fi
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing ${missing[*]} for rendering"
  if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"; then
    exit 0
  fi
fi
cat >&2 <<TEXT
Rendering needs these system packages, which are not installed: ${missing[*]}
Install them and run the command again, for example:
    sudo apt-get install ${packages[*]}
TEXT
exit 1
