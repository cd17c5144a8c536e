# Functions for the scripts that set up a virtual environment; sourced, never run.

# Prints the first Python on the path that is 3.11 or newer.
find_python() {
  local name
  for name in python3 python3.11 python3.12 python3.13 python3.14; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed and none is on the path" >&2
  return 1
}

# make_venv DIR: makes a virtual environment unless a working one is there.
make_venv() {
  if ! "$1/bin/python" -m pip --version >/dev/null 2>&1; then
    local python
    python="$(find_python)"
    "$python" -m venv --clear "$1"
  fi
}

# install_into DIR REQUIREMENT [OPTION...]: installs this project in place, so that edits need no second install.
install_into() {
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --editable "${@:2}"
}
