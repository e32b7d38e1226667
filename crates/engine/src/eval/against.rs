//! Comparison of a model with a [`Reference`], prompt by prompt, through the steps that serve it.

use std::ops::ControlFlow;

use glim_model::config::IndexerKind;
use glim_model::{Config, names};

use super::distance::{PromptReport, arg_max, kl, max_abs_diff, relative};
use super::reference::{PromptReference, Reference};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::GenerateRequest;
use crate::trace::{ForcedChoices, Trace, Tracer};

/// Index choices are compared where the last chosen score is ahead of the next one by more than this: below it, another order
/// of summation may swap the two. A choice that the reference made in a near-tie must lie within it.
const INDEX_MARGIN: f32 = 1e-4;

/// Compares the model with a reference.
///
/// # Errors
/// If the reference has other shapes than the model, or a step fails.
pub fn against(
    engine: &mut Engine,
    reference: &Reference,
) -> Result<Vec<PromptReport>, EngineError> {
    let config = engine.inventory().config().clone();
    let mut tracer = Tracer::new(engine, taps(&config), true)?;
    reference
        .prompts
        .iter()
        .map(|p| compare(engine, &mut tracer, &config, p))
        .collect()
}

fn full_layers(config: &Config) -> Vec<usize> {
    let full = |l: &usize| config.indexer.kinds.get(*l) == Some(&IndexerKind::Full);
    (0..config.n_layers).filter(full).collect()
}

fn moe_layers(config: &Config) -> Vec<usize> {
    (0..config.n_layers).filter(|l| config.is_moe(*l)).collect()
}

fn taps(config: &Config) -> Vec<String> {
    let mut taps = [names::LOGITS, names::EMBEDDING, names::FINAL_NORM]
        .map(str::to_owned)
        .to_vec();
    taps.extend((0..config.n_layers).map(names::layer_out));
    for layer in moe_layers(config) {
        taps.extend([names::router_ids(layer), names::router_weights(layer)]);
    }
    for layer in full_layers(config) {
        taps.extend([names::index_scores(layer), names::index_topk(layer)]);
    }
    taps
}

fn compare(
    engine: &mut Engine,
    tracer: &mut Tracer,
    config: &Config,
    prompt: &PromptReference,
) -> Result<PromptReport, EngineError> {
    let full = full_layers(config);
    let forced = prompt.near_ties(full.len(), config.indexer.topk)?;
    // Near-ties are anywhere in the prompt; all else is about its last rows.
    let scores: Vec<String> = full.iter().map(|l| names::index_scores(*l)).collect();
    let keep = |tap: &str| match scores.iter().any(|s| s == tap) {
        true if !forced.is_empty() => prompt.input_ids.len(),
        _ => prompt.rows(),
    };
    let trace = tracer.run(engine, &prompt.input_ids, keep, &forced, |_, _, _| {})?;
    let report = PromptReport::perfect(&prompt.name);
    let mut c = Comparison {
        config,
        prompt,
        trace: &trace,
        report,
    };
    c.logits()?;
    c.hidden()?;
    c.router()?;
    c.index(&full)?;
    c.near_ties(&full, &forced)?;
    c.greedy(engine)?;
    Ok(c.report)
}

/// A comparison under way: the trace, and the prompt it is held against.
struct Comparison<'a> {
    config: &'a Config,
    prompt: &'a PromptReference,
    trace: &'a Trace,
    report: PromptReport,
}

impl Comparison<'_> {
    /// The last `rows` traced rows of an f32 buffer.
    fn f32s(&self, buffer: &str, rows: usize) -> Result<&[f32], EngineError> {
        let found = self.trace.get(buffer).and_then(|t| {
            let start = t.f32s.len().checked_sub(rows * t.width)?;
            Some(&t.f32s[start..])
        });
        found.ok_or_else(|| self.too_few(buffer, rows))
    }

    /// The last `rows` traced rows of an i32 buffer.
    fn i32s(&self, buffer: &str, rows: usize) -> Result<&[i32], EngineError> {
        let found = self.trace.get(buffer).and_then(|t| {
            let start = t.i32s.len().checked_sub(rows * t.width)?;
            Some(&t.i32s[start..])
        });
        found.ok_or_else(|| self.too_few(buffer, rows))
    }

    fn too_few(&self, buffer: &str, rows: usize) -> EngineError {
        EngineError::BadReference {
            name: self.prompt.name.clone(),
            reason: format!("it has {rows} rows of {buffer}, the prompt has fewer"),
        }
    }

    fn note(&mut self, text: String) {
        self.report.first_diffs.push(text);
    }

    fn logits(&mut self) -> Result<(), EngineError> {
        let vocab = self.config.vocab_size;
        let Some(expected) = self.prompt.array("logits", &[0, vocab])? else {
            return Ok(());
        };
        let rows = expected.shape[0];
        let found = self.f32s(names::LOGITS, rows)?;
        let (mut total_kl, mut same) = (0.0, 0);
        for (r, m) in expected
            .f32s
            .chunks_exact(vocab)
            .zip(found.chunks_exact(vocab))
        {
            total_kl += kl(r, m);
            same += usize::from(arg_max(r) == arg_max(m));
        }
        let (diff, at) = max_abs_diff(found, &expected.f32s);
        let text = format!(
            "logits: largest difference at row {} of the last {rows}, token {}: {}, expected {}",
            at / vocab,
            at % vocab,
            found[at],
            expected.f32s[at]
        );
        self.report.max_abs_logit_diff = diff;
        self.report.mean_kl = total_kl / rows as f64;
        self.report.top1_agreement = same as f64 / rows as f64;
        self.note(text);
        Ok(())
    }

    fn hidden(&mut self) -> Result<(), EngineError> {
        let (d, layers) = (self.config.hidden_size, self.config.n_layers);
        let mut worst = (0.0, String::new());
        let mut hold = |found: &[f32], expected: &[f32], buffer: &str, rows: usize| {
            for (r, (m, e)) in found
                .chunks_exact(d)
                .zip(expected.chunks_exact(d))
                .enumerate()
            {
                let rel = relative(m, e);
                if rel > worst.0 || rel.is_nan() {
                    worst = (rel, format!("{buffer}, row {r} of the last {rows}"));
                }
            }
        };
        if let Some(expected) = self.prompt.array("hidden", &[layers + 1, 0, d])? {
            let rows = expected.shape[1];
            for (i, layer) in expected.f32s.chunks_exact((rows * d).max(1)).enumerate() {
                let buffer = match i.checked_sub(1) {
                    None => names::EMBEDDING.to_owned(),
                    Some(layer) => names::layer_out(layer),
                };
                hold(self.f32s(&buffer, rows)?, layer, &buffer, rows);
            }
        }
        if let Some(expected) = self.prompt.array("final_norm", &[0, d])? {
            let rows = expected.shape[0];
            let found = self.f32s(names::FINAL_NORM, rows)?;
            hold(found, &expected.f32s, names::FINAL_NORM, rows);
        }
        self.report.hidden_max_rel = worst.0;
        if !worst.1.is_empty() {
            self.note(format!("hidden: largest difference in {}", worst.1));
        }
        Ok(())
    }

    fn router(&mut self) -> Result<(), EngineError> {
        let layers = moe_layers(self.config);
        let k = self.config.moe.num_experts_per_tok;
        let shape = [layers.len(), 0, k];
        let Some(ids) = self.prompt.array("experts", &shape)? else {
            return Ok(());
        };
        let weights = self.prompt.array("expert_weights", &shape)?;
        let rows = ids.shape[1];
        for (i, layer) in layers.iter().enumerate() {
            let found = self.i32s(&names::router_ids(*layer), rows)?;
            let expected = &ids.i32s[i * rows * k..][..rows * k];
            if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
                let row = at / k;
                let text = format!(
                    "router: layer {layer}, row {row} of the last {rows}: experts {:?}, expected {:?}",
                    &found[row * k..][..k],
                    &expected[row * k..][..k]
                );
                if self.report.router_match {
                    self.note(text);
                }
                self.report.router_match = false;
            } else if let Some(weights) = weights {
                let found = self.f32s(&names::router_weights(*layer), rows)?;
                let rel = relative(found, &weights.f32s[i * rows * k..][..rows * k]);
                if rel > self.report.expert_weight_max_rel || rel.is_nan() {
                    self.report.expert_weight_max_rel = rel;
                }
            }
        }
        Ok(())
    }

    fn index(&mut self, full: &[usize]) -> Result<(), EngineError> {
        let Some(expected) = self.prompt.array("indexer_topk", &[full.len(), 0, 0])? else {
            return Ok(());
        };
        let (rows, width) = (expected.shape[1], expected.shape[2]);
        let first = self.prompt.input_ids.len().saturating_sub(rows);
        for (i, layer) in full.iter().enumerate() {
            let chosen = self.i32s(&names::index_topk(*layer), rows)?.to_vec();
            for (r, row) in chosen.chunks_exact(self.config.indexer.topk).enumerate() {
                let visible = self.visible_scores(*layer, first + r)?;
                if margin(visible, self.config.indexer.topk).is_some_and(|m| m <= INDEX_MARGIN) {
                    self.report.index_rows_close += 1;
                    continue;
                }
                self.report.index_rows_compared += 1;
                let real = |row: &[i32]| row.iter().copied().filter(|s| *s >= 0).collect();
                let found: Vec<i32> = real(row);
                let wanted: Vec<i32> = real(&expected.i32s[(i * rows + r) * width..][..width]);
                if found != wanted {
                    let only = |a: &[i32], b: &[i32]| -> Vec<i32> {
                        a.iter()
                            .copied()
                            .filter(|s| !b.contains(s))
                            .take(4)
                            .collect()
                    };
                    let (surplus, lacking) = (only(&found, &wanted), only(&wanted, &found));
                    self.index_diff(format!(
                        "layer {layer}, position {}: chose {surplus:?} instead of {lacking:?}",
                        first + r
                    ));
                }
            }
        }
        Ok(())
    }

    /// Each choice that the reference made in a near-tie must be one by this model's scores: nothing left out is ahead of
    /// anything chosen by more than the margin.
    fn near_ties(&mut self, full: &[usize], forced: &ForcedChoices) -> Result<(), EngineError> {
        for ((i, position), choice) in forced {
            let visible = self.visible_scores(full[*i], *position)?;
            let mut inside = vec![false; visible.len()];
            let ascending = choice.windows(2).all(|w| w[0] < w[1]);
            let known = choice.iter().all(|s| {
                let slot = usize::try_from(*s).ok().and_then(|s| inside.get_mut(s));
                slot.map(|s| *s = true).is_some()
            });
            let worst = |chosen: bool| {
                visible
                    .iter()
                    .zip(&inside)
                    .filter(move |(_, c)| **c == chosen)
                    .map(|(s, _)| *s)
            };
            let lowest = worst(true).fold(f32::INFINITY, f32::min);
            let highest = worst(false).fold(f32::NEG_INFINITY, f32::max);
            // Not `>`: NaN must fail.
            let close = highest - lowest <= INDEX_MARGIN;
            if !(ascending && known && close) {
                self.index_diff(format!(
                    "layer {}, position {position}: the reference's choice is no near-tie: it leaves out a score of {highest} and takes one of {lowest}",
                    full[*i]
                ));
            }
            self.report.near_ties += 1;
        }
        Ok(())
    }

    fn index_diff(&mut self, text: String) {
        if self.report.index_topk_match {
            self.note(format!("index_topk: {text}"));
        }
        self.report.index_topk_match = false;
    }

    /// Index scores of a row, up to its own position.
    fn visible_scores(&self, layer: usize, position: usize) -> Result<&[f32], EngineError> {
        let buffer = names::index_scores(layer);
        let rows = self.prompt.input_ids.len().saturating_sub(position);
        let scores = self.f32s(&buffer, rows)?;
        scores
            .get(..=position)
            .ok_or_else(|| self.too_few(&buffer, rows))
    }

    fn greedy(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let Some(expected) = self.prompt.array("greedy", &[0])? else {
            return Ok(());
        };
        let mut request = GenerateRequest::new(self.prompt.input_ids.clone());
        request.max_tokens = Some(expected.i32s.len());
        let out = engine.generate(&request, |_| ControlFlow::Continue(()))?;
        let found: Vec<i32> = out.tokens.iter().map(|t| t.0 as i32).collect();
        let same = found
            .iter()
            .zip(&expected.i32s)
            .take_while(|(a, b)| a == b)
            .count();
        if let Some(wanted) = expected.i32s.get(same) {
            let text = format!(
                "greedy: token {same} is {:?}, expected {wanted}",
                found.get(same)
            );
            self.report.greedy_match = false;
            self.report.greedy_first_diff = Some(same);
            self.note(text);
        }
        Ok(())
    }
}

/// How far the last chosen score is ahead of the first that was not chosen; `None` if all are chosen.
fn margin(visible: &[f32], topk: usize) -> Option<f32> {
    if visible.len() <= topk {
        return None;
    }
    let mut sorted = visible.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    Some(sorted[topk - 1] - sorted[topk])
}
