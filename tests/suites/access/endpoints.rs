//! Endpoints that registrations may name.

use crate::calls::Caller;
use crate::fixture;
use anyhow::{Result, ensure};
use kvasir_proto::pb;
use tonic::Code;

async fn register(
    caller: &Caller,
    token: &str,
    endpoint: pb::EngineEndpoint,
) -> Result<(Code, String)> {
    let request = pb::RegisterWorkerRequest {
        worker_id: "w-endpoint".to_owned(),
        model: "m1".to_owned(),
        tenant: "a".to_owned(),
        block_size: 4,
        endpoints: vec![endpoint],
        ..Default::default()
    };
    let caller = caller.authorized(&format!("Bearer {token}"));
    let called = caller.call("/kvasir.v1.Indexer/RegisterWorker", &request).await;
    Ok(called.map_or_else(
        |status| (status.code(), status.message().to_owned()),
        |_answers| (Code::Ok, String::new()),
    ))
}

#[tokio::test]
async fn a_publisher_has_the_server_dial_only_where_the_operator_lets_it() -> Result<()> {
    let places = ["--endpoint-places", "10.9.0.0/16,*.engines.example"];
    let (mut index, _folder) = fixture::index(&places).await?;
    let caller = Caller::connect(index.addresses.grpc, None).await?;
    let at =
        |endpoint: &str| pb::EngineEndpoint { endpoint: endpoint.to_owned(), ..Default::default() };
    let (code, text) = register(&caller, "publish-a", at("tcp://192.0.2.1:5557")).await?;
    ensure!(
        code == Code::PermissionDenied && text.contains("--endpoint-places"),
        "{code:?} {text}"
    );
    let listen = pb::EngineEndpoint { bind: true, ..at("tcp://127.0.0.1:0") };
    let (code, text) = register(&caller, "publish-a", listen.clone()).await?;
    ensure!(code == Code::PermissionDenied && text.contains("endpoints.bind"), "{code:?} {text}");
    let (code, text) = register(&caller, "publish-a", at("tcp://a.engines.example:5557")).await?;
    ensure!(code == Code::Ok, "{text}");
    index.stop().await;
    Ok(())
}
