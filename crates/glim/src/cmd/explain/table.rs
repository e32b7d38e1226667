//! The tables that people read: sums by kind of operation, then the costliest operations.

use std::collections::HashMap;

use glim_engine::bench::{ExplainedOp, Size};

use super::Report;
use crate::machine::read_bytes;

/// Several operations in one line; times in seconds.
#[derive(Debug, Default, Clone)]
struct Line {
    name: String,
    kind: &'static str,
    ops: usize,
    seconds: f64,
    gap: f64,
    bytes: f64,
    roofline: f64,
}

impl Line {
    fn add(&mut self, report: &Report<'_>, op: &ExplainedOp) {
        self.kind = op.kind;
        self.ops += 1;
        self.seconds += op.seconds;
        self.gap += op.gap;
        self.bytes += read_bytes(&op.cost);
        self.roofline += report.roofline(op);
    }

    fn text(&self, step: f64) -> String {
        // An operation that reads next to nothing is not waiting for memory: a share would say nothing.
        let of_roofline = match self.bytes >= 4096.0 && self.seconds > 0.0 {
            true => format!("{:.0} %", self.roofline / self.seconds * 100.0),
            false => String::new(),
        };
        format!(
            "{:>5} {:>9.3} {:>6.1} % {:>10.3} {:>11.4} {of_roofline:>11} {:>8.3}",
            self.ops,
            self.seconds * 1e3,
            self.seconds / step * 100.0,
            self.bytes / 1e6,
            self.roofline * 1e3,
            self.gap * 1e3,
        )
    }
}

const COLUMNS: &str = "  ops        ms  of step         MB roofline ms of roofline   gap ms";

pub(super) fn page(report: &Report<'_>, top: usize, each: bool) -> String {
    let explained = report.explained;
    let step = explained.step;
    let mut out = format!(
        "{}: {}{}\n\n",
        report.model,
        what(explained.size),
        match report.world_size {
            1 => String::new(),
            n => format!(", rank {} of {n}", report.rank),
        }
    );
    let sum = |of: &dyn Fn(&ExplainedOp) -> f64| explained.ops.iter().map(of).sum::<f64>();
    let roofline = sum(&|op| report.roofline(op));
    let per_rank = if report.world_size > 1 { " a rank" } else { "" };
    out += &format!("device          {}\n", report.device);
    out += &format!(
        "read bandwidth  {:.1} GB/s{per_rank}\n",
        report.machine.read_bandwidth / 1e9
    );
    out += &format!("step            {:.3} ms, watched\n", step * 1e3);
    out += &format!(
        "unwatched       {:.3} ms from step to step, as generation runs; watched it takes {:+.1} %\n",
        explained.unwatched * 1e3,
        (step / explained.unwatched - 1.0) * 100.0
    );
    out += &format!(
        "roofline        {:.3} ms, {:.0} % of the step\n",
        roofline * 1e3,
        roofline / step * 100.0
    );
    let (ops, gaps) = (sum(&|op| op.seconds), sum(&|op| op.gap));
    out += &format!(
        "operations      {:.3} ms in {}, with gaps of {:.3} ms: {:.3} ms, {:.1} % of the step\n",
        ops * 1e3,
        explained.ops.len(),
        gaps * 1e3,
        (ops + gaps) * 1e3,
        explained.accounted() * 100.0
    );
    out += &format!(
        "collectives     {:.1} % of the step\n\n",
        explained.collective_share() * 100.0
    );

    let kinds = lines(report, |op| op.kind.to_owned());
    out += &format!("{:<16}{COLUMNS}\n", "kind");
    for line in &kinds {
        out += &format!("{:<16}{}\n", line.name, line.text(step));
    }
    let ops = match each {
        true => lines(report, |op| op.label.clone()),
        false => lines(report, |op| over_layers(&op.label)),
    };
    let shown = &ops[..top.min(ops.len())];
    if shown.is_empty() {
        return out;
    }
    let lengths = shown.iter().map(|l| l.name.chars().count());
    let width = lengths.max().unwrap_or(0).max("operation".len());
    out += &format!("\n{:<width$}  {:<14}{COLUMNS}\n", "operation", "kind");
    for line in shown {
        out += &format!(
            "{:<width$}  {:<14}{}\n",
            line.name,
            line.kind,
            line.text(step)
        );
    }
    let rest = &ops[shown.len()..];
    if !rest.is_empty() {
        let seconds: f64 = rest.iter().map(|line| line.seconds).sum();
        out += &format!(
            "{} more: {:.3} ms, {:.1} % of the step\n",
            rest.len(),
            seconds * 1e3,
            seconds / step * 100.0
        );
    }
    out
}

fn what(size: Size) -> String {
    let context = match size.context() {
        0 => "an empty context".to_owned(),
        n => format!("{n} tokens of context"),
    };
    match size {
        Size::Decode { rows: 1, .. } => format!("decode of 1 row with {context}"),
        Size::Decode { rows, .. } => format!("decode of {rows} rows with {context} each"),
        Size::Prefill { tokens, .. } => format!("prefill of {tokens} tokens after {context}"),
    }
}

/// Sums of operations that have the same name, costliest first.
fn lines(report: &Report<'_>, name: impl Fn(&ExplainedOp) -> String) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for op in &report.explained.ops {
        let name = name(op);
        let place = *places.entry(name.clone()).or_insert_with(|| {
            lines.push(Line {
                name,
                ..Line::default()
            });
            lines.len() - 1
        });
        lines[place].add(report, op);
    }
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    lines
}

/// `blk.3.attn_q_b` as `blk.*.attn_q_b`; what is fused of parts of layers has that in front of them once.
fn over_layers(label: &str) -> String {
    let is_layer = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let in_layer = |part: &'_ str| {
        let (layer, rest) = part.strip_prefix("blk.")?.split_once('.')?;
        is_layer(&layer).then(|| rest.to_owned())
    };
    let parts: Option<Vec<String>> = label.split(" + ").map(in_layer).collect();
    match parts {
        Some(parts) => format!("blk.*.{}", parts.join(" + ")),
        None => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_name() {
        assert_eq!(over_layers("blk.12.attn_q_b"), "blk.*.attn_q_b");
        assert_eq!(
            over_layers("blk.1.ffn_residual + blk.2.attn_norm"),
            "blk.*.ffn_residual + attn_norm"
        );
        for alone in ["embed", "blk.x.attn", "blk.3", "blk..attn"] {
            assert_eq!(over_layers(alone), alone);
        }
    }
}
