#!/usr/bin/env bash
# vLLM 0.19.1: /v1/completions/render answers 404 for a LoRA adapter that /v1/completions and /tokenize serve.
#
# The error says that the model does not exist, as for a misspelt name. A gateway that asks /render for a prompt's tokens gets
# none for adapters, although the same request is served. The base model's name gives the tokens. vLLM 0.29.0 answers for the
# adapter, too.
#
# Needs Python 3.11 to 3.13 and the package index: 7 GB and 6 to 20 minutes for each version.
set -euo pipefail
real=$(cd "$(dirname "$0")/../tests/real" && pwd)
folder=$(mktemp -d)
engine=""
stop() {
    if [ -n "$engine" ]; then
        kill -TERM "$engine" 2>/dev/null || true
        wait "$engine" 2>/dev/null || true
    fi
    rm -rf "$folder"
}
trap stop EXIT
for version in 0.19.1 0.29.0; do
    "$real/install" "$folder/$version" "$version"
    http=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$real/engine" "$folder/$version" "$http" $((http + 1)) 400 >"$folder/log" 2>&1 &
    engine=$!
    for _ in $(seq 300); do
        curl --silent --fail --output /dev/null "http://127.0.0.1:$http/health" && break
        kill -0 "$engine" || { tail -n 20 "$folder/log"; exit 1; }
        sleep 1
    done
    seen=""
    for model in tiny adapted; do
        for path in v1/completions tokenize v1/completions/render; do
            status=$(curl --silent --output /dev/null --write-out '%{http_code}' "http://127.0.0.1:$http/$path" \
                --header 'Content-Type: application/json' --data "{\"model\": \"$model\", \"prompt\": \"a b\", \"max_tokens\": 1}")
            seen="$seen$model $path $status; "
        done
    done
    echo "vLLM $version: $seen"
    rendered=200
    [ "$version" != 0.19.1 ] || rendered=404
    [ "$seen" = "tiny v1/completions 200; tiny tokenize 200; tiny v1/completions/render 200; \
adapted v1/completions 200; adapted tokenize 200; adapted v1/completions/render $rendered; " ]
    kill -TERM "$engine"
    wait "$engine" || true
    engine=""
done
# Seen on 2026-11-29:
#   vLLM 0.19.1: … adapted v1/completions 200; adapted tokenize 200; adapted v1/completions/render 404;
#   vLLM 0.29.0: … adapted v1/completions 200; adapted tokenize 200; adapted v1/completions/render 200;
