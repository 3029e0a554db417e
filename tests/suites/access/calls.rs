//! Any call of any service, by its path, with a message that is encoded already.

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{StreamExt, stream};
use kvasir_proto::pb::FILE_DESCRIPTOR_SET;
use kvasir_tests::raw_codec::RawCodec;
use prost::Message;
use std::net::SocketAddr;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// A connection on which anything can be called.
#[derive(Debug, Clone)]
pub struct Caller {
    channel: Channel,
    authorization: Option<String>,
}

impl Caller {
    /// Connects to a port, with a token or none.
    pub async fn connect(address: SocketAddr, token: Option<&str>) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        let channel = endpoint.connect().await.context("connect")?;
        Ok(Self { channel, authorization: token.map(|token| format!("Bearer {token}")) })
    }

    /// The same connection with another `authorization`, as it is written in the header.
    pub fn authorized(&self, authorization: &str) -> Self {
        Self { authorization: Some(authorization.to_owned()), ..self.clone() }
    }

    /// Calls a method with one message, and returns all answers.
    pub async fn call(&self, path: &str, message: &impl Message) -> Result<Vec<Bytes>, Status> {
        self.call_all(path, &[message.encode_to_vec()]).await
    }

    /// Whether a call with one message is let in, however long its answers go on.
    pub async fn begin(&self, path: &str, message: &impl Message) -> Result<(), Status> {
        self.open(path, &[message.encode_to_vec()]).await.map(drop)
    }

    /// Calls a method with some messages, and returns all answers. A server takes a call with one request like a stream of one
    /// request.
    pub async fn call_all(&self, path: &str, messages: &[Vec<u8>]) -> Result<Vec<Bytes>, Status> {
        let answers = self.open(path, messages).await?;
        answers.collect::<Vec<_>>().await.into_iter().collect()
    }

    async fn open(&self, path: &str, messages: &[Vec<u8>]) -> Result<Streaming<Bytes>, Status> {
        let messages: Vec<_> = messages.iter().cloned().map(Bytes::from).collect();
        let mut request = Request::new(stream::iter(messages));
        if let Some(authorization) = &self.authorization {
            let value = authorization.parse().map_err(|_error| Status::internal("a header"))?;
            request.metadata_mut().insert("authorization", value);
        }
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = path.parse().map_err(|_error| Status::internal("a path"))?;
        Ok(grpc.streaming(request, path, RawCodec).await?.into_inner())
    }
}

/// The paths of all methods of a service of ours.
pub fn methods(service: &str) -> Result<Vec<String>> {
    let files = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)?;
    let services = files.file.iter().flat_map(|file| &file.service);
    let service = services.clone().find(|at| at.name() == service).context("no such service")?;
    let paths = service.method.iter();
    Ok(paths.map(|method| format!("/kvasir.v1.{}/{}", service.name(), method.name())).collect())
}
