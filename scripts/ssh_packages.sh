#!/usr/bin/env bash
# The tests of the SSH backend start a server of their own. Install its program where that is possible, else say
# what is missing: those tests are skipped then.
set -euo pipefail
packages=(openssh-server openssh-client rsync iproute2)

PATH="$PATH:/usr/sbin:/sbin"
command -v sshd >/dev/null && command -v ssh-keygen >/dev/null && command -v rsync >/dev/null && command -v ip >/dev/null && exit 0

# Where systemd runs, Debian's package would open a server to the world as well: that is for its owner to decide.
if [ "$(id -u)" -eq 0 ] && [ ! -d /run/systemd/system ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing ${packages[*]} for the tests of the SSH backend"
  if apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq \
    --no-install-recommends -o DPkg::Lock::Timeout=120 "${packages[@]}"; then
    exit 0
  fi
fi
echo "The tests of the SSH backend are skipped without: sudo apt-get install ${packages[*]}" >&2
