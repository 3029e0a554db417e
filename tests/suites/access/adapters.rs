//! Adapters that registrations announce: gateways serve each as a model of its tenant.

use crate::calls::Caller;
use crate::fixture;
use anyhow::{Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::server::Server;
use std::net::SocketAddr;
use tempfile::TempDir;
use tonic::Code;

const IDENTITIES: &[fixture::Identity<'_>] = &[
    ("one", "roles = [\"publish\"]\nmodels = [\"m1\", \"m1-*\"]\nworkers = [\"*\"]"),
    ("admin-one", "roles = [\"admin\"]\nmodels = [\"m1\"]"),
    ("all", "roles = [\"publish\"]\nworkers = [\"*\"]"),
];

/// The answer to a registration of a worker of `m1` that has loaded an adapter.
async fn announce(caller: &Caller, token: &str, adapter: &str) -> (Code, String) {
    let request = pb::RegisterWorkerRequest {
        worker_id: format!("{token}-{adapter}"),
        model: "m1".to_owned(),
        block_size: 4,
        lora_names: vec![pb::LoraName { id: 1, name: adapter.to_owned() }],
        ..Default::default()
    };
    let caller = caller.authorized(&format!("Bearer {token}"));
    match caller.call("/kvasir.v1.Indexer/RegisterWorker", &request).await {
        Ok(_registered) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

/// Who is limited to some models would get the requests for another one's adapter otherwise.
#[tokio::test]
async fn nobody_announces_an_adapter_of_a_model_that_is_not_its_own() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("identities.toml");
    fixture::write(&file, IDENTITIES)?;
    let file = file.display().to_string();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut index = Server::start_with(any, any, &["--identities", &file]).await?;
    let caller = Caller::connect(index.addresses.grpc, None).await?;
    for (token, adapter, wanted) in [
        ("one", "m1-sql", Code::Ok),
        ("one", "m2-sql", Code::PermissionDenied),
        ("one", "m2", Code::PermissionDenied),
        ("admin-one", "m2-sql", Code::PermissionDenied),
        ("all", "m2-sql", Code::Ok),
    ] {
        let (code, text) = announce(&caller, token, adapter).await;
        ensure!(code == wanted, "{token}, {adapter}: {code:?} {text}");
        let names = text.contains("lora_names") && text.contains(adapter);
        ensure!(code == Code::Ok || names, "{text}");
    }
    index.stop().await;
    Ok(())
}
