//! Vectors whose values have a look of their own: norms around a common level, and a router bias that is all digits.
//!
//! Nothing here fails a file: what a norm's weights should be, only the original can say. But a norm that stands far off its
//! neighbours, and a bias without low digits, are what the two commonest slips look like, and the report remarks on them.

use glim_quant::{GgmlType, dequantize};

use super::report::{Check, Level, Timer};
use super::stored::{StoredTensor, descs};
use super::words::counted;
use crate::catalogue::Role;
use crate::checkpoint::{Checkpoint, TensorDesc};

/// Means of a norm move slowly from layer to layer; one that is further than this from half-way between its neighbours' stands out.
/// A converter's usual slip is an offset of 1, of which a neighbour sees half.
const STANDS_OUT: f64 = 0.75;
/// Where all layers jump, a layer stands out only if it is this many times further off than the middle one of all.
const TIMES_THE_MEDIAN: f64 = 2.0;
/// Remarks of one kind that are spelled out.
const MAX_REMARKS: usize = 3;

const NORMS: [Role; 9] = [
    Role::AttnNorm,
    Role::FfnNorm,
    Role::AttnQANorm,
    Role::AttnKvANorm,
    Role::IndexerKNormWeight,
    Role::OutputNorm,
    Role::NextnEnorm,
    Role::NextnHnorm,
    Role::NextnSharedHeadNorm,
];

pub(super) fn check(checkpoint: &Checkpoint, tensors: &[StoredTensor<'_>]) -> Check {
    let timer = Timer::start(Level::File, "vectors");
    let all = || descs(checkpoint);
    let is_there = |desc: &TensorDesc| {
        let stored = desc.stored().iter().filter_map(|&index| tensors.get(index));
        stored.clone().count() > 0 && stored.into_iter().all(|tensor| !tensor.extents.is_empty())
    };
    let (mut norms, mut biases) = (0, 0);
    let (mut remarks, mut low, mut high) = (Vec::new(), f64::INFINITY, f64::NEG_INFINITY);
    for role in NORMS {
        let stats: Vec<(&str, Stats)> = all()
            .filter(|desc| desc.role == role && is_there(desc))
            .filter_map(|desc| Some((desc.name.as_str(), Stats::of(&values(checkpoint, desc)?))))
            .collect();
        norms += stats.len();
        for (_, stats) in &stats {
            (low, high) = (low.min(stats.min), high.max(stats.max));
        }
        // An MTP block is no neighbour of the last layer.
        let trunk =
            (checkpoint.tensors().iter()).filter(|desc| desc.role == role && is_there(desc));
        remarks.extend(outliers(&stats[..trunk.count().min(stats.len())]));
    }
    for desc in all().filter(|desc| desc.role == Role::ExpProbsB && is_there(desc)) {
        biases += 1;
        if desc.ty == GgmlType::F32 {
            remarks.extend(values(checkpoint, desc).and_then(|bias| rounded(&desc.name, &bias)));
        }
    }
    let covered = format!(
        "{}, {}",
        counted(norms, "norm"),
        counted(biases, "router bias vector")
    );
    let mut detail = match norms {
        0 => "no norm is there".to_owned(),
        _ => format!("norm weights from {low:.4} to {high:.4}"),
    };
    let more = remarks.len().saturating_sub(MAX_REMARKS);
    for remark in remarks.iter().take(MAX_REMARKS) {
        detail.push_str("; remark: ");
        detail.push_str(remark);
    }
    if more > 0 {
        detail.push_str(&format!("; and {}", counted(more, "further remark")));
    }
    timer.passed(covered, 0, detail)
}

fn values(checkpoint: &Checkpoint, desc: &TensorDesc) -> Option<Vec<f32>> {
    let bytes = checkpoint.data(desc).ok()?;
    let mut values = vec![0.0; desc.elements()];
    dequantize(desc.ty, &bytes, &mut values).ok()?;
    Some(values)
}

struct Stats {
    min: f64,
    max: f64,
    mean: f64,
}

impl Stats {
    fn of(values: &[f32]) -> Self {
        let values = values.iter().map(|&x| f64::from(x));
        Stats {
            min: values.clone().fold(f64::INFINITY, f64::min),
            max: values.clone().fold(f64::NEG_INFINITY, f64::max),
            mean: values.clone().sum::<f64>() / (values.len().max(1) as f64),
        }
    }
}

/// Norms of one role, in the order of layers, whose mean is far from what the layers before and after suggest.
fn outliers(norms: &[(&str, Stats)]) -> Vec<String> {
    let mean = |i: usize| norms.get(i).map(|(_, stats)| stats.mean);
    let suggested = |i: usize| match (i.checked_sub(1).and_then(mean), mean(i + 1)) {
        (Some(before), Some(after)) => Some((before + after) / 2.0),
        (before, after) => before.or(after),
    };
    let distances: Vec<f64> = (norms.iter().enumerate())
        .filter_map(|(i, (_, stats))| Some((stats.mean - suggested(i)?).abs()))
        .collect();
    // Of two layers nobody can say which one is wrong.
    if distances.len() < 3 {
        return Vec::new();
    }
    let mut sorted = distances.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let limit = STANDS_OUT.max(TIMES_THE_MEDIAN * sorted[(sorted.len() - 1) / 2]);
    let far = norms.iter().zip(&distances).enumerate();
    far.filter(|(_, (_, distance))| **distance > limit)
        .filter_map(|(i, ((name, stats), _))| {
            Some(format!(
                "the mean of `{name}` is {:.3}, while the layers around it suggest {:.3}",
                stats.mean,
                suggested(i)?
            ))
        })
        .collect()
}

/// A bias in F32 none of whose values has a digit that BF16 has not.
fn rounded(name: &str, bias: &[f32]) -> Option<String> {
    let is_bf16 = |x: &f32| x.to_bits() & 0xffff == 0;
    if !bias.iter().all(is_bf16) || bias.iter().all(|&x| x == 0.0) {
        return None;
    }
    let mut distinct: Vec<u32> = bias.iter().map(|x| x.to_bits()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    Some(format!(
        "`{name}` is F32 and looks rounded to BF16 ({} distinct values of {}): other experts are chosen, unless the original is BF16 \
         too",
        distinct.len(),
        bias.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(means: &[f64]) -> Vec<(&'static str, Stats)> {
        let stats = |&mean: &f64| {
            (
                "n",
                Stats {
                    min: mean,
                    max: mean,
                    mean,
                },
            )
        };
        means.iter().map(stats).collect()
    }

    #[test]
    fn a_norm_that_stands_out_is_remarked_on_and_a_trend_is_not() {
        let remarks = |means: &[f64]| outliers(&norms(means)).len();
        assert_eq!(remarks(&[1.0, 1.1, 2.1, 1.2, 1.0]), 1);
        assert_eq!(remarks(&[1.0, 0.9, -0.05, 1.0, 1.0]), 1);
        // The built-in model's ffn_norm, as it is and with layer 3 shifted.
        assert_eq!(remarks(&[0.532, 0.349, 0.46, 0.688, 0.978, 1.3]), 0);
        assert_eq!(remarks(&[0.532, 0.349, 0.46, 1.688, 0.978, 1.3]), 1);
        assert_eq!(
            remarks(&[1.0, 3.0, 1.2, 2.9, 1.1, 3.2]),
            0,
            "all layers jump"
        );
        assert_eq!(remarks(&[1.0, 2.0]), 0, "which of two?");
    }

    #[test]
    fn a_rounded_bias_is_remarked_on() {
        let bias: Vec<f32> = (0..256).map(|i| 6.8 + i as f32 * 0.001).collect();
        assert_eq!(rounded("b", &bias), None);
        let short: Vec<f32> = (bias.iter())
            .map(|x| f32::from_bits(x.to_bits() & 0xffff_0000))
            .collect();
        let remark = rounded("b", &short).unwrap_or_default();
        assert!(remark.contains("9 distinct values of 256"), "{remark}");
        assert_eq!(rounded("b", &[0.0; 4]), None, "no bias at all");
    }
}
