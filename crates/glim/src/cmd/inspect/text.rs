//! The report of `inspect` for people.

use glim_engine::Budget;
use serde_json::Value as Json;

use super::facts::{Architecture, TokenizerFacts};
use super::report::{Report, Tensor};
use crate::units;

/// Characters of a metadata value that are shown.
const MAX_VALUE_CHARS: usize = 88;

pub(super) fn page(report: &Report, tensors: bool) -> String {
    let mut out = head(report);
    section(
        &mut out,
        "Metadata",
        &report
            .metadata
            .iter()
            .map(|(k, _, text)| metadata_line(k, text))
            .collect::<Vec<_>>(),
    );
    if let Some(architecture) = &report.architecture {
        out += &hyper_parameters(architecture);
    }
    section(&mut out, "Types", &types(report));
    if let Some(architecture) = &report.architecture {
        section(&mut out, "Cache, for each token", &cache(architecture));
        let memory = &architecture.memory;
        section(
            &mut out,
            &format!(
                "Memory at a context of {} tokens, on the CPU",
                memory.context
            ),
            &memory_lines(architecture),
        );
    }
    if let Some(tokenizer) = &report.tokenizer {
        section(&mut out, "Tokenizer", &tokenizer_lines(tokenizer));
    }
    if tensors {
        section(
            &mut out,
            "Tensors (row-major shape, slowest first; then ggml's ne, fastest first)",
            &tensor_lines(&report.tensors),
        );
    }
    if report.architecture.is_some() {
        let none = ["none".to_owned()];
        section(
            &mut out,
            "Oddities",
            if report.oddities.is_empty() {
                &none
            } else {
                &report.oddities
            },
        );
    }
    for plan in &report.plans {
        out += "\n";
        out += &plan.print();
    }
    out
}

fn section(out: &mut String, title: &str, lines: &[String]) {
    *out += &format!("\n{title}\n");
    for line in lines {
        *out += &format!("  {line}\n");
    }
}

fn head(report: &Report) -> String {
    let mut out = format!("{}\n", report.model);
    let mut line = |name: &str, value: String| out += &format!("  {name:<14}{value}\n");
    let n = report.files.len();
    let files = if n == 1 {
        "1 file".to_owned()
    } else {
        format!("{n} files")
    };
    line(
        "format",
        format!(
            "{}, {files}, {}",
            report.format,
            units::bytes(report.file_bytes())
        ),
    );
    line(
        "tensors",
        format!(
            "{}, {} parameters",
            report.tensors.len(),
            units::count(report.params())
        ),
    );
    if let Some(a) = &report.architecture {
        line("architecture", a.config.arch.clone());
        line(
            "parameters",
            format!(
                "trunk {}, MTP {}; a token reads {}",
                units::count(a.params_trunk),
                units::count(a.params_mtp),
                units::count(a.params_active)
            ),
        );
    }
    out
}

fn metadata_line(key: &str, text: &str) -> String {
    let length = text.chars().count();
    if length <= MAX_VALUE_CHARS {
        return format!("{key} = {text}");
    }
    let start: String = text.chars().take(MAX_VALUE_CHARS).collect();
    format!("{key} = {start}… ({length} characters)")
}

fn hyper_parameters(architecture: &Architecture) -> String {
    let mut out = String::new();
    let plain = |value: &Json| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let lines: Vec<String> = architecture
        .hyper_parameters()
        .iter()
        .map(|(name, value)| format!("{name:<24}{}", plain(value)))
        .collect();
    section(&mut out, "Hyper-parameters", &lines);
    out
}

fn types(report: &Report) -> Vec<String> {
    let all = report.tensors.iter().map(|t| t.bytes).sum::<u64>().max(1);
    let line = |(name, share): &(&str, super::report::TypeShare)| {
        let percent = 100.0 * share.bytes as f64 / all as f64;
        let note = if share.can_decode {
            ""
        } else {
            "  cannot be decoded yet: `glim run` will refuse the file"
        };
        format!(
            "{:<8}{:>6} tensors {:>15} parameters {:>12} {percent:>5.1} %{note}",
            name,
            share.tensors,
            units::count(share.params),
            units::bytes(share.bytes)
        )
    };
    report.types().iter().map(line).collect()
}

fn cache(architecture: &Architecture) -> Vec<String> {
    let (cache, (full, _)) = (&architecture.cache, architecture.indexer_layers());
    let layers = architecture.config.n_layers;
    vec![
        format!(
            "latent       {:>12}  ({layers} layers, f32)",
            units::bytes(cache.latent)
        ),
        format!(
            "index keys   {:>12}  ({full} layers with an indexer of their own, f32)",
            units::bytes(cache.index_key)
        ),
        format!("total        {:>12}", units::bytes(cache.total())),
    ]
}

/// Of one rank a line for each class, of several a line for each rank.
fn memory_lines(architecture: &Architecture) -> Vec<String> {
    let memory = &architecture.memory;
    let mut lines = match memory.ranks.as_slice() {
        [budget] => vec![
            format!(
                "weights      {:>12}  as stored",
                units::bytes(budget.weights)
            ),
            format!(
                "cache        {:>12}",
                units::bytes(budget.latent_cache + budget.index_cache)
            ),
            format!("activations  {:>12}", units::bytes(budget.arena)),
            format!("total        {:>12}", units::bytes(budget.total())),
        ],
        ranks => {
            let head = format!(
                "{:<8}{:>12}{:>14}{:>14}{:>14}{:>12}",
                "rank", "weights", "latents", "index keys", "activations", "total"
            );
            let line = |(rank, budget): (usize, &Budget)| {
                format!(
                    "{rank:<8}{:>12}{:>14}{:>14}{:>14}{:>12}",
                    units::bytes(budget.weights),
                    units::bytes(budget.latent_cache),
                    units::bytes(budget.index_cache),
                    units::bytes(budget.arena),
                    units::bytes(budget.total())
                )
            };
            let mut lines = vec![head];
            lines.extend(ranks.iter().enumerate().map(line));
            lines
        }
    };
    if let Some((bytes, context)) = memory.fits {
        let each = if memory.ranks.len() > 1 {
            " on each rank"
        } else {
            ""
        };
        let bytes = units::bytes(bytes);
        lines.push(match context {
            Some(context) => format!("{bytes}{each} hold a context of {context} tokens"),
            None => format!("{bytes}{each} do not hold the weights and one block of cache"),
        });
    }
    lines
}

fn tokenizer_lines(tokenizer: &TokenizerFacts) -> Vec<String> {
    let stop: Vec<String> = tokenizer
        .stop
        .iter()
        .map(|(id, text)| format!("{text} ({id})"))
        .collect();
    vec![
        format!(
            "vocabulary   {} tokens, pre-tokenizer {}",
            tokenizer.vocab_size, tokenizer.pre
        ),
        format!(
            "stops at     {}",
            if stop.is_empty() {
                "nothing: no end token is named".to_owned()
            } else {
                stop.join(", ")
            }
        ),
        match &tokenizer.template {
            Some((chars, sha256)) => format!("template     {chars} characters, SHA-256 {sha256}…"),
            None => "template     none".to_owned(),
        },
    ]
}

fn tensor_lines(tensors: &[Tensor]) -> Vec<String> {
    let list = |dims: &[u64]| {
        format!(
            "[{}]",
            dims.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        )
    };
    let name_width = tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    let line = |t: &Tensor| {
        let (shape, dims) = (list(&t.shape()), list(&t.ggml_dims));
        format!(
            "{:<name_width$}  {:<8}{shape:<20}{dims:<20}{:>11}",
            t.name,
            t.type_name,
            units::bytes(t.bytes)
        )
    };
    tensors.iter().map(line).collect()
}
