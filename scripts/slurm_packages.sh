#!/usr/bin/env bash
# The tests of the Slurm backend start a cluster of their own from Debian's packages. Install them
# where that is possible, else say what is missing: those tests are skipped then.
set -euo pipefail
packages=(slurmctld slurmd slurm-client munge)

PATH="$PATH:/usr/sbin:/sbin"
command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null &&
  command -v munged >/dev/null && exit 0

# Where systemd runs, Debian's packages would start daemons of their own: that is for the owner to decide.
if [ "$(id -u)" -eq 0 ] && [ ! -d /run/systemd/system ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing ${packages[*]} for the tests of the Slurm backend"
  if apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq \
    --no-install-recommends -o DPkg::Lock::Timeout=120 "${packages[@]}"; then
    exit 0
  fi
fi
echo "The tests of the Slurm backend are skipped without: sudo apt-get install ${packages[*]}" >&2
