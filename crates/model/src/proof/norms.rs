//! Vectors whose values have a look of their own: norms around a common level, and a router bias that is all digits.
//!
//! Nothing here fails a file: what a norm's weights should be, only the original can say. But a norm that stands far off its
//! neighbours, and a bias without low digits, are what the two commonest slips look like, and the report remarks on them.

use glim_quant::{GgmlType, dequantize};

use super::report::{Check, Level, Timer};
use super::stored::StoredTensor;
use super::words::counted;
use crate::catalogue::Role;
use crate::checkpoint::{Checkpoint, TensorDesc};

/// Layers before and after that a norm is compared with.
const NEIGHBOURS: usize = 3;
/// A norm's mean that is further away from the range of its neighbours' means stands out, unless that range is wider. A converter's
/// usual slip is an offset of 1.
const STANDS_OUT: f64 = 0.5;
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
    let all = || checkpoint.tensors().iter().chain(checkpoint.mtp_tensors());
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
        remarks.extend(outliers(&stats));
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

/// Norms of one role, in the order of layers, whose mean is far from its neighbours'.
fn outliers(norms: &[(&str, Stats)]) -> Vec<String> {
    let mut remarks = Vec::new();
    for (i, (name, stats)) in norms.iter().enumerate() {
        let before = &norms[i.saturating_sub(NEIGHBOURS)..i];
        let after = &norms[i + 1..(i + 1 + NEIGHBOURS).min(norms.len())];
        let means = before.iter().chain(after).map(|(_, stats)| stats.mean);
        // One neighbour would be as much an outlier as this one.
        if means.clone().count() < 2 {
            continue;
        }
        let low = means.clone().fold(f64::INFINITY, f64::min);
        let high = means.fold(f64::NEG_INFINITY, f64::max);
        let slack = STANDS_OUT.max(high - low);
        if stats.mean < low - slack || stats.mean > high + slack {
            remarks.push(format!(
                "the mean of `{name}` is {:.3}, those of the layers around it are {low:.3} to {high:.3}",
                stats.mean
            ));
        }
    }
    remarks
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
        assert_eq!(outliers(&norms(&[1.0, 1.1, 2.1, 1.2, 1.0])).len(), 1);
        assert_eq!(outliers(&norms(&[1.0, 0.9, -0.05, 1.0, 1.0])).len(), 1);
        assert_eq!(
            outliers(&norms(&[0.1, 0.4, 0.8, 1.3, 1.9, 2.6])),
            [] as [&str; 0]
        );
        assert_eq!(
            outliers(&norms(&[1.0, 2.0])),
            [] as [&str; 0],
            "which of two?"
        );
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
