use procfs::process::{LimitValue, Process, Stat};
use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// The metrics that Prometheus' client libraries export for every process, under their usual names, without our prefix.
pub(super) fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics));
    registry
}

/// Collector that reads `/proc` at each scrape. Omits values that cannot be read.
#[derive(Debug)]
struct ProcessMetrics;

struct Figures {
    cpu_seconds: f64,
    start_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_fds: Option<u64>,
    /// `None` also stands for an unlimited number.
    max_fds: Option<u64>,
}

impl Figures {
    /// Reads the figures of this process from `/proc`.
    #[expect(clippy::cast_precision_loss, reason = "ticks since boot are far below 2^53")]
    fn read() -> ProcResult<Self> {
        let process = Process::myself()?;
        let Stat { utime, stime, starttime, rss, vsize, .. } = process.stat()?;
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
        let limit = process.limits().ok().map(|limits| limits.max_open_files.soft_limit);
        let max_fds = match limit {
            Some(LimitValue::Value(most)) => Some(most),
            Some(LimitValue::Unlimited) | None => None,
        };
        Ok(Self {
            cpu_seconds: seconds(utime.saturating_add(stime)),
            start_seconds: boot_time_secs()? as f64 + seconds(starttime),
            resident_bytes: rss.saturating_mul(page_size()),
            virtual_bytes: vsize,
            open_fds: process.fd_count().ok().map(|fds| fds as u64),
            max_fds,
        })
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(figures) = Figures::read() else { return Ok(()) };
        let seconds = Some(&Unit::Seconds);
        let bytes = Some(&Unit::Bytes);
        let help = "CPU time of the process, user and system";
        let cpu = encoder.encode_descriptor("process_cpu", help, seconds, MetricType::Counter)?;
        ConstCounter::new(figures.cpu_seconds).encode(cpu)?;
        let help = "Start time of the process, in seconds since 1970";
        let start =
            encoder.encode_descriptor("process_start_time", help, seconds, MetricType::Gauge)?;
        ConstGauge::new(figures.start_seconds).encode(start)?;
        let gauges = [
            (
                "process_resident_memory",
                "Resident memory of the process",
                bytes,
                Some(figures.resident_bytes),
            ),
            (
                "process_virtual_memory",
                "Virtual address space of the process",
                bytes,
                Some(figures.virtual_bytes),
            ),
            ("process_open_fds", "Open file descriptors of the process", None, figures.open_fds),
            (
                "process_max_fds",
                "Maximum number of open file descriptors of the process",
                None,
                figures.max_fds,
            ),
        ];
        for (name, help, unit, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use std::fs::File;

    fn value(name: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &registry()).expect("metrics as text");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().expect("a number")
    }

    #[test]
    fn the_process_exports_its_own_metrics() {
        // Other tests open and close files meanwhile, so the exact number is not checked.
        let many: Vec<_> =
            (0..100).map(|_| File::open("/proc/self/stat").expect("a file")).collect();
        assert!((100.0..value("process_max_fds")).contains(&value("process_open_fds")));
        drop(many);
        let resident = value("process_resident_memory_bytes");
        let mapped = value("process_virtual_memory_bytes");
        assert!(resident > 65_536.0 && mapped >= resident, "{resident} of {mapped}");
        // A time after 2020.
        assert!(value("process_start_time_seconds") > 1.577e9);
        // Each reading uses processor time, so the value grows.
        let used = value("process_cpu_seconds_total");
        while value("process_cpu_seconds_total") <= used {}
    }
}
