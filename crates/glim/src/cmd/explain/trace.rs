//! A run as a Chrome trace: complete events (`"ph": "X"`) in microseconds, a process for each rank.
//!
//! Format: "Trace Event Format" by Google, the JSON object form.

use std::path::Path;

use glim_engine::bench::Explained;
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::machine::read_bytes;

pub(super) fn write(path: &Path, explained: &Explained) -> Result<(), Failure> {
    let text = events(explained).to_string();
    std::fs::write(path, text).map_err(|error| {
        let message = format!("{}: cannot be written: {error}", path.display());
        Failure::new(Exit::Temporary, message)
    })
}

fn events(explained: &Explained) -> Json {
    let mut events = Vec::new();
    for (rank, profile) in explained.profiles.iter().enumerate() {
        events.push(json!({
            "name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": { "name": format!("rank {rank}") },
        }));
        for (op, time) in explained.ops.iter().zip(&profile.ops) {
            let mut args = json!({});
            // Costs are those of rank 0; the others' parts may be a little larger or smaller.
            if rank == 0 {
                args = json!({ "bytes": read_bytes(&op.cost), "flops": op.cost.flops });
            }
            events.push(json!({
                "name": op.label,
                "cat": op.kind,
                "ph": "X",
                "pid": rank,
                "tid": 0,
                "ts": time.start_ns as f64 / 1e3,
                "dur": time.ns() as f64 / 1e3,
                "args": args,
            }));
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
