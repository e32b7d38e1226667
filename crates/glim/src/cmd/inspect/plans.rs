//! Plans for `inspect`: made as the engine makes them, printed and priced without loading a weight.

use std::str::FromStr;

use glim_cpu::{CpuBackend, CpuOptions};
use glim_engine::EngineOptions;
use glim_model::{EmitRequest, Inventory, emit};
use glim_plan::{
    Backend, CacheGeometry, Caps, Cost, Load, Plan, StepKind, arrange, fuse, plan_cost,
};
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::units;

/// Most rows of a plan that can be asked for.
const MAX_ROWS: usize = 1 << 16;

/// The value of `--plan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanChoice {
    /// One decode and one prefill step, as the engine runs them.
    Usual,
    /// This one.
    One(StepKind),
}

impl FromStr for PlanChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::Usual);
        }
        let expected = || format!("expected decode:ROWS or prefill:TOKENS, with 1 to {MAX_ROWS}");
        let (kind, n) = text.split_once(':').ok_or_else(expected)?;
        let n = n
            .parse()
            .ok()
            .filter(|n| (1..=MAX_ROWS).contains(n))
            .ok_or_else(expected)?;
        match kind {
            "decode" => Ok(Self::One(StepKind::Decode { rows: n })),
            "prefill" => Ok(Self::One(StepKind::Prefill {
                tokens: n,
                sequences: 1,
            })),
            _ => Err(expected()),
        }
    }
}

impl PlanChoice {
    pub(super) fn steps(self) -> Vec<StepKind> {
        match self {
            Self::One(step) => vec![step],
            Self::Usual => usual_steps().to_vec(),
        }
    }
}

/// The decode step, and the largest prefill step that the engine prepares.
pub(super) fn usual_steps() -> [StepKind; 2] {
    let tokens = EngineOptions::default().max_chunk;
    [
        StepKind::Decode { rows: 1 },
        StepKind::Prefill {
            tokens,
            sequences: 1,
        },
    ]
}

/// What the backend that would run the plans can do.
pub(super) fn caps() -> Caps {
    let options = CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
    };
    CpuBackend::new(options).caps()
}

/// A plan and what it costs.
#[derive(Debug)]
pub(super) struct PricedPlan {
    plan: Plan,
    load: Load,
    cost: Cost,
    pub(super) arena_bytes: u64,
}

impl PricedPlan {
    /// Emits, fuses and prices a step for sequences of up to `context` tokens.
    pub(super) fn new(
        inventory: &Inventory,
        step: StepKind,
        context: usize,
    ) -> Result<Self, Failure> {
        let block_size = EngineOptions::default().block_size;
        let geometry = CacheGeometry {
            block_size,
            max_blocks: context.div_ceil(block_size),
        };
        let request = EmitRequest {
            world_size: inventory.world_size(),
            sequence_slots: step.sequences(),
            ..EmitRequest::new(step, geometry)
        };
        let mut plan = emit(inventory, &request)
            .map_err(|error| Failure::new(Exit::BadData, error.to_string()))?;
        fuse(&mut plan, &caps().patterns);
        let load = match step {
            StepKind::Decode { rows } => Load {
                rows,
                outputs: rows,
                sequences: rows,
                context,
            },
            // From an empty cache: the first row sees one position, the last one all.
            StepKind::Prefill { tokens, sequences } => Load {
                rows: tokens,
                outputs: sequences,
                sequences,
                context: tokens.div_ceil(2),
            },
        };
        let cost = plan_cost(&plan, &load);
        let arena_bytes = arrange(&plan).arena_bytes as u64;
        Ok(Self {
            plan,
            load,
            cost,
            arena_bytes,
        })
    }

    /// The plan as it reads, then a sentence about its cost.
    pub(super) fn print(&self) -> String {
        let size = |bytes: f64| units::bytes(bytes as u64);
        let Cost {
            weight_bytes,
            state_bytes,
            activation_bytes,
            flops,
            ..
        } = self.cost;
        format!(
            "{}cost of one step of {} rows that see {} positions each: weights {}, cache {}, activations {}; {} FLOP; arena {}\n",
            self.plan,
            self.load.rows,
            self.load.context,
            size(weight_bytes),
            size(state_bytes),
            size(activation_bytes),
            units::count(flops as u64),
            units::bytes(self.arena_bytes),
        )
    }

    pub(super) fn to_json(&self) -> Json {
        json!({
            "name": self.plan.name,
            "step": self.plan.step.to_string(),
            "ops": self.plan.ops.len(),
            "arena_bytes": self.arena_bytes,
            "cost": {
                "rows": self.load.rows,
                "context": self.load.context,
                "weight_bytes": self.cost.weight_bytes,
                "state_bytes": self.cost.state_bytes,
                "activation_bytes": self.cost.activation_bytes,
                "flops": self.cost.flops,
            },
            "text": self.plan.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_chosen_by_kind_and_size() {
        assert_eq!("".parse(), Ok(PlanChoice::Usual));
        assert_eq!(
            "decode:8".parse(),
            Ok(PlanChoice::One(StepKind::Decode { rows: 8 }))
        );
        assert_eq!(
            "prefill:64".parse(),
            Ok(PlanChoice::One(StepKind::Prefill {
                tokens: 64,
                sequences: 1
            }))
        );
        for wrong in [
            "decode",
            "decode:0",
            "decode:x",
            "verify:1",
            "prefill:99999999",
        ] {
            assert!(wrong.parse::<PlanChoice>().is_err(), "{wrong}");
        }
    }
}
