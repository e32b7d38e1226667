//! How a plan reads: one line an operation, results left, inputs right, names instead of ids.

use std::fmt;

use crate::buffer::{BufferId, BufferKind, Rows};
use crate::op::{Cols, Op};
use crate::plan::{Plan, StepKind};

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode { rows } => write!(f, "decode {rows} rows"),
            Self::Prefill { tokens, sequences } => {
                write!(f, "prefill {tokens} tokens, {sequences} sequences")
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan {} ({}), rank {} of {}",
            self.name, self.step, self.rank, self.world_size
        )?;
        writeln!(
            f,
            "cache: blocks of {} tokens, up to {} a sequence",
            self.geometry.block_size, self.geometry.max_blocks
        )?;
        let list = |f: &mut fmt::Formatter<'_>,
                    title: &str,
                    keep: fn(&BufferKind) -> bool|
         -> fmt::Result {
            writeln!(f, "{title}:")?;
            for (id, b) in self.buffers_where(keep) {
                writeln!(f, "  {} {}", b.name, self.kind_of(id))?;
            }
            Ok(())
        };
        list(f, "inputs", |k| matches!(k, BufferKind::Input(_)))?;
        list(f, "states", |k| {
            matches!(k, BufferKind::State(_) | BufferKind::Carry)
        })?;
        list(f, "results", |k| *k == BufferKind::Result)?;
        writeln!(f, "ops:")?;
        for (i, node) in self.ops.iter().enumerate() {
            self.op(f, &format!("{i:>4}"), &node.label, &node.op)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Type and shape, the row axis named: `F32[T:256, 8, 128]`.
    fn kind_of(&self, id: BufferId) -> String {
        let b = self.buffer(id);
        let mut dims: Vec<String> = b.shape.iter().map(ToString::to_string).collect();
        if let Some(first) = dims.first_mut() {
            match b.rows {
                Rows::Tokens => first.insert_str(0, "T:"),
                Rows::Outputs => first.insert_str(0, "N:"),
                Rows::Whole => {}
            }
        }
        format!("{}[{}]", b.dtype, dims.join(", "))
    }

    /// What an operation reads and writes, with types and shapes, which are capacities: `x F32[T:16, 64] -> y F32[T:16, 128]`. What is
    /// updated in place stands on both sides. For logs.
    pub fn shapes(&self, op: &Op) -> String {
        let access = op.access();
        let list = |lists: [&[BufferId]; 3]| {
            let each = lists.concat();
            let each = each
                .iter()
                .map(|id| format!("{} {}", self.buffer(*id).name, self.kind_of(*id)));
            each.collect::<Vec<_>>().join(", ")
        };
        let read = list([&access.reads, &access.updates, &[]]);
        let written = list([&access.writes, &access.updates, &access.appends]);
        format!("{read} -> {written}")
    }

    fn names(&self, ids: &[BufferId]) -> String {
        ids.iter()
            .map(|id| self.buffer(*id).name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn cols(&self, c: &Cols) -> String {
        let b = self.buffer(c.buffer);
        if c.start == 0 && Some(&c.len) == b.shape.last() {
            b.name.clone()
        } else {
            format!("{}[{}..{}]", b.name, c.start, c.start + c.len)
        }
    }

    fn op(&self, f: &mut fmt::Formatter<'_>, number: &str, label: &str, op: &Op) -> fmt::Result {
        let access = op.access();
        let outs = [&access.writes[..], &access.updates[..], &access.appends[..]].concat();
        let outs = outs
            .iter()
            .map(|id| format!("{} {}", self.buffer(*id).name, self.kind_of(*id)))
            .collect::<Vec<_>>();
        writeln!(
            f,
            "{number}  {label}: {} = {}({})",
            outs.join(", "),
            op.kind(),
            self.arguments(op)
        )?;
        if let Op::Fused { parts, .. } = op {
            for part in parts {
                self.op(f, "      ", "·", part)?;
            }
        }
        Ok(())
    }

    /// Weights, activations and constants; the paging and sampling inputs are the same everywhere and left out.
    fn arguments(&self, op: &Op) -> String {
        let weight = |id: &BufferId| format!("{} {}", self.buffer(*id).name, self.kind_of(*id));
        match op {
            Op::Embed {
                tokens,
                carry,
                table,
                ..
            } => {
                let carry = carry
                    .map(|c| format!(" or {}", self.names(&[c.carry])))
                    .unwrap_or_default();
                format!("{}{carry}, {}", self.names(&[*tokens]), weight(table))
            }
            Op::RmsNorm {
                x, weight: w, eps, ..
            } => format!("{}, {}, eps {eps:e}", self.cols(x), weight(w)),
            Op::LayerNorm {
                x,
                weight: w,
                bias,
                eps,
                ..
            } => {
                format!(
                    "{}, {}, {}, eps {eps:e}",
                    self.cols(x),
                    weight(w),
                    weight(bias)
                )
            }
            Op::Linear {
                x,
                weights,
                precision,
                ..
            } => {
                let weights = weights.iter().map(weight).collect::<Vec<_>>().join(", ");
                format!("{}, {weights}, {precision:?}", self.names(&[*x]))
            }
            Op::Rope { spec, .. } => {
                format!(
                    "{}..{}, {:?}, theta {}",
                    spec.start,
                    spec.start + spec.n,
                    spec.style,
                    spec.theta
                )
            }
            Op::CacheAppend { parts, .. } => parts
                .iter()
                .map(|p| self.cols(p))
                .collect::<Vec<_>>()
                .join(" ‖ "),
            Op::IndexScore {
                q,
                weights,
                keys,
                scale,
                ..
            } => format!("{}, scale {scale}", self.names(&[*q, *weights, *keys])),
            Op::IndexSelect {
                scores,
                topk,
                forced,
                ..
            } => {
                let forced = forced
                    .as_ref()
                    .map(|f| format!(", unless {}", self.cols(f)));
                format!(
                    "{}, top {topk}{}",
                    self.names(&[*scores]),
                    forced.unwrap_or_default()
                )
            }
            Op::MlaAttend {
                q_latent,
                q_rope,
                latent,
                topk,
                scale,
                ..
            } => {
                let at = topk.map_or_else(|| "all positions".into(), |t| self.names(&[t]));
                format!(
                    "{}, {}, {}, {at}, scale {scale}",
                    self.names(&[*q_latent]),
                    self.cols(q_rope),
                    self.names(&[*latent])
                )
            }
            Op::HeadProject { x, weight: w, .. } => format!("{}, {}", self.cols(x), weight(w)),
            Op::SwiGlu { gate, up, .. } => self.names(&[*gate, *up]),
            Op::Route {
                x,
                weight: w,
                bias,
                spec,
                ..
            } => {
                let bias = bias
                    .as_ref()
                    .map(|b| format!(" + {}", weight(b)))
                    .unwrap_or_default();
                let groups = match spec.n_group {
                    1 => String::new(),
                    n => format!(" in {} of {n} groups", spec.topk_group),
                };
                let norm = if spec.norm { "normed, " } else { "" };
                format!(
                    "{}, {}{bias}, top {}{groups} by {:?}, {norm}scale {}",
                    self.names(&[*x]),
                    weight(w),
                    spec.k,
                    spec.scoring,
                    spec.scale
                )
            }
            Op::ExpertFfn {
                x,
                ids,
                expert_weights,
                gate,
                up,
                down,
                ..
            } => {
                format!(
                    "{}, {}, {}, {}",
                    self.names(&[*x, *ids, *expert_weights]),
                    weight(gate),
                    weight(up),
                    weight(down)
                )
            }
            Op::Add { a, b, .. } => self.names(&[*a, *b]),
            Op::SelectRows { x, output_rows, .. } => self.names(&[*x, *output_rows]),
            Op::LmHead { x, weight: w, .. } => format!("{}, {}", self.names(&[*x]), weight(w)),
            Op::AllReduce { id, wire, x, .. } => {
                format!("{}, #{} as {wire}", self.names(&[*x]), id.0)
            }
            Op::AllGather { id, wire, gathers } => {
                let parts: Vec<_> = gathers.iter().map(|g| g.x).collect();
                format!("{}, #{} as {wire}", self.names(&parts), id.0)
            }
            Op::TopKMerge { values, ids, k, .. } => {
                format!("{}, top {k}", self.names(&[*values, *ids]))
            }
            Op::Shortlist {
                logits,
                first_id,
                k,
                ..
            } => format!("{}, top {k} from token {first_id}", self.names(&[*logits])),
            Op::Sample { logits, ids, .. } => {
                let read: Vec<_> = std::iter::once(*logits).chain(*ids).collect();
                self.names(&read)
            }
            Op::Fused { parts, .. } => format!("{} parts", parts.len()),
        }
    }
}
