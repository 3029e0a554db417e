#!/usr/bin/env bash
# vLLM 0.29.0 and 0.32.0 with --data-parallel-size 2: the metric of each rank states the blocks of both ranks.
#
# Each rank has a KV cache of its own, here 400 blocks (--num-gpu-blocks-override). /metrics has a line of
# vllm:cache_config_info for each rank, and num_gpu_blocks in both is 800: the front end sums what the ranks report into the
# configuration that all lines show. A reader that multiplies vllm:kv_cache_usage_perc of a rank by num_gpu_blocks of its line
# counts each used block twice, with N ranks N times.
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
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
for version in 0.29.0 0.32.0; do
    "$real/install" "$folder/$version" "$version"
    http=$(free_port) events=$(free_port) replay=$(free_port)
    config="{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\",
        \"endpoint\": \"tcp://*:$events\", \"replay_endpoint\": \"tcp://*:$replay\"}"
    "$real/engine" "$folder/$version" "$http" "$events" 400 --data-parallel-size 2 --kv-events-config "$config" \
        >"$folder/log" 2>&1 &
    engine=$!
    for _ in $(seq 300); do
        curl --silent --fail --output /dev/null "http://127.0.0.1:$http/health" && break
        kill -0 "$engine" || { tail -n 20 "$folder/log"; exit 1; }
        sleep 1
    done
    seen=$(curl --silent "http://127.0.0.1:$http/metrics" | grep '^vllm:cache_config_info' |
        sed -E 's/.*[,{]engine="([0-9]+)".*num_gpu_blocks="([0-9]+)".*num_gpu_blocks_override="([0-9]+)".*/engine \1: num_gpu_blocks \2, override \3/')
    echo "vLLM $version:"
    echo "$seen"
    [ "$seen" = "$(printf 'engine %s: num_gpu_blocks 800, override 400\n' 0 1)" ]
    kill -TERM "$engine"
    wait "$engine" || true
    engine=""
done
# Seen on 2026-11-29, for both versions:
#   engine 0: num_gpu_blocks 800, override 400
#   engine 1: num_gpu_blocks 800, override 400
