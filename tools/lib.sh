# Shared by the scripts in this folder; source it, do not run it.
# Sets ROOT (the checkout), CACHE (downloads, ignored by git) and VENV (private Python packages).
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${SPINDLE_CACHE:-$ROOT/.cache}
VENV=$ROOT/.venv

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'fatal: %s\n' "$*" >&2; exit 1; }

# Runs a command as root: directly, or through sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "needs root for: $* (install sudo or run as root)"
  fi
}

# Number of parallel jobs: usable CPUs.
jobs_count() { nproc; }

# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
