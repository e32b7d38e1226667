//! The process itself: memory, processor time, open files, start. Names as in the Prometheus client guidelines ("process metrics");
//! values from `/proc/self`, read at each scrape. What cannot be read is left out; elsewhere than on Linux that is all of it.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

#[derive(Debug)]
pub(super) struct Process;

#[cfg(target_os = "linux")]
impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        use procfs::process::{LimitValue, Process as Proc};

        let Ok(process) = Proc::myself() else {
            return Ok(());
        };
        if let Ok(stat) = process.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            let resident = stat.rss.saturating_mul(procfs::page_size());
            let cpu = stat.utime.saturating_add(stat.stime) as f64 / ticks;
            gauge(
                &mut encoder,
                "process_resident_memory_bytes",
                "Resident memory",
                resident as f64,
            )?;
            gauge(
                &mut encoder,
                "process_virtual_memory_bytes",
                "Virtual memory",
                stat.vsize as f64,
            )?;
            counter(
                &mut encoder,
                "process_cpu_seconds",
                "Processor time of all threads, user and system",
                cpu,
            )?;
            gauge(
                &mut encoder,
                "process_threads",
                "Threads",
                stat.num_threads as f64,
            )?;
            if let Ok(boot) = procfs::boot_time_secs() {
                gauge(
                    &mut encoder,
                    "process_start_time_seconds",
                    "Start of the process since the Unix epoch",
                    boot as f64 + stat.starttime as f64 / ticks,
                )?;
            }
        }
        if let Ok(count) = process.fd_count() {
            gauge(
                &mut encoder,
                "process_open_fds",
                "Open file descriptors",
                count as f64,
            )?;
        }
        if let Ok(limits) = process.limits() {
            let max = match limits.max_open_files.soft_limit {
                LimitValue::Value(max) => max as f64,
                LimitValue::Unlimited => f64::INFINITY,
            };
            gauge(
                &mut encoder,
                "process_max_fds",
                "Most open file descriptors that are allowed",
                max,
            )?;
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
impl Collector for Process {
    fn encode(&self, _encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    use prometheus_client::encoding::EncodeMetric as _;
    use prometheus_client::metrics::gauge::ConstGauge;

    let gauge = ConstGauge::new(value);
    let descriptor = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(descriptor)
}

#[cfg(target_os = "linux")]
fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    use prometheus_client::encoding::EncodeMetric as _;
    use prometheus_client::metrics::counter::ConstCounter;

    let counter = ConstCounter::new(value);
    let descriptor = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
    counter.encode(descriptor)
}
