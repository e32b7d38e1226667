//! The feed-forward part of a layer: a dense SwiGLU, or routed experts plus a shared one.

use glim_plan::{BufferId, Op, Precision, RouterSpec, Scoring};

use super::Emitter;
use crate::arch::EmitError;
use crate::catalogue::Role;

/// `gate x` and `up x`.
fn gate_and_up(
    e: &mut Emitter<'_>,
    x: BufferId,
    [gate, up]: [Role; 2],
) -> Result<Vec<BufferId>, EmitError> {
    let inner = e.local(gate, 0)?;
    e.linear(x, &[(gate, &[inner]), (up, &[inner])], Precision::Fast)
}

/// `down (silu(gate) ⊙ up)` of these two.
fn gated_down(
    e: &mut Emitter<'_>,
    gate_and_up: &[BufferId],
    [gate, down]: [Role; 2],
) -> Result<BufferId, EmitError> {
    let inner = e.local(gate, 0)?;
    let what = down
        .gguf_suffix()
        .trim_end_matches(".weight")
        .replace("down", "swiglu");
    let out = e.temp(&format!("{what}.out"), &[inner]);
    e.op(
        &what,
        Op::SwiGlu {
            gate: gate_and_up[0],
            up: gate_and_up[1],
            out,
        },
    );
    e.linear1(out, down, &[e.config().hidden_size])
}

/// The dense MLP, of a rank its addend.
pub(crate) fn dense(e: &mut Emitter<'_>, x: BufferId) -> Result<BufferId, EmitError> {
    let both = gate_and_up(e, x, [Role::FfnGate, Role::FfnUp])?;
    gated_down(e, &both, [Role::FfnGate, Role::FfnDown])
}

/// Routed experts, weighted, plus the shared expert, which is neither gated nor scaled. The router is whole on each rank, and
/// sees the same bits on each; a rank's addends of both kinds of experts are summed before they meet the others'.
///
/// The shared expert's operations stand around the router, and before the routed experts: neither needs the other, and on a GPU
/// neighbours that do not can overlap.
pub(crate) fn moe(e: &mut Emitter<'_>, x: BufferId) -> Result<BufferId, EmitError> {
    let c = e.config().clone();
    let m = &c.moe;
    let spec = RouterSpec {
        k: m.num_experts_per_tok,
        scoring: m.scoring,
        n_group: m.n_group,
        topk_group: m.topk_group,
        norm: m.norm_topk_prob,
        scale: m.routed_scaling_factor,
    };
    let shared = match m.n_shared_experts {
        0 => None,
        _ => Some(gate_and_up(e, x, [Role::FfnGateShexp, Role::FfnUpShexp])?),
    };

    let weight = e.weight(Role::FfnGateInp)?;
    let bias = match m.scoring {
        Scoring::Sigmoid => Some(e.weight(Role::ExpProbsB)?),
        Scoring::Softmax => None,
    };
    let ids = e.temp_i32("router.ids", spec.k);
    let expert_weights = e.temp("router.weights", &[spec.k]);
    e.op(
        "router",
        Op::Route {
            x,
            weight,
            bias,
            spec,
            ids,
            expert_weights,
        },
    );

    let shared = shared.map(|both| gated_down(e, &both, [Role::FfnGateShexp, Role::FfnDownShexp]));
    let shared = shared.transpose()?;

    let (gate, up) = (e.weight(Role::FfnGateExps)?, e.weight(Role::FfnUpExps)?);
    let down = e.weight(Role::FfnDownExps)?;
    let routed = e.temp("experts.out", &[c.hidden_size]);
    e.op(
        "experts",
        Op::ExpertFfn {
            x,
            ids,
            expert_weights,
            gate,
            up,
            down,
            out: routed,
        },
    );

    match shared {
        Some(shared) => Ok(e.add("ffn_moe", routed, shared)),
        None => Ok(routed),
    }
}
