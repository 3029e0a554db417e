//! Every call as nobody, with tokens that nobody has, and with each role.

use crate::calls::{Caller, methods};
use crate::fixture;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::server::Server;
use tonic::Code;

/// Which role each call needs: 1 query, 2 publish, 3 admin. Written for the test, beside what the programs have.
const NEEDS: &[(&str, &[(&str, u8)])] = &[
    (
        "Indexer",
        &[
            ("FindMatches", 1),
            ("FindMatchesStream", 1),
            ("DumpWorker", 1),
            ("ListWorkers", 1),
            ("RegisterWorker", 2),
            ("RemoveWorker", 2),
            ("RecordPlacement", 1),
            ("ReportReuse", 2),
            ("CreateCheckpoint", 3),
            ("GetStats", 1),
        ],
    ),
    ("EventIngest", &[("PublishEvents", 2)]),
    ("WorkerLoads", &[("ReportLoad", 2), ("WatchLoads", 1)]),
    (
        "BlockManager",
        &[
            ("OpenSession", 2),
            ("EndSession", 2),
            ("Allocate", 2),
            ("Write", 2),
            ("Commit", 2),
            ("Abort", 2),
            ("MatchPrefix", 2),
            ("Onboard", 2),
            ("Offload", 2),
            ("Read", 2),
            ("Verify", 2),
            ("Release", 2),
            ("Pin", 2),
            ("Unpin", 2),
            ("Fetch", 2),
            ("GetStats", 2),
        ],
    ),
    ("LocalIndexer", &[("GetEvents", 1), ("Dump", 1), ("GetDigests", 1), ("GetStatus", 1)]),
    (
        "Router",
        &[
            ("SelectWorker", 1),
            ("MarkPrefillCompleted", 1),
            ("ReportOutput", 1),
            ("Free", 1),
            ("GetLoads", 1),
            ("WatchLoads", 1),
            ("GetBusyThresholds", 1),
            ("SetBusyThresholds", 3),
        ],
    ),
];

/// What every port has beside.
const SIDE: &[&str] = &[
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

async fn code(caller: &Caller, path: &str) -> Code {
    // Without a message that means anything: what is denied is denied before it is read.
    caller.begin(path, &()).await.map_or_else(|status| status.code(), |()| Code::Ok)
}

/// Calls everything that a port serves as nobody and with each role.
async fn check(port: &Server, services: &[&str]) -> Result<()> {
    let address = port.addresses.grpc;
    let nobody = Caller::connect(address, None).await?;
    let strangers = [
        nobody.clone(),
        nobody.authorized("Bearer "),
        nobody.authorized("Bearer unknown"),
        nobody.authorized("Basic admin"),
        nobody.authorized("admin"),
    ];
    let mut paths: Vec<_> = SIDE.iter().map(|path| (*path).to_owned()).collect();
    for service in services {
        paths.extend(methods(service)?);
    }
    for path in paths.iter().map(String::as_str).chain(["/kvasir.v1.Indexer/None", "/none/None"]) {
        for (number, stranger) in strangers.iter().enumerate() {
            let code = code(stranger, path).await;
            ensure!(code == Code::Unauthenticated, "{path} as stranger {number}: {code:?}");
        }
    }
    for service in services {
        let (_, needs) = NEEDS.iter().find(|(of, _)| of == service).context("a service")?;
        ensure!(methods(service)?.len() == needs.len(), "the table lacks methods of {service}");
        for (method, needed) in *needs {
            let path = format!("/kvasir.v1.{service}/{method}");
            for (role, token) in [(1, "query"), (2, "publish"), (3, "admin")] {
                let caller = nobody.authorized(&format!("bearer {token}"));
                let is_denied = code(&caller, &path).await == Code::PermissionDenied;
                let may = role == *needed || role == 3;
                ensure!(is_denied != may, "{path} as {token}: denied {is_denied}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_index_answers_those_who_have_the_role() -> Result<()> {
    let (mut index, _folder) = fixture::index(&[]).await?;
    check(&index, &["Indexer", "EventIngest"]).await?;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn agents_answer_those_who_have_the_role() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let target = format!("http://{}", index.addresses.grpc);
    let file = folder.path().join("identities.toml");
    let token = folder.path().join("token");
    std::fs::write(&token, "publish\n")?;
    let file = file.display().to_string();
    let token = token.display().to_string();
    let flags = [
        ["--identities", &file],
        ["--token-file", &token],
        ["--indexers", &target],
        ["--worker-id", "w"],
        ["--model", "m1"],
        ["--tenant", "a"],
        ["--block-size", "16"],
        ["--blocks-host", "bytes=64KiB"],
        ["--blocks-geometry", "bytes=4KiB"],
    ];
    let mut agent = Server::agent(&flags.concat()).await?;
    check(&agent, &["LocalIndexer", "WorkerLoads", "EventIngest", "BlockManager"]).await?;
    // The call does not name the worker, and the denial does not either.
    let other = Caller::connect(agent.addresses.grpc, Some("publish-b")).await?;
    let request = pb::GetBlockStatsRequest {};
    let denied = other.call("/kvasir.v1.BlockManager/GetStats", &request).await;
    let denied = denied.err().context("another tenant is let in")?;
    let expected = "identity \"publish-b\" may not act for this worker";
    ensure!(denied.code() == Code::PermissionDenied && denied.message() == expected, "{denied:?}");
    agent.stop().await;
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn routers_answer_those_who_have_the_role() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let mut router = fixture::router(&index, &folder).await?;
    check(&router, &["Router"]).await?;
    router.stop().await;
    index.stop().await;
    Ok(())
}
