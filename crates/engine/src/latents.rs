//! Whether each rank computes the small latents whole, or a part of them that is then gathered: what costs less.
//!
//! Whole, every rank reads `attn_q_a`, `attn_kv_a_mqa` and the indexer's matrices: in GLM-5 a third of what a rank of eight reads for
//! a token. By rows it reads its share, and pays for one or two more small collectives in every layer, which cost their latency.

use glim_model::shard::{Latents, Options};
use glim_model::{EmitError, EmitRequest, Inventory, emit};
use glim_plan::{CacheGeometry, Load, Plan, StepKind, plan_cost};

use crate::error::EngineError;

/// What a rank's memory and its way to the others can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankSpeeds {
    /// Bytes a second that one rank reads while all of them do.
    pub read_bandwidth: f64,
    /// Seconds that a small collective takes.
    pub collective_seconds: f64,
}

/// The estimate for one decoded token, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentsCost {
    /// Latents whole on each rank.
    pub whole: f64,
    /// By rows; `None` if some rank would have none.
    pub rows: Option<f64>,
}

impl LatentsCost {
    /// Estimates both for a model that is not cut yet.
    ///
    /// # Errors
    /// If the model cannot be cut over so many ranks.
    pub fn estimate(
        inventory: &Inventory,
        world_size: usize,
        speeds: &RankSpeeds,
    ) -> Result<Self, EngineError> {
        let plan = |latents| -> Result<Plan, EngineError> {
            let options = Options {
                latents,
                ..Options::default()
            };
            let cut = inventory.clone().over(world_size, &options)?;
            let geometry = CacheGeometry {
                block_size: 64,
                max_blocks: 1,
            };
            let request = EmitRequest {
                world_size,
                ..EmitRequest::new(StepKind::Decode { rows: 1 }, geometry)
            };
            Ok(emit(&cut, &request)?)
        };
        let seconds = |plan: &Plan| {
            let load = Load {
                rows: 1,
                outputs: 1,
                sequences: 1,
                context: 1,
            };
            let parts = plan.ops.iter().flat_map(|node| node.op.parts());
            let collectives = parts.filter(|part| part.collective().is_some()).count();
            plan_cost(plan, &load).weight_bytes / speeds.read_bandwidth
                + collectives as f64 * speeds.collective_seconds
        };
        let rows = match plan(Latents::Rows) {
            Ok(plan) => Some(seconds(&plan)),
            Err(EngineError::Emit(EmitError::IdleRank { .. })) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            whole: seconds(&plan(Latents::Replicated)?),
            rows,
        })
    }

    /// What costs less; whole where it is the same.
    pub fn choice(&self) -> Latents {
        match self.rows {
            Some(rows) if rows < self.whole => Latents::Rows,
            _ => Latents::Replicated,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use glim_model::Config;
    use glim_plan::GgmlType;

    use super::*;

    fn choice(read_bandwidth: f64, collective_seconds: f64) -> Latents {
        let inventory = Inventory::on_paper(&Config::glm5(), |_| GgmlType::Q8_0);
        let speeds = RankSpeeds {
            read_bandwidth,
            collective_seconds,
        };
        let cost = LatentsCost::estimate(&inventory, 8, &speeds).unwrap();
        cost.choice()
    }

    /// 25.5 M parameters a layer, of which seven eighths are saved, at 1.06 bytes: 24 MB, for two more collectives.
    #[test]
    fn rows_pay_where_two_collectives_cost_less_than_the_bytes_they_save() {
        assert_eq!(choice(1e12, 10e-6), Latents::Rows);
        assert_eq!(choice(1e12, 13e-6), Latents::Replicated);
        assert_eq!(choice(4e12, 2e-6), Latents::Rows);
        assert_eq!(choice(4e12, 4e-6), Latents::Replicated);
    }
}
