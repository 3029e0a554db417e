//! Kvasir's `indexer-server`: gRPC.

use super::{Dump, Form, Latencies, MODEL, Programs, Subject, free_address, listening};
use crate::process::Server;
use crate::stream::{BLOCK_TOKENS, Prompt, WORKERS};
use anyhow::{Context, Result, bail, ensure};
use futures::channel::mpsc;
use kvasir_proto::hash::tokens_le;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::dump_worker_response::Part;
use kvasir_proto::pb::find_matches_stream_response::Outcome;
use kvasir_proto::pb::indexer_client::IndexerClient;
use prost::Message;
use std::collections::VecDeque;
use std::path::Path;
use tokio::process::Command;
use tokio::time::Instant;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// The server and the connection to it.
#[derive(Debug)]
pub struct Kvasir {
    server: Server,
    client: IndexerClient<Channel>,
    /// Stream for single queries.
    stream: Option<Stream>,
}

/// A stream of queries, as used by `router-client`.
#[derive(Debug)]
struct Stream {
    ask: mpsc::Sender<pb::FindMatchesRequest>,
    answers: Streaming<pb::FindMatchesStreamResponse>,
}

impl Stream {
    async fn open(client: &mut IndexerClient<Channel>, in_flight: usize) -> Result<Self> {
        let (ask, asked) = mpsc::channel(in_flight);
        let answers = client.find_matches_stream(asked).await?.into_inner();
        Ok(Self { ask, answers })
    }

    fn ask(&mut self, question: pb::FindMatchesRequest) -> Result<()> {
        self.ask.try_send(question).context("the stream takes what is in flight")
    }

    async fn answer(&mut self) -> Result<pb::FindMatchesResponse> {
        match self.answers.message().await?.context("the stream ended early")?.outcome {
            Some(Outcome::Matches(answer)) => Ok(answer),
            Some(Outcome::Error(error)) => bail!("a question is refused: {error:?}"),
            None => bail!("an answer is empty"),
        }
    }
}

fn worker_id(worker: usize) -> String {
    format!("worker-{worker}")
}

fn query(form: Form, prompt: &Prompt) -> pb::FindMatchesRequest {
    let mut request = pb::FindMatchesRequest { model: MODEL.to_owned(), ..Default::default() };
    match form {
        Form::Hashes => request.local_hashes.clone_from(&prompt.local_hashes),
        Form::Tokens => request.token_ids_le = tokens_le(&prompt.tokens).into_owned().into(),
    }
    request
}

/// True if the answer names exactly the prompt's holder, with all its blocks.
fn is_right(answer: &pb::FindMatchesResponse, prompt: &Prompt) -> bool {
    let [only] = &*answer.matches else { return false };
    only.worker_id == worker_id(prompt.worker)
        && only.matched_blocks as usize == prompt.local_hashes.len()
}

impl Subject for Kvasir {
    const NAME: &'static str = "kvasir";
    type Question = pb::FindMatchesRequest;

    async fn start(programs: &Programs, log: &Path) -> Result<Self> {
        let address = free_address()?;
        let http = free_address()?;
        let mut command = Command::new(&programs.indexer_server);
        command.args(["--listen", &address.to_string(), "--http-listen", &http.to_string()]);
        let mut server = Server::start(command, log)?;
        listening(&mut server, address, log).await?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        let client = IndexerClient::new(endpoint.connect().await?)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        Ok(Self { server, client, stream: None })
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    async fn register(&mut self, worker: usize, port: u16) -> Result<()> {
        let endpoint = pb::EngineEndpoint {
            endpoint: format!("tcp://127.0.0.1:{port}"),
            ..Default::default()
        };
        let request = pb::RegisterWorkerRequest {
            worker_id: worker_id(worker),
            model: MODEL.to_owned(),
            block_size: BLOCK_TOKENS,
            engine: pb::Engine::Vllm.into(),
            endpoints: vec![endpoint],
            ..Default::default()
        };
        self.client.register_worker(request).await?;
        Ok(())
    }

    async fn applied_pairs(&mut self) -> Result<u64> {
        let stats = self.client.get_stats(pb::GetStatsRequest {}).await?.into_inner();
        Ok(stats.partitions.iter().map(|partition| partition.pairs).sum())
    }

    async fn ask(&mut self, form: Form, prompts: &[Prompt], requests: usize) -> Result<Latencies> {
        let prepared: Vec<_> = prompts.iter().map(|prompt| query(form, prompt)).collect();
        let mut latencies = Latencies::default();
        for (prompt, request) in prompts.iter().zip(&prepared).cycle().take(requests) {
            let request = request.clone();
            let asked = Instant::now();
            let answer = self.client.find_matches(request).await?.into_inner();
            latencies.each.push(asked.elapsed());
            latencies.wrong += u64::from(!is_right(&answer, prompt));
        }
        Ok(latencies)
    }

    async fn ask_pipelined(
        &mut self,
        form: Form,
        prompts: &[Prompt],
        requests: usize,
        in_flight: usize,
    ) -> Result<Option<Latencies>> {
        let prepared: Vec<_> = prompts.iter().map(|prompt| query(form, prompt)).collect();
        let mut stream = Stream::open(&mut self.client, in_flight).await?;
        let mut questions = prompts.iter().zip(&prepared).cycle().take(requests);
        let mut waiting = VecDeque::new();
        let mut latencies = Latencies::default();
        loop {
            while waiting.len() < in_flight
                && let Some((prompt, request)) = questions.next()
            {
                waiting.push_back((Instant::now(), prompt));
                stream.ask(request.clone())?;
            }
            let Some((since, prompt)) = waiting.pop_front() else { return Ok(Some(latencies)) };
            let answer = stream.answer().await?;
            latencies.each.push(since.elapsed());
            latencies.wrong += u64::from(!is_right(&answer, prompt));
        }
    }

    fn question(&self, prompt: &Prompt) -> pb::FindMatchesRequest {
        query(Form::Hashes, prompt)
    }

    async fn holds(
        &mut self,
        question: &pb::FindMatchesRequest,
        prompt: &Prompt,
        is_streamed: bool,
    ) -> Result<Option<bool>> {
        let answer = if is_streamed {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => none.insert(Stream::open(&mut self.client, 1).await?),
            };
            stream.ask(question.clone())?;
            stream.answer().await?
        } else {
            self.client.find_matches(question.clone()).await?.into_inner()
        };
        let is_held = is_right(&answer, prompt);
        ensure!(is_held || answer.matches.is_empty(), "other workers hold it: {answer:?}");
        Ok(Some(is_held))
    }

    async fn dump(&mut self) -> Result<Dump> {
        let mut pairs = 0;
        let mut bytes = 0;
        let started = Instant::now();
        for worker in 0..WORKERS {
            let request = pb::DumpWorkerRequest {
                model: MODEL.to_owned(),
                worker_id: worker_id(worker),
                ..Default::default()
            };
            let mut parts = self.client.dump_worker(request).await?.into_inner();
            let mut records = 0;
            let mut announced = 0;
            while let Some(message) = parts.message().await? {
                bytes += message.encoded_len() as u64;
                match message.part {
                    Some(Part::Chunk(chunk)) => {
                        records += chunk.records.len() as u64;
                        pairs += chunk.records.iter().filter(|record| record.placed).count() as u64;
                    }
                    Some(Part::Meanings(_)) => {}
                    Some(Part::End(end)) => announced += end.records,
                    None => bail!("a message of the dump is empty"),
                }
            }
            ensure!(records == announced, "{records} of {announced} records arrived");
        }
        Ok(Dump { pairs, bytes, wall: started.elapsed() })
    }

    async fn stop(self) -> Result<()> {
        self.server.stop().await
    }
}
