# Chooses the Python for the virtual environment. Sourced.

# usable_python COMMAND: whether it is 3.8 to 3.11, can make virtual environments, and has headers to build with.
usable_python() {
  "$1" - 2> /dev/null <<'PYTHON'
import os, sys, sysconfig
import ensurepip, venv
ok = (3, 8) <= sys.version_info[:2] <= (3, 11) and sys.implementation.name == "cpython"
ok = ok and os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
sys.exit(0 if ok else 1)
PYTHON
}

# find_python: prints the first usable one; MXNet 1.9.1 is tested with 3.11.
find_python() {
  local name
  for name in ${MXRDMA_PYTHON:+"$MXRDMA_PYTHON"} python3.11 python3.10 python3.9 python3.8 python3; do
    if command -v "$name" > /dev/null && usable_python "$name"; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}
