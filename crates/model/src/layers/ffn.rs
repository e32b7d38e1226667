//! The feed-forward part of a layer: a dense SwiGLU, or routed experts plus a shared one.

use glim_plan::{BufferId, Op, Precision, RouterSpec, Scoring};

use super::Emitter;
use crate::arch::EmitError;
use crate::catalogue::Role;

/// `down(silu(gate x) ⊙ up x)`, of a rank its addend.
pub(crate) fn swiglu(
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
    let hidden = e.config().hidden_size;
    e.linear1(out, down, &[hidden])
}

/// The dense MLP.
pub(crate) fn dense(e: &mut Emitter<'_>, x: BufferId) -> Result<BufferId, EmitError> {
    swiglu(e, x, [Role::FfnGate, Role::FfnUp, Role::FfnDown])
}

/// Routed experts, weighted, plus the shared expert, which is neither gated nor scaled. The router is whole on each rank, and
/// sees the same bits on each; a rank's addends of both kinds of experts are summed before they meet the others'.
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

    if m.n_shared_experts == 0 {
        return Ok(routed);
    }
    let shared = swiglu(
        e,
        x,
        [Role::FfnGateShexp, Role::FfnUpShexp, Role::FfnDownShexp],
    )?;
    Ok(e.add("ffn_moe", routed, shared))
}
