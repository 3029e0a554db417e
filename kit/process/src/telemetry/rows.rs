use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// A value with its labels.
pub type Row = (Vec<(&'static str, String)>, u64);

/// Writes a collector's gauge: its current values, by labels.
///
/// # Errors
/// If a value cannot be written as text.
pub fn encode_gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    encode(to, name, help, MetricType::Gauge, rows, ConstGauge::new)
}

/// Writes a collector's counter: its current values, by labels.
///
/// # Errors
/// If a value cannot be written as text.
pub fn encode_counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: Vec<Row>,
) -> Result<(), fmt::Error> {
    encode(to, name, help, MetricType::Counter, rows, ConstCounter::new)
}

/// Writes one metric with all its rows.
fn encode<M: EncodeMetric>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    rows: Vec<Row>,
    metric: fn(u64) -> M,
) -> Result<(), fmt::Error> {
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in rows {
        metric(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
