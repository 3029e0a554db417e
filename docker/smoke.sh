#!/usr/bin/env bash
# Builds the image of indexer-server and tests it. See README.md in this folder.
set -euo pipefail

cd "$(dirname "$0")/.."
image=kvasir/indexer-server:smoke
grpc=127.0.0.1:50151
http=127.0.0.1:9191
release=${DEBIAN_RELEASE:-bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
work=$(mktemp -d)
server=
container=

log() { printf 'smoke: %s\n' "$*"; }
fail() {
    log "FAILED: $*"
    exit 1
}
need() { command -v "$1" > /dev/null || fail "$1 is not installed: $2"; }

finish() {
    [[ -z $server ]] || kill -KILL "$server" 2> /dev/null || true
    if [[ -n $container ]]; then
        case $engine in
            buildah) buildah_ umount "$container" > /dev/null && buildah_ rm "$container" > /dev/null ;;
            *) "$engine" rm --force "$container" > /dev/null ;;
        esac || true
    fi
    rm -rf "$work"
}
trap finish EXIT

buildah_() { buildah --storage-driver vfs "$@"; }

# Imports a folder as an image: import_root FOLDER NAME [VARIABLE=VALUE...]
import_root() {
    local root=$1 name=$2 from variable
    shift 2
    tar -C "$root" -cf "$work/root.tar" .
    from=$(buildah_ from scratch)
    buildah_ add "$from" "$work/root.tar" / > /dev/null
    for variable in "$@"; do buildah_ config --env "$variable" "$from"; done
    buildah_ commit --quiet --rm "$from" "$name" > /dev/null
    rm "$work/root.tar"
}

make_base() {
    need debootstrap "set BASE to an image that is there"
    log "making a base with debootstrap ($release)"
    debootstrap --variant=minbase "$release" "$work/base" "$mirror" > "$work/debootstrap.log" \
        || { tail "$work/debootstrap.log"; fail "debootstrap"; }
    rm -rf "$work/base/var/cache/apt" "$work/base/var/lib/apt/lists"
    import_root "$work/base" localhost/kvasir-base
    BASE=localhost/kvasir-base
}

make_build_base() {
    local toolchain
    need debootstrap "set BUILD_BASE to an image that has cargo"
    toolchain=$(rustc --print sysroot) || fail "no Rust here: set BUILD_BASE"
    log "making a build base with debootstrap and $(rustc --version)"
    debootstrap --variant=minbase --include=gcc,libc6-dev,ca-certificates \
        "$release" "$work/build" "$mirror" > "$work/debootstrap.log" \
        || { tail "$work/debootstrap.log"; fail "debootstrap"; }
    mkdir -p "$work/build/opt/rust/lib"
    cp -a "$toolchain/bin" "$work/build/opt/rust/"
    cp -a "$toolchain"/lib/*.so* "$toolchain/lib/rustlib" "$work/build/opt/rust/lib/"
    import_root "$work/build" localhost/kvasir-build-base \
        PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    rm -rf "$work/build"
    BUILD_BASE=localhost/kvasir-build-base
}

build() {
    local arguments=() cargo_home
    if [[ $engine == buildah ]]; then
        [[ $(id -u) == 0 ]] || fail "buildah with chroot isolation needs root"
        [[ -n ${BASE:-} ]] || make_base
        [[ -n ${BUILD_BASE:-} ]] || make_build_base
        cargo_home=${CARGO_HOME:-$HOME/.cargo}
        mkdir -p "$cargo_home/registry"
        arguments+=(--isolation chroot --network host
            --volume "$cargo_home/registry:/root/.cargo/registry")
    fi
    [[ -z ${BASE:-} ]] || arguments+=(--build-arg "BASE=$BASE")
    [[ -z ${BUILD_BASE:-} ]] || arguments+=(--build-arg "BUILD_BASE=$BUILD_BASE")
    [[ -z ${CLANG:-} ]] || arguments+=(--build-arg "CLANG=$CLANG")
    log "building $image with $engine"
    arguments+=(-f docker/Dockerfile.indexer-server -t "$image" .)
    case $engine in
        buildah) buildah_ bud "${arguments[@]}" ;;
        *) "$engine" build "${arguments[@]}" ;;
    esac
}

start() {
    log "starting $image"
    local flags=(--listen="$grpc" --http-listen="$http")
    if [[ $engine == buildah ]]; then
        container=$(buildah_ from "$image")
        local root
        root=$(buildah_ mount "$container")
        env -i PATH=/usr/sbin:/usr/bin chroot --userspec=65532:65532 "$root" /usr/local/bin/indexer-server "${flags[@]}" &
        server=$!
    else
        container=$("$engine" run --detach --network host "$image" "${flags[@]}")
    fi
}

# Sends SIGTERM and sets stopped to the exit code.
stop() {
    local code=0
    if [[ $engine == buildah ]]; then
        kill -TERM "$server"
        wait "$server" || code=$?
        server=
    else
        "$engine" stop --time 15 "$container" > /dev/null
        code=$("$engine" inspect --format '{{.State.ExitCode}}' "$container")
    fi
    stopped=$code
}

expect() {
    local what=$1 found=$2 wanted=$3
    [[ $found == *"$wanted"* ]] || fail "$what: $found"
    log "ok: $what"
}

try() {
    local ready health
    ready=$(curl --silent --show-error --retry 50 --retry-delay 1 --retry-all-errors \
        --max-time 60 "http://$http/readyz")
    expect /readyz "$ready" ready
    expect /livez "$(curl --silent --fail "http://$http/livez")" ok
    expect /metrics "$(curl --silent --fail "http://$http/metrics")" kvasir_build_info
    # An empty HealthCheckRequest: five bytes of framing. SERVING is field 1 with value 1.
    health=$(printf '\0\0\0\0\0' | curl --silent --show-error --http2-prior-knowledge \
        --header 'content-type: application/grpc' --header 'te: trailers' --data-binary @- \
        "http://$grpc/grpc.health.v1.Health/Check" | od -An -tx1 | tr -d ' \n')
    expect "gRPC health" "$health" 00000000020801
    # A FindMatches without a model is refused, with the field named.
    local refusal
    refusal=$(printf '\0\0\0\0\0' | curl --silent --show-error --http2-prior-knowledge --include \
        --header 'content-type: application/grpc' --header 'te: trailers' --data-binary @- \
        "http://$grpc/kvasir.v1.Indexer/FindMatches" | tr -d '\r\0')
    expect "FindMatches" "$refusal" "grpc-status: 3"
}

engine=buildah
for candidate in docker podman; do
    if command -v "$candidate" > /dev/null && "$candidate" info > /dev/null 2>&1; then
        engine=$candidate
        break
    fi
done
need "$engine" "install docker, podman or buildah"
need curl "it sends requests to the server"
build
start
try
stop
[[ $stopped == 0 ]] || fail "SIGTERM: exit code $stopped"
log "ok: SIGTERM"
log "all checks passed"
