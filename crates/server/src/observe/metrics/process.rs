//! Standard process metrics under Prometheus's names. Linux only: they are read from /proc.

use super::MetricsText;
use std::fs;

/// Name, type and help of each metric, in the order of [`read`].
const FAMILIES: [(&str, &str, &str); 6] = [
    ("process_cpu_seconds_total", "counter", "Processor time of the process."),
    ("process_start_time_seconds", "gauge", "When the process began, since 1970."),
    ("process_virtual_memory_bytes", "gauge", "Address space of the process."),
    ("process_resident_memory_bytes", "gauge", "Memory of the process."),
    ("process_open_fds", "gauge", "File descriptors that are open."),
    ("process_max_fds", "gauge", "The most that may be."),
];

pub(super) fn write(text: &mut MetricsText) {
    let Some(values) = read() else { return };
    for ((name, kind, help), value) in FAMILIES.into_iter().zip(values) {
        text.family(name, kind, help);
        text.plain(name, value);
    }
}

fn read() -> Option<[f64; FAMILIES.len()]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The process name before the parenthesis may contain anything; numeric fields follow, starting
    // with the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let booted = fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = booted.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Some([
        (field(14)? + field(15)?) / ticks,
        booted + field(22)? / ticks,
        field(23)?,
        field(24)? * rustix::param::page_size() as f64,
        fs::read_dir("/proc/self/fd").ok()?.count() as f64,
        limits.current.map_or(f64::INFINITY, |most| most as f64),
    ])
}
