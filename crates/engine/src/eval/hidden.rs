//! The residual stream of a prompt, layer by layer: to be compared with that of another way of computing it.

use glim_model::names;
use glim_text::TokenId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::trace::{ForcedChoices, Tracer};

/// One place of the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct HiddenStates {
    /// Name of the buffer: the embedding, a layer's end, the last norm.
    pub name: String,
    /// `[tokens, hidden]`, row-major.
    pub values: Vec<f32>,
}

/// Runs a prompt through the steps that serve requests; gives the stream after the embedding, after every layer, and after the last
/// norm.
///
/// # Errors
/// If the prompt does not fit, or a step fails.
pub fn hidden_states(
    engine: &mut Engine,
    ids: &[TokenId],
) -> Result<Vec<HiddenStates>, EngineError> {
    let layers = (0..engine.inventory().config().n_layers).map(names::layer_out);
    let places: Vec<String> = std::iter::once(names::EMBEDDING.to_owned())
        .chain(layers)
        .chain([names::FINAL_NORM.to_owned()])
        .collect();
    let mut tracer = Tracer::new(engine, places.clone(), false)?;
    let mut trace = tracer.run(
        engine,
        ids,
        |_| ids.len(),
        &ForcedChoices::new(),
        |_, _, _| {},
    )?;
    let place = |name: String| HiddenStates {
        values: trace.remove(&name).unwrap_or_default().f32s,
        name,
    };
    Ok(places.into_iter().map(place).collect())
}

/// `max |a − b| / max |b|` of a row of `width` values, the largest of all rows.
pub fn relative_difference(a: &[f32], b: &[f32], width: usize) -> f64 {
    let largest = |row: &[f32]| row.iter().fold(0f32, |m, x| m.max(x.abs()));
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    rows.map(|(a, b)| {
        let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        f64::from(largest(&differences)) / f64::from(largest(b)).max(f64::MIN_POSITIVE)
    })
    .fold(0.0, f64::max)
}
