#!/usr/bin/env bash
# kube 5.0.0 (Rust client of Kubernetes): after 410 Gone by HTTP status, the watcher asks for the same version again, without end.
#
# An API server may say in two ways that it no longer knows the resource version of a watch: by the status of the answer, or by
# an ERROR event in an answer of status 200. After the event, kube::runtime::watcher lists anew. After the status, it reports
# WatchStartFailed, keeps the version and asks for it again, so that the list of objects stays as it was. Whoever holds such a
# stream has to make a new one.
#
# Needs cargo (Rust 1.89 or later) and crates.io: 2 to 4 minutes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'END'
[package]
name = "gone"
version = "0.0.0"
edition = "2024"

[dependencies]
futures = "=0.3.31"
k8s-openapi = { version = "=0.29.0", features = ["v1_33"] }
kube = { version = "=5.0.0", default-features = false, features = ["client", "runtime"] }
tokio = { version = "1", features = ["io-util", "macros", "net", "rt", "sync"] }
END
cat >"$folder/src/main.rs" <<'END'
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::{Config, watcher};
use kube::{Api, Client};
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const LIST: &str = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
const GONE: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old","reason":"Expired","code":410}"#;

/// Answers each list, and each watch with 410.
async fn serve(listener: TcpListener, by_status: bool, asked: UnboundedSender<&'static str>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let is_watch = String::from_utf8_lossy(&head).contains("resourceVersion=7");
        let (status, body) = match (is_watch, by_status) {
            (false, _) => ("200 OK", LIST.to_owned()),
            (true, true) => ("410 Gone", GONE.to_owned()),
            (true, false) => ("200 OK", format!("{{\"type\":\"ERROR\",\"object\":{GONE}}}\n")),
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        if asked.send(if is_watch { "watch from 7" } else { "list" }).is_err() {
            return;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for by_status in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let (asks, mut asked) = unbounded_channel();
        let server = tokio::spawn(serve(listener, by_status, asks));
        let api = Api::<ConfigMap>::namespaced(Client::try_from(config).unwrap(), "default");
        let mut events = pin!(watcher(api, Config::default()));
        let mut seen = Vec::new();
        while seen.len() < 7 {
            tokio::select! {
                Some(_event) = events.next() => {}
                Some(kind) = asked.recv() => seen.push(kind),
            }
        }
        server.abort();
        println!("410 by {}: {}", if by_status { "status" } else { "event" }, seen.join(", "));
    }
}
END
(cd "$folder" && CARGO_TARGET_DIR="$folder/target" cargo build --quiet)
seen=$("$folder/target/debug/gone")
echo "$seen"
[ "$seen" = "410 by event: list, watch from 7, list, watch from 7, list, watch from 7, list
410 by status: list, watch from 7, watch from 7, watch from 7, watch from 7, watch from 7, watch from 7" ]
# Seen on 2026-11-30 with kube 5.0.0:
#   410 by event: list, watch from 7, list, watch from 7, list, watch from 7, list
#   410 by status: list, watch from 7, watch from 7, watch from 7, watch from 7, watch from 7, watch from 7
