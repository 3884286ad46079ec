#!/bin/bash
# The first five minutes with Conch, in a clone of the repository:
#
#     bash examples/first_five_minutes.sh
#
# Installs Conch into a new virtual environment, without a compiler, unless `conch` is on PATH. Then it serves a
# repository, a file, a language model and a Python function, and sends a request to each, as the README does step by
# step. All files are in a temporary folder; ports in use are avoided. Nothing stays but demo-output/annotated.jpg.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
export XDG_STATE_HOME=$work/state XDG_DATA_HOME=$work/data # conch ps and stop see the servers of this script only
trap 'conch stop --all >"$work/end" 2>&1 || cat "$work/end"; rm -rf "$work"' EXIT

step() { printf '\n%s (%s s)\n' "$1" "$SECONDS"; }

# Serve X in the background until `conch stop`. Prints what conch run prints.
serve() {
    : >"$work/log" # the shell in the background may be late to empty it of the server before
    conch run "$@" --serve --port 0 >"$work/log" 2>&1 &
    until grep -q '^Ctrl-C' "$work/log"; do
        kill -0 $! 2>/dev/null || { cat "$work/log"; exit 1; }
        sleep 0.1
    done
    cat "$work/log"
}

# The printed request works as printed.
ask() { bash -c "$(grep -m 1 '^curl' "$work/log")" && echo; }

if ! command -v conch >/dev/null; then
    step "Install"
    python3 -m venv "$work/venv"
    PATH=$work/venv/bin:$PATH
    CONCH_COMPILE=no pip install --quiet --disable-pip-version-check '.[examples]'
fi
conch --version

step "Inspect machine and installation"
conch doctor || echo "The server works all the same."

step "A photo in, boxes out"
mkdir "$work/models"
for model in detect preprocess detector postprocess; do ln -s "$PWD/examples/models/$model" "$work/models"; done
serve "$work/models"
address=$(sed -n 's|^URL  *http://\([^ ]*\).*|\1|p' "$work/log")
mkdir -p demo-output
python examples/clients/detect.py examples/images/plate.jpg --url "$address" --out demo-output/annotated.jpg
conch ps
conch stop --all

step "One file, without a repository"
serve examples/models/digits/1/model.onnx --name digits
ask
conch stop digits

step "A question to a language model"
conch run examples/models/chat/1/model.gguf "What is Conch?" --temperature 0

step "A Python function"
cat >"$work/app.py" <<'END'
import numpy as np

import conch


@conch.model(batch=True)
def normalize(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)
END
serve "$work/app.py"
ask
conch stop normalize

conch ps # no server stays
step "Done"
