//! Requests as lines of a file.

use crate::fleet::{Fleet, MODEL, free, request, tokens};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

#[tokio::test]
async fn requests_are_written_down_once_they_end() -> Result<()> {
    let folder = TempDir::new()?;
    let file = folder.path().join("requests.jsonl");
    let mut fleet = Fleet::start(1, &["--record", &file.display().to_string()]).await?;
    let chosen = fleet.select(request(tokens(0, 3))).await?;
    let report = pb::ReportOutputRequest {
        model: MODEL.to_owned(),
        request_id: chosen.request_id.clone(),
        output_tokens: 5,
        ..Default::default()
    };
    fleet.router.report_output(report).await?;
    fleet.router.free(free(&chosen.request_id)).await?;
    // A dry run is no request, and one under way is not written.
    fleet.select(pb::SelectWorkerRequest { dry_run: true, ..request(tokens(0, 2)) }).await?;
    fleet.select(request(tokens(0, 2))).await?;
    fleet.stop().await;
    let text = fs::read_to_string(&file)?;
    let mut lines = text.lines();
    let line: Value = serde_json::from_str(lines.next().context("a line")?)?;
    ensure!(lines.next().is_none(), "{text}");
    ensure!(line["input_length"] == 48 && line["output_length"] == 5, "{line}");
    ensure!(line["hash_ids"].as_array().map(Vec::len) == Some(3), "{line}");
    ensure!(line["worker"] == "w0" && line["ttft_ms"].is_f64(), "{line}");
    Ok(())
}
