//! Names that people would not see as they are: in the log, in a list, on a dashboard.

use crate::harness::Siege;
use anyhow::{Result, ensure};
use futures::stream;
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::publish_events_response::Message as Answer;
use kvasir_sim::client;
use tonic::transport::Channel;
use tonic::{Code, Status};

const BLOCK_SIZE: u32 = 16;
/// A control character, and those that are not shown or turn the text around.
const HIDDEN: [char; 6] = ['\u{1b}', '\u{200b}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}'];

fn registration() -> pb::RegisterWorkerRequest {
    pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    }
}

/// Registrations with a name in one field.
fn registrations(name: &str) -> Vec<(&'static str, pb::RegisterWorkerRequest)> {
    let label = |key: &str, value: &str| {
        let labels = vec![pb::Label { key: key.to_owned(), value: value.to_owned() }];
        Some(pb::WorkerProfile { labels, ..Default::default() })
    };
    let name = || name.to_owned();
    let lora_names = vec![pb::LoraName { id: 1, name: name() }];
    vec![
        ("worker_id", pb::RegisterWorkerRequest { worker_id: name(), ..registration() }),
        ("model", pb::RegisterWorkerRequest { model: name(), ..registration() }),
        ("tenant", pb::RegisterWorkerRequest { tenant: name(), ..registration() }),
        ("lora_names[0].name", pb::RegisterWorkerRequest { lora_names, ..registration() }),
        (
            "profile.labels[0].key",
            pb::RegisterWorkerRequest { profile: label(&name(), "a"), ..registration() },
        ),
        (
            "profile.labels[0].value",
            pb::RegisterWorkerRequest { profile: label("a", &name()), ..registration() },
        ),
    ]
}

fn refused(status: &Status, field: &str) -> Result<()> {
    let names_field = status.message().contains(field);
    ensure!(status.code() == Code::InvalidArgument && names_field, "{field}: {status}");
    Ok(())
}

/// The first error of a stream of events.
async fn publish(
    ingest: &mut EventIngestClient<Channel>,
    messages: Vec<Message>,
) -> Result<Status> {
    let requests =
        messages.into_iter().map(|message| pb::PublishEventsRequest { message: Some(message) });
    let answers = ingest.publish_events(stream::iter(requests.collect::<Vec<_>>())).await;
    let mut answers = match answers {
        Ok(answers) => answers.into_inner(),
        Err(status) => return Ok(status),
    };
    loop {
        match answers.message().await {
            Ok(Some(answer)) => {
                // A batch is refused alone: the stream goes on.
                if let Some(Answer::Refusal(refusal)) = answer.message {
                    ensure!(refusal.reason() == pb::RefusalReason::Invalid, "{refusal:?}");
                    return Ok(Status::invalid_argument(refusal.message));
                }
            }
            Ok(None) => anyhow::bail!("it is taken"),
            Err(status) => return Ok(status),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_hide_something_are_refused_by_their_field() -> Result<()> {
    let siege = Siege::begin(&[]).await?;
    let mut indexer = client::connect(siege.grpc()).await?;
    let mut ingest = EventIngestClient::connect(format!("http://{}", siege.grpc())).await?;
    indexer.register_worker(registration()).await?;
    for hidden in HIDDEN {
        let name = format!("a{hidden}b");
        for (field, request) in registrations(&name) {
            match indexer.register_worker(request).await {
                Ok(_created) => anyhow::bail!("{field} with U+{:04X} is taken", u32::from(hidden)),
                Err(status) => refused(&status, field)?,
            }
        }
        let hello = |source: &str| {
            Message::Hello(pb::PublishHello {
                model: "m".to_owned(),
                worker_id: "w".to_owned(),
                source: source.to_owned(),
                block_size: BLOCK_SIZE,
                incarnation: vec![7; 16].into(),
                ..Default::default()
            })
        };
        refused(&publish(&mut ingest, vec![hello(&name)]).await?, "source")?;
        let stored = pb::BlocksStored {
            names: vec![1],
            token_ids_le: vec![0; 4 * BLOCK_SIZE as usize].into(),
            lora_name: name.clone(),
            ..Default::default()
        };
        let event = pb::PublishedEvent { event: Some(pb::published_event::Event::Stored(stored)) };
        let batch = pb::PublishBatch { sequence: 0, dp_rank: 0, events: vec![event] };
        let status = publish(&mut ingest, vec![hello("plain"), Message::Batch(batch)]).await?;
        refused(&status, "lora_name")?;
    }
    siege.end().await
}
