//! The feed-forward part of a layer: a dense SwiGLU, or routed experts plus a shared one.

use glim_plan::{BufferId, Op, Precision, RouterSpec, Scoring};

use super::Emitter;
use crate::arch::EmitError;
use crate::catalogue::Role;

/// `silu(gate x) ⊙ up x`, on the way to `down`.
fn swiglu(
    e: &mut Emitter<'_>,
    x: BufferId,
    [gate, up, down]: [Role; 3],
) -> Result<BufferId, EmitError> {
    let inner = e.local(gate, 0)?;
    let outs = e.linear(x, &[(gate, &[inner]), (up, &[inner])], Precision::Fast)?;
    let what = down
        .gguf_suffix()
        .trim_end_matches(".weight")
        .replace("down", "swiglu");
    let out = e.temp(&format!("{what}.out"), &[inner]);
    e.op(
        &what,
        Op::SwiGlu {
            gate: outs[0],
            up: outs[1],
            out,
        },
    );
    Ok(out)
}

/// The dense MLP, of a rank its addend.
pub(crate) fn dense(e: &mut Emitter<'_>, x: BufferId) -> Result<BufferId, EmitError> {
    let inner = swiglu(e, x, [Role::FfnGate, Role::FfnUp, Role::FfnDown])?;
    e.linear1(inner, Role::FfnDown, &[e.config().hidden_size])
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
        _ => Some(swiglu(
            e,
            x,
            [Role::FfnGateShexp, Role::FfnUpShexp, Role::FfnDownShexp],
        )?),
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

    let shared = shared.map(|inner| e.linear1(inner, Role::FfnDownShexp, &[c.hidden_size]));
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
