//! Weight layout: which weights one kernel reads together.
//!
//! A backend may interleave the weights of a group in memory. The groups are chosen once for a model, from all its plans and
//! before load, so that each weight is resident once and every plan finds it in the same place.

use std::collections::HashMap;

use thiserror::Error;

use crate::buffer::BufferKind;
use crate::op::Op;
use crate::plan::Plan;

/// Weights that are laid out together, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightGroup {
    /// Names; every weight of a model's plans is in exactly one group.
    pub names: Vec<String>,
    /// Bytes of each, as stored.
    pub bytes: Vec<usize>,
}

/// Two plans want one weight in different company.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "plan {plan} reads {weight} together with {found:?}, but another plan reads it together with {expected:?}: a weight is resident once"
)]
pub struct GroupError {
    /// Plan.
    pub plan: String,
    /// Weight.
    pub weight: String,
    /// Its company in this plan.
    pub found: Vec<String>,
    /// Its company in an earlier one.
    pub expected: Vec<String>,
}

/// The weights that one operation reads as a group.
fn group_of(op: &Op) -> Option<Vec<crate::BufferId>> {
    match op {
        Op::Linear { weights, .. } if weights.len() > 1 => Some(weights.clone()),
        Op::ExpertFfn { gate, up, .. } => Some(vec![*gate, *up]),
        _ => None,
    }
}

/// Groups of all weights that the plans read, in order of first use. A weight that one plan reads in a group and another alone
/// (the tied embedding, say) is laid out for the group.
///
/// # Errors
/// If two plans put a weight into different groups.
pub fn weight_groups<'a>(
    plans: impl IntoIterator<Item = &'a Plan>,
) -> Result<Vec<WeightGroup>, GroupError> {
    let plans: Vec<&Plan> = plans.into_iter().collect();
    let mut company: HashMap<String, Vec<String>> = HashMap::new();
    for plan in &plans {
        for ids in plan
            .ops
            .iter()
            .flat_map(|node| node.op.parts())
            .filter_map(group_of)
        {
            let names: Vec<String> = ids.iter().map(|id| plan.buffer(*id).name.clone()).collect();
            for name in &names {
                match company.get(name) {
                    Some(expected) if *expected != names => {
                        return Err(GroupError {
                            plan: plan.name.clone(),
                            weight: name.clone(),
                            found: names.clone(),
                            expected: expected.clone(),
                        });
                    }
                    Some(_) => {}
                    None => {
                        company.insert(name.clone(), names.clone());
                    }
                }
            }
        }
    }
    let weights = plans
        .iter()
        .flat_map(|plan| plan.buffers_where(|k| *k == BufferKind::Weight));
    let sizes: HashMap<&str, usize> = weights.map(|(_, b)| (b.name.as_str(), b.bytes())).collect();
    let mut groups: Vec<WeightGroup> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for plan in plans {
        for (_, b) in plan.buffers_where(|k| *k == BufferKind::Weight) {
            if seen.contains(&b.name) {
                continue;
            }
            let names = company
                .get(&b.name)
                .cloned()
                .unwrap_or_else(|| vec![b.name.clone()]);
            seen.extend(names.iter().cloned());
            let stored = |name: &String| sizes.get(name.as_str()).copied().unwrap_or(0);
            let bytes = names.iter().map(stored).collect();
            groups.push(WeightGroup { names, bytes });
        }
    }
    Ok(groups)
}
